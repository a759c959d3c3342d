"""Long work in slices, between which the event loop serves other requests.

A request may name thirty thousand partitions, and an answer may tell of more. A handler of so many things takes a turn
before each `SLICE` of them. Turns come one at a time: one in each round of the loop, however many requests are long. A
short request never waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from typing import Final, TypeVar

from korvet.redis.reply import in_task

T = TypeVar("T")

MOST_REPEATS: Final = 10
"""The repetitions of names in a request that are answered."""
SLICE: Final = 500
"""Things that a handler looks up, or puts into an answer, in 1 to 3 ms."""


def with_few_repeats(things: Iterable[T]) -> list[T]:
    """The things in their order, with `MOST_REPEATS` repeats at most.

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
        await in_task()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._schedule()
        await future

    async def paced(self, things: Iterable[T], *, size: int = SLICE) -> AsyncIterator[T]:
        """The things, with a turn after every ``size`` of them in one round of the loop.

        Other callers' things in the same round count too: many short lists within a list are long together.
        """
        for thing in things:
            yield thing
            if self.is_due(size):
                await self.turn()

    def is_due(self, size: int = SLICE) -> bool:
        """Count a thing of which ``size`` may be done in one round; returns whether a turn is due before the next.

        A handler that is called often calls this itself: an asynchronous generator costs more than few things do.
        """
        if not self._done:
            asyncio.get_running_loop().call_soon(self._begin_round)
        self._done += 1 / size
        return self._done >= 1

    async def sliced(self, things: Sequence[T], *, size: int = SLICE) -> AsyncIterator[Sequence[T]]:
        """The things in slices of at most ``size``, with a turn before each slice but the first."""
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
