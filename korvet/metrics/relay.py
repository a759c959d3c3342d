"""The HTTP port's way to another process: requests go on over a unix socket, and answers come back in pieces.

The other process is slow, or away, without harm to metrics and health: its requests under way are bounded, and each one
ends in time. A request counts once it has its whole body. One more of an address with few ends one of an address that
has the most.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import anyio
import h11
from anyio.abc import ByteStream
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from korvet.rate_limited_log import RateLimitedLog
from korvet.security.guests import Guest, Guests

_MOST_UNDER_WAY: Final = 16
_MOST_BODY_BYTES: Final = 65_536
_BODY_WITHIN_S: Final = 5.0
_ANSWERS_WITHIN_S: Final = 25.0
_PIECE_BYTES: Final = 64 << 10
_OF_A_CONNECTION: Final = {
    b"connection", b"expect", b"keep-alive", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip
_FORWARDED: Final = b"x-forwarded-for"

Headers = list[tuple[bytes, bytes]]


class Relay:
    """An ASGI application that hands requests on.

    :param socket: the unix socket of the other process.
    :param is_proxied: whether a proxy names the client's address in X-Forwarded-For; else this application does.
    """

    def __init__(self, socket: Path, *, is_proxied: bool) -> None:
        self._socket = str(socket)
        self._is_proxied = is_proxied
        self._under_way = Guests(lambda: _MOST_UNDER_WAY)
        self._lines = RateLimitedLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            with anyio.fail_after(_BODY_WITHIN_S):
                body = await _body(request)
        except TimeoutError:
            await _refuse("the request did not end in time", 408)(scope, receive, send)
            return
        except ClientDisconnect:
            # A client that leaves before its request is whole needs no answer, and no traceback.
            return
        if body is None:
            await _refuse("this is too long", 413)(scope, receive, send)
            return
        client = "" if request.client is None else request.client.host
        if not self._under_way.has_room_for(client):
            await _refuse("too many requests at once; try again", 503)(scope, receive, send)
            return
        with anyio.CancelScope() as ended:
            guest = self._under_way.add(Guest(client, ended.cancel))
            try:
                await self._hand_on(request, body, scope, receive, send)
            finally:
                self._under_way.remove(guest)

    async def _hand_on(self, request: Request, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            head = self._head(request, scope, len(body))
        except h11.LocalProtocolError:
            # HTTP/1.0 may name no Host.
            await _refuse("this is no request of HTTP/1.1", 400)(scope, receive, send)
            return
        async with AsyncExitStack() as stack:
            try:
                with anyio.fail_after(_ANSWERS_WITHIN_S):
                    stream = await stack.enter_async_context(await anyio.connect_unix(self._socket))
                    exchange = _Exchange(stream)
                    start = await exchange.begin(head, body)
            except (OSError, anyio.BrokenResourceError, h11.RemoteProtocolError) as error:
                if isinstance(error, TimeoutError):
                    # Nothing else tells of a process that lives and does not answer.
                    event = "the console did not answer a request in time"
                    self._lines.write("warning", event, within_s=_ANSWERS_WITHIN_S)
                await _refuse("the console does not answer now; the log says why", 503)(scope, receive, send)
                return
            # An answer that breaks off behind its start breaks off at the browser, too.
            headers = _kept(start.headers)
            await send({"type": "http.response.start", "status": start.status_code, "headers": headers})
            async for piece in exchange.pieces():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    def _head(self, request: Request, scope: Scope, size: int) -> h11.Request:
        headers = [header for header in _kept(scope["headers"]) if header[0] != b"content-length"]
        if not self._is_proxied:
            client = "" if request.client is None else request.client.host
            headers = [header for header in headers if header[0] != _FORWARDED] + [(_FORWARDED, client.encode())]
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        headers.append((b"content-length", str(size).encode()))
        return h11.Request(method=scope["method"], target=target, headers=headers)


class _Exchange:
    """One request and its answer."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)

    async def begin(self, head: h11.Request, body: bytes) -> h11.Response:
        """Send a request; the start of its answer."""
        sent = (self._http.send(head), self._http.send(h11.Data(data=body)), self._http.send(h11.EndOfMessage()))
        await self._stream.send(b"".join(part for part in sent if part))
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event

    async def pieces(self) -> AsyncIterator[bytes]:
        """The answer's body."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def _next(self) -> h11.Event:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            try:
                data = await self._stream.receive(_PIECE_BYTES)
            except anyio.EndOfStream:
                data = b""
            self._http.receive_data(data)
        if not isinstance(event, h11.Event):
            raise h11.RemoteProtocolError("nothing comes any more")
        return event


async def _body(request: Request) -> bytes | None:
    """The body of a request; None if it is too long."""
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > _MOST_BODY_BYTES:
            return None
    return bytes(parts)


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that are not about a connection; and that each connection ends."""
    kept = [(name, value) for name, value in headers if name.lower() not in _OF_A_CONNECTION]
    return [*kept, (b"connection", b"close")]


def _refuse(text: str, status: int) -> PlainTextResponse:
    return PlainTextResponse(f"{text}\n", status, {"connection": "close", "cache-control": "no-store"})
