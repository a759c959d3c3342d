"""A connection on a listener behind a load balancer, until its PROXY protocol header is read.

It has no task and no frame buffer. When the header is whole, the transport goes over to a `Connection`, which knows the
client's own address and gets the bytes behind the header. A health check connects and leaves, with or without a header;
the log has no line for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from korvet.errors import MalformedRequest
from korvet.server.connection import Connection
from korvet.server.crowd import Crowd
from korvet.server.sockets import peer_of
from korvet.wire.proxy_header import ProxyHeader, parse_proxy_header

_READ_BYTES = 4096


class Proxied(asyncio.BufferedProtocol):
    """A connection from accept to the end of its header.

    :param make: makes the connection of the client that the header names.
    """

    def __init__(self, crowd: Crowd, make: Callable[[ProxyHeader], Connection]) -> None:
        self._crowd = crowd
        self._make = make
        self._buffer = bytearray(_READ_BYTES)
        self._seen = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._timeout = asyncio.get_running_loop().call_later(self._crowd.limits.proxy_header_s, self._overdue)
        self._crowd.strangers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._crowd.left()

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
        self._crowd.strangers.discard(self)
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
        self._crowd.lines.write("warning", "malformed request; closing", client=peer_of(self._transport), reason=reason)
        self.abort()


def _feed(connection: Connection, data: memoryview) -> None:
    """Hand over the bytes behind the header, as a transport would."""
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]
