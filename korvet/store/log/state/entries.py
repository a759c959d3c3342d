"""Entries of a log's stream, as Redis returns them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from korvet.errors import DamagedLog
from korvet.wire.batch import HEADER_BYTES
from korvet.wire.record_entries import StoredRecord, batches, stored_record

FOREIGN = "is not one of korvet's"
_INDEX_NUMBERS = 8
_KINDS = (b"b", b"r", b"p", b"")
"""The names of entries' third fields; a placed batch's entry has none."""
_MOST_EPOCH = (1 << 31) - 1
INLINE_LIMIT_BYTES = 8192
"""An entry holds a batch below this size; a larger one is placed."""


class CorruptEntry(DamagedLog):
    """An entry of a log's stream cannot be read, or its batch is missing."""

    def __init__(self, log_key: str, entry: str, problem: str) -> None:
        super().__init__(f"entry {entry} of {log_key} {problem}")
        self.entry = entry
        self.problem = problem


class Entry(NamedTuple):
    """An entry of the stream; ``records`` is the span of its offsets. ``data`` is None if the batch is placed, at
    ``place``, or if the entry is one ``record``: its timestamp, and its fields after the index."""

    next_offset: int
    records: int
    size_bytes: int
    leader_epoch: int
    data: bytes | None
    place: int | str
    record: tuple[int, Sequence[bytes]] | None = None


class Index(NamedTuple):
    """An entry's id and index; ``running_…`` are sums and maxima up to its end."""

    next_offset: int
    records: int
    size_bytes: int
    max_timestamp: int
    running_max_timestamp: int
    running_bytes: int
    running_batches: int


def index_of(log_key: str, entry: Any) -> Index:
    """The index of an entry from XRANGE.

    :raises CorruptEntry:
    """
    name, fields = entry
    try:
        numbers = _numbers(name, fields)
    except (IndexError, ValueError):
        raise CorruptEntry(log_key, name.decode(), FOREIGN) from None
    return Index(int(name[:-2]), *numbers[:6])


def _numbers(name: bytes, fields: Sequence[bytes]) -> list[int]:
    """
    :raises IndexError, ValueError: korvet did not write the entry.
    """
    numbers = [*map(int, fields[1].split())]
    if fields[0] != b"i" or name[-2:] != b"-0" or len(numbers) != _INDEX_NUMBERS:
        raise ValueError(name)
    if not 0 < numbers[0] <= int(name[:-2]) or numbers[1] < 0 or not 0 <= numbers[6] <= _MOST_EPOCH:
        raise ValueError(name)
    return numbers


def parsed_entries(log_key: str, reply: Sequence[Any]) -> tuple[list[Entry], CorruptEntry | None]:
    """The entries of XRANGE's reply before the first unreadable one, and its error."""
    entries: list[Entry] = []
    for name, fields in reply:
        try:
            numbers = _numbers(name, fields)
            next_offset = int(name[:-2])
            kind, content = fields[2:4] if len(fields) > 2 else (b"", b"")
            data = content if kind == b"b" else None
            record = (numbers[2], fields[2:]) if kind == b"r" else None
            place = content.decode() if kind == b"p" else next_offset
            if kind not in _KINDS or (data is not None and len(data) < HEADER_BYTES):
                raise ValueError(name)
        except (IndexError, ValueError):
            return entries, CorruptEntry(log_key, name.decode(), FOREIGN)
        # A named tuple's own constructor is a Python call.
        entries.append(tuple.__new__(Entry, (next_offset, numbers[0], numbers[1], numbers[6], data, place, record)))
    return entries, None


def in_batches(entries: Sequence[Entry], *, may_join: bool = True) -> Sequence[Entry]:
    """The entries, with single records as batches: of as many records as possible, or of one each.

    Consecutive entries become one batch if they share epoch, producer and kind, and their sequences grow like their
    offsets.

    :raises ValueError: korvet did not write an entry.
    """
    for entry in entries:
        if entry.record is not None:
            break
    else:
        return entries
    batched: list[Entry] = []
    for is_batch, group in groupby(entries, lambda entry: entry.record is None):
        some = list(group)
        if is_batch:
            batched += some
        elif may_join:
            batched += _joined(some)
        else:
            batched += [batch for entry in some for batch in _joined([entry])]
    return batched


def _joined(entries: Sequence[Entry]) -> Iterator[Entry]:
    at = 0
    for count, data in batches([_stored(entry) for entry in entries]):
        first, last = entries[at], entries[at + count - 1]
        # The index has the size of a single record; a caller checks the bytes against it.
        size_bytes = len(data) if count > 1 else first.size_bytes
        records = last.next_offset - (first.next_offset - first.records)
        yield last._replace(records=records, size_bytes=size_bytes, data=data, record=None)
        at += count


def _stored(entry: Entry) -> StoredRecord:
    assert entry.record is not None
    timestamp, fields = entry.record
    return stored_record(entry.next_offset - 1, timestamp, entry.leader_epoch, fields)
