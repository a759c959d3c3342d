"""The records of a topic for a page: from the end, the start, an offset or a time, perhaps only those with a text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from korvet.cli.console.shown import LIST_CHARACTERS, PAGE_CHARACTERS, Shown, shown_record
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.consume import BROKER_FINDS_CORRUPT, Cursor, Gone, Held, Item, Reader
from korvet.cli.kafka.offsets import EARLIEST, LATEST, TopicPartition, log_offsets, offsets_at
from korvet.cli.kafka.records import Record
from korvet.cli.kafka.topics import chosen_partitions
from korvet.cli.repair import Damage
from korvet.errors import KorvetError

STARTS: Final = ("end", "start", "offset", "time")
MOST_SHOWN: Final = 200
MOST_READ: Final = 50_000
MOST_BYTES: Final = 32 << 20
MOST_SECONDS: Final = 5.0
"""A look at records ends after so many, so many bytes, or so long, whatever it was to find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a page asks for. ``partition`` is None for all; ``value`` is an offset, or a time in ms since 1970."""

    topic: str
    partition: int | None = None
    start: str = "end"
    value: int = 0
    count: int = 50
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line instead of records. ``repair`` is there if the broker cannot go on."""

    text: str
    repair: Damage | None = None


@dataclass(slots=True, kw_only=True)
class Found:
    """The records for a page, notes about others, and for each partition the offset at which the next page begins."""

    records: list[Shown] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    next_offsets: Mapping[int, int] = field(default_factory=dict)
    read: int = 0
    is_over: bool = True
    """Whether it was read up to the end."""


def find_records(client: Client, wanted: Wanted, clock: Callable[[], float] = time.monotonic) -> Found:
    """Look for records.

    :raises KorvetError: if the topic or the partition does not exist, or no broker answers.
    """
    cursors = _cursors(client, wanted)
    reader = Reader(client, cursors, committed=False)
    found, read_bytes, until = Found(), 0, clock() + MOST_SECONDS
    count = min(wanted.count, MOST_SHOWN)
    # From the end, all of the last records are read, and the newest of them stay.
    keeps_newest = wanted.start == "end"
    positions: dict[int, int] = {}
    while not reader.is_done and found.is_over:
        for partition, item in reader.read(wait_s=0.0):
            if isinstance(item, Record):
                found.read += 1
                read_bytes += len(item.key or b"") + len(item.value or b"")
                positions[partition.partition] = item.offset + 1
                if _has(item, wanted.text):
                    found.records.append(shown_record(partition, item, LIST_CHARACTERS))
            else:
                found.notes.append(_note(partition, item))
                positions[partition.partition] = item.last_offset + 1
            is_full = len(found.records) >= count and not keeps_newest
            if is_full or found.read >= MOST_READ or read_bytes > MOST_BYTES or clock() > until:
                found.is_over = False
                break
    found.next_offsets = positions
    found.records.sort(key=lambda record: (record.time, record.partition, record.offset))
    if keeps_newest:
        found.records = found.records[-count:][::-1]
    return found


def one_record(client: Client, topic: str, partition: int, offset: int) -> Shown:
    """A record, whole.

    :raises KorvetError: if there is none at this offset.
    """
    (chosen,) = chosen_partitions(client, topic, [partition])
    reader = Reader(client, [Cursor(partition=chosen, position=offset, stop=offset + 1)], committed=False)
    while not reader.is_done:
        for _, item in reader.read(wait_s=0.0):
            if isinstance(item, Record) and item.offset == offset:
                return shown_record(chosen, item, PAGE_CHARACTERS)
    raise KorvetError(f"partition {chosen} has no record at offset {offset}")


def _cursors(client: Client, wanted: Wanted) -> list[Cursor]:
    chosen = chosen_partitions(client, wanted.topic, [] if wanted.partition is None else [wanted.partition])
    starts, ends = log_offsets(client, chosen, EARLIEST), log_offsets(client, chosen, LATEST)
    if wanted.start == "time":
        begins: Mapping[TopicPartition, int] = offsets_at(client, ends, wanted.value)
    elif wanted.start == "offset":
        begins = dict.fromkeys(ends, wanted.value)
    elif wanted.start == "end":
        back = MOST_SHOWN * 10 if wanted.text else wanted.count
        begins = {partition: end - back for partition, end in ends.items()}
    else:
        begins = starts
    return [
        Cursor(
            partition=partition,
            position=min(max(begins[partition], starts[partition]), ends[partition]),
            stop=ends[partition],
        )
        for partition in starts
        if partition in ends
    ]


def _has(record: Record, text: str) -> bool:
    wanted = text.encode()
    return wanted in (record.key or b"") or wanted in (record.value or b"")


def _note(partition: TopicPartition, item: Item) -> Note:
    assert not isinstance(item, Record)
    where = f"{partition}@{item.offset}" + (f"…{item.last_offset}" if item.last_offset > item.offset else "")
    if isinstance(item, Gone):
        return Note(text=f"{where} was removed before it could be read")
    if isinstance(item, Held):
        return Note(text=f"{where} is held back by an open transaction")
    damage = Damage(partition, item.offset) if item.reason == BROKER_FINDS_CORRUPT else None
    return Note(text=f"{where} cannot be decoded: {item.reason}.", repair=damage)
