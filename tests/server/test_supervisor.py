"""The supervisor's own life: its workers end with it."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import Process

from korvet.metrics.clients import Clients
from korvet.server import supervisor
from korvet.server.board import Board
from korvet.server.live import Live
from korvet.server.settings import ListenerSettings, ServeSettings

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

        monkeypatch.setattr(supervisor, "_tell", tell)
        await supervisor.supervise(live, "redis://127.0.0.1:1", [0], anyio.Event(), lambda: None, board)
    [worker] = begun
    has_ended = worker.returncode is not None
    if not has_ended:
        worker.kill()
        await worker.aclose()
    assert has_ended
