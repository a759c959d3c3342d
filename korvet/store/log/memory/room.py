"""The room of a Fetch: its limit in bytes, the reserved bytes, and the bytes that may be in flight.

A read estimates its bytes, and reserves them before it reads if they are more than `SMALL_BYTES`. If less is
granted, the answer is cut short there (`PartitionRead.is_cut`), and the client's next Fetch goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from korvet.store.log.memory.budget import SLICE_BYTES, SMALL_BYTES, Share
from korvet.store.log.state.epochs import EpochEnd
from korvet.store.log.state.partition import Partition

MOST_ENTRIES = 1000
"""The most entries that an answer takes of a partition, because the loop handles them in one go."""
_SMALLEST_COUNT_BYTES = 64
_SPARE_ENTRIES = 2
"""The entries to read beyond the estimate that fills the limit, because batches differ in size."""
_SPARE_PLACED_ENTRIES = 16
"""The same if the batches are placed: further reads take these entries (`korvet.store.log.known_entries`)."""
_UNHEARD_ENTRIES = 64
"""The entries to read beyond the last known end, without a reservation."""
_PLACED_MEAN_BYTES = 8 << 10
_INDEX_BYTES = 160
"""Of an entry whose batch is placed."""


@dataclass(slots=True)
class Want:
    """A read of one partition; epochs are -1 if not given."""

    partition: Partition
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    is_committed: bool = False
    """True for read_committed."""
    until: int = -1
    """The offset up to which records are wanted, at the end of the batch that has the last one; -1 for no bound."""
    goes_on: bool = False
    """True if what comes after ``until`` will be wanted next."""


@dataclass(slots=True)
class PartitionRead:
    """The outcome of a Fetch in one partition; offsets are -1 if the partition could not be read.

    ``records`` are buffers of whole batches, and ``size_bytes`` is their sum. ``diverging`` is sent from version
    12 on. ``aborted`` holds aborted transactions as producer id and first offset; None is a null list. Kafka sends a
    list, perhaps an empty one, to readers of committed records, and for partitions that it did not read. ``is_cut``
    says that the partition has more, within the reader's own limits.
    """

    partition: int
    code: int
    high_watermark: int = -1
    log_start: int = -1
    last_stable: int = -1
    records: list[bytes | memoryview] = field(default_factory=list)
    size_bytes: int = 0
    diverging: EpochEnd | None = None
    aborted: Sequence[tuple[int, int]] | None = None
    is_cut: bool = False
    pending: asyncio.Future[None] | None = None
    """Done when the partition should be read again: its records are on their way from a tier."""


class Expected(NamedTuple):
    """An estimate of entries to read: their number, the bytes of their batches, and of the entries themselves."""

    entries: int
    size_bytes: int
    entries_bytes: int


def expected(partition: Partition, offset: int, limit: int, end: int, *, is_bound: bool = False) -> Expected:
    """Estimate the entries from an offset on, up to a limit in bytes and the last known end, -1 if none is known.

    ``is_bound`` is true if the reader wants nothing after the end.

    A read gets entries that hold their batches in slices. It gets none below the local start, where segments answer.
    """
    if offset < partition.local_start:
        return Expected(0, limit, 0)
    mean = max(_SMALLEST_COUNT_BYTES, partition.mean_bytes)
    is_placed = mean >= _PLACED_MEAN_BYTES
    spare = _SPARE_PLACED_ENTRIES if is_placed and not partition.holds_records else _SPARE_ENTRIES
    count = min(MOST_ENTRIES, (limit if is_placed else min(limit, SLICE_BYTES)) // mean + spare)
    there = count
    if end >= 0:
        there = min(count, max(0, end - offset))
        count = min(count, there + (0 if is_bound else _UNHEARD_ENTRIES))
    size_bytes = min(limit, there * mean)
    return Expected(count, size_bytes, there * _INDEX_BYTES if is_placed else size_bytes)


class FetchRoom:
    """Bytes that an answer may still take. The first batch of all is returned however large it is (KIP-74)."""

    __slots__ = ("_granted_bytes", "_waits", "asks_ahead", "is_cut", "is_empty", "left_bytes", "share", "taken_bytes")

    def __init__(self, left_bytes: int, share: Share, *, is_empty: bool = True, waits: bool = True) -> None:
        self.left_bytes = left_bytes
        self.share = share
        self.is_empty = is_empty
        self._waits = waits
        self.is_cut = False
        """True if less was granted than wanted."""
        self.asks_ahead = False
        """True if batches for the reader's next Fetch were read ahead."""
        self.taken_bytes = 0
        """The bytes of the batches in the answer."""
        self._granted_bytes = 0

    def limit(self, max_bytes: int) -> int:
        """The part of a partition's ``max_bytes`` that fits into the room."""
        return max(0, min(max_bytes, self.left_bytes))

    def take(self, size_bytes: int) -> None:
        """Put batches into the answer."""
        if size_bytes:
            self.left_bytes -= size_bytes
            self.taken_bytes += size_bytes
            self.is_empty = False

    @property
    def covered_bytes(self) -> int:
        """The bytes that the answer may still take without a further reservation."""
        return max(self._granted_bytes, SMALL_BYTES) - self.taken_bytes

    async def reserve(self, wanted_bytes: int) -> None:
        """Reserve bytes for the answer before anything is read, and limit the answer to the granted ones.

        As in `fit`, only an answer that holds nothing yet waits: nothing of the budget.
        """
        if wanted_bytes > SMALL_BYTES:
            if self.is_empty or (self._waits and not self.share.held_bytes):
                self._granted_bytes = await self.share.reserve(wanted_bytes)
            else:
                self._granted_bytes = self.share.try_reserve(wanted_bytes)
            if self._granted_bytes < wanted_bytes:
                self.is_cut = True
                self.left_bytes = self._granted_bytes

    async def fit(self, sizes: Sequence[int]) -> int:
        """The number of batches of these sizes that may be read; the first of all always may.

        An answer that already holds something does not wait, or all answers would wait for each other.
        """
        total = self.taken_bytes + sum(sizes)
        if total <= max(self._granted_bytes, SMALL_BYTES):
            return len(sizes)
        if self.is_empty:
            self._give_back()
            self._granted_bytes = await self.share.reserve(total)
            if self._granted_bytes < sizes[0]:
                self._give_back()
                self._granted_bytes = await self.share.reserve(sizes[0], is_whole=True)
        else:
            self._granted_bytes += self.share.try_reserve(total - self._granted_bytes)
        if self._granted_bytes >= total:
            return len(sizes)
        self.left_bytes = min(self.left_bytes, max(self._granted_bytes, SMALL_BYTES) - self.taken_bytes)
        fitting = sum(1 for so_far in accumulate(sizes) if so_far <= self.left_bytes)
        self.is_cut = self.is_cut or fitting < len(sizes)
        return max(fitting, 1 if self.is_empty else 0)

    def _give_back(self) -> None:
        granted, self._granted_bytes = self._granted_bytes, 0
        self.share.hold(self.share.held_bytes - granted)

    def settle(self, *, is_read: bool) -> None:
        """Hold the bytes that were read, and no others."""
        read_bytes = self.taken_bytes if is_read and self.taken_bytes > SMALL_BYTES else 0
        if read_bytes != self._granted_bytes:
            self.share.hold(self.share.held_bytes - self._granted_bytes + read_bytes)
