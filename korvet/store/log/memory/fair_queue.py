"""Turns of large reads, so that small reads wait for no more than a slice or two of them.

All reads of a process share a connection to each server, and replies come in order. So only `WINDOW_BYTES` of large
replies are in flight at once from a server. A server that hangs delays only its own readers. Readers get turns as if
each had its own connection (start-time fair queueing): a reader that received little goes before one that received
much. Small reads take no turns.

Source: Goyal, Vin, Cheng, Start-time Fair Queueing, 1996
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from korvet.redis.link import Link
from korvet.redis.resp import fail

WINDOW_BYTES = 2 << 20


class Reader(Protocol):
    """A reader; ``finish`` is the virtual finish time of its reads so far."""

    finish: int


class FairQueues:
    """The queues of one process, for each of its connections to servers."""

    def __init__(self) -> None:
        self._queues: WeakKeyDictionary[Link, FairQueue] = WeakKeyDictionary()
        self._nowhere = FairQueue()

    def at(self, link: Link | None) -> FairQueue:
        """The queue of a connection, or of readers without one."""
        if link is None:
            return self._nowhere
        queue = self._queues.get(link)
        if queue is None:
            queue = self._queues[link] = FairQueue()
        return queue

    @property
    def under_way_bytes(self) -> int:
        """Requested bytes of all servers that have not arrived."""
        return sum(one.under_way_bytes for one in (self._nowhere, *self._queues.values()))


class FairQueue:
    """The queue for the turns of one connection."""

    def __init__(self, window_bytes: int = WINDOW_BYTES) -> None:
        self._window_bytes = window_bytes
        self._under_way_bytes = 0
        self._now = 0
        self._count = 0
        self._queue: list[tuple[int, int, int, asyncio.Future[None]]] = []

    @property
    def under_way_bytes(self) -> int:
        """Requested bytes that have not arrived."""
        return self._under_way_bytes

    def try_acquire(self, size_bytes: int) -> bool:
        """Take a turn if no reader waits for one."""
        if self._queue or not self._fits(size_bytes):
            return False
        self._under_way_bytes += size_bytes
        return True

    async def acquire(self, reader: Reader, size_bytes: int) -> None:
        """Wait for a turn to read some bytes; `under_way` or `arrived` ends it."""
        start = max(self._now, reader.finish)
        reader.finish = start + size_bytes
        if not self._queue and self._fits(size_bytes):
            self._under_way_bytes += size_bytes
            self._now = max(self._now, start)
            return
        self._count += 1
        turn = asyncio.get_running_loop().create_future()
        heappush(self._queue, (start, self._count, size_bytes, turn))
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.arrived(size_bytes)
            else:
                turn.cancel()
                self._admit()
            raise

    def under_way(self, reply: asyncio.Future[Any], size_bytes: int) -> asyncio.Future[Any]:
        """End the turn when the reply comes, even if the returned future is cancelled."""
        self.end_with(reply, size_bytes)
        return passed_on(reply)

    def end_with(self, reply: asyncio.Future[Any], size_bytes: int) -> None:
        """End the turn when the reply comes, or when ``reply`` itself is cancelled."""
        reply.add_done_callback(lambda _: self.arrived(size_bytes))

    def arrived(self, size_bytes: int) -> None:
        """Note that bytes arrived, or never will."""
        self._under_way_bytes -= size_bytes
        if self._queue:
            self._admit()

    def _fits(self, size_bytes: int) -> bool:
        return not self._under_way_bytes or self._under_way_bytes + size_bytes <= self._window_bytes

    def _admit(self) -> None:
        while self._queue and (self._queue[0][3].done() or self._fits(self._queue[0][2])):
            start, _, size_bytes, turn = heappop(self._queue)
            if not turn.done():
                self._under_way_bytes += size_bytes
                self._now = max(self._now, start)
                turn.set_result(None)


def passed_on(reply: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """A future of its own for one waiter of a reply, because a cancelled task cancels the future that it awaits. If
    that happens to the reply itself, the result is None."""
    own: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def pass_on(_: object) -> None:
        if own.done():
            return
        if reply.cancelled():
            own.set_result(None)
        elif (error := reply.exception()) is not None:
            fail(own, error)
        else:
            own.set_result(reply.result())

    reply.add_done_callback(pass_on)
    return own
