"""The end of a read of single records, found before the read.

An entry of a batch is small, or its batch is placed and read by itself. An entry of a record holds the record, however
large, and the mean size of past records says nothing about the next thousand. Each entry's index has the running sum of
bytes. So the last entry of a span gives the span's bytes, and the span is halved until they are few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from korvet.errors import KorvetError
from korvet.redis.client import Purpose
from korvet.store.log.budget import SLICE_BYTES, SMALL_BYTES
from korvet.store.log.entries import index_of
from korvet.store.log.partition import Partition
from korvet.store.log.partitions import Partitions

FEW_ENTRIES = 8
"""The most records to read without measuring: at 1 MiB each, as much as entries of batches may be."""


def may_be_long(log: Partitions, partition: Partition) -> bool:
    """True if an entry may be as long as a record."""
    return partition.holds_records or log.limits(partition).is_record


async def last_id(log: Partitions, partition: Partition, offset: int, count: int, readers: int) -> str:
    """The last id of the entries to read: ``count`` offsets on, or fewer if these exceed one partition's part of
    a slice that ``readers`` partitions share.

    The first entry is always included. The read itself finds and names an unreadable entry.
    """
    if offset < 0 or count <= FEW_ENTRIES or not may_be_long(log, partition):
        return "+"
    try:
        first = await _first(log, partition, offset)
        most_bytes = max(SLICE_BYTES // readers, SMALL_BYTES)
        return "+" if first is None else f"{await _until(log, partition, offset + count, first, most_bytes)}-0"
    except KorvetError:
        return "+"


async def _first(log: Partitions, partition: Partition, offset: int) -> tuple[int, int] | None:
    """The end of the first entry after an offset, and the running bytes before it."""
    key = partition.keys.log
    reply: Sequence[Any] = await _ask(log, key, "XRANGE", key, f"{offset + 1}-0", "+", "COUNT", 1)
    if not reply:
        return None
    index = index_of(key, reply[0])
    return index.next_offset, index.running_bytes - index.size_bytes


async def _until(log: Partitions, partition: Partition, until: int, first: tuple[int, int], most_bytes: int) -> int:
    key, (first_end, bytes_before) = partition.keys.log, first
    while until > first_end:
        reply: Sequence[Any] = await _ask(log, key, "XREVRANGE", key, f"{until}-0", f"{first_end}-0", "COUNT", 1)
        try:
            if not reply or index_of(key, reply[0]).running_bytes - bytes_before <= most_bytes:
                return until
        except KorvetError:
            # A foreign entry; the reader finds it when it gets there.
            return first_end
        until = first_end + (until - first_end) // 2
    return first_end


def _ask(log: Partitions, key: str, *command: str | int) -> asyncio.Future[Any]:
    return log.store.call(Purpose.READ, key, *command)
