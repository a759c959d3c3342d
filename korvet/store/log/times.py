"""Offsets by time: the function finds the batch, the record in it is found here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread

from korvet.errors import StoreError
from korvet.store.client import Purpose
from korvet.store.contract import GONE
from korvet.store.log.partition import Partition
from korvet.store.log.read import Entry, read_entry
from korvet.wire.batch import CODEC_MASK, HEADER, Batch
from korvet.wire.records import UndecodableRecords, first_at_or_after

if TYPE_CHECKING:
    from korvet.store.log import Log

MAX_TIMESTAMP = -3
_ATTEMPTS = 4
_LONG_BYTES = 16384


class Timed(NamedTuple):
    """A record found by time: its offset, its timestamp in milliseconds and its batch's leader epoch."""

    offset: int
    timestamp: int
    leader_epoch: int


NOTHING = Timed(-1, -1, -1)


async def offset_for_time(log: Log, partition: Partition, timestamp: int) -> Timed | None:
    """The first record from the log start on that is not older than ``timestamp``; `MAX_TIMESTAMP` means the newest
    record.

    `NOTHING` when there is none; None when the topic is gone.

    :raises StoreUnavailable, StoreError:
    """
    cursor: int | bytes = -1
    attempts = _ATTEMPTS
    while attempts:
        code, status, position, _, log_start = await log.store.fcall(
            Purpose.READ,
            "korvet_log_offset_for_time",
            (partition.keys.log, partition.keys.meta),
            partition.topic_id,
            timestamp,
            cursor,
        )
        if code == GONE:
            attempts -= 1
            if not await log.restore(partition):
                return None
        elif status == b"none":
            return NOTHING
        elif status == b"more":
            cursor = position
        else:
            attempts -= 1
            read = await read_entry(log, partition, int(position))
            found = None if read is None else await _found(log, *read, timestamp, log_start)
            if found is not None:
                return found
            # The batch was trimmed meanwhile, or it only reaches the time below the log start: look behind it.
            cursor = -1 if read is None else position
    raise StoreError(f"{partition.keys.log} does not come to rest")


async def _found(log: Log, entry: Entry, data: bytes, timestamp: int, log_start: int) -> Timed | None:
    """As `_in_batch`; what may take long is done beside the loop."""
    is_compressed = Batch._make(HEADER.unpack_from(data)).attributes & CODEC_MASK
    if not is_compressed and len(data) < _LONG_BYTES:
        return _in_batch(entry, data, timestamp, log_start)
    return await anyio.to_thread.run_sync(_in_batch, entry, data, timestamp, log_start, limiter=log.decoders)


def _in_batch(entry: Entry, data: bytes, timestamp: int, log_start: int) -> Timed | None:
    """The record; None when all that are new enough lie below the log start.

    The newest record is told even if it lies below, as Kafka does.
    """
    batch = Batch._make(HEADER.unpack_from(data))
    base_offset = entry.next_offset - entry.records
    is_max = timestamp == MAX_TIMESTAMP
    from_delta = 0 if is_max else max(0, log_start - base_offset)
    try:
        found = first_at_or_after(batch, data, batch.max_timestamp if is_max else timestamp, from_delta)
    except UndecodableRecords:
        # Somebody wrote records that nobody can read. The batch is the closest answer there is.
        found = (from_delta, batch.max_timestamp)
    if found is None:
        return None
    offset_delta, found_timestamp = found
    return Timed(base_offset + offset_delta, found_timestamp, entry.leader_epoch)
