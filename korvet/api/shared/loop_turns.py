"""Long work in slices, between which the event loop serves other requests.

A request may name thirty thousand partitions, and an answer may list more. A handler of so many items takes a turn
before each `SLICE` of them. There is one turn in each round of the loop, however many requests are long, so a short
request never waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

MOST_REPEATS: Final = 10
"""The number of repeated names in a request that get an answer."""
SLICE: Final = 500
"""The number of items that a handler looks up, or writes into an answer, in 1 to 3 ms."""


def with_few_repeats(things: Iterable[T]) -> list[T]:
    """The items in their order, with `MOST_REPEATS` repeats at most.

    Kafka describes a group as often as it is named; one large group thirty thousand times would fill the memory.
    """
    named, repeats, kept = set[T](), 0, list[T]()
    for thing in things:
        repeats += thing in named
        if thing not in named or repeats <= MOST_REPEATS:
            kept.append(thing)
        named.add(thing)
    return kept


class LoopTurns:
    """The turns of one front-end."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False
        self._done = 0.0
        """The work done in this round of the loop, in slices."""

    async def turn(self) -> None:
        """Let the loop do all its other work, and let earlier callers go first."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._schedule()
        await future

    async def paced(self, things: Iterable[T], *, size: int = SLICE) -> AsyncIterator[T]:
        """The items, with a turn after every ``size`` of them in one round of the loop.

        Other callers' items in the same round count too: many short lists add up to a long one.
        """
        for thing in things:
            yield thing
            if self.is_due(size):
                await self.turn()

    def is_due(self, size: int = SLICE) -> bool:
        """Count an item, of which one round may do ``size``; returns true if a turn is due before the next.

        A frequent handler calls this itself: for a few items an asynchronous generator would cost more than the work.
        """
        if not self._done:
            asyncio.get_running_loop().call_soon(self._begin_round)
        self._done += 1 / size
        return self._done >= 1

    async def sliced(self, things: Sequence[T], *, size: int = SLICE) -> AsyncIterator[Sequence[T]]:
        """The items in slices of at most ``size``, with a turn before each slice but the first."""
        for at in range(0, len(things), size):
            if at:
                await self.turn()
            yield things[at : at + size]

    async def result(self, steps: Generator[None, None, T]) -> T:
        """The result of the steps, with a turn after each."""
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                found: T = stop.value
                return found
            await self.turn()

    def _begin_round(self) -> None:
        self._done = 0.0

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_scheduled = False
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                break
        self._schedule()
