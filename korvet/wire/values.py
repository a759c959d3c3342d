"""The values of a batch's records, for topics whose values korvet checks before it stores the batch.

A record (varints are zig-zag): length varint, attributes int8, timestamp delta varint, offset delta varint, key length
varint, key, value length varint, value, headers; a length of -1 is null.

Source: DefaultRecord
"""

from __future__ import annotations

from collections.abc import Iterator

from korvet.wire.batch import CODEC_MASK, HEADER_BYTES, Batch
from korvet.wire.records import UndecodableRecords, decompressed, read_varint


def values(batch: Batch, data: bytes | memoryview) -> Iterator[memoryview | None]:
    """Each record's value, None if it is null. ``data`` is the whole batch.

    :raises UndecodableRecords: the records contradict the header.
    """
    try:
        plain = decompressed(batch.attributes & CODEC_MASK, bytes(data[HEADER_BYTES:]))
        view = memoryview(plain)
        at = 0
        for index in range(batch.records):
            value, at = _value(plain, view, at, index)
            yield value
        if at != len(plain):
            raise ValueError(f"{len(plain) - at} bytes after the records")
    except (IndexError, ValueError) as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error


def _value(plain: bytes, view: memoryview, start: int, index: int) -> tuple[memoryview | None, int]:
    """The value of the record at ``start``, and the position of the next record.

    :raises ValueError, IndexError: if the bytes are not a record.
    """
    length, at = read_varint(plain, start)
    end = at + length
    _, at = read_varint(plain, at + 1)
    offset_delta, at = read_varint(plain, at)
    key_length, at = read_varint(plain, at)
    value_length, at = read_varint(plain, at + max(0, key_length))
    if end > len(plain) or at + max(0, value_length) > end or offset_delta != index:
        raise ValueError(f"record {index} has {length} bytes and offset delta {offset_delta}")
    return None if value_length < 0 else view[at : at + value_length], end
