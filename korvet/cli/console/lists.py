"""The lists that pages are cut from, kept for a moment.

Kafka has no pages of topics and groups: a broker tells all of them. So a visitor who turns pages, or types into a
filter, sees the list that his page began with, and the broker is asked once.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")
FRESH_S: Final = 30.0
MOST: Final = 8
"""Of all visitors. A list of 10,000 takes a few MiB."""


class Lists:
    """The newest lists, by visitor and kind. Any thread may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], tuple[float, Sequence[Any]]] = OrderedDict()

    def find(self, visitor: str, kind: str) -> Sequence[Any] | None:
        """A list that is kept; None if there is none."""
        with self._lock:
            asked_at, found = self._kept.get((visitor, kind), (-FRESH_S, ()))
            return found if self._clock() - asked_at < FRESH_S else None

    def keep(self, visitor: str, kind: str, found: Sequence[Any]) -> None:
        """Keep a list instead of the oldest one."""
        with self._lock:
            self._kept[visitor, kind] = self._clock(), found
            self._kept.move_to_end((visitor, kind))
            if len(self._kept) > MOST:
                self._kept.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListsOfVisitor:
    """The lists of one visitor; ``may_be_kept`` is False for a page that begins anew."""

    lists: Lists
    visitor: str
    may_be_kept: bool

    def get(self, kind: str, ask: Callable[[], Sequence[T]]) -> Sequence[T]:
        """A list that is kept, or the cluster's own."""
        found = self.lists.find(self.visitor, kind) if self.may_be_kept else None
        if found is None:
            found = ask()
            self.lists.keep(self.visitor, kind, found)
        return found
