"""The supervisor and its workers' lives: they end with it, and it replaces one that hangs."""

from __future__ import annotations

import os
import signal

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import Process

from korvet.metrics.clients import Clients
from korvet.server.ground.settings import ListenerSettings, ServeSettings
from korvet.server.processes import supervisor
from korvet.server.processes.board import Board
from korvet.server.processes.live import Live
from tests.support.ports import free_port
from tests.support.redis import Server

pytestmark = pytest.mark.anyio


async def test_worker_ends_if_the_supervisor_is_cancelled_before_it_gave_any_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[Process] = []
    live = Live(ServeSettings(listeners=(ListenerSettings(port=0),)))
    board = Board(1, lambda: False, Clients(10))
    with anyio.CancelScope() as scope:

        async def tell(process: Process, _line: str) -> None:
            begun.append(process)
            scope.cancel()
            await anyio.lowlevel.checkpoint()

        monkeypatch.setattr(supervisor, "_write_line", tell)
        await supervisor.supervise(live, "redis://127.0.0.1:1", [0], anyio.Event(), lambda: None, board)
    [worker] = begun
    has_ended = worker.returncode is not None
    if not has_ended:
        worker.kill()
        await worker.aclose()
    assert has_ended


@pytest.mark.parametrize("is_ready", [True, False])
async def test_worker_that_hangs_is_replaced_and_one_that_serves_is_not(
    valkey_server: Server, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    """A front-end is stopped: its connections would stay, and its clients would wait for answers."""
    begun: list[Process] = []
    spawn, port, stop, ready = supervisor._spawn, free_port(), anyio.Event(), anyio.Event()

    async def spawned() -> Process:
        begun.append(await spawn())
        return begun[-1]

    monkeypatch.setattr(supervisor, "_spawn", spawned)
    monkeypatch.setattr(supervisor, "_HANGS_S", 3)
    monkeypatch.setattr(supervisor, "_STARTS_S", 60 if is_ready else 10)
    live = Live(ServeSettings(listeners=(ListenerSettings(port=port),), workers=2))
    board = Board(2, stop.is_set, Clients(10))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.supervise, live, valkey_server.url, [port], stop, ready.set, board)
        with anyio.fail_after(60):
            if is_ready:
                await ready.wait()
            else:
                while len(begun) < 2:
                    await anyio.sleep(0.001)
            os.kill(begun[0].pid, signal.SIGSTOP)
            while len(begun) < 3:
                await anyio.sleep(0.05)
            await ready.wait()
        assert (begun[0].returncode, begun[1].returncode) == (-signal.SIGKILL, None)
        stop.set()
