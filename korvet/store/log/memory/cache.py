"""Entries of logs, and the bytes of their batches, in memory for all readers of a process.

An entry lies at a *position*, the offset from which it is a reader's next one. Its batch is in memory, requested (a
future), or known by its entry alone. It comes here by

- an append of this front-end, if a reader waited at the log's end a moment ago (`Appending`);
- a read that reached the log's end, for further readers there;
- a read of a partition with several readers: the first one requests a batch, and the others await the same reply;
- a read of a lagging reader, which returns more entries than fit into its answer. Their batches are read ahead while
  the client processes the answer. The reader takes them out.

**Trust.** There are two rules, and the log's source stays the authority in both:

- The batch of an entry never changes. So bytes serve every reader that has an equal entry, however it came by that.
- An entry is as current as the ends of the log (`korvet.store.log.partitions.ends`). It serves without a question to
  the source while the channel has had no message that makes it void (`Wakeups.since`), and the log its leader epoch.

**Bounds.** One budget counts all. The least recently used go first, and all that is unused for `KEPT_S`. Reading ahead
stops at its share of the budget. So too many readers do not evict each other's batches.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Any

from korvet.redis.client import Buffer
from korvet.store.log.memory.fair_queue import Reader, passed_on
from korvet.store.log.memory.room import MOST_ENTRIES
from korvet.store.log.state.entries import Entry
from korvet.store.log.state.partition import Meta, Partition

AHEAD_SHARE = 4
"""Batches read ahead and not yet fetched may take one part in so many of the budget."""
KEPT_S = 5.0
"""Seconds after which a reader is not expected soon."""
ENTRY_BYTES = 400
"""The objects around a batch."""
MOST_LEARNED = 32
"""Entries of placed batches that one read adds for the reader's next ones."""

Batch = Buffer | asyncio.Future[Any]


class Kept:
    """An entry in memory. ``since`` and ``epoch`` are those of the moment at which it was certainly in the log."""

    __slots__ = ("batch", "entry", "epoch", "is_ahead", "is_settled", "since", "size_bytes", "used_at")

    def __init__(self, entry: Entry, now: float) -> None:
        self.entry = entry
        self.batch: Batch | None = None
        self.since = self.epoch = -1
        self.is_settled = False
        """True if no aborted transaction can have records in it."""
        self.is_ahead = False
        """True while read ahead and not yet fetched."""
        self.size_bytes = ENTRY_BYTES
        self.used_at = now


Run = tuple[Sequence[Kept], int, Kept | None]
"""Consecutive entries within the limits, their bytes, and the first one beyond them."""


class BatchCache:
    """The entries and batches of one process."""

    def __init__(self, budget_bytes: int) -> None:
        self.size_bytes = self.ahead_bytes = 0
        self.hits = self.misses = 0
        """Placed batches that were found, or not."""
        self._budget_bytes = budget_bytes
        self._kept: OrderedDict[tuple[Partition, int], Kept] = OrderedDict()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def next(self, partition: Partition, position: int) -> Kept | None:
        """The entry after a position, if it is as current as the partition's known ends."""
        kept = self._kept.get((partition, position))
        return kept if kept and kept.since == partition.since and kept.epoch == partition.epoch else None

    def run(
        self, partition: Partition, position: int, until: int, limit: int, *, must: bool, is_committed: bool
    ) -> Run | None:
        """The entries from a position on that reach an offset, or exceed a limit in bytes or `MOST_ENTRIES`.

        None if one of them is not here, or not as current as the partition's known ends.

        :param must: the first entry may exceed the limit.
        :param is_committed: none may be without `Kept.is_settled`.
        """
        kept: list[Kept] = []
        size_bytes, now = 0, self._loop.time()
        while position < until:
            key = partition, position
            one = self._kept.get(key)
            if one is None or one.since != partition.since or one.epoch != partition.epoch:
                return None
            if is_committed and not one.is_settled:
                return None
            is_beyond = size_bytes + one.entry.size_bytes > limit or len(kept) == MOST_ENTRIES
            if is_beyond and not (must and not kept):
                return kept, size_bytes, one
            kept.append(one)
            one.used_at = now
            self._kept.move_to_end(key)
            size_bytes += one.entry.size_bytes
            position = one.entry.next_offset
        return kept, size_bytes, None

    def add(
        self,
        partition: Partition,
        position: int,
        entry: Entry,
        batch: Batch | None,
        *,
        since: int,
        epoch: int,
        is_settled: bool,
    ) -> None:
        """Keep an entry that was in the log at a moment, and its batch; None leaves a batch that is kept already."""
        kept = self._kept_for((partition, position), entry)
        kept.is_settled = is_settled or (kept.is_settled and kept.epoch == epoch)
        kept.since, kept.epoch = since, epoch
        if batch is not None:
            self._set_ahead(kept, is_ahead=False)
        self._fill(kept, batch)

    def learn(self, partition: Partition, position: int, entries: Sequence[Entry], meta: Meta, since: int) -> None:
        """Keep entries for a lagging reader's next reads, up to one of a record."""
        for at, entry in enumerate(entries):
            if entry.record is not None or (at >= MOST_LEARNED and entry.data is None):
                return
            settled = is_settled(meta, position, entry)
            self.add(partition, position, entry, entry.data, since=since, epoch=meta.epoch, is_settled=settled)
            position = entry.next_offset

    def is_shared(self, partition: Partition, reader: Reader) -> bool:
        """Note a reader of the partition's placed batches; true if another one read them within `KEPT_S`."""
        now = self._loop.time()
        if partition.reader is not reader:
            if partition.reader is not None and now - partition.read_at < KEPT_S:
                partition.shared_at = now
            partition.reader = reader
        partition.read_at = now
        return now - partition.shared_at < KEPT_S

    def get(self, partition: Partition, position: int, entry: Entry, *, is_shared: bool) -> Batch | None:
        """An entry's batch; None if it was not requested, or did not arrive.

        A batch that was read ahead leaves with its reader, unless the partition is shared. Each reader gets a future of
        its own, because a cancelled task cancels the future that it awaits.
        """
        key = partition, position
        kept = self._kept.get(key)
        if kept is not None and (kept.entry != entry or _has_failed(kept.batch)):
            self._drop(key)
            kept = None
        batch = None
        if kept is not None:
            batch = kept.batch
            if is_shared or not kept.is_ahead:
                self._set_ahead(kept, is_ahead=False)
                kept.used_at = self._loop.time()
                self._kept.move_to_end(key)
            else:
                self._drop(key)
        if batch is None:
            self.misses += 1
            return None
        self.hits += 1
        return passed_on(batch) if isinstance(batch, asyncio.Future) and not batch.done() else batch

    def share(self, partition: Partition, position: int, entry: Entry, batch: Batch) -> None:
        """Keep the batch of an entry for all readers that have an equal one."""
        self._fill(self._kept_for((partition, position), entry), batch)

    def may_read_ahead(self, kept: Kept) -> bool:
        """True if the front-end may read the entry's batch ahead."""
        return self.ahead_bytes + kept.entry.size_bytes <= self._budget_bytes // AHEAD_SHARE

    def read_ahead(self, kept: Kept, batch: asyncio.Future[Any]) -> None:
        """Keep a batch that was requested for a reader's next Fetch."""
        self._set_ahead(kept, is_ahead=True)
        self._fill(kept, batch)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self.size_bytes = self.ahead_bytes = 0

    def _kept_for(self, key: tuple[Partition, int], entry: Entry) -> Kept:
        """What is kept of an equal entry, or a new one instead of another entry."""
        kept = self._kept.get(key)
        if kept is not None:
            if kept.entry == entry:
                return kept
            self._drop(key)
        kept = self._kept[key] = Kept(entry, self._loop.time())
        self.size_bytes += ENTRY_BYTES
        if self._timer is None:
            self._timer = self._loop.call_later(KEPT_S, self._expire)
        return kept

    def _fill(self, kept: Kept, batch: Batch | None) -> None:
        if batch is not None:
            if kept.batch is None:
                kept.size_bytes += kept.entry.size_bytes
                self.size_bytes += kept.entry.size_bytes
            kept.batch = batch
        while self.size_bytes > self._budget_bytes:
            self._drop(next(iter(self._kept)))

    def _set_ahead(self, kept: Kept, *, is_ahead: bool) -> None:
        if kept.is_ahead != is_ahead:
            kept.is_ahead = is_ahead
            self.ahead_bytes += kept.entry.size_bytes if is_ahead else -kept.entry.size_bytes

    def _drop(self, key: tuple[Partition, int]) -> None:
        kept = self._kept.pop(key)
        self.size_bytes -= kept.size_bytes
        if kept.is_ahead:
            self.ahead_bytes -= kept.entry.size_bytes

    def _expire(self) -> None:
        """Forget long unused entries, some in each turn of the loop; the dictionary is in the order of use."""
        self._timer = None
        for key, kept in list(islice(self._kept.items(), MOST_ENTRIES)):
            if self._loop.time() - kept.used_at < KEPT_S:
                self._timer = self._loop.call_later(KEPT_S / 5, self._expire)
                return
            self._drop(key)
        if self._kept:
            self._timer = self._loop.call_later(0, self._expire)


def is_settled(meta: Meta, position: int, entry: Entry) -> bool:
    """True if no aborted transaction has records in an entry, nor will have."""
    return position > meta.last_aborted and entry.next_offset <= meta.stable


def _has_failed(batch: Batch | None) -> bool:
    """True if a request for a batch brought none."""
    if not isinstance(batch, asyncio.Future) or not batch.done():
        return False
    return batch.cancelled() or batch.exception() is not None or batch.result() is None
