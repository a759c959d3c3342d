"""A worker process of ``korvet serve --workers N``: the supervisor starts ``python -m korvet.server.processes.worker``.

The first line of its stdin is its orders as JSON, and each later line is new settings. The worker writes ``ready`` to
stdout when it accepts connections, and ``alive`` each second that its loop turns. It drains and ends on SIGTERM, and
also when stdin is closed, because then its supervisor has died.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import anyio
import structlog

from korvet.errors import KorvetError
from korvet.server.ground.logs import configure_logging
from korvet.server.ground.settings import ServeSettings
from korvet.server.ground.sockets import bind
from korvet.server.processes.figures import Serving, stdout_writer, write_figures
from korvet.server.processes.frontend import serve_listeners
from korvet.server.processes.live import Live
from korvet.server.processes.stopping import first_korvet_error, stop_on_signals

log = structlog.get_logger()


def orders(settings: ServeSettings, redis_url: str, ports: Sequence[int], number: int) -> str:
    """The first line of a worker's stdin; ``ports`` are the listeners' ports, in their order."""
    order = {"settings": settings.to_json(), "redis_url": redis_url, "ports": list(ports), "worker": number}
    return json.dumps(order) + "\n"


async def _work(order: dict[str, Any]) -> None:
    settings = ServeSettings.from_json(order["settings"])
    live = Live(settings)
    stop, serving = anyio.Event(), anyio.Event()

    def ready(served: Serving) -> None:
        serving.set()
        out.write(b"ready\n")
        if served.process.telemetry_receiver is not None:
            served.process.telemetry_receiver.send_to(out)
            tasks.start_soon(write_figures, served, out)

    out = await stdout_writer()
    with ExitStack() as stack:
        bound = [
            stack.enter_context(bind(listener.host, port, shared=True))
            for listener, port in zip(settings.listeners, order["ports"], strict=True)
        ]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_show_life, out)
            tasks.start_soon(stop_on_signals, stop, serving, tasks.cancel_scope)
            tasks.start_soon(_obey_supervisor, live, stop, serving, tasks.cancel_scope)
            await serve_listeners(live, order["redis_url"], bound, stop, ready, number=order["worker"])
            tasks.cancel_scope.cancel()


async def _show_life(out: asyncio.WriteTransport) -> None:
    """Write a line each second, unless the supervisor does not read."""
    while True:
        if out.get_write_buffer_size() == 0:
            out.write(b"alive\n")
        await anyio.sleep(1)


async def _obey_supervisor(live: Live, stop: anyio.Event, serving: anyio.Event, scope: anyio.CancelScope) -> None:
    """Apply the settings of each line of stdin. At its end set ``stop``, or end at once if no client is served yet."""
    rest, descriptor = b"", sys.stdin.fileno()
    while True:
        await anyio.wait_readable(descriptor)
        data = os.read(descriptor, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            await live.apply(ServeSettings.from_json(line.decode()))
    if not serving.is_set():
        scope.cancel()
    stop.set()


def main() -> int:
    """Run until stopped; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = json.loads(_first_line())
    settings = ServeSettings.from_json(order["settings"])
    configure_logging(settings.log_level, settings.log_format)
    structlog.contextvars.bind_contextvars(worker=order["worker"])
    try:
        anyio.run(_work, order, backend_options={"use_uvloop": True})
    except BaseExceptionGroup as group:
        error = first_korvet_error(group)
        if error is None:
            raise
        log.error("worker cannot serve", reason=str(error))
        return 1
    except KorvetError as error:
        log.error("worker cannot serve", reason=str(error))
        return 1
    return 0


def _first_line() -> bytes:
    """The first line of stdin, read byte by byte, so that no later byte stays in a buffer."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            break
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main())
