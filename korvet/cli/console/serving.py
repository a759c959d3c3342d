"""The console's server, on an address of its own or at the socket of a front-end's HTTP port."""

from __future__ import annotations

import socket
from typing import Final

import click
from starlette.types import ASGIApp

from korvet.cli.console.visitors import Sessions
from korvet.cli.kafka.address import Address
from korvet.errors import KorvetError
from korvet.security.tls import Certificates, TlsFiles
from korvet.server.processes.http_server import HttpBounds, HttpServer

_BACKLOG: Final = 64
BOUNDS: Final = HttpBounds(connections=256, arrives_s=10.0, lasts_s=60.0, head_bytes=65_536)


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
    HttpServer(app, BOUNDS, listening, name="console", certificates=certificates, look=look).run([])
