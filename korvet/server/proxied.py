"""A connection on a listener behind a load balancer, until its PROXY protocol header is read.

Nothing of it is a client's yet: no task, no frame buffer. When the header is whole the transport goes over to a
`Connection` that knows the client's own address, with the bytes that came behind the header. A health check, which
connects and leaves, with a header or without, is not worth a line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from korvet.errors import MalformedRequest
from korvet.server.connection import Connection, peer_of
from korvet.wire.proxy_header import ProxyHeader, parse_proxy_header

if TYPE_CHECKING:
    from korvet.server.server import Server

_READ_BYTES = 4096


class Proxied(asyncio.BufferedProtocol):
    """A connection from accept to the end of its header.

    :param make: makes the connection of a client of whom the header tells.
    """

    def __init__(self, server: Server, make: Callable[[ProxyHeader], Connection]) -> None:
        self._server = server
        self._make = make
        self._buffer = bytearray(_READ_BYTES)
        self._seen = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._timeout = asyncio.get_running_loop().call_later(self._server.limits.proxy_header_s, self._overdue)
        self._server.strangers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._seen += memoryview(self._buffer)[:nbytes]
        try:
            header = parse_proxy_header(self._seen)
        except MalformedRequest as error:
            self._refuse(str(error))
            return
        if header is not None:
            self._leave()
            connection = self._make(header)
            transport.set_protocol(connection)
            connection.connection_made(transport)
            _feed(connection, memoryview(self._seen)[header.size_bytes :])

    def eof_received(self) -> bool:
        return False

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        self._server.strangers.discard(self)
        self._transport = None
        if self._timeout is not None:
            self._timeout.cancel()

    def _overdue(self) -> None:
        if self._seen:
            self._refuse(f"a PROXY protocol header that ends after {len(self._seen)} bytes")
        else:
            self.abort()

    def _refuse(self, reason: str) -> None:
        assert self._transport is not None
        self._server.lines.write(
            "warning", "malformed request; closing", client=peer_of(self._transport), reason=reason
        )
        self.abort()


def _feed(connection: Connection, data: memoryview) -> None:
    """Hand over what was read too much, as a transport would."""
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]
