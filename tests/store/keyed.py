"""Batches of records with keys, and the records that readers get back."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crc32c

from korvet.store.log.memory.room import PartitionRead
from korvet.wire.batch import HEADER, HEADER_BYTES, LENGTH_FROM, Batch
from korvet.wire.compacted import opened
from korvet.wire.compress import compressed
from tests.oracle.batches import varint

Pair = tuple[bytes | None, bytes | None]
Read = tuple[int, bytes | None, bytes | None]
"""A record's offset, key and value."""


def keyed(
    *pairs: Pair,
    timestamp: int = 1000,
    codec: int = 0,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A batch of keys and values, a millisecond apart; ``producer`` is id, epoch and base sequence."""
    records = b"".join(_record(index, *pair) for index, pair in enumerate(pairs))
    covered = struct.pack(
        ">hiqqqhii", codec | attributes, len(pairs) - 1, timestamp, timestamp + len(pairs) - 1, *producer, len(pairs)
    ) + compressed(codec, records)  # fmt: skip
    return struct.pack(">qiibI", 0, 9 + len(covered), -1, 2, crc32c.crc32c(covered)) + covered


def _record(index: int, key: bytes | None, value: bytes | None) -> bytes:
    parts = (varint(-1) if part is None else varint(len(part)) + part for part in (key, value))
    body = b"\0" + varint(index) + varint(index) + b"".join(parts) + varint(0)
    return varint(len(body)) + body


def batches(found: PartitionRead) -> list[tuple[Batch, bytes]]:
    """The batches of a Fetch answer, each whole."""
    data, at, whole = b"".join(found.records), 0, []
    while at < len(data):
        batch = Batch._make(HEADER.unpack_from(data, at))
        assert batch.length > HEADER_BYTES - LENGTH_FROM
        one = data[at : at + batch.size_bytes]
        assert crc32c.crc32c(one[21:]) == batch.crc
        whole.append((batch, one))
        at += batch.size_bytes
    return whole


def records(found: PartitionRead) -> list[Read]:
    """The records of a Fetch answer, without control batches."""
    read: list[Read] = []
    for batch, data in batches(found):
        if batch.attributes & 0x20:
            continue
        plain, inside = opened(batch, data)
        read += [
            (batch.base_offset + record.offset_delta, record.key, _value(plain[record.rest : record.end]))
            for record in inside
        ]
    return read


def _value(rest: bytes) -> bytes | None:
    """The value in a record's bytes from its offset delta on."""
    at = 0
    parts: list[bytes | None] = []
    _, at = _varint(rest, at)
    for _ in range(2):
        size, at = _varint(rest, at)
        parts.append(None if size < 0 else rest[at : at + size])
        at += max(0, size)
    return parts[1]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at


def all_values(read: Sequence[Read]) -> dict[bytes | None, bytes | None]:
    """The last value of each key."""
    return {key: value for _, key, value in read}
