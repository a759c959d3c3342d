"""Fetch answers packed by hand, versions 4 to 18: stored batches leave as they lie in memory, without a copy.

tests/wire/test_fetch_response.py compares them with kio's at every version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from korvet.wire.codec import Buffers, with_codes
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
    """The end of a leader epoch, to which a fetcher has to truncate (KIP-595)."""

    epoch: int
    end_offset: int


@dataclass(slots=True)
class PartitionRead:
    """The outcome of a Fetch in one partition; offsets are -1 if the partition could not be read.

    ``records`` are buffers of whole batches, and ``size_bytes`` is their sum. Clients hear ``diverging`` from version
    12 on. ``aborted`` holds aborted transactions as producer id and first offset; None is a null list. Kafka sends a
    list, perhaps an empty one, to readers of committed records, and for partitions that it did not read. ``is_cut``
    says that the partition has more, within the reader's own limits.
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
    is_cut: bool = False


def pack(version: int, topics: Sequence[tuple[str | UUID, Sequence[PartitionRead]]], code: int = 0) -> Buffers:
    """The body of an answer without a session. Topics have ids from version 13 on, and names before."""
    flexible = version >= FLEXIBLE_SINCE
    head = bytes(4)  # no throttling
    if version >= SESSIONS_SINCE:
        head += code.to_bytes(2, "big", signed=True) + bytes(4)
    out: Buffers = []
    codes = [code] if code else []
    head += _count(len(topics), flexible)
    for topic, partitions in topics:
        head += _topic(topic, flexible) + _count(len(partitions), flexible)
        for read in partitions:
            out.append(head + _partition(version, read))
            if read.code:
                codes.append(read.code)
            out += read.records
            head = _tags(read) if flexible else b""
        if flexible:
            head += b"\x00"
    out.append(head + b"\x00" if flexible else head)
    return with_codes(out, codes)


def _topic(topic: str | UUID, flexible: bool) -> bytes:
    if isinstance(topic, UUID):
        return topic.bytes
    return compact_string(topic) if flexible else string(topic)


def _count(items: int, flexible: bool) -> bytes:
    return unsigned_varint(items + 1) if flexible else items.to_bytes(4, "big")


def _partition(version: int, read: PartitionRead) -> bytes:
    """The fields in front of the records, with the records' size."""
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
