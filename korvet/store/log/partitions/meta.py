"""A partition's meta hash: its offsets, its epochs, and the server that holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from korvet.errors import StoreError, StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.partition import Meta, Partition

META_FIELDS = (
    "topic_id", "start", "end", "epoch", "epochs", "run_id", "replid", "first_open", "last_aborted", "cleaned",
    "local_start", "tier_end", "tier",
)  # fmt: skip
_ATTEMPTS = 4
_FENCE = b"tier"
"""In the field cleaned, where front-ends without segments expect a number, and find none (`lua/2-log/1-tier.lua`)."""


class Unreadable(Enum):
    """Why a meta hash could not be used."""

    MENDED = auto()
    """Its keys were missing, or another server holds it. This is repaired now: read again."""
    NO_TOPIC = auto()


def request_meta(log: Partitions, partition: Partition) -> asyncio.Future[Any]:
    """Queue the read for `meta_of`."""
    meta = partition.keys.meta
    return log.store.call(Purpose.READ, meta, "HMGET", meta, *META_FIELDS)


async def meta_of(log: Partitions, partition: Partition, reply: Sequence[Any]) -> Meta | Unreadable:
    """The meta hash in a reply, or the reason why it cannot be used.

    Makes missing keys if the catalog has the topic. Begins an epoch at once if another server took over the log, or if
    lost keys were remade: consumers then learn of a truncation before the next append hides it.
    """
    topic_id, start, end, epoch, epochs, run_id, replid, first_open, last_aborted, cleaned, *tier = reply
    if topic_id is None or topic_id.decode() != partition.topic_id:
        return Unreadable.MENDED if await log.restore(partition) else Unreadable.NO_TOPIC
    if not _is_held(log, partition, (run_id or b"").decode(), (replid or b"").decode()):
        await log.take_over(partition)
        return Unreadable.MENDED
    try:
        stable = int(end) if first_open is None else max(int(start), int(first_open))
        aborted_until = -1 if last_aborted is None else int(last_aborted)
        cleaned_until = -1 if cleaned is None or cleaned == _FENCE else int(cleaned)
        ends = int(start), int(end), int(epoch), epochs or b"", stable
        meta = Meta(*ends, aborted_until, cleaned_until, *_tier_of(int(start), *tier))
    except (TypeError, ValueError):
        raise StoreError(f"{partition.keys.meta} has a field that is missing or no number: {reply}") from None
    if not partition.note(meta.epoch, meta.end, meta.start):
        # Replies on one connection are ordered, so an older epoch means another history, and the memory is void.
        partition.forget()
        partition.note(meta.epoch, meta.end, meta.start)
    partition.local_start = meta.local_start
    return meta


def _tier_of(
    start: int, local_start: bytes | None, tier_end: bytes | None, tier: bytes | None
) -> tuple[int, int, bytes]:
    return max(start, int(local_start or 0)), -1 if tier_end is None else int(tier_end), tier or b""


def _is_held(log: Partitions, partition: Partition, run_id: str, replid: str) -> bool:
    """True if the partition's server began its epoch, under its current replication id.

    :raises StoreUnavailable: this is not known yet.
    """
    if not run_id or (run_id, replid) == (partition.run_id, partition.replid):
        return bool(run_id)
    log.find_run_id(partition)
    if not log.store.reads_where_it_appends(partition.keys.log):
        raise StoreUnavailable("another server answers, and the connection for appends is not up yet")
    return (run_id, replid) == (partition.run_id, partition.replid)


async def meta_in_reply(
    log: Partitions, partition: Partition, question: asyncio.Future[Sequence[object]]
) -> Meta | None:
    """The result of `request_meta`, repeated after a repair; None if the topic is gone.

    :raises StoreUnavailable, StoreFull, StoreError:
    """
    for _ in range(_ATTEMPTS):
        meta = await meta_of(log, partition, await question)
        if isinstance(meta, Meta):
            return meta
        if meta is Unreadable.NO_TOPIC:
            return None
        question = request_meta(log, partition)
    raise StoreError(f"{partition.keys.meta} changes again and again")
