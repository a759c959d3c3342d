"""A front-end's memory of a partition's aborted transactions; see `korvet.store.log.aborted`."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

_MOST_PAGES = 10_000


class Page(NamedTuple):
    """Transactions that end at or below an offset, and their lowest first offset."""

    until: int
    first: int


class AbortedPages:
    """Consecutive pages of one partition, from the lowest end, ``since``."""

    __slots__ = ("_epoch", "_pages", "_since")

    def __init__(self) -> None:
        self._epoch = -1
        self._since = 0
        self._pages: list[Page] = []

    def begin(self, epoch: int) -> None:
        """Forget the pages of another history."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._pages.clear()

    def at(self, end: int) -> Page | None:
        """The page for transactions with this end."""
        if not self._pages or not self._since <= end <= self._pages[-1].until:
            return None
        return self._pages[bisect_left(self._pages, end, key=lambda page: page.until)]

    def add(self, since: int, page: Page) -> None:
        """Keep a page of the transactions from an end on; a page that begins before all others replaces them."""
        if not self._pages or since < self._since:
            self._since, self._pages = since, [page]
        elif since == self._pages[-1].until + 1 and len(self._pages) < _MOST_PAGES:
            self._pages.append(page)
