"""The lists that pages are cut from, kept for a moment.

Kafka has no pages of topics and groups: a broker lists all of them. So a visitor who turns pages, or types into a
filter, sees the list that the first page began with, and the console asks the broker once.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")
FRESH_S: Final = 30.0
MOST: Final = 8
"""The most lists, of all visitors."""
MOST_ROWS: Final = 200_000
"""The most rows of all lists, with a topic's partitions. They take some 100 MiB."""


class _Kept(NamedTuple):
    """A list, and the time of its request."""

    listed_at: float
    found: Sequence[Any]
    rows: int


class Lists:
    """The newest lists, by visitor and kind. Any thread may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    def find(self, visitor: str, kind: str) -> Sequence[Any] | None:
        """A kept list; None if there is none."""
        with self._lock:
            kept = self._kept.get((visitor, kind))
            return kept.found if kept is not None and self._clock() - kept.listed_at < FRESH_S else None

    def keep(self, visitor: str, kind: str, found: Sequence[Any], rows: int) -> None:
        """Keep a list instead of the oldest ones; one that is too large alone is not kept."""
        with self._lock:
            self._kept[visitor, kind] = _Kept(self._clock(), found, rows)
            self._kept.move_to_end((visitor, kind))
            while len(self._kept) > MOST or sum(kept.rows for kept in self._kept.values()) > MOST_ROWS:
                self._kept.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListsOfVisitor:
    """The lists of one visitor; ``may_be_kept`` is False for a page that begins anew."""

    lists: Lists
    visitor: str
    may_be_kept: bool

    def get(self, kind: str, ask: Callable[[], Sequence[T]], rows: Callable[[T], int]) -> Sequence[T]:
        """A kept list, or a new one from the cluster. ``rows`` counts the rows of an element."""
        found = self.lists.find(self.visitor, kind) if self.may_be_kept else None
        if found is None:
            found = ask()
            self.lists.keep(self.visitor, kind, found, sum(map(rows, found)))
        return found
