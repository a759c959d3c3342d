"""Placed batches in memory: read ahead for one reader, or kept for several.

A lagging reader takes a batch or two with each Fetch, and the stream's reply names further batches that did not fit. So
the front-end reads these while the reader processes the last answer. Its next Fetch then waits for entries and no
longer for megabytes.

If a partition has several readers, the front-end reads a batch once and keeps it for all of them. The first reader
starts the read, and the others await the same reply.

The stream stays the authority: a batch serves only an entry equal to the one that it was read for, and the batch of an
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
"""Batches read ahead and not yet fetched may take one part in so many of the budget."""
KEPT_S = 5.0
"""Seconds after which a reader is not expected soon."""


@dataclass(slots=True)
class _Kept:
    entry: Entry
    batch: asyncio.Future[Any]
    used_at: float
    is_awaited: bool
    """True while read ahead and not yet fetched."""


class PlacedBatches:
    """Batches read ahead, and batches of several readers. The least recently used go first.

    Reading ahead stops when its share of the budget is used up. So too many readers do not evict each other's batches.
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
        """Note a reader of the partition's placed batches; true if another one read them within `KEPT_S`."""
        now = self._loop.time()
        if partition.reader is not reader:
            if partition.reader is not None and now - partition.read_at < KEPT_S:
                partition.shared_at = now
            partition.reader = reader
        partition.read_at = now
        return now - partition.shared_at < KEPT_S

    def wants(self, partition: Partition, entry: Entry) -> bool:
        """True if the front-end may read an entry's batch ahead, and `add` it."""
        has_room = self._ahead_bytes + entry.size_bytes <= self._budget_bytes // AHEAD_SHARE
        return entry.data is None and has_room and (partition, entry.place) not in self._kept

    def add(self, partition: Partition, entry: Entry, batch: asyncio.Future[Any], *, is_ahead: bool) -> None:
        """Keep a requested batch, which may arrive, fail or be gone."""
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
        """An entry's batch; None if it was not requested, or did not arrive. It stays if it is shared.

        Each reader gets its own future, because a cancelled task cancels the future that it awaits.
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
        """Forget long unused batches; the dictionary is in the order of use."""
        now, self._timer = self._loop.time(), None
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if now - kept.used_at < KEPT_S:
                self._timer = self._loop.call_later(kept.used_at + KEPT_S - now, self._expire)
                return
            self._drop(key)


def _has_failed(batch: asyncio.Future[Any]) -> bool:
    return batch.done() and (batch.cancelled() or batch.exception() is not None or batch.result() is None)
