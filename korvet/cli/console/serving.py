"""The console's server: uvicorn on one address, with bounds on what strangers may hold."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

import click
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from korvet.cli.console.visitors import Sessions
from korvet.cli.kafka.address import Address
from korvet.errors import KorvetError
from korvet.security.tls import Certificates, TlsFiles

_BACKLOG: Final = 64
_MOST_REQUESTS: Final = 256
_LOOK_S: Final = 10
_STUCK_S: Final = 60.0
"""A connection ends if it brought no request, and got no whole answer, for so long."""


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

    is_local = listening.family is socket.AF_UNIX
    if not is_local:
        scheme = "http" if certificates is None else "https"
        click.echo(f"the console is at {scheme}://{Address(*listening.getsockname()[:2])}/ (Ctrl-C ends it)")
    config = uvicorn.Config(
        app,
        # uvloop takes each socket that it is given for one of TCP.
        loop="asyncio" if is_local else "auto",
        http=_Bounded,
        log_level="error",
        access_log=False,
        limit_concurrency=_MOST_REQUESTS,
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
    uvicorn.Server(config).run([listening])


def _tls(certificates: Certificates, _config: uvicorn.Config, _default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """A context that leaves each handshake to the certificates of its time."""
    context = certificates.context

    def take_present(session: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        session.context = certificates.context

    context.sni_callback = take_present
    return context


class _Bounded(H11Protocol):
    """A connection that ends if its requests, or their answers, do not get on."""

    _next_look: asyncio.TimerHandle | None = None
    _seen: tuple[RequestResponseCycle | None, bool] = (None, False)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._next_look = self.loop.call_later(_STUCK_S, self._look, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self, transport: asyncio.Transport) -> None:
        # There is none before the first request is whole, though its type does not say so.
        cycle: RequestResponseCycle | None = self.cycle
        now = cycle, cycle is not None and cycle.response_complete
        if now == self._seen:
            transport.abort()
            return
        self._seen = now
        self._next_look = self.loop.call_later(_STUCK_S, self._look, transport)
