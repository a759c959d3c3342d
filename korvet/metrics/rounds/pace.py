"""The pace of a round, and its bound.

A round reads in slices, each about a millisecond of Redis's time, and rests after each for much longer than it took.
So Redis serves others meanwhile, and rests longer the busier it is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import anyio

from korvet.errors import KorvetError
from korvet.metrics.samples import Samples, Value
from korvet.store.outcomes import settled

T = TypeVar("T")
_REST: Final = 20.0
"""The rest after a slice, as a multiple of the slice's time."""
_LONGEST_REST_S: Final = 1.0
_LABEL_CHARACTERS: Final = 200
"""A series counts as one more for each such length of its labels."""


class Pace:
    """Asks Redis in slices, and rests between them; ``unreadable`` counts what could not be read."""

    def __init__(self) -> None:
        self.unreadable = 0

    async def ask(self, some: Sequence[T], call: Callable[[T], Awaitable[Any]]) -> list[tuple[T, Any]]:
        """Make a call for each thing of a slice, and rest. Returns the things that could be read, with the results."""
        now = asyncio.get_running_loop().time
        began = now()
        outcomes = await settled(call(one) for one in some)
        await anyio.sleep(min(_LONGEST_REST_S, _REST * (now() - began)))
        found = [(one, outcome) for one, outcome in zip(some, outcomes, strict=True) if not _has_failed(outcome)]
        self.unreadable += len(some) - len(found)
        return found


def _has_failed(outcome: object) -> bool:
    return isinstance(outcome, KorvetError)


class Bounded(Samples):
    """Figures with a bound on their series; ``dropped`` counts the others by metric."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.dropped: Counter[str] = Counter()
        self._left = most

    def set(self, name: str, value: Value, *labels: str) -> None:
        cost = 1 + sum(map(len, labels)) // _LABEL_CHARACTERS
        if cost > self._left:
            self.dropped[name] += 1
            return
        self._left -= cost
        super().set(name, value, *labels)

    def set_sum(self, name: str, value: Value, *labels: str) -> None:
        """Set a figure of the whole namespace. There are few of these, so they have no bound."""
        super().set(name, value, *labels)
