"""Entries of a log's stream, as Redis returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from korvet.errors import DamagedLog
from korvet.wire.batch import HEADER_BYTES

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
        entries.append(Entry(next_offset, numbers[0], numbers[1], numbers[6], data, place, record))
    return entries, None
