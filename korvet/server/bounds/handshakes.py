"""The TLS handshakes of one process: a bounded number at a time.

A handshake takes memory, and up to a millisecond of the loop. If others wait for a turn, a handshake that takes seconds
is cut off, so clients that begin one and fall silent hold up no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_LEAST_PAUSE_S = 0.05


class Handshakes:
    """The turns of handshakes.

    :param most: the number of handshakes at a time.
    :param patience_s: the time after which a handshake loses its turn, if others wait.
    """

    def __init__(self, most: int, patience_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = asyncio.Semaphore(most)
        self._patience_s = patience_s
        self._running: dict[object, tuple[float, Callable[[], None]]] = {}
        """When each began, and the scope that cuts it off; the oldest comes first."""
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, cut_off: Callable[[], None]) -> AsyncIterator[None]:
        """Hold a turn for the time of the block. ``cut_off`` ends the block soon."""
        self._waiting += 1
        self._watch()
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        own = object()
        self._running[own] = (self._loop.time(), cut_off)
        self._watch()
        try:
            yield
        finally:
            del self._running[own]
            self._turns.release()

    def _watch(self) -> None:
        if self._timer is None and self._waiting and self._turns.locked() and self._running:
            began, _ = next(iter(self._running.values()))
            pause_s = max(_LEAST_PAUSE_S, began + self._patience_s - self._loop.time())
            self._timer = self._loop.call_later(pause_s, self._relieve)

    def _relieve(self) -> None:
        self._timer = None
        now = self._loop.time()
        overdue = [cut for began, cut in self._running.values() if now - began >= self._patience_s]
        for cut_off in overdue[: self._waiting]:
            cut_off()
        self._watch()
