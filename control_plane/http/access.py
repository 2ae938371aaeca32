"""Who may call: the Host and Origin of the request, then the token or the page's session.

Host is checked on loopback too: a page of another site whose name was pointed at 127.0.0.1 sends
that name. Origin is checked whenever a browser sends one, and is demanded where a cookie alone
authorises a change. The page itself, the probes and the sign-in need no token; they show nothing
of any run.
"""

from __future__ import annotations

import re
import time
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.http.sessions import COOKIE, is_token, is_valid_session
from control_plane.settings import Settings
from shared.errors import AuthenticationError, ForbiddenOriginError

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PROTECTED = re.compile(r"^/(v1|metrics)(/|$)")
SESSION_PATH = "/v1/session"


class AccessMiddleware:
    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._token = settings.token
        self._hosts = settings.host_names()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            self._check_host(headers)
            self._check_origin(headers, scope["method"])
            if _PROTECTED.match(scope["path"]) and scope["path"] != SESSION_PATH:
                self._check_token(headers, scope["method"])
        await self.app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        host = _host_name(headers.get("host", ""))
        if host not in self._hosts:
            raise ForbiddenOriginError(
                f"the control plane is not known as {host[:80]!r}; use an address it listens on, "
                "or start it with --allowed-host"
            )

    def _check_origin(self, headers: Headers, method: str) -> None:
        origin = headers.get("origin")
        if origin is not None and not _same_place(origin, headers.get("host", "")):
            raise ForbiddenOriginError(
                f"pages of {origin[:80]!r} may not call this control plane; open the page that it "
                "serves itself"
            )
        cross_site = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if origin is None and cross_site and method not in SAFE_METHODS:
            raise ForbiddenOriginError("another site may not change anything here")

    def _check_token(self, headers: Headers, method: str) -> None:
        if self._token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme:
            if scheme.lower() == "bearer" and is_token(given.strip(), self._token):
                return
            raise AuthenticationError(
                "the Authorization header does not carry this control plane's token; the command "
                "line takes it from DFLASH_MESH_TOKEN, others send 'Authorization: Bearer TOKEN'"
            )
        session = _cookie(headers.get("cookie", ""))
        if session is None or not is_valid_session(session, self._token, time.time()):
            raise AuthenticationError(
                "this call needs the control plane's token; set DFLASH_MESH_TOKEN for the command "
                "line, send 'Authorization: Bearer TOKEN', or sign in on the page"
            )
        if method not in SAFE_METHODS and headers.get("origin") is None:
            raise ForbiddenOriginError(
                "a change that is authorised by the page's cookie must carry an Origin header"
            )


def _host_name(host: str) -> str:
    """The name in a Host header, lower case, without port and brackets; '' when malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _same_place(origin: str, host: str) -> bool:
    """Whether an Origin names the host and port of the Host header."""
    try:
        ours, theirs = urlsplit(f"//{host}"), urlsplit(origin)
        if theirs.scheme not in ("http", "https") or theirs.hostname != ours.hostname:
            return False
        # Behind a proxy that ends TLS the scheme, and so the default port, is not known.
        return (theirs.port or 0) in (ours.port or 0, 0 if ours.port in (80, 443) else -1)
    except ValueError:
        return False


def _cookie(header: str) -> str | None:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel else None
