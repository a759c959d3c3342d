"""Records as entries of a stream, and batches made from such entries.

A topic with ``korvet.storage=record`` has an entry for each record, with these fields in this order
(`lua/2-log/3-records.lua`):

- ``r``, the text ``attributes producer_id producer_epoch sequence``: the first three from the batch's header, and the
  record's own sequence. Notes may follow: ``n0,2`` names the headers with null values, and ``j…`` is the layout of a
  JSON object in fields (`korvet.wire.json_fields`);
- ``key`` and ``value``, absent if they are null; or ``value.<name>`` for each property of a JSON object;
- ``header.<name>`` for each header, in their order; names may repeat.

Korvet's own field names have no dot, so the names of headers and properties never meet them, nor each other. The
entry's index holds the time. Kafka does not use a record's own attributes; they are written as 0.

A batch made from entries is not compressed. It holds entries of one producer whose sequences grow as their offsets do.
Source: DefaultRecord, MemoryRecordsBuilder
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from korvet.wire.batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME, Batch, new_batch
from korvet.wire.json_fields import flattened, joined
from korvet.wire.records import UndecodableRecords, decompressed, java_long, read_varint, varint

SEQUENCES: Final = 1 << 31
MOST_RECORDS: Final = 10_000
"""The bound on a batch's records: Redis does nothing else while it stores them."""
MOST_ARGUMENTS: Final = 120_000
"""The bound on a batch's arguments, for the same reason."""
MOST_HEADERS: Final = 1000
"""The bound on a record's headers: Lua bounds the arguments of one command."""
_HEADER: Final = b"header."
_NULL: Final = varint(-1)
_NULLS: Final = b"n"
_MEMBERS: Final = b"j"


class SplitRecord(NamedTuple):
    """A record in the form in which Redis stores it.

    ``size_bytes`` is the size of a batch with this record alone. ``notes`` is the text after the numbers in the field
    ``r``. ``fields`` are all other fields, with their values.
    """

    size_bytes: int
    timestamp: int
    notes: bytes
    fields: list[bytes | memoryview]


class TooManyRecords(UndecodableRecords):
    """A batch cannot be stored record by record in one call."""


def split(batch: Batch, data: bytes | memoryview, *, is_json: bool) -> list[SplitRecord]:
    """The records of a batch. With ``is_json`` a JSON object becomes fields, if these restore the same bytes.

    :raises TooManyRecords: the batch has too many records, headers or fields.
    :raises UndecodableRecords: the records contradict the header.
    """
    if batch.records > MOST_RECORDS:
        raise TooManyRecords(f"{batch.records} records in a batch, and at most {MOST_RECORDS} can be stored one by one")
    try:
        plain = decompressed(batch.attributes & CODEC_MASK, bytes(data[HEADER_BYTES:]))
        records, at, arguments = [], 0, 0
        for index in range(batch.records):
            record, at = _split(plain, at, index, batch.base_timestamp, is_json=is_json)
            arguments += len(record.fields) + 5
            records.append(record)
        if at != len(plain):
            raise ValueError(f"{len(plain) - at} bytes after the records")
    except (IndexError, ValueError) as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error
    if arguments > MOST_ARGUMENTS:
        raise TooManyRecords("the batch has too many records, headers or members to be stored one by one")
    return records


def _split(plain: bytes, start: int, index: int, base_timestamp: int, *, is_json: bool) -> tuple[SplitRecord, int]:
    """The record at ``start``, and the position of the next one.

    :raises ValueError, IndexError: if the bytes are not a record.
    :raises TooManyRecords: if the record has too many headers.
    """
    length, at = read_varint(plain, start)
    end = at + length
    timestamp_delta, at = read_varint(plain, at + 1)
    offset_delta, at = read_varint(plain, at)
    if offset_delta != index or end > len(plain):
        raise ValueError(f"record {index} has {length} bytes and offset delta {offset_delta}")
    fields: list[bytes | memoryview] = []
    notes = b""
    key, at = _text(plain, at)
    if key is not None:
        fields += (b"key", key)
    value, at = _text(plain, at)
    if value is not None:
        members = flattened(value) if is_json else None
        if members is None:
            fields += (b"value", value)
        else:
            notes = b" " + _MEMBERS + members.layout
            fields += members.fields
    headers, at = read_varint(plain, at)
    inner = 3 + _text_bytes(key) + _text_bytes(value) + _varint_bytes(headers)
    if headers:
        at, nulls, headers_bytes = _headers(plain, at, headers, fields)
        inner += headers_bytes
        if nulls:
            notes = b" " + _NULLS + b",".join(b"%d" % place for place in nulls) + notes
    if at != end:
        raise ValueError(f"record {index} does not end after its {length} bytes")
    size_bytes = HEADER_BYTES + _varint_bytes(inner) + inner
    return SplitRecord(size_bytes, java_long(base_timestamp + timestamp_delta), notes, fields), end


def _text(plain: bytes, at: int) -> tuple[bytes | None, int]:
    """A length-prefixed text (None if null), and the position of its end.

    :raises ValueError, IndexError: if the bytes end before the text.
    """
    length, at = read_varint(plain, at)
    if length < 0:
        return None, at
    if at + length > len(plain):
        raise ValueError(f"a text of {length} bytes")
    return plain[at : at + length], at + length


def _varint_bytes(length: int) -> int:
    return 1 if length < 64 else 2 if length < 8192 else len(varint(length))


def _text_bytes(text: bytes | None) -> int:
    """The size of a text with its length, as consumers get them. A producer may write a longer length."""
    return 1 if text is None else _varint_bytes(len(text)) + len(text)


def _headers(plain: bytes, at: int, count: int, fields: list[bytes | memoryview]) -> tuple[int, list[int], int]:
    """Add headers to fields. Returns the position of their end, the indexes of null values, and their size in bytes.

    :raises ValueError, IndexError: if the bytes are not headers.
    :raises TooManyRecords: if there are more than `MOST_HEADERS`.
    """
    if count < 0:
        raise ValueError(f"{count} headers")
    if count > MOST_HEADERS:
        raise TooManyRecords(f"{count} headers of a record, and at most {MOST_HEADERS} can be stored")
    nulls, size_bytes = [], 0
    for place in range(count):
        name, at = _text(plain, at)
        if name is None:
            raise ValueError("a header without a name")
        content, at = _text(plain, at)
        if content is None:
            nulls.append(place)
        size_bytes += _text_bytes(name) + _text_bytes(content)
        fields += (_HEADER + name, content or b"")
    return at, nulls, size_bytes


def arguments(batch: Batch, records: Sequence[SplitRecord]) -> list[bytes | memoryview | int]:
    """The arguments of `korvet_log_append_records` for records that were split from a batch.

    :param batch: the header as the log keeps it: with the append time, if the topic has LogAppendTime.
    """
    stamp = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else None
    attributes = batch.attributes & ~CODEC_MASK
    producer_id, epoch, sequence = batch.producer_id, batch.producer_epoch, batch.base_sequence
    step = 1 if sequence >= 0 else 0
    words: list[bytes | memoryview | int] = []
    for record in records:
        words += (
            len(record.fields) + 2,
            record.size_bytes,
            record.timestamp if stamp is None else stamp,
            b"r",
            b"%d %d %d %d%b" % (attributes, producer_id, epoch, sequence, record.notes),
        )
        words += record.fields
        sequence = (sequence + step) % SEQUENCES if step else sequence
    return words


class StoredRecord(NamedTuple):
    """A record from an entry. ``rest`` is the part after its offset delta."""

    offset: int
    timestamp: int
    leader_epoch: int
    attributes: int
    producer_id: int
    producer_epoch: int
    sequence: int
    rest: bytes

    def goes_on(self, first: StoredRecord) -> bool:
        """True if it may follow ``first``, an earlier record, in one batch."""
        if self[2:6] != first[2:6]:
            return False
        ahead = self.offset - first.offset
        if ahead >= SEQUENCES or (self.attributes & LOG_APPEND_TIME and self.timestamp != first.timestamp):
            return False
        if first.sequence < 0:
            return self.sequence == first.sequence
        return (self.sequence - first.sequence) % SEQUENCES == ahead


def stored_record(offset: int, timestamp: int, leader_epoch: int, fields: Sequence[bytes]) -> StoredRecord:
    """The record of an entry; ``fields`` are the entry's fields after the index, with their values."""
    attributes, producer_id, epoch, sequence, *notes = fields[1].split(b" ")
    nulls: frozenset[int] = frozenset()
    layout = None
    for note in notes:
        if note.startswith(_NULLS):
            nulls = frozenset(map(int, note[1:].split(b",")))
        elif note.startswith(_MEMBERS):
            layout = note[1:]
    rest = _rest(fields[2:], nulls, layout)
    return StoredRecord(
        offset, timestamp, leader_epoch, int(attributes), int(producer_id), int(epoch), int(sequence), rest
    )


def _rest(fields: Sequence[bytes], nulls: frozenset[int], layout: bytes | None) -> bytes:
    key, value, at = None, None, 0
    if fields and fields[0] == b"key":
        key, at = fields[1], 2
    if layout is not None:
        value, count = joined(layout, fields[at:])
        at += count
    elif len(fields) > at and fields[at] == b"value":
        value, at = fields[at + 1], at + 2
    names, contents = fields[at::2], fields[at + 1 :: 2]
    parts = [_with_length(key), _with_length(value), varint(len(names))]
    for place, (name, content) in enumerate(zip(names, contents, strict=True)):
        parts += (_with_length(name[len(_HEADER) :]), _with_length(None if place in nulls else content))
    return b"".join(parts)


def _with_length(text: bytes | None) -> bytes:
    return _NULL if text is None else varint(len(text)) + text


def batches(records: Sequence[StoredRecord]) -> Iterator[tuple[int, bytes]]:
    """Batches of consecutive records of a log, each with the number of its records; as few batches as possible.

    Each batch has a base offset of 0, as producers send it. Its true base offset is that of its first record.
    """
    at = 0
    while at < len(records):
        first, end = records[at], at + 1
        while end < len(records) and records[end].goes_on(first):
            end += 1
        yield end - at, _batch(records[at:end])
        at = end


def _batch(records: Sequence[StoredRecord]) -> bytes:
    first, last = records[0], records[-1]
    base_timestamp, base_offset = first.timestamp, first.offset
    parts: list[bytes] = []
    for record in records:
        timestamp_delta = varint(java_long(record.timestamp - base_timestamp))
        inner = b"\0" + timestamp_delta + varint(record.offset - base_offset) + record.rest
        parts += (varint(len(inner)), inner)
    return new_batch(
        b"".join(parts),
        base_timestamp,
        max(record.timestamp for record in records),
        records=len(records),
        last_offset_delta=last.offset - base_offset,
        attributes=first.attributes,
        producer=(first.producer_id, first.producer_epoch, first.sequence),
    )[1]
