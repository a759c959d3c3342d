"""``--workers N``: N front-end processes on the same ports, restarted when they die and stopped by their own pid."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import structlog
from anyio.abc import Process

from korvet.server.settings import ServeSettings
from korvet.server.worker import orders

log = structlog.get_logger()

_BACKOFF_S = (0.2, 5.0)
_STOP_S = 8.0
_STEADY_S = 10.0


async def supervise(
    settings: ServeSettings, redis_url: str, ports: Sequence[int], stop: anyio.Event, ready: Callable[[], None]
) -> None:
    """Keep the workers up until ``stop`` is set, then let them drain. ``ready`` is called once all accept.

    :param ports: of the listeners, in their order.
    """
    awaited = set(range(1, settings.workers + 1))

    def accepts(number: int) -> None:
        # One that was restarted is not awaited any more.
        if number in awaited:
            awaited.remove(number)
            if not awaited:
                ready()

    async with anyio.create_task_group() as tasks:
        for number in range(1, settings.workers + 1):
            tasks.start_soon(_keep_up, number, orders(settings, redis_url, ports, number), stop, accepts)


async def _keep_up(number: int, order: str, stop: anyio.Event, accepts: Callable[[int], None]) -> None:
    backoff_s = _BACKOFF_S[0]
    while not stop.is_set():
        began = anyio.current_time()
        process = await _spawn(order)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_stop_when, stop, process)
                tasks.start_soon(_listen, process, number, accepts)
                await process.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
        if stop.is_set():
            return
        log.error("a worker died; restarting it", worker=number, exit_code=process.returncode)
        backoff_s = _BACKOFF_S[0] if anyio.current_time() - began > _STEADY_S else min(backoff_s * 2, _BACKOFF_S[1])
        with anyio.move_on_after(backoff_s):
            await stop.wait()


async def _spawn(order: str) -> Process:
    process = await anyio.open_process(
        [sys.executable, "-m", "korvet.server.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        # Ctrl-C is for the supervisor, which stops the workers in good order; one that still starts would complain.
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.send(order.encode())
    return process


async def _listen(process: Process, number: int, accepts: Callable[[int], None]) -> None:
    assert process.stdout is not None
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        if b"ready" in await process.stdout.receive():
            accepts(number)


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
