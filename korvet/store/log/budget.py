"""A bound on bytes that Redis was asked for and that are not here yet: they are memory of the server until then."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

DEFAULT_BUDGET_BYTES = 64 << 20


class ReplyBudget:
    """Hands out bytes, first come first served."""

    def __init__(self, size_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self._size_bytes = size_bytes
        self._free_bytes = size_bytes
        self._queue: deque[tuple[int, anyio.Event]] = deque()

    @asynccontextmanager
    async def taken(self, wanted_bytes: int) -> AsyncIterator[None]:
        """Hold bytes for the time of the block; who wants more than there is at all gets everything."""
        wanted_bytes = min(wanted_bytes, self._size_bytes)
        if self._queue or wanted_bytes > self._free_bytes:
            await self._wait(wanted_bytes)
        else:
            self._free_bytes -= wanted_bytes
        try:
            yield
        finally:
            self._give_back(wanted_bytes)

    async def _wait(self, wanted_bytes: int) -> None:
        turn = (wanted_bytes, anyio.Event())
        self._queue.append(turn)
        try:
            await turn[1].wait()
        except BaseException:
            if turn[1].is_set():
                self._give_back(wanted_bytes)
            else:
                self._queue.remove(turn)
                self._give_back(0)
            raise

    def _give_back(self, size_bytes: int) -> None:
        self._free_bytes += size_bytes
        while self._queue and self._queue[0][0] <= self._free_bytes:
            wanted_bytes, event = self._queue.popleft()
            self._free_bytes -= wanted_bytes
            event.set()
