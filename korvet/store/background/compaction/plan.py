"""The outcome of compaction for each batch of a log, decided as in Kafka. Without I/O.

A record stays if it is the last of its key among the keys read. A tombstone stays until its batch's
delete horizon: delete.retention.ms after the time at which compaction first kept it. Records of aborted transactions
go. A transaction's marker goes if the last compaction left nothing of the transaction, and its horizon is past.

Source: Cleaner, CleanedTransactionMetadata
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from korvet.wire.batch import CONTROL, Batch
from korvet.wire.compacted import Record, delete_horizon_ms, opened, rebuilt
from korvet.wire.markers import is_commit
from korvet.wire.records import UndecodableRecords

MOST_KEYS = 500_000
"""The most keys of one compaction, at some 100 bytes each; the next compaction continues after them."""
_DIGEST_BYTES = 16


class Aborted(NamedTuple):
    """An aborted transaction: its first record's offset, its marker's, and its producer."""

    first: int
    last: int
    producer_id: int


class Stored(NamedTuple):
    """A batch of the log, at its offsets."""

    base_offset: int
    next_offset: int
    batch: Batch
    data: bytes


class Transactions:
    """The open transactions at each point of a walk through the log from an offset on.

    :param aborted: the aborted transactions that end at or above that offset.
    """

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._to_come = sorted(aborted, reverse=True)
        self._aborted: dict[int, bool] = {}
        """By producer: true if the walk has met records of it."""
        self._committed: set[int] = set()

    def _reach(self, last_offset: int) -> None:
        while self._to_come and self._to_come[-1].first <= last_offset:
            self._aborted[self._to_come.pop().producer_id] = False

    def is_aborted(self, stored: Stored) -> bool:
        """True if the batch's records belong to an aborted transaction."""
        self._reach(stored.next_offset - 1)
        if not stored.batch.is_transactional:
            return False
        producer_id = stored.batch.producer_id
        if producer_id in self._aborted:
            self._aborted[producer_id] = True
            return True
        self._committed.add(producer_id)
        return False

    def ends_empty(self, stored: Stored) -> bool:
        """True if the walk saw no record of the transaction that a marker ends.

        :raises UndecodableRecords:
        """
        self._reach(stored.next_offset - 1)
        producer_id = stored.batch.producer_id
        if _is_commit(stored):
            was_seen = producer_id in self._committed
            self._committed.discard(producer_id)
            return not was_seen
        return not self._aborted.pop(producer_id, False)


def _is_commit(stored: Stored) -> bool:
    _, records = opened(stored.batch, stored.data)
    return is_commit(records[0].key if records else None)


class Keys:
    """The last offset of each key, up to a number of keys."""

    def __init__(self, first_offset: int, most_keys: int) -> None:
        self.end = first_offset
        """The offset below which the run read every record."""
        self.is_full = False
        self._first_offset = first_offset
        self._most_keys = most_keys
        self._offsets: dict[bytes, int] = {}

    def add(self, stored: Stored, records: Sequence[Record]) -> None:
        """Add a batch's keys. If they do not fit, add some of them and end the keys before the batch."""
        is_first = not self._offsets
        for record in records:
            offset = stored.base_offset + record.offset_delta
            if record.key is not None and offset >= self._first_offset:
                if len(self._offsets) >= self._most_keys and not is_first:
                    self.is_full = True
                    return
                self._offsets[_digest(record.key)] = offset
        self.skip(stored)

    def skip(self, stored: Stored) -> None:
        """Continue after a batch without relevant keys."""
        self.end = max(self.end, stored.next_offset)

    def is_last(self, key: bytes, offset: int) -> bool:
        """True if the run saw no newer record of the key."""
        return offset >= self._offsets.get(_digest(key), -1)


def _digest(key: bytes) -> bytes:
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


class Rewritten(NamedTuple):
    """A batch with fewer records than it had."""

    batch: Batch
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a compaction, with the time by Redis."""

    now_ms: int
    delete_retention_ms: int


@dataclass(slots=True)
class Chunk:
    """Consecutive entries, with the removed and the rewritten ones; all others stay unchanged.

    ``cursor`` is the offset just past the entry before the first, ``until`` just past the last.
    """

    cursor: int
    until: int
    dropped: array[int] = field(default_factory=lambda: array("q"))
    rewritten: dict[int, Rewritten] = field(default_factory=dict)
    removed_bytes: int = 0
    new_bytes: int = 0
    """The bytes of the kept entries until the swap."""

    def drop(self, stored: Stored) -> None:
        self.dropped.append(stored.next_offset)
        self.removed_bytes += len(stored.data)

    def rewrite(self, stored: Stored, rewritten: Rewritten) -> None:
        self.rewritten[stored.next_offset] = rewritten
        self.removed_bytes += len(stored.data) - len(rewritten.data)


class Cleaner:
    """Decides about batches in log order; ``markers`` are the offsets of aborted transactions' removed markers."""

    def __init__(self, keys: Keys, transactions: Transactions, rules: Rules) -> None:
        self.markers: list[int] = []
        self.bad: list[int] = []
        """Base offsets of unreadable batches, which stay."""
        self._keys = keys
        self._transactions = transactions
        self._rules = rules

    def clean(self, stored: Stored, chunk: Chunk) -> None:
        """Record in the chunk the removal or rewriting of a batch."""
        try:
            if stored.batch.attributes & CONTROL:
                self._clean_marker(stored, chunk)
            elif self._transactions.is_aborted(stored):
                chunk.drop(stored)
            else:
                self._clean_records(stored, chunk)
        except UndecodableRecords:
            self.bad.append(stored.base_offset)

    def _clean_marker(self, stored: Stored, chunk: Chunk) -> None:
        if not self._transactions.ends_empty(stored):
            return
        horizon_ms = delete_horizon_ms(stored.batch)
        if horizon_ms is None:
            plain, records = opened(stored.batch, stored.data)
            chunk.rewrite(stored, Rewritten(*rebuilt(stored.batch, plain, records, self._new_horizon_ms())))
        elif horizon_ms <= self._rules.now_ms:
            if not _is_commit(stored):
                self.markers.append(stored.next_offset - 1)
            chunk.drop(stored)

    def _clean_records(self, stored: Stored, chunk: Chunk) -> None:
        plain, records = opened(stored.batch, stored.data)
        horizon_ms = delete_horizon_ms(stored.batch)
        # An unreadable batch may hold older values of any key.
        may_drop_tombstones = horizon_ms is not None and horizon_ms <= self._rules.now_ms and not self.bad
        is_last, base = self._keys.is_last, stored.base_offset
        kept = [
            record
            for record in records
            if record.key is not None
            and (record.has_value or not may_drop_tombstones)
            and is_last(record.key, base + record.offset_delta)
        ]
        if not kept:
            chunk.drop(stored)
            return
        if horizon_ms is None and not all(record.has_value for record in kept):
            horizon_ms = self._new_horizon_ms()
        if len(kept) < len(records) or horizon_ms != delete_horizon_ms(stored.batch):
            chunk.rewrite(stored, Rewritten(*rebuilt(stored.batch, plain, kept, horizon_ms)))

    def _new_horizon_ms(self) -> int:
        return self._rules.now_ms + self._rules.delete_retention_ms
