"""Fetch answers packed by hand, versions 4 to 18: stored batches go out as they lie in memory, never copied.

Held against kio at every version by tests/wire/test_fetch_response.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from korvet.wire.codec import Buffers
from korvet.wire.packing import compact_string, string, unsigned_varint

LOG_START_SINCE = 5
SESSIONS_SINCE = 7
READ_REPLICA_SINCE = 11
FLEXIBLE_SINCE = 12
TOPIC_ID_SINCE = 13

_V4 = struct.Struct(">ihqq")  # index, error, high watermark, last stable offset
_V5 = struct.Struct(">ihqqq")  # … log start offset
_NO_REPLICA = (-1).to_bytes(4, "big", signed=True)
_DIVERGING = struct.Struct(">iq")
_ABORTED = struct.Struct(">qq").pack
_TAGGED_ABORTED = struct.Struct(">qqx").pack


class EpochEnd(NamedTuple):
    """Where a leader epoch ends: what a fetcher must truncate to (KIP-595)."""

    epoch: int
    end_offset: int


@dataclass(slots=True)
class PartitionRead:
    """What a Fetch found in one partition; offsets are -1 where the partition could not be read.

    ``records`` are buffers of whole batches, ``size_bytes`` their sum. ``diverging`` is told from version 12 on.
    ``aborted`` are aborted transactions as producer id and first offset; None is no list: Kafka gives one, though it
    may be empty, to who reads committed records, and for partitions that it did not come to read.
    """

    partition: int
    code: int
    high_watermark: int = -1
    log_start: int = -1
    last_stable: int = -1
    records: list[bytes | memoryview] = field(default_factory=list)
    size_bytes: int = 0
    diverging: EpochEnd | None = None
    aborted: Sequence[tuple[int, int]] | None = None


def pack(version: int, topics: Sequence[tuple[str | UUID, Sequence[PartitionRead]]], code: int = 0) -> Buffers:
    """The body of an answer without a session. Topics are named as the version names them: by id from 13 on."""
    flexible = version >= FLEXIBLE_SINCE
    head = bytes(4)  # no throttling
    if version >= SESSIONS_SINCE:
        head += code.to_bytes(2, "big", signed=True) + bytes(4)
    out: Buffers = []
    head += _count(len(topics), flexible)
    for topic, partitions in topics:
        head += _topic(topic, flexible) + _count(len(partitions), flexible)
        for read in partitions:
            out.append(head + _partition(version, read))
            out += read.records
            head = _tags(read) if flexible else b""
        if flexible:
            head += b"\x00"
    out.append(head + b"\x00" if flexible else head)
    return out


def _topic(topic: str | UUID, flexible: bool) -> bytes:
    if isinstance(topic, UUID):
        return topic.bytes
    return compact_string(topic) if flexible else string(topic)


def _count(items: int, flexible: bool) -> bytes:
    return unsigned_varint(items + 1) if flexible else items.to_bytes(4, "big")


def _partition(version: int, read: PartitionRead) -> bytes:
    """All fields in front of the records, the size of these included."""
    end, stable = read.high_watermark, read.last_stable
    if version >= LOG_START_SINCE:
        fixed = _V5.pack(read.partition, read.code, end, stable, read.log_start)
    else:
        fixed = _V4.pack(read.partition, read.code, end, stable)
    aborted = _aborted(read.aborted, version >= FLEXIBLE_SINCE)
    if version >= FLEXIBLE_SINCE:
        return fixed + aborted + _NO_REPLICA + unsigned_varint(read.size_bytes + 1)
    replica = _NO_REPLICA if version >= READ_REPLICA_SINCE else b""
    return fixed + aborted + replica + read.size_bytes.to_bytes(4, "big")


def _aborted(transactions: Sequence[tuple[int, int]] | None, flexible: bool) -> bytes:
    if transactions is None:
        return b"\x00" if flexible else b"\xff\xff\xff\xff"
    pack_one = _TAGGED_ABORTED if flexible else _ABORTED
    return _count(len(transactions), flexible) + b"".join([pack_one(*one) for one in transactions])


def _tags(read: PartitionRead) -> bytes:
    if read.diverging is None:
        return b"\x00"
    # One tagged field: tag 0, its size, epoch and end offset, and the struct's own empty tags.
    return b"\x01\x00\x0d" + _DIVERGING.pack(*read.diverging) + b"\x00"
