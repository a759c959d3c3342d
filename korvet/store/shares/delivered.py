"""What a member gets of the ranges that it acquired, by the batches that a read of them found.

Records is a whole answer's; AcquiredRecords says which offsets of it are the member's. Batches are not cut: the client
leaves out the records that it did not acquire, as it does with Kafka.

- Offsets before the next batch are gaps: compaction removed them. Clients find those inside of a batch, and markers.
- Batches of aborted transactions are gaps for a reader of committed records.
- Offsets after the last batch were not read: the answer had no room for them, or they are on their way from a tier.
- Records whose time is ahead are nobody's until then.

Source: SharePartition.acquire, createBatches, fetchAbortedTransactionRecordBatches
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from korvet.store.shares.types import Acknowledgement, AcquiredRange
from korvet.wire.batch import CONTROL, TRANSACTIONAL, Batch

_LONGEST_DELAY_MS: Final = 30 * 86_400_000
"""The longest time that a function of Redis takes; a time further ahead counts as none."""
_STEP_MS: Final = 100
"""Redis ends delays in such steps, and neighbours of one time are one range."""


@dataclass(slots=True)
class Delivered:
    """Acquired ranges by what becomes of them."""

    acquired: list[AcquiredRange] = field(default_factory=list)
    """The member's, for its answer."""
    gaps: list[AcquiredRange] = field(default_factory=list)
    """Those that hold nothing for any member."""
    unread: list[AcquiredRange] = field(default_factory=list)
    """Those that the member has not got."""
    delayed: list[Acknowledgement] = field(default_factory=list)
    """Those that nobody gets yet, with their times as types."""


class Aborted(NamedTuple):
    """A transaction that was aborted."""

    producer_id: int
    first_offset: int


def delivered(
    ranges: Sequence[AcquiredRange], batches: Iterable[Batch], aborted: Sequence[Aborted], batch_size: int
) -> Delivered:
    """Split acquired ranges, in their order, by the batches of one read from the first range on.

    :param batches: their headers, with offsets of the log.
    :param aborted: the transactions whose records do not count.
    :param batch_size: the records after which the next batch begins a range of its own in the answer.
    """
    found = Delivered()
    spans = _spans(batches, aborted)
    span = next(spans, None)
    for one in ranges:
        at = one.first
        while at <= one.last:
            while span is not None and span.last < at:
                span = next(spans, None)
            if span is None:
                found.unread.append(one._replace(first=at))
                break
            if at < span.first:
                last = min(one.last, span.first - 1)
                found.gaps.append(one._replace(first=at, last=last))
            else:
                last = min(one.last, span.last)
                if span.is_aborted:
                    found.gaps.append(one._replace(first=at, last=last))
                else:
                    add(found.acquired, one._replace(first=at, last=last), at == span.first, batch_size)
            at = last + 1
    return found


def delay(part: Delivered, times: Mapping[int, int], now_ms: int) -> None:
    """Take the records out of what was acquired that have a time ahead.

    :param times: in ms since 1970, by offset.
    :param now_ms: Redis's time.
    """
    ranges, part.acquired = part.acquired, []
    for one in ranges:
        first = one.first
        for offset in range(one.first, one.last + 1):
            if now_ms < times.get(offset, 0) <= now_ms + _LONGEST_DELAY_MS:
                if first < offset:
                    part.acquired.append(one._replace(first=first, last=offset - 1))
                _add_delayed(part.delayed, offset, -(-times[offset] // _STEP_MS) * _STEP_MS)
                first = offset + 1
        if first <= one.last:
            part.acquired.append(one._replace(first=first))


def _add_delayed(delayed: list[Acknowledgement], offset: int, time_ms: int) -> None:
    if delayed and delayed[-1][1:] == (offset - 1, time_ms):
        delayed[-1] = delayed[-1]._replace(last=offset)
    else:
        delayed.append(Acknowledgement(offset, offset, time_ms))


def add(acquired: list[AcquiredRange], one: AcquiredRange, begins_batch: bool, batch_size: int) -> None:
    """Add a range, to the one before it if that ends there, is not long enough and was delivered as often."""
    if acquired:
        before = acquired[-1]
        is_full = begins_batch and one.first - before.first >= batch_size
        if before.last + 1 == one.first and before.deliveries == one.deliveries and not is_full:
            acquired[-1] = before._replace(last=one.last)
            return
    acquired.append(one)


class _Span(NamedTuple):
    first: int
    last: int
    is_aborted: bool


def _spans(batches: Iterable[Batch], aborted: Sequence[Aborted]) -> Iterator[_Span]:
    """The offsets of batches, and whether their transactions were aborted. A producer's next marker ends its one."""
    waiting = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
    producers: set[int] = set()
    for batch in batches:
        last = batch.base_offset + batch.last_offset_delta
        is_aborted = False
        if waiting or producers:
            while waiting and waiting[-1].first_offset <= last:
                producers.add(waiting.pop().producer_id)
            if batch.attributes & TRANSACTIONAL and batch.producer_id in producers:
                is_aborted = not batch.attributes & CONTROL
                if not is_aborted:
                    producers.discard(batch.producer_id)
        yield _Span(batch.base_offset, last, is_aborted)
