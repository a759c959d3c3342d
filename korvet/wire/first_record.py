"""A header of a batch's first record, without reading further records.

Source: DefaultRecord
"""

from __future__ import annotations

import struct
from typing import Final

from korvet.wire.batch import CODEC_MASK, HEADER_BYTES
from korvet.wire.records import UndecodableRecords, decompressed, read_varint

_MOST_COMPRESSED_BYTES: Final = 16 << 10
_MOST_BYTES: Final = 128 << 10
_MOST_HEADERS: Final = 100
_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_AT: Final = 21


def first_header(data: bytes | memoryview, name: bytes) -> bytes | None:
    """The value of the first header of this name in a batch's first record.

    None without one, if the record cannot be read, or if it takes long: a compressed batch of more than 16 KiB, or of
    128 KiB when decompressed, or a hundred headers.
    """
    try:
        return _first_header(data, name)
    except (IndexError, ValueError, struct.error, UndecodableRecords):
        return None


def _first_header(data: bytes | memoryview, name: bytes) -> bytes | None:
    codec = _ATTRIBUTES.unpack_from(data, _ATTRIBUTES_AT)[0] & CODEC_MASK
    if codec and len(data) > _MOST_COMPRESSED_BYTES:
        return None
    body = memoryview(data)[HEADER_BYTES:]
    plain = memoryview(decompressed(codec, bytes(body), _MOST_BYTES)) if codec else body
    at = read_varint(plain, 0)[1] + 1
    for _ in range(2):
        at = read_varint(plain, at)[1]
    for _ in range(2):
        size, at = read_varint(plain, at)
        at += max(size, 0)
    count, at = read_varint(plain, at)
    for _ in range(min(count, _MOST_HEADERS)):
        key, at = _text(plain, at)
        value, at = _text(plain, at)
        if key == name:
            return bytes(value)
    return None


def _text(plain: memoryview, at: int) -> tuple[memoryview, int]:
    size, at = read_varint(plain, at)
    end = at + max(size, 0)
    if end > len(plain):
        raise ValueError("a header is longer than its record")
    return plain[at:end], end
