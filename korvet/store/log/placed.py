"""Placed batches in memory: those that a front-end asks for before their reader does, and those of several readers.

A reader that is far behind takes a batch or two with each Fetch, and the stream's answer names further batches that did
not fit. It will take these next. So the front-end asks for them while the reader works on the last answer. Its next
Fetch then waits for entries and no longer for megabytes.

If several readers read a partition, the front-end asks for a batch once and keeps it for all of them. The first reader
starts the question, and the others wait for the same answer.

The stream stays the authority: a batch is used only for an entry equal to the one it was asked for, and the batch of an
entry never changes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from korvet.store.log.entries import Entry
from korvet.store.log.fair_queue import Reader, passed_on
from korvet.store.log.partition import Partition

AHEAD_SHARE = 4
"""The part of the budget that batches may take which nobody has come for yet."""
KEPT_S = 5.0
"""A reader that did not come within this time will not come soon."""


@dataclass(slots=True)
class _Kept:
    entry: Entry
    batch: asyncio.Future[Any]
    used_at: float
    is_awaited: bool
    """Whether it was asked for ahead, and its reader did not come yet."""


class PlacedBatches:
    """What was asked for ahead, and what several readers want. What was used longest ago goes first.

    If the part of the budget for reading ahead is used up, nothing is asked for ahead. So readers that are too many do
    not have each other's batches thrown away.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.size_bytes = 0
        self.hits = self.misses = 0
        self._loop = asyncio.get_running_loop()
        self._budget_bytes = budget_bytes
        self._ahead_bytes = 0
        self._kept: OrderedDict[tuple[Partition, int | str], _Kept] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def is_shared(self, partition: Partition, reader: Reader) -> bool:
        """Whether another reader read the partition's placed batches within `KEPT_S`; notes that this one does."""
        now = self._loop.time()
        if partition.reader is not reader:
            if partition.reader is not None and now - partition.read_at < KEPT_S:
                partition.shared_at = now
            partition.reader = reader
        partition.read_at = now
        return now - partition.shared_at < KEPT_S

    def wants(self, partition: Partition, entry: Entry) -> bool:
        """Whether the front-end may ask for an entry's batch ahead, and `add` it."""
        has_room = self._ahead_bytes + entry.size_bytes <= self._budget_bytes // AHEAD_SHARE
        return entry.data is None and has_room and (partition, entry.place) not in self._kept

    def add(self, partition: Partition, entry: Entry, batch: asyncio.Future[Any], *, is_ahead: bool) -> None:
        """Keep a batch that was asked for, and may come, fail or be gone."""
        key = partition, entry.place
        self._drop(key)
        self._kept[key] = _Kept(entry, batch, self._loop.time(), is_ahead)
        self.size_bytes += entry.size_bytes
        self._ahead_bytes += entry.size_bytes if is_ahead else 0
        while self.size_bytes > self._budget_bytes:
            self._drop(next(iter(self._kept)))
        if self._timer is None:
            self._timer = self._loop.call_later(KEPT_S, self._expire)

    def get(self, partition: Partition, entry: Entry, *, is_shared: bool) -> asyncio.Future[Any] | None:
        """An entry's batch, or None if it was not asked for, or did not come. It stays if it is shared.

        Each reader gets a future of its own, because a task that is cancelled cancels the future that it waits for.
        """
        key = partition, entry.place
        kept = self._kept.get(key)
        if kept is None:
            self.misses += 1
            return None
        if kept.entry != entry or _has_failed(kept.batch):
            self.misses += 1
            self._drop(key)
            return None
        self.hits += 1
        if is_shared:
            self._kept.move_to_end(key)
            kept.used_at = self._loop.time()
            self._ahead_bytes -= entry.size_bytes if kept.is_awaited else 0
            kept.is_awaited = False
        else:
            self._drop(key)
        return kept.batch if kept.batch.done() else passed_on(kept.batch)

    def clear(self) -> None:
        """Forget everything."""
        for key in list(self._kept):
            self._drop(key)

    def _drop(self, key: tuple[Partition, int | str]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.size_bytes -= kept.entry.size_bytes
            self._ahead_bytes -= kept.entry.size_bytes if kept.is_awaited else 0

    def _expire(self) -> None:
        """Forget what nobody used for long; the dictionary is in the order of use."""
        now, self._timer = self._loop.time(), None
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if now - kept.used_at < KEPT_S:
                self._timer = self._loop.call_later(kept.used_at + KEPT_S - now, self._expire)
                return
            self._drop(key)


def _has_failed(batch: asyncio.Future[Any]) -> bool:
    return batch.done() and (batch.cancelled() or batch.exception() is not None or batch.result() is None)
