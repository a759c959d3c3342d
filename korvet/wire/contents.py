"""The contents of stored records: for copies of dead letters, and the times before which share groups get no record.

A record (varints are zig-zag): length varint, attributes int8, timestamp delta varint, offset delta varint, key length
varint, key, value length varint, value, number of headers varint, and of each its name and its value with their
lengths; a length of -1 is null.

Source: DefaultRecord
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from korvet.wire.batch import CODEC_MASK, HEADER_BYTES, Batch, headers_in
from korvet.wire.records import UndecodableRecords, decompressed, read_varint, varint

_NULL: Final = varint(-1)
_MOST_DIGITS: Final = 15


class Content(NamedTuple):
    """A record's key and value, and its headers, each as they were written."""

    key_and_value: bytes = 2 * _NULL
    header_count: int = 0
    headers: bytes = b""


NOTHING: Final = Content()


def contents(data: bytes, wanted: range) -> Iterator[tuple[int, Content]]:
    """The wanted offsets in whole batches, with their records. One whose parts do not fill it is left out: its copy
    would be none that clients can read, and producers' own batches are not opened on their way into the log.

    :raises UndecodableRecords: a batch does not hold the records that its header promises.
    """
    for batch, records in _batches(data):
        if batch.base_offset < wanted.stop and batch.base_offset + batch.last_offset_delta >= wanted.start:
            for offset, content in _contents(batch, records, wanted):
                if _is_sound(content):
                    yield offset, content


def times_in(buffers: Iterable[bytes | memoryview], header: bytes, wanted: Container[int]) -> dict[int, int]:
    """The wanted offsets of records that have a time in a header, with it: ms since 1970 as decimal digits.

    The last header of a name counts. Any other value is no time, and records that cannot be decoded have none.

    :param buffers: whole batches, whose borders may be anywhere.
    """
    found, name = {}, varint(len(header)) + header
    for batch, records in _batches(b"".join(buffers)):
        with suppress(UndecodableRecords):
            for offset, content in _contents(batch, records, wanted, name):
                text = _last_header(content, name)
                if len(text) <= _MOST_DIGITS and text.isdigit():
                    found[offset] = int(text)
    return found


def _batches(data: bytes) -> Iterator[tuple[Batch, bytes]]:
    at = 0
    for batch in headers_in([data]):
        yield batch, data[at + HEADER_BYTES : at + batch.size_bytes]
        at += batch.size_bytes


def _contents(batch: Batch, records: bytes, wanted: Container[int], part: bytes = b"") -> Iterator[tuple[int, Content]]:
    """The wanted records of a batch in which some bytes occur, by their offsets."""
    plain, at = decompressed(batch.attributes & CODEC_MASK, records), 0
    if part not in plain:
        return
    # Only compaction leaves gaps, and a step over a record takes a tenth of its reading.
    is_whole = batch.records == batch.last_offset_delta + 1
    try:
        for offset in range(batch.base_offset, batch.base_offset + batch.records):
            length, start = read_varint(plain, at)
            at = start + length
            if length <= 0 or at > len(plain):
                raise ValueError(f"a record of {length} bytes")
            if (not is_whole or offset in wanted) and plain.find(part, start, at) >= 0:
                delta, begin = read_varint(plain, read_varint(plain, start + 1)[1])
                if batch.base_offset + delta in wanted:
                    end = _text_end(plain, _text_end(plain, begin))
                    count, headers = read_varint(plain, end)
                    if headers <= at:
                        yield batch.base_offset + delta, Content(plain[begin:end], count, plain[headers:at])
    except (IndexError, ValueError) as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error


def _is_sound(content: Content) -> bool:
    """True if there are as many headers as the record says."""
    headers, at = content.headers, 0
    try:
        for _ in range(content.header_count):
            if read_varint(headers, at)[0] < 0:
                return False
            at = _text_end(headers, _text_end(headers, at))
    except (IndexError, ValueError):
        return False
    return content.header_count >= 0 and at == len(headers)


def _last_header(content: Content, name: bytes) -> bytes:
    """The value of the last header of a name, which has its length before it; empty if there is none, or it is null.

    :raises UndecodableRecords: these are no headers.
    """
    headers, found, at = content.headers, b"", 0
    try:
        for _ in range(content.header_count):
            value = _text_end(headers, at)
            is_named, at = headers[at:value] == name, _text_end(headers, value)
            if is_named:
                found = headers[read_varint(headers, value)[1] : at]
    except (IndexError, ValueError) as error:
        raise UndecodableRecords(f"headers cannot be decoded: {error!r}") from error
    return found


def _text_end(plain: bytes, at: int) -> int:
    length, at = read_varint(plain, at)
    return at + max(0, length)
