"""The console's server: uvicorn on one loopback address."""

from __future__ import annotations

import socket
from collections.abc import Callable

import click
import uvicorn

from korvet.cli.console.app import make_app
from korvet.cli.kafka.address import Address
from korvet.cli.kafka.client import Client
from korvet.errors import KorvetError

_BACKLOG = 64
_MOST_REQUESTS = 64


def hosts_of(port: int) -> frozenset[str]:
    """The Host headers of a browser that looks at the loopback's port, perhaps through a tunnel with the same port."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


def serve(address: Address, make_client: Callable[[], Client], redis_url: str | None, *, allow_changes: bool) -> None:
    """Serve until Ctrl-C or SIGTERM.

    :raises KorvetError: if the address is taken.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address.host, address.port))
        except OSError as error:
            raise KorvetError(f"cannot listen on {address}: {error.strerror or error}") from None
        listening.listen(_BACKLOG)
        port = listening.getsockname()[1]
        app = make_app(make_client, hosts=hosts_of(port), redis_url=redis_url, allow_changes=allow_changes)
        click.echo(f"the console is at http://{Address(address.host, port)}/ (Ctrl-C ends it)")
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            limit_concurrency=_MOST_REQUESTS,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=65_536,
            ws="none",
            lifespan="off",
        )
        uvicorn.Server(config).run([listening])
