"""`create_app`: the Dash app over one run store, with its routes, checks and pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash.development.base_component import Component
from flask import Flask, Response, request

from advisor.errors import AdvisorError, UnreadableError
from advisor.store.store import RunStore
from dashboard import api, jobpanel, pending, proof, security, timeline_panel, trends
from dashboard.access import Access, check_access
from dashboard.context import Context
from dashboard.jobs import Command, JobRunner, cli_command
from dashboard.legible import legible
from dashboard.page import match
from dashboard.pages import PAGES
from dashboard.parts import error_state, marked
from dashboard.scripts import arranged

NAME = "fusion advisor"
# Shades whose text is readable on white, and white on them: at least 4.5 to 1.
_THEME: Any = {"primaryShade": {"light": 8, "dark": 8}}
# The routes under which Dash serves the shell of every page.
PAGE_ENDPOINTS = ("/", "/<path:path>")


class Shell(Dash):
    """Dash whose pages load their scripts as `dashboard.scripts` says, their text legible."""

    def callback(self, *args: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        """Registers a callback, of whose answers no name changes how the rest is read."""
        register = super().callback(*args, **options)

        def registered(function: Callable[..., Any]) -> Any:
            @wraps(function)
            def answered(*values: Any) -> Any:
                return legible(function(*values))

            return register(answered)

        return registered

    def interpolate_index(self, *args: Any, **parts: Any) -> str:
        """The shell of the page that is asked for."""
        found = match(PAGES, request.path.rstrip("/") or "/")
        head, parts["scripts"] = arranged(parts["scripts"], found[0].drawn if found else ())
        parts["css"] = f"{head}\n{parts['css']}"
        text: str = super().interpolate_index(*args, **parts)  # type: ignore[no-untyped-call]
        return text


def create_app(
    store: RunStore,
    access: Access,
    *,
    command: Command = cli_command,
    key_path: Path | None = None,
) -> tuple[Dash, JobRunner]:
    """The app, whose `server` is the WSGI application, and its runner, which the caller starts.

    Raises `RefusedError` if `access` would open the server beyond loopback without tokens.
    """
    check_access(access)
    runner = JobRunner(store, command=command, key_path=key_path, read_only=not access.allow_apply)
    context = Context(store=store, runner=runner, access=access)
    app = Shell(
        "dashboard",
        use_pages=False,
        pages_folder="",
        assets_folder=str(Path(__file__).with_name("assets")),
        assets_ignore=r"login\.css",
        serve_locally=True,
        suppress_callback_exceptions=True,
        title=NAME,
        update_title="",
        enable_mcp=False,
    )
    server: Flask = app.server
    security.install(server, access, cache(lambda: tuple(app.csp_hashes())))
    api.install(server, access, runner)
    _answer_404(server, context)
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    app.layout = _shell()
    _register(app, context)
    return app, runner


def _answer_404(server: Flask, context: Context) -> None:
    """Dash answers every path with the same shell: what it will not find gets the status 404."""

    @server.after_request
    def mark(response: Response) -> Response:
        path = request.path.rstrip("/") or "/"
        if request.endpoint in PAGE_ENDPOINTS and not exists(context, path):
            response.status_code = 404
        return response


def exists(context: Context, path: str) -> bool:
    """Whether there is a page at a path: the run is in the store, the finding in its report."""
    found = match(PAGES, path)
    if found is None:
        return False
    try:
        ids = found[1]
        runs = [context.store.open(ids[key]) for key in ("run", "before", "after") if key in ids]
        if not runs:
            return True
        if ids.get("finding") is not None:
            return any(item.id == ids["finding"] for item in context.report(runs[0]).findings)
        place = ids.get("place")
        return place is None or int(place) < len(context.report(runs[0]).kernels)
    except AdvisorError:
        return False


def _shell() -> Component:
    toggle = marked(
        dmc.ColorSchemeToggle(lightIcon="☀", darkIcon="☾", variant="default", size="lg"),
        aria_label="Light or dark",
    )
    links = dmc.Group([dcc.Link("Upload", href="/upload"), toggle])
    bar = dmc.Group(
        [dcc.Link(NAME, href="/", className="brand"), links],
        justify="space-between",
        className="bar",
    )
    # Of the page alone: a callback of one of its parts would hide all of it.
    page = dcc.Loading(
        html.Div(id="page", className="page"),
        delay_show=400,
        type="dot",
        target_components={"page": "children"},  # type: ignore[arg-type]
    )
    shell = dmc.AppShell(
        [dmc.AppShellHeader(bar), dmc.AppShellMain(page)], header={"height": 52}, padding=0
    )
    stores = [dcc.Location(id="url"), dcc.Store(id="title")]
    return dmc.MantineProvider([*stores, shell], defaultColorScheme="auto", theme=_THEME)


def _register(app: Dash, context: Context) -> None:
    jobpanel.register(app, context)
    proof.register(app, context)
    timeline_panel.register(app, context)
    trends.register(app, context)
    pending.register(app, context)
    app.clientside_callback(
        ClientsideFunction("fusion", "search"),
        Output("kernel-search", "title"),
        Input("kernel-search", "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("fusion", "compare"),
        Output("runs-compare", "href"),
        Output("runs-compare", "children"),
        Input("runs-grid", "selectedRows"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("fusion", "title"),
        Output("title", "storage_type"),
        Input("title", "data"),
    )

    @app.callback(Output("page", "children"), Output("title", "data"), Input("url", "pathname"))
    def route(path: object) -> tuple[Component, str]:
        return render(context, str(path or "/"))  # a request may hold anything


def render(context: Context, path: str) -> tuple[Component, str]:
    """The page of a path and its title; whatever cannot be shown becomes a page that says why."""
    found = match(PAGES, path.rstrip("/") or "/")
    try:
        if found is None:
            raise UnreadableError("there is no such page", where=path[:80])
        page, ids = found
        return page.layout(context, **ids), f"{page.title} - {NAME}"
    except AdvisorError as error:
        return error_state(error), f"Cannot show - {NAME}"
