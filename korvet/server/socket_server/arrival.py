"""A connection from its accept to its first request: a load balancer's header, then TLS, as its listener requires.

Both are awaited on the bare socket, before any transport or frame buffer is made. The header is read from the socket to
its last byte and no further, so the transport gets the bytes after it: a ClientHello or a request. A silent client
costs a socket. A health check connects and leaves, with or without a header; it gets no log line.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import ExitStack, closing, suppress
from functools import partial

import anyio

from korvet.api.shared.context import Frontend, Listener
from korvet.errors import KorvetError, MalformedRequest
from korvet.security.identity import Refused, of_balancer, of_certificate
from korvet.security.principal import ANONYMOUS, Principal
from korvet.security.protocol import ClientAuth
from korvet.security.tls import reason_of
from korvet.security.tls_alert import alert_caught
from korvet.security.unauthenticated import Unauthenticated
from korvet.server.bounds.connections import Connections
from korvet.server.conversation.connection import CERTIFICATE, NO_HEADER, Connection, Identify, anonymous
from korvet.server.ground.sockets import host_of
from korvet.server.socket_server.endpoint import Endpoint
from korvet.wire.proxy_header import ProxyHeader, client_tls, parse_proxy_header

_PEEKED_BYTES = 4096
_DRAINED_BYTES = 65_536
_LAST_WORDS_S = 1.0
"""The time that a client may take to close after the alert of a failed handshake."""
_MOST_READS = 16
_TLS_HANDSHAKE = 0x16
"""The first byte of a ClientHello's record."""


async def open_plain(connections: Connections, listener: Listener, frontend: Frontend, accepted: socket.socket) -> None:
    """Make a connection whose client begins with a request."""
    is_connected = False
    try:
        _prepare(accepted)
        if await _is_let_in(connections, listener, frontend, host_of(accepted.getpeername())):
            make = partial(Connection, connections, listener, frontend)
            await asyncio.get_running_loop().connect_accepted_socket(make, accepted)
            is_connected = True
    except OSError:
        # The client has left.
        pass
    finally:
        if not is_connected:
            accepted.close()
            connections.connection_quotas.left(listener.name)


async def open_arrival(connections: Connections, endpoint: Endpoint, accepted: socket.socket) -> None:
    """Make a connection whose client begins with a load balancer's header or with TLS."""
    arrival = Arrival(connections, endpoint, accepted)
    connections.unidentified.add(arrival)
    is_connected = False
    try:
        _prepare(accepted)
        is_connected = await arrival.open()
    except OSError:
        # The client has left.
        pass
    except Exception as error:
        connections.report(error, "connection", arrival.client)
    finally:
        connections.unidentified.discard(arrival)
        if not is_connected:
            accepted.close()
            connections.connection_quotas.left(endpoint.listener.name)


async def _is_let_in(connections: Connections, listener: Listener, frontend: Frontend, client: str) -> bool:
    """True if an address may open one more connection. A false result comes only after the address's throttle time."""
    meters = frontend.quotas.meters
    wait_s = 0.0 if meters is None else meters.connection_wait_s(client)
    if wait_s:
        connections.connection_quotas.forget_new(listener.name)
        connections.lines.write("warning", "connection refused: its address has made as many as it may", client=client)
        await anyio.sleep(wait_s)
    return not wait_s


def _prepare(accepted: socket.socket) -> None:
    accepted.setblocking(False)
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Arrival:
    """An accepted socket whose client is not known yet."""

    def __init__(self, connections: Connections, endpoint: Endpoint, accepted: socket.socket) -> None:
        self._connections = connections
        self._endpoint = endpoint
        self._socket = accepted
        self._seen = b""
        self._is_aborted = False
        self._unauthenticated: Unauthenticated | None = None
        self.client = ""
        with suppress(OSError):
            self.client = host_of(accepted.getpeername())

    def abort(self) -> None:
        """Make `open` end soon."""
        self._is_aborted = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def open(self) -> bool:
        """Go on to the connection; false if there is none.

        :raises OSError: the client has left.
        """
        if not self.client:
            # The client has reset the connection, so it has no address any more.
            return False
        try:
            endpoint = self._endpoint
            header = await self._header() if endpoint.listener.proxy_protocol else NO_HEADER
            if header is None:
                return False
            self.client = header.client_host or self.client
            if not header.is_local and not await _is_let_in(
                self._connections, endpoint.listener, endpoint.frontend, self.client
            ):
                return False
            if self._endpoint.tls is not None:
                self._unauthenticated = self._connections.unauthenticated.add(Unauthenticated(self.client, self.abort))
                try:
                    return await self._encrypt(header, self._endpoint.tls.context)
                finally:
                    self._connections.unauthenticated.remove(self._unauthenticated)
            principal = self._principal_of_balancer(header)
        except MalformedRequest as error:
            self._warn("malformed request; closing", str(error))
            return False
        except KorvetError as error:
            self._warn("connection refused", str(error))
            self._note_refusal(str(error))
            return False
        await self._connect(self._make(header, lambda _session: principal), None)
        return True

    # ------------------------------------------------------------------ a load balancer's header

    async def _header(self) -> ProxyHeader | None:
        """The header; None if the client leaves or falls silent before it is whole."""
        with anyio.move_on_after(self._connections.limits.proxy_header_s):
            return await self._read_header()
        if self._seen:
            raise MalformedRequest(f"a PROXY protocol header that ends after {len(self._seen)} bytes")
        return None

    async def _read_header(self) -> ProxyHeader | None:
        while True:
            peeked = await self._peek()
            if not peeked:
                return None
            if not self._endpoint.trusts(self.client):
                raise Refused("its address is none of proxy-protocol-from, so no load balancer sent its header")
            header = parse_proxy_header(self._seen + peeked)
            size = len(peeked) if header is None else header.size_bytes - len(self._seen)
            self._seen += self._socket.recv(size)
            if header is not None:
                return header

    async def _peek(self) -> bytes:
        """The bytes that have arrived, which stay in the socket; none if the client has left."""
        while True:
            await anyio.wait_readable(self._socket)
            with suppress(BlockingIOError):
                return self._socket.recv(_PEEKED_BYTES, socket.MSG_PEEK)

    def _principal_of_balancer(self, header: ProxyHeader) -> Principal:
        """The principal of a client that has no TLS with this listener.

        :raises KorvetError: the header lacks something that the listener requires.
        """
        if not self._endpoint.is_terminated or header.is_local:
            # A health check needs no principal.
            return ANONYMOUS
        principal = of_balancer(client_tls(header), self._endpoint.client_auth, self._endpoint.rules)
        return ANONYMOUS if self._endpoint.listener.sasl else principal

    # ------------------------------------------------------------------ TLS

    async def _encrypt(self, header: ProxyHeader, context: ssl.SSLContext) -> bool:
        if self._connections.has_no_room_for(self.client):
            return False
        with self._connections.expecting(self.client) as expect:
            first = b""
            with anyio.move_on_after(self._connections.limits.handshake_s):
                first = await self._peek()
            if not first:
                return False
            if first[0] != _TLS_HANDSHAKE:
                self._warn("TLS handshake failed", "the client does not speak TLS, which this listener expects")
                return False
            with ExitStack() as stack:
                async with self._connections.handshakes.turn(self.abort):
                    # The loop closes its socket as soon as the handshake has failed.
                    kept = stack.enter_context(closing(self._socket.dup()))
                    expect(connection := self._make(header, self._shown_principal))
                    with alert_caught() as alert:
                        is_done = await self._shake_hands(connection, context)
                if alert:
                    self._socket = kept
                    await self._send_alert(alert)
            return is_done

    async def _shake_hands(self, connection: Connection, context: ssl.SSLContext) -> bool:
        try:
            await self._connect(connection, context)
        except ssl.SSLError as error:
            self._warn("TLS handshake failed", reason_of(error))
            if self._endpoint.client_auth is not ClientAuth.NONE:
                self._note_refusal(f"TLS handshake failed: {reason_of(error)}")
            return False
        except ConnectionAbortedError:
            self._warn("TLS handshake failed", "it took too long")
            return False
        except OSError:
            if not self._is_aborted:
                self._warn("TLS handshake failed", "the client left; it may not trust the listener's certificate")
            return False
        return True

    async def _send_alert(self, alert: bytes | bytearray) -> None:
        """Send the alert, and wait until the client has left: closing with unread bytes would discard the alert."""
        self._socket.setblocking(False)
        self._socket.send(alert)
        self._socket.shutdown(socket.SHUT_WR)
        with anyio.move_on_after(_LAST_WORDS_S):
            for _ in range(_MOST_READS):
                await anyio.wait_readable(self._socket)
                if not self._socket.recv(_DRAINED_BYTES):
                    break

    def _shown_principal(self, session: ssl.SSLObject | None) -> Principal:
        assert session is not None and self._unauthenticated is not None
        # The handshake is over; from here a connection with a login is counted elsewhere.
        self._connections.unauthenticated.remove(self._unauthenticated)
        if self._endpoint.listener.sasl:
            # With a login, a certificate only admits the client; the login gives its principal.
            return ANONYMOUS
        return of_certificate(session, self._endpoint.rules)

    # ------------------------------------------------------------------ the end

    def _make(self, header: ProxyHeader, identify: Identify) -> Connection:
        endpoint, choice = self._endpoint, self._endpoint.choice
        if header.is_local:
            identify, choice = anonymous, None
        connection = Connection(self._connections, endpoint.listener, endpoint.frontend, header, identify, choice)
        connection.client = self.client
        return connection

    async def _connect(self, connection: Connection, context: ssl.SSLContext | None) -> None:
        times = {} if context is None else {
            "ssl_handshake_timeout": self._connections.limits.handshake_s,
            "ssl_shutdown_timeout": self._connections.limits.tls_shutdown_s,
        }  # fmt: skip
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, self._socket, ssl=context, **times)

    def _note_refusal(self, reason: str) -> None:
        """Write a refused client to the audit log: its certificate, or the load balancer's header, was not accepted."""
        self._endpoint.frontend.audit.login_failed(
            user="", host=self.client, listener=self._endpoint.listener.name, mechanism=CERTIFICATE, reason=reason
        )

    def _warn(self, event: str, reason: str) -> None:
        self._connections.lines.write("warning", event, client=self.client, reason=reason)
