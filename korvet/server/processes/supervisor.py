"""The supervisor of ``--workers N``: N front-end processes on the same ports, each restarted when it dies or hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import anyio
import structlog
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from korvet.server.ground.settings import ServeSettings
from korvet.server.processes import figures
from korvet.server.processes.board import Board
from korvet.server.processes.live import Live
from korvet.server.processes.worker import orders
from korvet.server.tenants import telemetry_receiver

log = structlog.get_logger()

_BACKOFF_S = (0.2, 5.0)
_STOP_S = 8.0
_STEADY_S = 10.0
_MOST_LINE_BYTES = 16 << 20
_HANGS_S = 10
"""The seconds of silence after which a worker is replaced, before ``/livez`` would give up the whole tree. Kafka's
broker.session.timeout.ms is 9 s."""
_STARTS_S = 60
"""The same for a worker that has not written a line yet: on a busy machine Python starts slowly."""


class _Heard:
    """Flags: a worker has written a line, and has written one since `is_lately` was cleared."""

    __slots__ = ("is_lately", "once")

    def __init__(self) -> None:
        self.once = self.is_lately = False


async def supervise(
    live: Live, redis_url: str, ports: Sequence[int], stop: anyio.Event, ready: Callable[[], None], board: Board
) -> None:
    """Keep the workers up until ``stop`` is set, then let them drain. Call ``ready`` once all accept connections.

    Running workers receive new settings, and later ones start with them.

    :param ports: the ports of the listeners, in their order.
    :param board: is kept current about the workers.
    """
    workers = range(1, live.settings.workers + 1)
    awaited, running = set(workers), set[Process]()

    def accepts(number: int) -> None:
        board.accepts(number)
        # A restarted worker writes ``ready`` again.
        if number in awaited:
            awaited.remove(number)
            if not awaited:
                ready()

    async def apply(settings: ServeSettings) -> None:
        for process in list(running):
            await _write_line(process, settings.to_json() + "\n")

    live.on_change(apply)
    async with anyio.create_task_group() as tasks:
        for number in workers:
            order = partial(orders, redis_url=redis_url, ports=ports, number=number)
            tasks.start_soon(_keep_up, number, live, order, stop, accepts, running, board)


async def _keep_up(
    number: int,
    live: Live,
    order: Callable[[ServeSettings], str],
    stop: anyio.Event,
    accepts: Callable[[int], None],
    running: set[Process],
    board: Board,
) -> None:
    backoff_s = _BACKOFF_S[0]
    while not stop.is_set():
        began, settings = anyio.current_time(), live.settings
        process = await _spawn()
        try:
            await _write_line(process, order(settings))
            running.add(process)
            board.started(number)
            if live.settings is not settings:
                await _write_line(process, live.settings.to_json() + "\n")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_stop_when, stop, process)
                heard = _Heard()
                tasks.start_soon(_listen, process, number, accepts, board, heard)
                tasks.start_soon(_kill_if_it_hangs, process, number, heard)
                await process.wait()
                tasks.cancel_scope.cancel()
        finally:
            running.discard(process)
            board.ended(number, is_restarted=not stop.is_set())
            with anyio.CancelScope(shield=True):
                await _end(process)
        if stop.is_set():
            return
        log.error("a worker died; restarting it", worker=number, exit_code=process.returncode)
        backoff_s = _BACKOFF_S[0] if anyio.current_time() - began > _STEADY_S else min(backoff_s * 2, _BACKOFF_S[1])
        with anyio.move_on_after(backoff_s):
            await stop.wait()


async def _spawn() -> Process:
    return await anyio.open_process(
        [sys.executable, "-m", "korvet.server.processes.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        # Ctrl-C then signals only the supervisor, which lets the workers drain.
        start_new_session=True,
    )


async def _write_line(process: Process, line: str) -> None:
    """Write a line to a worker, if it still reads."""
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.send(line.encode())


async def _kill_if_it_hangs(process: Process, number: int, heard: _Heard) -> None:
    """Kill a silent worker. Its clients connect to others, and another worker is started.

    A second counts only if this process ran in it, so a machine's sleep kills no worker.
    """
    silent_s = 0
    while silent_s < (_HANGS_S if heard.once else _STARTS_S):
        heard.is_lately = False
        await anyio.sleep(1)
        silent_s = 0 if heard.is_lately else silent_s + 1
    log.error("a worker hangs; it is killed", worker=number, silent_s=silent_s)
    with suppress(ProcessLookupError):
        process.kill()


async def _listen(process: Process, number: int, accepts: Callable[[int], None], board: Board, heard: _Heard) -> None:
    """Read a worker's lines: ready, alive, metrics and pushes."""
    assert process.stdout is not None
    lines = BufferedByteReceiveStream(process.stdout)
    with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.DelimiterNotFound):
        while True:
            line = await lines.receive_until(b"\n", _MOST_LINE_BYTES)
            heard.once = heard.is_lately = True
            if line == b"ready":
                accepts(number)
            elif line.startswith(figures.PREFIX):
                board.heard(number, line.removeprefix(figures.PREFIX))
            elif line.startswith(telemetry_receiver.PREFIX):
                board.pushed_by(number, line.removeprefix(telemetry_receiver.PREFIX))


async def _stop_when(stop: anyio.Event, process: Process) -> None:
    await stop.wait()
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    await anyio.sleep(_STOP_S)
    with suppress(ProcessLookupError):
        process.kill()


async def _end(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(_STOP_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    await process.aclose()
