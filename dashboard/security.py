"""The checks every request passes before any page sees it, and the headers of every answer."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence

from flask import Flask, Response, abort, make_response, redirect, request
from werkzeug.wrappers import Response as BaseResponse

from advisor.errors import RefusedError
from dashboard.access import Access, cookie_value, same

VIEW_COOKIE, APPLY_COOKIE, SESSION_COOKIE = "fusion_view", "fusion_apply", "fusion_session"
CSRF_HEADER = "X-Fusion-CSRF"
MAX_BODY_BYTES = 1 << 20
PUBLIC_PATHS = ("/login", "/assets/login.css")
_HEADERS: tuple[tuple[str, str], ...] = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    # With no-referrer a browser posts the login form with `Origin: null`, which is refused here.
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=()"),
)


class Csrf:
    """Double submit: a random session in an HttpOnly cookie, and its keyed hash in a header."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def token(self, session: str) -> str:
        """The header that goes with a session cookie."""
        return hmac.new(self._secret, session.encode(), hashlib.sha256).hexdigest()

    def check(self) -> None:
        """Raise `RefusedError` unless the current request carries a matching pair."""
        session, header = request.cookies.get(SESSION_COOKIE), request.headers.get(CSRF_HEADER)
        if not session or not header or not same(self.token(session), header):
            raise RefusedError(
                "the request is not from a page of this server",
                why="its CSRF token is missing or stale",
                remedy="reload the page",
            )


def install(server: Flask, access: Access, script_hashes: Callable[[], Sequence[str]]) -> None:
    """Put the checks before, and the headers behind, every route of `server`."""
    server.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    def guard() -> BaseResponse | None:
        if not access.accepts_host(request.headers.get("Host", "")):
            abort(421, "This server does not answer to that name (DNS rebinding protection).")
        if not _same_origin():
            abort(403, "The request comes from another site.")
        if request.path in PUBLIC_PATHS or may_view(access):
            return None
        wants_page = request.method == "GET" and "text/html" in request.headers.get("Accept", "")
        if wants_page:
            return redirect("/login")
        return make_response(("A view token is needed: open /login.", 401))

    def finish(response: Response) -> Response:
        response.headers.extend(_HEADERS)
        response.headers["Content-Security-Policy"] = content_policy(script_hashes())
        if response.mimetype in ("text/html", "application/json"):
            response.headers["Cache-Control"] = "no-store"
        elif request.path.startswith("/assets/") and "m" in request.args:
            # The address tells the version: it holds the time of the file's last change.
            response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return response

    server.before_request(guard)
    server.after_request(finish)


def content_policy(script_hashes: Sequence[str]) -> str:
    """All from this host, inline scripts by hash; Mantine and AG Grid need inline styles."""
    scripts = " ".join(("'self'", *script_hashes))
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


def may_view(access: Access) -> bool:
    """The current request may read."""
    return _holds(VIEW_COOKIE, access.tokens.view)


def may_apply(access: Access) -> bool:
    """The current request may change state, as far as tokens go."""
    return access.allow_apply and _holds(APPLY_COOKIE, access.tokens.apply)


def set_cookie(response: BaseResponse, name: str, value: str) -> None:
    """A cookie that scripts cannot read and other sites cannot send."""
    response.set_cookie(name, value, httponly=True, samesite="Strict", secure=request.is_secure)


def _holds(cookie: str, token: str | None) -> bool:
    return token is None or same(request.cookies.get(cookie, ""), cookie_value(token))


def _same_origin() -> bool:
    origin, host = request.headers.get("Origin"), request.headers.get("Host", "")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return False
    site = request.headers.get("Sec-Fetch-Site")
    if request.method in ("GET", "HEAD"):
        # A link from elsewhere may open a page, never load data or an asset.
        navigates = request.headers.get("Sec-Fetch-Mode") == "navigate"
        return site != "cross-site" or navigates
    return site in (None, "same-origin")
