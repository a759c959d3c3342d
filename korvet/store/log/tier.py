"""A partition's segments, as Redis lists them: the calls of `lua/2-log/1-tier.lua`.

A segment is a text here, as its function made it; the texts go back as they came. Every call may be repeated, and so
may a sequence of them after a crash between two: upload and `add`, then `trim`; upload of a shelf and `shelve`;
deletion of objects and `forget`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from korvet.errors import LostTier
from korvet.redis.client import Purpose
from korvet.store.contract import GONE, LOST
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.partition import Partition


class Upload(NamedTuple):
    """An uploaded segment. ``max_timestamp`` is its footer's. ``first_index`` and ``last_index`` are the index texts of
    its first and last entry, as the log had them when they were read."""

    name: str
    first: int
    next: int
    size: int
    footer_bytes: int
    crc: int
    max_timestamp: int
    first_index: bytes
    last_index: bytes


class Added(NamedTuple):
    """The outcome of `add`: added, conflict, open, changed or full; the offset at which the next segment begins; the
    number of segments."""

    status: str
    next_first: int
    segments: int


class Listed(NamedTuple):
    """A page of a partition's segments, each with the offset after it; ``tier_end`` is -1 without any."""

    token: bytes
    epoch: int
    start: int
    local_start: int
    tier_end: int
    segments: Sequence[tuple[int, bytes]]
    has_more: bool


async def add(log: Partitions, partition: Partition, upload: Upload, token: str) -> Added | None:
    """Enter a segment, if the log still holds what is in it; None if the topic is gone.

    :param token: the name of the list, if this is its first segment.
    :raises LostTier, StoreUnavailable, StoreError:
    """
    code, status, next_first, segments = await log.store.call_function(
        Purpose.APPEND,
        "korvet_tier_add",
        log.tier_keys(partition),
        topic_id=partition.topic_id,
        token=token,
        **upload._asdict(),
    )
    return Added(status.decode(), next_first, segments) if _is_there(partition, code) else None


async def trim(log: Partitions, partition: Partition, offset: int, epoch: int) -> tuple[int, int]:
    """Remove batches below an offset from Redis that segments hold. Returns a Kafka error code, or GONE, and the local
    start then.

    :param epoch: the leader epoch in which the offset was chosen; in another one the code is FENCED_LEADER_EPOCH.
    :raises LostTier, StoreUnavailable, StoreError:
    """
    while True:
        code, local_start, more = await log.store.call_function(
            Purpose.APPEND,
            "korvet_tier_trim",
            log.tier_keys(partition),
            topic_id=partition.topic_id,
            offset=offset,
            epoch=epoch,
        )
        _is_there(partition, code)
        if code != 0 or not more:
            return code, local_start


async def listed(log: Partitions, partition: Partition, offset: int, most: int) -> Listed | None:
    """The segments that end above an offset, as many as one call lists; None if the topic is gone.

    From the log start on they follow each other. Below it are those whose objects may go.

    :raises LostTier, StoreUnavailable, StoreError:
    """
    keys = log.tier_keys(partition)
    code, token, epoch, start, local_start, tier_end, flat, more = await log.store.call_function(
        Purpose.READ,
        "korvet_tier_list",
        (keys.meta, keys.tier),
        topic_id=partition.topic_id,
        offset=offset,
        most=most,
    )
    if not _is_there(partition, code):
        return None
    segments = list(zip(flat[::2], flat[1::2], strict=True))
    return Listed(token, epoch, start, local_start, tier_end, segments, bool(more))


async def kept_from(log: Partitions, partition: Partition, oldest_ms: int, keep_bytes: int) -> tuple[int, int] | None:
    """The leader epoch, and the offset below which whole segments may go: the log start if none may, the local start or
    more if all may that Redis does not hold. None if the topic is gone.

    :param oldest_ms: a segment goes if all its batches are older; -1 for no limit, as for ``keep_bytes``.
    :param keep_bytes: a segment goes if so many bytes are left of the whole log.
    :raises LostTier, StoreUnavailable, StoreError:
    """
    keys = log.tier_keys(partition)
    code, epoch, offset = await log.store.call_function(
        Purpose.READ,
        "korvet_tier_kept",
        (keys.meta, keys.tier),
        topic_id=partition.topic_id,
        oldest=oldest_ms,
        keep_bytes=keep_bytes,
    )
    return (epoch, offset) if _is_there(partition, code) else None


async def shelve(
    log: Partitions,
    partition: Partition,
    segments: Sequence[bytes],
    name: str,
    size_bytes: int,
    crc: int,
    kind: Literal["shelf", "segment"] = "shelf",
) -> bool | None:
    """Put an uploaded shelf, or a segment of all their batches, in the place of segments. False if the list has others
    by now; None if the topic is gone.

    :param size_bytes: of the shelf, or of the segment's footer; ``crc`` is its checksum.
    :raises LostTier, StoreUnavailable, StoreError:
    """
    code, status, _ = await log.store.call_function(
        Purpose.APPEND,
        "korvet_tier_shelve",
        log.tier_keys(partition),
        topic_id=partition.topic_id,
        name=name,
        kind=kind,
        bytes=size_bytes,
        crc=crc,
        segments=segments,
    )
    return bool(status == b"shelved") if _is_there(partition, code) else None


async def forget(log: Partitions, partition: Partition, segments: Sequence[bytes]) -> int:
    """Take segments below the log start out of the list, after their objects were deleted. Returns their number.

    :raises StoreUnavailable, StoreError:
    """
    code, removed = await log.store.call_function(
        Purpose.APPEND,
        "korvet_tier_forget",
        log.tier_keys(partition),
        topic_id=partition.topic_id,
        segments=segments,
    )
    return int(removed) if _is_there(partition, code) else 0


def _is_there(partition: Partition, code: Any) -> bool:
    """False if the topic is gone.

    :raises LostTier:
    """
    if code == LOST:
        raise LostTier(f"the list of segments beside {partition.keys.log} is not whole: restore it from the tier")
    return bool(code != GONE)
