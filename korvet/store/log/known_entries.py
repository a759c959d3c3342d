"""Entries after the last answer to a lagging reader, for its next Fetches.

A read requests more entries than it uses if their batches are placed, because such entries are small. The reader's next
Fetches find theirs here, and read only batches from Redis.

Entries are trusted as long as the partition's channel is subscribed and has no message that makes them void
(`Wakeups.since`): no trim, no compaction, no deletion. They are void too if the log begins another leader epoch, and
after `TRUSTED_S`. So the stream stays the authority, as it was a moment ago. An answer out of them has the newest ends
that this front-end knows. They serve only a Fetch that they fill, so that no answer is shorter for them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from korvet.redis.wakeup import Wakeups
from korvet.store.log.entries import Entry
from korvet.store.log.partition import Meta, Partition
from korvet.store.log.room import Want

TRUSTED_S = 1.0
_LEAST = 2
"""The fewest entries to keep: a Fetch that takes the last one reads Redis, which may have more."""
_MOST = 1000
"""Positions of readers."""
_MOST_ENTRIES = 32
"""Of one position; so all positions are some ten megabytes at most."""


class Known(NamedTuple):
    """Entries from a reader's position on, up to the end that it may read, and the meta hash read after them."""

    entries: Sequence[Entry]
    meta: Meta
    since: int
    """`Wakeups.since` at the question."""
    asked_at: float
    may_last: bool
    """True if `KnownEntries` may keep them."""


class KnownEntries:
    """The next entries of all readers of a process. The oldest are dropped first."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self._now = asyncio.get_running_loop().time
        self._known: OrderedDict[tuple[Partition, int], Known] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def may_last(self, partition: Partition, entries: Sequence[Entry]) -> bool:
        """True if entries from Redis may be kept: all are placed, and the channel reports their end."""
        if len(entries) < _LEAST or any(entry.data is not None or entry.record for entry in entries):
            return False
        return self._wakeups.keep(partition.channel)

    def add(self, partition: Partition, known: Known, taken: int) -> None:
        """Keep the entries after the first ``taken`` ones, for the reader's next Fetch."""
        entries = known.entries
        if known.may_last and len(entries) - taken >= _LEAST:
            rest = Known(entries[taken : taken + _MOST_ENTRIES], known.meta, known.since, known.asked_at, True)
            key = partition, entries[taken - 1].next_offset
            self._known[key] = rest
            self._known.move_to_end(key)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(TRUSTED_S, self._expire)

    def get(self, want: Want, limit: int) -> Known | None:
        """The entries from a reader's position on, with the newest ends; None if Redis must be read.

        :param limit: the bytes that this partition may add to the answer.
        """
        partition = want.partition
        known = self._known.get((partition, want.offset))
        if known is None:
            return None
        meta = known.meta
        if (
            known.since != self._wakeups.since(partition.channel)
            or self._now() - known.asked_at > TRUSTED_S
            or meta.epoch != partition.epoch
            or want.offset < partition.start
        ):
            self.drop(want)
            return None
        if want.is_committed and (meta.last_aborted >= want.offset or known.entries[-1].next_offset > meta.stable):
            return None
        if not _fill(known.entries, limit):
            return None
        if partition.end > meta.end or partition.start > meta.start:
            meta = meta._replace(start=max(meta.start, partition.start), end=max(meta.end, partition.end))
            known = known._replace(meta=meta)
        return known

    def drop(self, want: Want) -> None:
        """Forget the entries of a position."""
        self._known.pop((want.partition, want.offset), None)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    def _expire(self) -> None:
        """Forget expired entries."""
        oldest, self._timer = self._now() - TRUSTED_S, None
        while self._known:
            key, known = next(iter(self._known.items()))
            if known.asked_at > oldest:
                self._timer = asyncio.get_running_loop().call_later(TRUSTED_S, self._expire)
                return
            del self._known[key]


def _fill(entries: Sequence[Entry], limit: int) -> bool:
    """True if the entries exceed the limit in bytes."""
    size_bytes = 0
    for entry in entries:
        size_bytes += entry.size_bytes
        if size_bytes > limit:
            return True
    return False
