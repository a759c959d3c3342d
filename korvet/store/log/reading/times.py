"""Offsets by time: the function finds the batch, and this module finds the record in it."""

from __future__ import annotations

from functools import partial

from korvet.errors import StoreError
from korvet.redis.client import Purpose
from korvet.store.contract import GONE, RETRY
from korvet.store.log.partitions.meta import meta_in_reply, request_meta
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.partitions.source import Timed
from korvet.store.log.reading.batches import read_entry
from korvet.store.log.state.entries import Entry
from korvet.store.log.state.partition import Meta, Partition
from korvet.wire.batch import CODEC_MASK, HEADER, Batch
from korvet.wire.records import UndecodableRecords, first_at_or_after

MAX_TIMESTAMP = -3
_ATTEMPTS = 4
_LONG_BYTES = 16384


NOTHING = Timed(-1, -1, -1)
_MOVED = Timed(-2, -1, -1)
"""The local start moved during the search."""


async def offset_for_time(
    log: Partitions, partition: Partition, timestamp: int, meta: Meta | None = None
) -> Timed | None:
    """The first record from the log start on that is not older than ``timestamp``; `MAX_TIMESTAMP` means the newest
    record that Redis holds (UnifiedLog.fetchOffsetByTimestamp).

    Without ``meta`` it is the first one that Redis holds.

    `NOTHING` if there is none; None if the topic is gone.

    :raises StoreUnavailable:
    :raises DamagedLog: an entry on the way cannot be read.
    """
    try:
        for _ in range(_ATTEMPTS):
            if meta is not None and meta.start < meta.local_start and timestamp != MAX_TIMESTAMP:
                found = await log.tier_of(partition).offset_for_time(partition, meta, timestamp)
                if found is not None:
                    return found
            found = await _offset_for_time(log, partition, timestamp, None if meta is None else meta.local_start)
            if found is not _MOVED:
                return found
            meta = await meta_in_reply(log, partition, request_meta(log, partition))
            if meta is None:
                return None
        raise StoreError(f"{partition.keys.log} is trimmed again and again")
    except StoreError as error:
        raise await log.damage.report(partition, error) from error


async def _offset_for_time(
    log: Partitions, partition: Partition, timestamp: int, local_start: int | None
) -> Timed | None:
    cursor: int | bytes = -1
    attempts = _ATTEMPTS
    while attempts:
        code, status, position, _, log_start = await log.store.call_function(
            Purpose.READ,
            "korvet_log_offset_for_time",
            (partition.keys.log, partition.keys.meta),
            topic_id=partition.topic_id,
            timestamp=timestamp,
            cursor=cursor,
            undated=None if local_start is None else "",
            local_start=local_start,
        )
        if code == GONE:
            attempts -= 1
            if not await log.restore(partition):
                return None
        elif code == RETRY:
            return _MOVED
        elif status == b"none":
            return NOTHING
        elif status == b"more":
            cursor = position
        else:
            attempts -= 1
            read = await read_entry(log, partition, int(position))
            found = None if read is None else await found_in_batch(log, *read, timestamp, log_start)
            if found is not None:
                return found
            # A trim removed the batch meanwhile, or only records below the log start match: continue after it.
            cursor = -1 if read is None else position
    raise StoreError(f"{partition.keys.log} changes again and again")


async def found_in_batch(log: Partitions, entry: Entry, data: bytes, timestamp: int, log_start: int) -> Timed | None:
    """As `_in_batch`, in a thread if it may take long."""
    is_compressed = Batch._make(HEADER.unpack_from(data)).attributes & CODEC_MASK
    if not is_compressed and len(data) < _LONG_BYTES:
        return _in_batch(entry, data, timestamp, log_start)
    return await log.in_thread(partial(_in_batch, entry, data, timestamp, log_start))


def _in_batch(entry: Entry, data: bytes, timestamp: int, log_start: int) -> Timed | None:
    """The record; None if all new enough records are below the log start.

    The newest record counts even if it lies below, as in Kafka.
    """
    batch = Batch._make(HEADER.unpack_from(data))
    base_offset = entry.next_offset - entry.records
    is_max = timestamp == MAX_TIMESTAMP
    from_delta = 0 if is_max else max(0, log_start - base_offset)
    try:
        found = first_at_or_after(batch, data, batch.max_timestamp if is_max else timestamp, from_delta)
    except UndecodableRecords:
        # These records are unreadable. The batch is the closest answer.
        found = (from_delta, batch.max_timestamp)
    if found is None:
        return None
    offset_delta, found_timestamp = found
    return Timed(base_offset + offset_delta, found_timestamp, entry.leader_epoch)
