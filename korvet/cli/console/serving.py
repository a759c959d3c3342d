"""The console's server: uvicorn on one address, with bounds on what strangers may hold.

The console accepts its connections itself, because uvicorn knows nothing of one whose handshake has not ended.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import click
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from korvet.cli.console.visitors import Sessions
from korvet.cli.kafka.address import Address
from korvet.errors import KorvetError
from korvet.security.guests import Guest, Guests
from korvet.security.tls import Certificates, TlsFiles
from korvet.server.bounds.accepting import Accepting

MOST_CONNECTIONS: Final = 256
log = structlog.get_logger()

_BACKLOG: Final = 64
_LOOK_S: Final = 10
_ARRIVES_S: Final = 10.0
"""The time for a handshake, and then for the head of a request."""
_LASTS_S: Final = 60.0
"""The time from there to the end of its answer."""


def listen(address: Address) -> socket.socket:
    """A bound socket.

    :raises KorvetError: if the address is taken, or none of this machine.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise KorvetError(f"cannot listen on {address}: {error.strerror or error}") from None
    return listening


def serve(listening: socket.socket, app: ASGIApp, sessions: Sessions | None, tls: TlsFiles | None) -> None:
    """Serve until Ctrl-C or SIGTERM, and say where if that is an address of TCP.

    :raises ConfigError: if the certificate is wrong.
    """
    certificates = None if tls is None else Certificates(tls, "console")

    async def look() -> None:
        if sessions is not None:
            sessions.end_old()
        if certificates is not None:
            await certificates.look()

    if listening.family is not socket.AF_UNIX:
        scheme = "http" if certificates is None else "https"
        click.echo(f"the console is at {scheme}://{Address(*listening.getsockname()[:2])}/ (Ctrl-C ends it)")
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=65_536,
        ws="none",
        lifespan="off",
        callback_notify=look,
        timeout_notify=_LOOK_S,
        ssl_context_factory=None if certificates is None else partial(_tls, certificates),
    )
    _Server(config, listening).run([])


def _tls(certificates: Certificates, _config: uvicorn.Config, _default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """A context that leaves each handshake to the certificates of its time."""
    context = certificates.context

    def take_present(session: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        session.context = certificates.context

    context.sni_callback = take_present
    return context


class _Server(uvicorn.Server):
    """uvicorn, with `Guests`."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket) -> None:
        super().__init__(config)
        self._listening = listening
        self._connections = Guests(lambda: MOST_CONNECTIONS)

    async def main_loop(self) -> None:
        async with anyio.create_task_group() as tasks:
            accepting = Accepting(_Uncounted(), "console", _complain, tasks, self._listening, self._open)
            accepting.begin(_BACKLOG)
            try:
                await super().main_loop()
            finally:
                accepting.close()
                tasks.cancel_scope.cancel()

    async def _open(self, accepted: socket.socket) -> None:
        """Make a connection of an accepted socket; one that comes to nothing leaves no line."""
        accepted.setblocking(False)
        connection = self._connections.add(Guest(_address_of(accepted), partial(_end, accepted)))
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(
                    _Bounded, self.config, self.server_state, self.lifespan.state, connection, self._connections.remove
                ),
                accepted,
                ssl=self.config.ssl,
                ssl_handshake_timeout=None if self.config.ssl is None else _ARRIVES_S,
            )
        except BaseException as error:
            self._connections.remove(connection)
            accepted.close()
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, OSError):
                # No stranger's connection may end the console.
                _complain(repr(error))


def _address_of(accepted: socket.socket) -> str:
    """The address of a client; empty if it has left, or has none."""
    with suppress(OSError):
        address = accepted.getpeername()
        return str(address[0]) if isinstance(address, tuple) else ""
    return ""


def _end(accepted: socket.socket) -> None:
    """End a connection, whose transport sees it, in a handshake as well."""
    with suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)


class _Uncounted:
    """Any number of connections: what is too much is judged once a connection is there."""

    def may_accept(self, _one: Accepting) -> bool:
        return True

    def failed(self, _listener: str) -> None:
        """Nothing was counted."""


def _complain(reason: str) -> None:
    log.error("the console cannot take a connection", reason=reason)


class _Bounded(H11Protocol):
    """A connection that ends if its requests, or their answers, do not get on.

    :param leave: tells `Guests` of its end.
    """

    _next_look: asyncio.TimerHandle | None = None
    _seen: tuple[RequestResponseCycle | None, bool] = (None, False)
    _stands_s = 0.0

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        app_state: dict[str, Any],
        connection: Guest,
        leave: Callable[[Guest], None],
    ) -> None:
        super().__init__(config, state, app_state)
        self._connection = connection
        self._leave = leave
        connection.is_busy = self._is_answering

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._next_look = self.loop.call_later(_ARRIVES_S, self._look, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        self._leave(self._connection)
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        # There is none before the first request is whole, though its type does not say so.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _look(self, transport: asyncio.Transport) -> None:
        seen, self._seen = self._seen, (self.cycle, self._is_answering())
        self._stands_s = self._stands_s + _ARRIVES_S if self._seen == seen else 0.0
        if self._stands_s >= (_LASTS_S if self._is_answering() else _ARRIVES_S):
            transport.abort()
            return
        self._next_look = self.loop.call_later(_ARRIVES_S, self._look, transport)
