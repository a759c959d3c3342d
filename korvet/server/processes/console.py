"""The console on the HTTP port: a process of its own, which the supervisor starts and restarts.

The process is no front-end, so its pages take no time from Kafka's clients, and a page that exhausts its memory ends
neither metrics nor the supervisor. The HTTP port passes connections to it over a unix socket (`http_server`).
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import structlog

from korvet.errors import KorvetError
from korvet.server.ground.settings import ListenerSettings, ServeSettings

log = structlog.get_logger()

_MODULE: Final = "korvet.cli.console.beside"
_BACKOFF_S: Final = (0.5, 10.0)
_STEADY_S: Final = 30.0
_STOP_S: Final = 5.0
_BACKLOG: Final = 64
ANYWHERE: Final = {"", "0.0.0.0", "::"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSocket:
    """The unix socket of the console."""

    path: Path
    listening: socket.socket


@contextmanager
def open_console_socket() -> Iterator[ConsoleSocket]:
    """Open a listening socket in a directory that only this user may enter.

    :raises KorvetError: if no directory can be made for it.
    """
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="korvet-console-"))
            path, listening = Path(directory) / "socket", stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(str(path))
            listening.listen(_BACKLOG)
        except OSError as error:
            raise KorvetError(f"no directory for the console's socket: {error}; name a short one as TMPDIR") from None
        yield ConsoleSocket(path=path, listening=listening)


def own_listener(listeners: Sequence[ListenerSettings]) -> int | None:
    """The index of the listener that the console uses by default: the first one without TLS."""
    for at, listener in enumerate(listeners):
        if not (listener.security.has_tls or listener.proxy_protocol or listener.namespace_from):
            return at
    return None


async def keep_console(
    settings: ServeSettings, redis_url: str, ports: Sequence[int], console_socket: ConsoleSocket
) -> None:
    """Keep the process up until cancelled.

    :param ports: the ports of the listeners, in their order.
    """
    order = _order(settings, redis_url, ports, console_socket.listening.fileno())
    backoff_s = _BACKOFF_S[0]
    while True:
        began = anyio.current_time()
        async with await anyio.open_process(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=None,
            pass_fds=[console_socket.listening.fileno()],
            start_new_session=True,
        ) as process:
            try:
                assert process.stdin is not None
                with suppress(anyio.BrokenResourceError):
                    await process.stdin.send(order.encode())
                await process.wait()
            finally:
                with anyio.CancelScope(shield=True), suppress(ProcessLookupError):
                    if process.returncode is None:
                        process.terminate()
                        with anyio.move_on_after(_STOP_S):
                            await process.wait()
                        process.kill()
        log.error("the console died; restarting it", exit_code=process.returncode)
        backoff_s = _BACKOFF_S[0] if anyio.current_time() - began > _STEADY_S else min(backoff_s * 2, _BACKOFF_S[1])
        await anyio.sleep(backoff_s)


def _order(settings: ServeSettings, redis_url: str, ports: Sequence[int], descriptor: int) -> str:
    """The line with the process's orders."""
    at, bootstrap = own_listener(settings.listeners), None
    if at is not None:
        host = settings.listeners[at].host
        host = "127.0.0.1" if host in ANYWHERE else host
        bootstrap = f"[{host}]:{ports[at]}" if ":" in host else f"{host}:{ports[at]}"
    order = {
        "settings": settings.to_json(), "redis_url": redis_url, "bootstrap": bootstrap, "descriptor": descriptor
    }  # fmt: skip
    return json.dumps(order) + "\n"
