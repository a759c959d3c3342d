"""The one HTTP server of korvet, for the HTTP port and for the console, with bounds on unauthenticated clients.

This module accepts connections for uvicorn, because uvicorn does not see a connection before its handshake has ended.
Handshake, request head and the progress of an answer have time limits. One connection too many closes another one, of
the address that has the most.

**One port, two processes.** The process of the HTTP port has to live whatever the console's pages use. So it reads the
first line of a connection's request, answers its own paths, and passes a connection for any other path to the console's
process: the descriptor and the bytes read so far go over a unix socket. Each connection then carries one request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog
import uvicorn
from h11 import LocalProtocolError
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from korvet.rate_limited_log import RateLimitedLog
from korvet.security.tls import Certificates
from korvet.security.unauthenticated import Unauthenticated, UnauthenticatedConnections
from korvet.server.bounds.accepting import Accepting

if TYPE_CHECKING:
    from korvet.metrics.web import ServerStatus

log = structlog.get_logger()

_BACKLOG: Final = 64
_LOOK_S: Final = 10
_TAKEN_WITHIN_S: Final = 25.0
_PIECE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBounds:
    """The bounds on unauthenticated clients.

    :ivar arrives_s: the time limit of a handshake, and then of the head of a request.
    :ivar lasts_s: the time limit of an answer without progress.
    """

    connections: int
    arrives_s: float
    lasts_s: float
    head_bytes: int


PORT_BOUNDS: Final = HttpBounds(connections=64, arrives_s=5.0, lasts_s=30.0, head_bytes=8192)


class HandOver:
    """The passing of connections to another process.

    :param path: the unix socket at which its server listens.
    :param own: the paths that are answered here.
    """

    def __init__(self, path: Path, own: Collection[str]) -> None:
        self._path = path
        self._own = own
        self._lines = RateLimitedLog()

    def is_own(self, begun: bytes) -> bool:
        """True if a request with this beginning is answered here."""
        _, _, target = begun.partition(b" ")
        return target.partition(b" ")[0].partition(b"?")[0].decode("latin-1") in self._own

    async def take(self, accepted: socket.socket, begun: bytes) -> bool:
        """Pass a connection on; false if the other process has not taken it, and never will."""
        with socket.socket(socket.AF_UNIX) as sender, suppress(OSError):
            sender.setblocking(False)
            # This fails if the backlog is full; anyio's function would retry at each turn of the loop.
            sender.connect(str(self._path))
            socket.send_fds(sender, [begun], [accepted.fileno()])
            try:
                with anyio.fail_after(_TAKEN_WITHIN_S):
                    return bool(await asyncio.get_running_loop().sock_recv(sender, 1))
            except TimeoutError:
                # Nothing else reports a process that lives and accepts nothing.
                event = "the console did not answer a request in time"
                self._lines.write("warning", event, within_s=_TAKEN_WITHIN_S)
                # From here on it cannot take the connection, but it may have taken it just now.
                sender.shutdown(socket.SHUT_RD)
                return bool(sender.recv(1))
        return False


async def _taken(sender: socket.socket, most_bytes: int) -> tuple[socket.socket, bytes] | None:
    """The connection that the process of the HTTP port passes on; None if that process has given up."""
    with sender, suppress(OSError, TimeoutError), anyio.fail_after(_TAKEN_WITHIN_S):
        await anyio.wait_readable(sender)
        begun, descriptors, _, _ = socket.recv_fds(sender, most_bytes + _PIECE_BYTES, 1)
        if descriptors:
            accepted = socket.socket(fileno=descriptors[0])
            accepted.setblocking(False)
            try:
                sender.send(b"1")
            except OSError:
                accepted.close()
            else:
                return accepted, begun
    return None


class HttpServer(uvicorn.Server):
    """uvicorn on one listening socket, which it closes.

    :param listening: a TCP socket, or the unix socket of a `HandOver`.
    :param one_request: true if a connection ends with its answer, as every passed one does.
    :param look: a function to call every ten seconds.
    :param hand_over: passes connections for other paths to another process.
    """

    def __init__(
        self,
        app: ASGIApp,
        bounds: HttpBounds,
        listening: socket.socket,
        *,
        name: str,
        log_level: str = "error",
        certificates: Certificates | None = None,
        look: Callable[[], Awaitable[None]] | None = None,
        one_request: bool = False,
        hand_over: HandOver | None = None,
    ) -> None:
        self._is_handed_over = listening.family is socket.AF_UNIX
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level=log_level,
            access_log=False,
            server_header=False,
            # Otherwise a client on the loopback could claim another address.
            proxy_headers=False,
            headers=[("connection", "close")] if one_request or self._is_handed_over else [],
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=bounds.head_bytes,
            ws="none",
            lifespan="off",
            interface="asgi3",
            callback_notify=look,
            timeout_notify=_LOOK_S,
            ssl_context_factory=None if certificates is None else partial(_tls, certificates),
        )
        super().__init__(config)
        self._bounds = bounds
        self._listening = listening
        self._name = name
        self._failed = f"the {name} cannot take a connection"
        self._hand_over = hand_over
        self._connections = UnauthenticatedConnections(lambda: bounds.connections)

    async def main_loop(self) -> None:
        async with anyio.create_task_group() as tasks:
            accepting = Accepting(_Uncounted(), self._name, self._complain, tasks, self._listening, self._open)
            accepting.listen(_BACKLOG)
            try:
                await super().main_loop()
            finally:
                accepting.close()
                tasks.cancel_scope.cancel()

    async def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        begun = b""
        if self._is_handed_over:
            taken = await _taken(accepted, self._bounds.head_bytes)
            if taken is None:
                return
            accepted, begun = taken
        connection = self._connections.add(Unauthenticated(_address_of(accepted), partial(_end, accepted)))
        try:
            if self._hand_over is not None:
                begun = await self._begun(accepted)
                if not self._hand_over.is_own(begun) and await self._hand_over.take(accepted, begun):
                    self._connections.remove(connection)
                    accepted.close()
                    return
            await self._serve_connection(accepted, connection, begun)
        except BaseException as error:
            self._connections.remove(connection)
            accepted.close()
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, OSError):
                # No client's connection may end the server, and a failed one gets no log line.
                self._complain(repr(error))

    async def _begun(self, accepted: socket.socket) -> bytes:
        """Read the beginning of a request: at least its first line, if that is not too long.

        :raises OSError: it does not come in time.
        """
        loop, begun = asyncio.get_running_loop(), b""
        with anyio.fail_after(self._bounds.arrives_s):
            while b"\n" not in begun.lstrip() and len(begun) < self._bounds.head_bytes:
                piece = await loop.sock_recv(accepted, _PIECE_BYTES)
                if not piece:
                    raise ConnectionResetError
                begun += piece
        return begun

    async def _serve_connection(self, accepted: socket.socket, connection: Unauthenticated, begun: bytes) -> None:
        make = partial(
            _Bounded, self._bounds, connection, self._connections.remove, begun,
            self.config, self.server_state, self.lifespan.state,
        )  # fmt: skip
        await asyncio.get_running_loop().connect_accepted_socket(
            make,
            accepted,
            ssl=self.config.ssl,
            ssl_handshake_timeout=None if self.config.ssl is None else self._bounds.arrives_s,
        )

    def _complain(self, reason: str) -> None:
        log.error(self._failed, reason=reason)


def _tls(certificates: Certificates, _config: uvicorn.Config, _default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """A context that uses the certificates in force at each handshake."""
    context = certificates.context

    def take_present(session: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        session.context = certificates.context

    context.sni_callback = take_present
    return context


def _address_of(accepted: socket.socket) -> str:
    """The address of a client; empty if it has left, or has none."""
    with suppress(OSError):
        address = accepted.getpeername()
        return str(address[0]) if isinstance(address, tuple) else ""
    return ""


def _end(accepted: socket.socket) -> None:
    """End a connection in a way that its transport notices, even in a handshake."""
    with suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)


class _Uncounted:
    """No limit at accept: connections are counted once they are open."""

    def may_accept(self, _one: Accepting) -> bool:
        return True

    def failed(self, _listener: str) -> None:
        """Nothing was counted."""


class _Bounded(H11Protocol):
    """A connection that ends if its requests or answers make no progress.

    :param leave: reports its end to `UnauthenticatedConnections`.
    :param begun: the bytes of the first request that were read already.
    """

    _next_look: asyncio.TimerHandle | None = None
    _seen: tuple[RequestResponseCycle | None, bool] = (None, False)
    _stands_s = 0.0

    def __init__(
        self,
        bounds: HttpBounds,
        connection: Unauthenticated,
        leave: Callable[[Unauthenticated], None],
        begun: bytes,
        config: uvicorn.Config,
        state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        super().__init__(config, state, app_state)
        self._bounds = bounds
        self._connection = connection
        self._leave = leave
        self._begun = begun
        connection.is_busy = self._is_answering

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._next_look = self.loop.call_later(self._bounds.arrives_s, self._look, transport)
        if self._begun:
            self.data_received(self._begun)

    def data_received(self, data: bytes) -> None:
        if self.flow.read_paused:
            # uvloop begins to read after `connection_made`, even if that paused reading.
            self.transport.pause_reading()
        try:
            super().data_received(data)
        except LocalProtocolError:
            # A malformed request can be refused only before an answer.
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        # A connection sent to a process that does not take it would stay open.
        self._connection.end()
        if self._next_look is not None:
            self._next_look.cancel()
        self._leave(self._connection)
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        # It is None before the first request is complete, although its type does not say so.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _look(self, transport: asyncio.Transport) -> None:
        bounds, seen, self._seen = self._bounds, self._seen, (self.cycle, self._is_answering())
        self._stands_s = self._stands_s + bounds.arrives_s if self._seen == seen else 0.0
        if self._stands_s >= (bounds.lasts_s if self._is_answering() else bounds.arrives_s):
            transport.abort()
            return
        self._next_look = self.loop.call_later(bounds.arrives_s, self._look, transport)


class _Port(HttpServer):
    """A server in a process that handles signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_port(
    status: ServerStatus, bound: socket.socket, console: Path | None = None, hostnames: Sequence[str] = ()
) -> None:
    """Serve the HTTP port until cancelled. The socket is bound, and is closed at the end.

    :param console: the unix socket of the console, which answers all paths except the port's own.
    :param hostnames: the port's names, in addition to IP addresses and names of a private network.
    """
    # The import takes a tenth of a second, and the console does not need it.
    from korvet.metrics import web

    hand_over = None if console is None else HandOver(console, web.PATHS)
    app = web.application(status, hostnames, has_console=console is not None)
    # uvicorn logs requests of unauthenticated clients; the application logs its own failures.
    server = _Port(
        app, PORT_BOUNDS, bound, name="HTTP port", log_level="critical", one_request=True, hand_over=hand_over
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_when_cancelled, server)
        with anyio.CancelScope(shield=True):
            await server.serve(sockets=[])
        tasks.cancel_scope.cancel()


async def _stop_when_cancelled(server: uvicorn.Server) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        server.should_exit = True
