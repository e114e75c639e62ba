"""The only routes that change anything: jobs, their cancellation, signing in; and downloads."""

from __future__ import annotations

import secrets
from html import escape

import msgspec
from flask import Flask, Response, jsonify, make_response, redirect, request
from werkzeug.wrappers import Response as BaseResponse

from advisor.errors import AdvisorError, RefusedError, UnreadableError, UsageError
from advisor.model.base import Record
from advisor.store.jobrecord import MAX_BUDGET_S, JobKind
from dashboard import uploads
from dashboard.access import Access, cookie_value, same
from dashboard.applicable import applicable
from dashboard.jobs import JobRunner
from dashboard.patches import Patches
from dashboard.security import (
    APPLY_COOKIE,
    SESSION_COOKIE,
    VIEW_COOKIE,
    Csrf,
    may_apply,
    may_view,
    set_cookie,
)

PATCH_NAME = "fusion_patch.zip"
_LOGIN_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in - fusion advisor</title><link rel="stylesheet" href="/assets/login.css"></head>
<body><main><h1>fusion advisor</h1><form method="post" action="/login">
<label for="token">View token, or apply token</label>
<input id="token" name="token" type="password" autocomplete="off" autofocus required>
<button>Sign in</button><p role="alert">{message}</p>
<p>The person who started this server has the tokens. Applying runs code on that machine and asks
for its own.</p></form></main></body></html>"""


class JobRequest(Record, frozen=True, kw_only=True):
    """The body of `POST /api/jobs`."""

    run: str
    only: tuple[str, ...] = ()
    budget_s: int | None = None


def install(server: Flask, access: Access, runner: JobRunner) -> None:
    """Add the routes to `server`."""
    csrf = Csrf()

    @server.errorhandler(AdvisorError)
    def refuse(error: AdvisorError) -> tuple[Response, int]:
        body = {"code": error.code, "message": error.line()}
        return jsonify(error=body), _status(error)

    @server.get("/api/csrf")
    def token() -> BaseResponse:
        session = request.cookies.get(SESSION_COOKIE) or secrets.token_urlsafe(32)
        response = make_response(jsonify(token=csrf.token(session)))
        set_cookie(response, SESSION_COOKIE, session)
        return response

    @server.post("/api/jobs")
    def submit() -> tuple[Response, int]:
        _check_change(access, csrf)
        body = _body()
        if body.budget_s is not None and not 0 < body.budget_s <= MAX_BUDGET_S:
            raise UsageError(f"a budget is between 1 and {MAX_BUDGET_S:,} seconds")
        return _start(runner, body.run, "apply", body.only, body.budget_s)

    @server.post("/api/uploads")
    def upload() -> tuple[Response, int]:
        _check_change(access, csrf)
        run = uploads.receive(runner.store, request)
        return jsonify(run=run.id, job=runner.submit(run, "analyze").id), 202

    _install_downloads(server, runner)

    @server.post("/api/runs/<run_id>/plans/<plan_id>/cliff")
    def cliff(run_id: str, plan_id: str) -> tuple[Response, int]:
        _check_change(access, csrf)
        run = runner.store.open(run_id)
        if plan_id not in run.plan_ids():
            raise UnreadableError("the run has no such plan", where=plan_id[:40])
        return jsonify(run=run_id, job=runner.submit(run, "cliff", (plan_id,)).id), 202

    @server.post("/api/runs/<run_id>/revert")
    def revert(run_id: str) -> tuple[Response, int]:
        _check_change(access, csrf)
        return _start(runner, run_id, "revert")

    @server.post("/api/jobs/<run_id>/cancel")
    def cancel(run_id: str) -> tuple[Response, int]:
        _check_change(access, csrf)
        runner.cancel(runner.store.open(run_id))
        return jsonify(run=run_id), 202

    @server.get("/api/jobs/<run_id>")
    def state(run_id: str) -> Response:
        view = runner.view(runner.store.open(run_id))
        if view is None:
            raise UnreadableError("this run never had a job", where=run_id)
        return jsonify(msgspec.to_builtins(view))

    @server.get("/api/<path:rest>")
    def nothing(rest: str) -> Response:
        raise UnreadableError("there is no such route to read", where=f"/api/{rest[:80]}")

    _install_login(server, access)


def _install_downloads(server: Flask, runner: JobRunner) -> None:
    """What may be taken along: generated kernels, and patches."""
    patches = Patches()

    @server.get("/api/runs/<run_id>/patch.zip")
    def patch(run_id: str) -> BaseResponse:
        return _file(patches.archive(runner.store.open(run_id)), PATCH_NAME, "application/zip")

    @server.get("/api/runs/<run_id>/findings/<finding_id>/patch.zip")
    def patch_of(run_id: str, finding_id: str) -> BaseResponse:
        run = runner.store.open(run_id)
        if not any(finding.id == finding_id for finding in run.report().findings):
            raise UnreadableError("the run has no such finding", where=finding_id[:80])
        return _file(patches.archive(run, finding_id), PATCH_NAME, "application/zip")

    @server.get("/api/runs/<run_id>/kernels/<plan_id>.py")
    def kernel(run_id: str, plan_id: str) -> BaseResponse:
        source = runner.store.open(run_id).kernel(plan_id)
        if source is None:
            raise UnreadableError("this kernel was not generated yet", where=plan_id)
        return _file(source, f"{plan_id}.py", "text/x-python")


def _file(content: str | bytes, name: str, kind: str) -> BaseResponse:
    """A download; `name` holds nothing of a record but a checked id."""
    response = make_response(content)
    response.mimetype = kind
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _install_login(server: Flask, access: Access) -> None:
    @server.get("/login")
    def login_page() -> BaseResponse:
        return _login("")

    @server.post("/login")
    def login() -> BaseResponse:
        given = request.form.get("token", "")
        response: BaseResponse = redirect("/")
        known = ((VIEW_COOKIE, access.tokens.view), (APPLY_COOKIE, access.tokens.apply))
        accepted = [name for name, secret in known if secret is not None and same(given, secret)]
        if not accepted:
            return _login("This is neither the view token nor the apply token.", 403)
        if APPLY_COOKIE in accepted and not may_view(access) and VIEW_COOKIE not in accepted:
            return _login("Sign in with the view token first.", 403)
        for name in accepted:
            set_cookie(response, name, cookie_value(given))
        return response


def _start(
    runner: JobRunner,
    run_id: str,
    kind: JobKind,
    only: tuple[str, ...] = (),
    budget_s: int | None = None,
) -> tuple[Response, int]:
    run = runner.store.open(run_id)
    if only and not set(only) <= {name for name, _ in applicable(run.report())}:
        raise UsageError("the run has no such finding to apply", where=run_id)
    record = runner.submit(run, kind, only, budget_s)
    return jsonify(run=run_id, job=record.id), 202


def _check_change(access: Access, csrf: Csrf) -> None:
    if not access.allow_apply:
        raise RefusedError(
            "this server is read-only",
            remedy="start it with --allow-apply, or run `fusion-advisor apply` in a shell",
        )
    if not may_apply(access):
        raise RefusedError("applying needs the apply token", remedy="sign in with it at /login")
    csrf.check()


def _body() -> JobRequest:
    if request.mimetype != "application/json":
        raise UsageError("the body must be JSON")
    try:
        return msgspec.json.decode(request.get_data(), type=JobRequest)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError("the body is no job request", why=str(error)) from error


def _status(error: AdvisorError) -> int:
    if isinstance(error, RefusedError):
        return 403
    if isinstance(error, UsageError):
        return 400
    return 404 if isinstance(error, UnreadableError) else 500


def _login(message: str, status: int = 200) -> BaseResponse:
    return make_response(_LOGIN_PAGE.format(message=escape(message)), status)
