"""Checks of every request (its Host header, and the origin of a change), and the headers of its answer."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from korvet.metrics.hosts import Hosts

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_HSTS: Final = "max-age=31536000"
"""A browser that was here once comes by TLS for a year; it ignores this at an IP address (RFC 6797, 8.1)."""
MOST_BODY_BYTES: Final = 65_536
FORM: Final = "application/x-www-form-urlencoded"


def loopback_hosts(port: int) -> Hosts:
    """The hosts of a browser that looks at the loopback's port, perhaps through a tunnel with the same port."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")).__contains__


class Guard:
    """ASGI middleware.

    :param hosts: the Host headers that name the console.
    :param scheme: http or https, as browsers see it.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts, scheme: str) -> None:
        self._app = app
        self._hosts = hosts
        self._scheme = scheme

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        why = self._refusal(scope["method"], Headers(scope=scope))
        app = self._app if why is None else PlainTextResponse(why, 403)
        # A client that disconnects while it sends a form needs no answer, and no traceback.
        with suppress(ClientDisconnect):
            await app(scope, receive, _with_headers(send, scope["path"], has_tls=self._scheme == "https"))

    def _refusal(self, method: str, headers: Headers) -> str | None:
        """Why a request is refused; None if it is not."""
        host = headers.get("host", "")
        if not self._hosts(host):
            return f"this console is not at {host[:100]}\n"
        if method in ("GET", "HEAD"):
            return None
        # A browser names the page that a form came from. Programs name none, and have no token by accident.
        page = f"{self._scheme}://{host}"
        if headers.get("origin", page) != page:
            return "this request comes from another site\n"
        size = headers.get("content-length", "")
        # With a transfer coding the length would not count.
        if not size.isdecimal() or int(size) > MOST_BODY_BYTES or "transfer-encoding" in headers:
            return "a form has a length, and is short\n"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            return f"a form is {FORM}\n"
        return None


def _with_headers(send: Send, path: str, *, has_tls: bool) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            if has_tls:
                headers["Strict-Transport-Security"] = _HSTS
            # Pages show records: they are not kept on a disk.
            headers["Cache-Control"] = "max-age=3600" if path.startswith("/static/") else "no-store"
        await send(message)

    return sent
