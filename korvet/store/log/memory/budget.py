"""A bound on the bytes of answers, from the read in Redis until the client has received them.

A reader reserves bytes before it reads, and each connection's `Share` holds them until the client has received them.
The less is free, the smaller the grants, down to a slice (`SLICE_BYTES` at most) and a quarter of that. So many slow
readers cannot take everything, and every other reader still gets some. If nothing is free, readers queue. The server
disconnects a client that holds up others (`korvet.server.bounds.unread`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

DEFAULT_BUDGET_BYTES = 256 << 20
SLICE_BYTES = 1 << 20
SMALL_BYTES = 64 << 10
"""Answers up to this size are not counted, so a small reader never waits."""


class _Waiting(NamedTuple):
    wanted_bytes: int
    is_whole: bool
    granted: asyncio.Future[int]


class AnswerBudget:
    """Grants bytes, first come first served."""

    def __init__(self, size_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self._size_bytes = size_bytes
        self._slice_bytes = min(SLICE_BYTES, max(SMALL_BYTES, size_bytes // 128))
        self.free_bytes = size_bytes
        """Negative after unforeseen answers, or one larger than the whole budget."""
        self._queue: deque[_Waiting] = deque()

    def share(self) -> Share:
        """An empty share for a connection."""
        return Share(self)

    @property
    def missing_bytes(self) -> int:
        """The bytes to free until each waiting reader has a slice within the bound."""
        wanted = sum(one.wanted_bytes if one.is_whole else self._least(one.wanted_bytes) for one in self._queue)
        return wanted - self.free_bytes if wanted or self.free_bytes < 0 else 0

    @property
    def taken_bytes(self) -> int:
        """The bytes granted or counted and not given back."""
        return self._size_bytes - self.free_bytes

    async def acquire(self, wanted_bytes: int, *, is_whole: bool = False) -> int:
        """Take bytes, with ``is_whole`` all wanted ones. Returns their number, which the caller owes to `give_back`."""
        wanted_bytes = min(wanted_bytes, self._size_bytes)
        if granted := self.try_acquire(wanted_bytes, is_whole=is_whole):
            return granted
        waiting = _Waiting(wanted_bytes, is_whole, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        try:
            return await waiting.granted
        except BaseException:
            if waiting.granted.done() and not waiting.granted.cancelled():
                self.give_back(waiting.granted.result())
            else:
                waiting.granted.cancel()
                self.give_back(0)
            raise

    def try_acquire(self, wanted_bytes: int, *, is_whole: bool = False) -> int:
        """As `acquire`; returns 0 instead of waiting."""
        granted = 0 if self._queue else self._grant(wanted_bytes, is_whole)
        self.free_bytes -= granted
        return granted

    def take_over(self, size_bytes: int) -> None:
        """Count bytes that are in memory already."""
        self.free_bytes -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Free bytes, and grant them to waiting readers."""
        self.free_bytes += size_bytes
        while self._queue:
            wanted_bytes, is_whole, future = self._queue[0]
            granted = 0 if future.done() else self._grant(wanted_bytes, is_whole)
            if not granted and not future.done():
                return
            self._queue.popleft()
            if granted:
                self.free_bytes -= granted
                future.set_result(granted)

    def _grant(self, wanted_bytes: int, is_whole: bool) -> int:
        granted = wanted_bytes if is_whole else min(wanted_bytes, self._most())
        return granted if granted <= self.free_bytes else 0

    def _most(self) -> int:
        generous = (self.free_bytes - self._size_bytes // 2) // 4
        if generous > self._slice_bytes:
            return generous
        return self._slice_bytes if self.free_bytes > self._size_bytes // 4 else self._least(self._slice_bytes)

    def _least(self, wanted_bytes: int) -> int:
        return min(wanted_bytes, max(SMALL_BYTES, self._slice_bytes // 4))


class Share:
    """One connection's part of the budget: for its reads, and for answers that its client has not received.

    ``finish`` orders it among the readers (`korvet.store.log.memory.fair_queue`).
    """

    __slots__ = ("_budget", "finish", "held_bytes", "leaving_bytes")

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self.held_bytes = 0
        self.leaving_bytes = 0
        self.finish = 0

    async def reserve(self, wanted_bytes: int, *, is_whole: bool = False) -> int:
        """Hold bytes before reading them from Redis; returns the number granted."""
        granted = await self._budget.acquire(wanted_bytes, is_whole=is_whole)
        self.held_bytes += granted
        return granted

    def try_reserve(self, wanted_bytes: int) -> int:
        """Hold more bytes without waiting; returns the number granted."""
        granted = self._budget.try_acquire(wanted_bytes)
        self.held_bytes += granted
        return granted

    def hold(self, size_bytes: int) -> None:
        """Hold exactly so many bytes, reserved or not."""
        more = size_bytes - self.held_bytes
        self.held_bytes = size_bytes
        self._take_over(more)

    def let_go(self) -> None:
        """Hold nothing any more."""
        if self.held_bytes:
            self.hold(0)

    def leave(self) -> None:
        """Note that the held bytes are an answer that is sent now."""
        self.leaving_bytes += self.held_bytes
        self.held_bytes = 0

    def note_unsent(self, size_bytes: int) -> None:
        """Hold the unsent bytes, reserved or not."""
        if size_bytes and size_bytes <= self.leaving_bytes:
            return
        more = size_bytes - self.leaving_bytes
        self.leaving_bytes = size_bytes
        self._take_over(more)

    def _take_over(self, more_bytes: int) -> None:
        if more_bytes > 0:
            self._budget.take_over(more_bytes)
        elif more_bytes < 0:
            self._budget.give_back(-more_bytes)
