"""The records of a topic for a page: older ones from the end on, or newer ones from an offset or a time on.

A page is a look at the log from edges on, an offset in each partition. Where it ends, the next page begins: so no
record is left out, and none is shown twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Final

from korvet.cli.console.shown import LIST_CHARACTERS, PAGE_CHARACTERS, Shown, shown_record
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.consume import BROKER_FINDS_CORRUPT, Cursor, Gone, Item, Reader, Uncommitted
from korvet.cli.kafka.offsets import TopicPartition, log_limits, offsets_at
from korvet.cli.kafka.records import Record
from korvet.cli.kafka.topics import chosen_partitions
from korvet.cli.redis.repair import Damage
from korvet.errors import KorvetError

STARTS: Final = ("end", "start", "offset", "time")
OLDER, NEWER = "older", "newer"
MOST_SHOWN: Final = 200
MOST_PARTITIONS: Final = 100
"""The most partitions of a look; a topic with more is looked at in turns."""
MOST_READ: Final = 50_000
MOST_BYTES: Final = 32 << 20
MOST_SECONDS: Final = 5.0
"""A look at records ends after so many records, so many bytes, or so long, whatever it was to find."""
_ROUNDS: Final = 4
"""A round of a look may take such a part of its bytes and its time."""
_MOST_OFFSETS: Final = 10_000
"""The most offsets of a round, in all partitions."""
_SEARCHED: Final = 1_000
"""The offsets of a partition in the first round of a search."""

Edges = Mapping[int, int]
"""An offset in each partition. Older records are below it, newer ones begin there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The request of a page. ``partition`` is None for all; ``value`` is an offset, or a time in ms since 1970.

    :ivar first: the number of partitions that earlier pages looked at.
    :ivar toward: `OLDER` or `NEWER`, for a page that goes on from ``edges``. A partition without an edge has no older
        records, or no newer ones.
    """

    topic: str
    partition: int | None = None
    start: str = "end"
    value: int = 0
    count: int = 50
    text: str = ""
    first: int = 0
    toward: str = ""
    edges: Edges = field(default_factory=dict)

    @property
    def is_back(self) -> bool:
        """True if the page goes from newer records to older ones."""
        return self.toward == OLDER if self.toward else self.start == "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line instead of records. ``repair`` is there if the broker cannot go on."""

    text: str
    repair: Damage | None = None


@dataclass(slots=True, kw_only=True)
class Found:
    """The records for a page, notes about others, and the edges from which other pages go on.

    :ivar read: the number of records between the edges; the shown ones are among them.
    :ivar left: about how many offsets remain in the page's direction, in the partitions of the page.
    :ivar older: where older records begin; empty if there are none.
    :ivar newer: where newer ones begin; empty if there are none.
    :ivar others: the number of partitions that later pages look at.
    """

    records: list[Shown] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    read: int = 0
    left: int = 0
    older: Edges = field(default_factory=dict)
    newer: Edges = field(default_factory=dict)
    others: int = 0


@dataclass(slots=True, kw_only=True)
class _Span:
    """A partition: its log's start and end, and the offsets to read.

    :ivar found: the times of records and the records that were found, in reading order.
    :ivar read: the offsets of all records that were read.
    """

    partition: TopicPartition
    start: int
    end: int
    low: int
    high: int
    found: list[tuple[int, Shown]] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    def cursor(self, offsets: int, *, is_back: bool) -> Cursor:
        """A reader's cursor for the next offsets."""
        low = max(self.low, self.high - offsets) if is_back else self.low
        return Cursor(partition=self.partition, position=low, stop=min(self.high, low + offsets))


def find_records(client: Client, wanted: Wanted, clock: Callable[[], float] = time.monotonic) -> Found:
    """Look for records.

    :raises KorvetError: if the topic or the partition does not exist, or no broker answers.
    """
    chosen = chosen_partitions(client, wanted.topic, [] if wanted.partition is None else [wanted.partition])
    spans = _spans(client, wanted, chosen[wanted.first : wanted.first + MOST_PARTITIONS])
    begins = {span.partition.partition: span.high if wanted.is_back else span.low for span in spans}
    found, count = Found(), min(wanted.count, MOST_SHOWN)
    _Look(client=client, wanted=wanted, notes=found.notes, clock=clock).read(spans)
    ordered = merge(*(span.found for span in spans), key=lambda one: (one[0], *one[1][:2]), reverse=wanted.is_back)
    found.records = [record for _, record in islice(ordered, count)]
    ends = _ends(spans, found.records, is_back=wanted.is_back)
    found.read = sum((offset >= end) is wanted.is_back for span, end in _of(spans, ends) for offset in span.read)
    older, newer = (ends, begins) if wanted.is_back else (begins, ends)
    found.older = {at.partition.partition: offset for at, offset in _of(spans, older) if offset > at.start}
    newer_left = sum(at.end - offset for at, offset in _of(spans, newer))
    found.newer = newer if newer_left else {}
    found.left = sum(offset - at.start for at, offset in _of(spans, older)) if wanted.is_back else newer_left
    found.others = max(0, len(chosen) - wanted.first - MOST_PARTITIONS)
    return found


def _of(spans: Iterable[_Span], edges: Edges) -> list[tuple[_Span, int]]:
    return [(span, edges[span.partition.partition]) for span in spans]


def _ends(spans: Iterable[_Span], shown: Iterable[Shown], *, is_back: bool) -> dict[int, int]:
    """The edges after the shown records: found records beyond them belong to the next page."""
    taken: dict[int, int] = {}
    for record in shown:
        taken[record.partition] = taken.get(record.partition, 0) + 1
    ends = {}
    for span in spans:
        number = span.partition.partition
        rest = span.found[taken.get(number, 0) :]
        if rest:
            ends[number] = rest[0][1].offset + is_back
        else:
            ends[number] = span.high if is_back else span.low
    return ends


@dataclass(slots=True, kw_only=True)
class _Look:
    """A look in rounds. Each round reads the next offsets of all partitions."""

    client: Client
    wanted: Wanted
    notes: list[Note]
    clock: Callable[[], float]
    used_records: int = 0
    used_bytes: int = 0

    def read(self, spans: Sequence[_Span]) -> None:
        """Read on until there is enough, nothing is left, or it took too much; but at least one round."""
        count, until = min(self.wanted.count, MOST_SHOWN), self.clock() + MOST_SECONDS
        offsets, goes_on = max(count, _SEARCHED) if self.wanted.text else count, False
        while left := [span for span in spans if span.low < span.high]:
            is_spent = self.used_records >= MOST_READ or self.used_bytes > MOST_BYTES or self.clock() > until
            if sum(len(span.found) for span in spans) >= count or (goes_on and is_spent):
                break
            most = min(_MOST_OFFSETS, MOST_READ - self.used_records)
            offsets = max(1, min(offsets, most // len(left)))
            moved, is_whole = self._round(left, offsets)
            goes_on = goes_on or moved
            offsets = offsets * 2 if is_whole else offsets // 4

    def _round(self, spans: Sequence[_Span], offsets: int) -> tuple[bool, bool]:
        """Read the next offsets of these partitions. Returns whether there was progress, and whether all were read."""
        is_back = self.wanted.is_back
        cursors = {span.partition: span.cursor(offsets, is_back=is_back) for span in spans}
        lows = {partition: cursor.position for partition, cursor in cursors.items()}
        stops = {partition: cursor.stop or 0 for partition, cursor in cursors.items()}
        reader = Reader(self.client, list(cursors.values()), committed=False)
        items: dict[TopicPartition, list[Item]] = {partition: [] for partition in cursors}
        until, most = self.clock() + MOST_SECONDS / _ROUNDS, self.used_bytes + MOST_BYTES // _ROUNDS

        def is_over() -> bool:
            # The last offset of a partition is read at any cost, or a look at large batches would never get on.
            may_end = offsets > 1 or any(cursor.is_done for cursor in cursors.values())
            return may_end and (self.used_bytes > most or self.clock() > until)

        while not reader.is_done and not is_over():
            for partition, item in reader.read(wait_s=0.0):
                items[partition].append(item)
                self.used_bytes += _size_bytes(item)
                if is_over():
                    break
        moved = False
        for span in spans:
            cursor, got = cursors[span.partition], items[span.partition]
            reached = max(cursor.position, *(1 + _last(item) for item in got)) if got else cursor.position
            if is_back and not cursor.is_done:
                # Newer records of this partition are still unread. The next round reads these again, after them.
                continue
            if is_back:
                span.high = lows[span.partition]
            elif cursor.is_done and any(_is_damage(item) for item in got):
                span.low = span.high
            else:
                span.low = stops[span.partition] if cursor.is_done else min(reached, span.high)
            moved = moved or is_back or span.low > lows[span.partition]
            self._keep(span, got)
        return moved, reader.is_done

    def _keep(self, span: _Span, items: Sequence[Item]) -> None:
        for item in reversed(items) if self.wanted.is_back else items:
            if not isinstance(item, Record):
                self.notes.append(_note(span.partition, item))
                continue
            self.used_records += 1
            span.read.append(item.offset)
            if _has(item, self.wanted.text):
                span.found.append((item.timestamp, shown_record(span.partition, item, LIST_CHARACTERS)))


def _spans(client: Client, wanted: Wanted, chosen: Sequence[TopicPartition]) -> list[_Span]:
    starts, ends = log_limits(client, chosen)
    chosen = [partition for partition in chosen if partition in starts]
    limits = starts if wanted.is_back else ends
    if wanted.toward:
        begins: Mapping[TopicPartition, int] = {
            partition: wanted.edges.get(partition.partition, limits[partition]) for partition in chosen
        }
    elif wanted.start == "time":
        begins = offsets_at(client, ends, wanted.value)
    elif wanted.start == "offset":
        begins = dict.fromkeys(chosen, wanted.value)
    else:
        begins = ends if wanted.is_back else starts
    spans = []
    for partition in chosen:
        start, end = starts[partition], ends[partition]
        begin = min(max(begins[partition], start), end)
        low, high = (start, begin) if wanted.is_back else (begin, end)
        spans.append(_Span(partition=partition, start=start, end=end, low=low, high=high))
    return spans


def one_record(client: Client, topic: str, partition: int, offset: int) -> Shown:
    """A record, whole.

    :raises KorvetError: if no record has this offset.
    """
    (chosen,) = chosen_partitions(client, topic, [partition])
    reader = Reader(client, [Cursor(partition=chosen, position=offset, stop=offset + 1)], committed=False)
    while not reader.is_done:
        for _, item in reader.read(wait_s=0.0):
            if isinstance(item, Record) and item.offset == offset:
                return shown_record(chosen, item, PAGE_CHARACTERS)
    raise KorvetError(f"partition {chosen} has no record at offset {offset}")


def _has(record: Record, text: str) -> bool:
    wanted = text.encode()
    return (
        wanted in (record.key or b"")
        or wanted in (record.value or b"")
        or any(wanted in name or wanted in (value or b"") for name, value in record.headers)
    )


def _size_bytes(item: Item) -> int:
    if not isinstance(item, Record):
        return 0
    headers = sum(len(name) + len(value or b"") for name, value in item.headers)
    return len(item.key or b"") + len(item.value or b"") + headers


def _last(item: Item) -> int:
    return item.offset if isinstance(item, Record) else item.last_offset


def _is_damage(item: Item) -> bool:
    return not isinstance(item, Record | Gone | Uncommitted) and item.reason == BROKER_FINDS_CORRUPT


def _note(partition: TopicPartition, item: Item) -> Note:
    assert not isinstance(item, Record)
    where = f"{partition}@{item.offset}" + (f"…{item.last_offset}" if item.last_offset > item.offset else "")
    if isinstance(item, Gone):
        return Note(text=f"{where} was removed before it could be read")
    if isinstance(item, Uncommitted):
        return Note(text=f"{where} is held back by an open transaction")
    damage = Damage(partition, item.offset) if _is_damage(item) else None
    return Note(text=f"{where} cannot be decoded: {item.reason}.", repair=damage)
