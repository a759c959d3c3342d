"""One partition by Kafka's rules, in Python: the answer to each step, and the records that readers of both kinds get.

The model follows ProducerStateManager, ProducerAppendInfo, UnifiedLog, TransactionIndex and Cleaner. It has korvet's
additions too: ordinals of transactions, VERIFY, and leader epochs of servers that take a log over. It never asks Redis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.lua.transaction import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    VERIFY,
)

SEQUENCES = 2**31
REMEMBERED = 5
EPOCHS_SINCE_S = 1_577_836_800
Kind = Literal["data", "commit", "abort"]


class Outcome(NamedTuple):
    """A code and a base offset: of the new batch, or of a duplicate's first append; -1 if there is none."""

    code: int
    base: int = -1


@dataclass
class Producer:
    """A producer's state: the epochs of its last append and (first, last, base) of five batches."""

    epoch: int
    leader_epoch: int
    appended_ms: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def next_sequence(self) -> int:
        return (self.batches[-1][1] + 1) % SEQUENCES if self.batches else 0

    def base_of(self, first: int, last: int) -> int | None:
        return next((base for *of, base in self.batches if of == [first, last]), None)


@dataclass(eq=False)
class Transaction:
    """A producer's transaction in the partition; ``outcome`` is empty while it is open."""

    producer_id: int
    ordinal: int
    epoch: int
    first: int
    last: int = -1
    outcome: str = ""
    stable: int = -1
    """The last stable offset after the transaction's end."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a reader gets it."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int


@dataclass
class Batch:
    """An entry from ``base`` to before ``past``; a marker has no records, and a time of its own."""

    base: int
    past: int
    kind: Kind
    leader_epoch: int
    records: list[Record]
    timestamp: int
    transaction: Transaction | None = None
    horizon_ms: int | None = None

    @property
    def max_timestamp(self) -> int:
        return max((record.timestamp for record in self.records), default=self.timestamp)

    @property
    def is_aborted(self) -> bool:
        return self.transaction is not None and self.transaction.outcome == "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A batch to append, with its producer and transaction; ``ordinal`` is None if no front-end asked for it."""

    records: tuple[tuple[bytes, bytes | None], ...]
    timestamp: int
    producer_id: int = -1
    epoch: int = -1
    first: int = -1
    is_next: bool = False
    is_transactional: bool = False
    ordinal: int | None = None
    joins: bool = False
    """Whether its transactions are of version 2: batches add partitions, and each transaction has its own epoch."""

    @property
    def last(self) -> int:
        return (self.first + len(self.records) - 1) % SEQUENCES


@dataclass
class Model:
    """The partition. ``run`` is the server that began the leader epoch; times are Redis's, in milliseconds."""

    now_ms: int
    start: int = 0
    end: int = 0
    epoch: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Leader epochs and their first offsets, oldest first."""
    run: int = 1
    cleaned: int = 0
    batches: list[Batch] = field(default_factory=list)
    producers: dict[int, Producer] = field(default_factory=dict)
    open: dict[int, Transaction] = field(default_factory=dict)
    closed: dict[int, int] = field(default_factory=dict)
    """The ordinal of each producer's last transaction that was ended here."""
    aborted: list[Transaction] = field(default_factory=list)
    """The aborted transactions that readers hear of."""

    # ------------------------------------------------------------------ offsets

    @property
    def first_open(self) -> int | None:
        return min((transaction.first for transaction in self.open.values()), default=None)

    @property
    def stable(self) -> int:
        """The last stable offset. Source: UnifiedLog.fetchLastStableOffsetMetadata"""
        return self.end if self.first_open is None else max(self.start, self.first_open)

    def take_over(self, run: int) -> None:
        """A history of another server begins an epoch. Source: Partition.makeLeader"""
        if run != self.run:
            self.run = run
            self.epoch = max(self.epoch + 1, self.now_ms // 1000 - EPOCHS_SINCE_S)
            # An epoch that began at this offset has no batches. Source: LeaderEpochFileCache.assign
            self.epochs = [*(one for one in self.epochs if one[1] < self.end), (self.epoch, self.end)]

    # ------------------------------------------------------------------ append

    def judge(self, sent: Sent, run: int) -> Outcome:
        """Judge a batch by epoch and sequence. Source: ProducerAppendInfo.maybeValidateDataBatch, checkSequence"""
        known = self.producers.get(sent.producer_id)
        is_open = known is not None and sent.producer_id in self.open and known.epoch == sent.epoch
        if known is None:
            has_lost = sent.is_transactional and sent.joins and sent.first != 0
            return Outcome(OUT_OF_ORDER_SEQUENCE_NUMBER if sent.is_next or has_lost else NONE)
        if sent.epoch < known.epoch:
            return Outcome(INVALID_PRODUCER_EPOCH)
        if sent.epoch > known.epoch:
            return Outcome(NONE if sent.first == 0 else OUT_OF_ORDER_SEQUENCE_NUMBER)
        if sent.first == known.next_sequence:
            return Outcome(NONE)
        if (base := known.base_of(sent.first, sent.last)) is not None:
            return Outcome(NONE, base)
        # A former history may have lost the missing batches, but none of an open transaction.
        is_forward = (sent.first - known.next_sequence) % SEQUENCES < SEQUENCES // 2
        is_excused = is_forward and (run != self.run or known.leader_epoch != self.epoch)
        may_pass = is_excused and not sent.is_next and not (sent.is_transactional and is_open)
        return Outcome(NONE if may_pass else OUT_OF_ORDER_SEQUENCE_NUMBER)

    def admit(self, sent: Sent, run: int) -> Outcome:
        """The outcome of a batch; code 0 without a base offset if it may be appended."""
        if sent.producer_id < 0:
            return Outcome(NONE)
        judged = self.judge(sent, run)
        if judged.base >= 0 or judged.code == INVALID_PRODUCER_EPOCH:
            return judged
        if not sent.is_transactional:
            if judged.code == NONE and sent.producer_id in self.open:
                return Outcome(INVALID_TXN_STATE)
            return judged
        refusal = self._refusal(sent)
        return judged if refusal == NONE else Outcome(refusal)

    def _refusal(self, sent: Sent) -> int:
        """The code for a batch that may not join a transaction."""
        current = self.open.get(sent.producer_id)
        if sent.ordinal is None:
            return NONE if current and self.producers[sent.producer_id].epoch == sent.epoch else VERIFY
        if sent.ordinal <= self.closed.get(sent.producer_id, -1) or (current and sent.ordinal < current.ordinal):
            return INVALID_TXN_STATE
        return CONCURRENT_TRANSACTIONS if current and current.ordinal < sent.ordinal else NONE

    def append(self, sent: Sent, run: int) -> Outcome:
        admitted = self.admit(sent, run)
        if admitted != (NONE, -1):
            return admitted
        self.take_over(run)
        base, self.end = self.end, self.end + len(sent.records)
        transaction = self._remember(sent, base) if sent.producer_id >= 0 else None
        records = [Record(base + at, key, value, sent.timestamp + at) for at, (key, value) in enumerate(sent.records)]
        self.batches.append(Batch(base, self.end, "data", self.epoch, records, sent.timestamp, transaction))
        return Outcome(NONE, base)

    def _remember(self, sent: Sent, base: int) -> Transaction | None:
        """Source: ProducerStateEntry.update, ProducerAppendInfo.updateCurrentTxnFirstOffset"""
        known = self.producers.get(sent.producer_id)
        if known is None or known.epoch != sent.epoch:
            known = self.producers[sent.producer_id] = Producer(sent.epoch, self.epoch, self.now_ms)
        known.leader_epoch, known.appended_ms = self.epoch, self.now_ms
        known.batches = [*known.batches, (sent.first, sent.last, base)][-REMEMBERED:]
        if not sent.is_transactional:
            return None
        if sent.ordinal is not None and sent.producer_id not in self.open:
            opened = Transaction(sent.producer_id, sent.ordinal, sent.epoch, base)
            self.open[sent.producer_id] = opened
        return self.open[sent.producer_id]

    # ------------------------------------------------------------------ markers

    def mark(self, producer_id: int, epoch: int, ordinal: int, kind: Kind, timestamp: int, run: int) -> Outcome:
        """End a transaction, once. Source: ProducerAppendInfo.appendEndTxnMarker, ProducerStateManager.completeTxn"""
        current, known = self.open.get(producer_id), self.producers.get(producer_id)
        if ordinal <= self.closed.get(producer_id, -1) or (current and ordinal < current.ordinal):
            return Outcome(NONE)
        if kind == "commit" and current and current.ordinal < ordinal:
            return Outcome(CONCURRENT_TRANSACTIONS)
        if known and not current and epoch < known.epoch:
            return Outcome(INVALID_PRODUCER_EPOCH)
        self.take_over(run)
        base, self.end = self.end, self.end + 1
        if known is None or known.epoch < epoch:
            # The producer's batches are forgotten with their epoch; the next one begins at sequence 0.
            self.producers[producer_id] = Producer(epoch, self.epoch, self.now_ms)
        self.closed[producer_id] = ordinal
        if ended := self.open.pop(producer_id, None):
            ended.last, ended.outcome = base, kind
            ended.stable = self.end if self.first_open is None else self.first_open
            if kind == "abort":
                self.aborted.append(ended)
        # A marker without an open transaction stands for one without records.
        ended = ended or Transaction(producer_id, ordinal, epoch, base, base, kind)
        self.batches.append(Batch(base, self.end, kind, self.epoch, [], timestamp, ended))
        return Outcome(NONE, base)

    # ------------------------------------------------------------------ removal

    def trim(self, offset: int) -> Outcome:
        """Source: UnifiedLog.maybeIncrementLogStartOffset, TransactionIndex"""
        if offset > self.end:
            return Outcome(1)
        self.start = max(self.start, self.end if offset == -1 else offset)
        self.batches = [batch for batch in self.batches if batch.past > self.start]
        self.aborted = [transaction for transaction in self.aborted if transaction.last >= self.start]
        # Source: LeaderEpochFileCache.truncateFromStart
        current = max((one for one in self.epochs if one[1] <= self.start), default=None)
        later = [one for one in self.epochs if one[1] > self.start]
        self.epochs = [(current[0], self.start), *later] if current else later
        return Outcome(NONE, self.start)

    def may_be_forgotten(self, producer_id: int, silent_ms: int) -> bool:
        """Source: ProducerStateManager.isProducerExpired"""
        is_silent = self.now_ms - self.producers[producer_id].appended_ms >= silent_ms
        return is_silent and producer_id not in self.open

    def _reach(self, min_lag_ms: int) -> int:
        """The offset at which compaction stops: the last batch, open transactions, young batches.

        Source: LogCleanerManager.cleanableOffsets
        """
        young = (batch.base for batch in self.batches if batch.max_timestamp > self.now_ms - min_lag_ms)
        first_young = next(young, self.end) if min_lag_ms > 0 else self.end
        unstable = self.end if self.first_open is None else self.first_open
        return min(self.batches[-1].base, unstable, first_young)

    def compact(self, min_lag_ms: int, retention_ms: int) -> bool:
        """Leave the last record of each key; return whether there was a batch to read. Source: Cleaner.doClean"""
        if not self.batches:
            return False
        until, first_dirty = self._reach(min_lag_ms), self.cleaned if self.cleaned >= self.start else self.start
        dirty = [batch for batch in self.batches if first_dirty < batch.past <= until]
        if not dirty:
            return False
        self.cleaned = dirty[-1].past
        # If no batch is left just before the first dirty one, compaction has read all up to there.
        reached = [batch for batch in self.batches if batch.past <= self.cleaned]
        last = {r.key: r.offset for batch in reached if not batch.is_aborted for r in batch.records}
        with_records = {id(batch.transaction) for batch in reached if batch.kind == "data"}
        left = [self._cleaned(batch, last, id(batch.transaction) in with_records, retention_ms) for batch in reached]
        for batch, is_left in zip(reached, left, strict=True):
            if not is_left and batch.kind == "abort":
                self.aborted = [one for one in self.aborted if one is not batch.transaction]
        self.batches[: len(reached)] = [batch for batch, is_left in zip(reached, left, strict=True) if is_left]
        return True

    def _cleaned(self, batch: Batch, last: dict[bytes, int], has_records: bool, retention_ms: int) -> bool:
        """Change a batch, and tell whether it stays. Source: Cleaner.shouldRetainRecord, CleanedTransactionMetadata"""
        is_past = batch.horizon_ms is not None and batch.horizon_ms <= self.now_ms
        if batch.kind != "data":
            if not has_records and batch.horizon_ms is None:
                batch.horizon_ms = self.now_ms + retention_ms
            return has_records or not is_past
        if batch.is_aborted:
            return False
        batch.records = [r for r in batch.records if last[r.key] == r.offset and (r.value is not None or not is_past)]
        if batch.horizon_ms is None and any(record.value is None for record in batch.records):
            batch.horizon_ms = self.now_ms + retention_ms
        return bool(batch.records)

    # ------------------------------------------------------------------ reads

    def records(self, offset: int) -> list[Record]:
        """All records from an offset on."""
        return [record for batch in self.batches for record in batch.records if record.offset >= offset]

    def committed(self, offset: int) -> list[Record]:
        """The records below the last stable offset that belong to no transaction or to a committed one."""
        return [
            record
            for batch in self.batches
            if batch.past <= self.stable and (batch.transaction is None or batch.transaction.outcome == "commit")
            for record in batch.records
            if record.offset >= offset
        ]

    def first_at(self, timestamp: int) -> tuple[int, int]:
        """Offset and time of the first record or marker at or after a time; -1 if there is none."""
        found = ((at, time) for at, time in self._times() if time >= timestamp and at >= self.start)
        return next(found, (-1, -1))

    def _times(self) -> Iterator[tuple[int, int]]:
        for batch in self.batches:
            if batch.kind == "data":
                yield from ((record.offset, record.timestamp) for record in batch.records)
            else:
                yield batch.base, batch.timestamp


def last_values(records: Iterable[Record]) -> dict[bytes, bytes | None]:
    """The table that records make: the last value of each key."""
    return {key: value for key, value in {r.key: r.value for r in records}.items() if value is not None}
