"""Placed batches that are asked for before their reader comes for them.

A reader that is far behind takes a batch or two with each Fetch, and the stream's answer tells of further ones that did
not fit. These it will take next, so they are asked for while it works on what it has: then its next Fetch waits for
entries, and no longer for megabytes. What the stream says by then decides: a batch is only taken for an entry that
equals the one it was asked for, and the batch of an entry never changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from korvet.store.log.partition import Partition
    from korvet.store.log.read import Entry

DEFAULT_BUDGET_BYTES = 32 << 20
KEPT_S = 5.0
"""A reader that did not come by then will not come soon."""


class _Asked(NamedTuple):
    entry: Entry
    batch: asyncio.Future[Any]
    asked_at: float


class ReadAhead:
    """What was asked for and nobody took yet; each batch is one reader's. Where the budget is used up, nothing is asked
    for, so that readers who are too many do not have each other's batches thrown away."""

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self._loop = asyncio.get_running_loop()
        self._free_bytes = budget_bytes
        self._asked: dict[tuple[Partition, int | str], _Asked] = {}
        self._timer: asyncio.TimerHandle | None = None

    def wants(self, partition: Partition, entry: Entry) -> bool:
        """Whether an entry's batch is to be asked for, and given to `add`."""
        return (
            entry.data is None and entry.size_bytes <= self._free_bytes and (partition, entry.place) not in self._asked
        )

    def add(self, partition: Partition, entry: Entry, batch: asyncio.Future[Any]) -> None:
        """Keep a batch that was asked for, and may come, fail or be gone."""
        self._asked[partition, entry.place] = _Asked(entry, batch, self._loop.time())
        self._free_bytes -= entry.size_bytes
        if self._timer is None:
            self._timer = self._loop.call_later(KEPT_S, self._expire)

    def take(self, partition: Partition, entry: Entry) -> asyncio.Future[Any] | None:
        """An entry's batch, which nobody else gets; None where it was not asked for, or did not come."""
        asked = self._drop((partition, entry.place))
        if asked is None or asked.entry != entry:
            return None
        batch = asked.batch
        if batch.done() and (batch.cancelled() or batch.exception() is not None or batch.result() is None):
            return None
        return batch

    def clear(self) -> None:
        """Forget everything."""
        for key in list(self._asked):
            self._drop(key)

    def _drop(self, key: tuple[Partition, int | str]) -> _Asked | None:
        asked = self._asked.pop(key, None)
        if asked is not None:
            self._free_bytes += asked.entry.size_bytes
        return asked

    def _expire(self) -> None:
        """Forget what is too old; the dictionary is in the order of asking."""
        now, self._timer = self._loop.time(), None
        for key, asked in list(self._asked.items()):
            if now - asked.asked_at < KEPT_S:
                self._timer = self._loop.call_later(asked.asked_at + KEPT_S - now, self._expire)
                return
            self._drop(key)
