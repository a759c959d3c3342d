"""The decision that a partition's compaction is due, by its topic's settings and the appends since the last one.

Source: LogCleanerManager
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.configs.types import split
from korvet.redis.client import Purpose
from korvet.store.background.compaction.plan import MOST_KEYS
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.log.state.entries import index_of
from korvet.store.log.state.limits import keeps_unarchived
from korvet.store.log.state.partition import Partition

if TYPE_CHECKING:
    from korvet.store.log.log import Log

MOST_PLAN_BYTES = 64 << 20
"""The most bytes of new batches, which a run keeps in memory until it has read all of the log."""
_MOST_CALLS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A topic's settings for compaction."""

    min_lag_ms: int
    max_lag_ms: int
    min_dirty_ratio: float
    delete_retention_ms: int
    most_keys: int = MOST_KEYS
    most_plan_bytes: int = MOST_PLAN_BYTES


def compaction_of(catalog: Catalog, topic: Topic) -> Compaction | None:
    """A topic's settings, or None if it is not compacted.

    A topic with ``korvet.retention=archived`` is not compacted: replaced records may be unarchived.
    """
    if "compact" not in split(catalog.setting(topic, "cleanup.policy")) or keeps_unarchived(catalog, topic):
        return None
    return Compaction(
        min_lag_ms=catalog.integer(topic, "min.compaction.lag.ms"),
        max_lag_ms=catalog.integer(topic, "max.compaction.lag.ms"),
        min_dirty_ratio=float(catalog.setting(topic, "min.cleanable.dirty.ratio")),
        delete_retention_ms=catalog.integer(topic, "delete.retention.ms"),
    )


class Dirty(NamedTuple):
    """The part of the log from which a run reads keys, and the log's server, epoch and start at that time."""

    run_id: str
    epoch: int
    start: int
    first: int
    until: int


async def due_of(log: Log, partition: Partition, settings: Compaction, now_ms: int) -> Dirty | None:
    """The dirty part of a log, if it is large or old enough. Source: LogCleanerManager.grabFilthiestCompactedLog"""
    known = await log.meta(partition)
    if known is None or known.tier_end >= 0:
        return None
    name, meta = partition.keys.log, partition.keys.meta
    reply = log.store.call(
        Purpose.READ, meta, "HMGET", meta, "run_id", "epoch", "start", "end", "first_open", "cleaned"
    )
    ends = [
        log.store.call(Purpose.READ, name, *command, "COUNT", 1)
        for command in (("XRANGE", name, "-", "+"), ("XREVRANGE", name, "+", "-"))
    ]
    run_id, epoch, start, end, first_open, cleaned = await reply
    (found, last) = [await one for one in ends]
    if run_id is None or not found or not last:
        return None
    first_dirty = int(cleaned or 0) if int(start) <= int(cleaned or 0) <= int(end) else int(start)
    first, newest = index_of(name, found[0]), index_of(name, last[0])
    until = min(newest.next_offset - newest.records, int(first_open or end))
    if settings.min_lag_ms > 0:
        until = min(until, await _first_younger(log, partition, now_ms - settings.min_lag_ms, until))
    if until <= first_dirty:
        return None
    before = first.running_bytes - first.size_bytes
    dirty_at, until_at = [await _bytes_below(log, name, offset, before) for offset in (first_dirty, until)]
    ratio = (until_at - dirty_at) / max(1, until_at - before)
    is_due = ratio > settings.min_dirty_ratio or await _is_overdue(log, name, first_dirty, now_ms, settings.max_lag_ms)
    if until_at <= dirty_at or not is_due:
        return None
    return Dirty(run_id.decode(), int(epoch), int(start), first_dirty, until)


async def _bytes_below(log: Log, name: str, offset: int, before: int) -> int:
    found = await log.store.call(Purpose.READ, name, "XREVRANGE", name, f"{offset}-0", "-", "COUNT", 1)
    return index_of(name, found[0]).running_bytes if found else before


async def _is_overdue(log: Log, name: str, first_dirty: int, now_ms: int, max_lag_ms: int) -> bool:
    """True if the first dirty batch is older than the allowed lag."""
    found = await log.store.call(Purpose.READ, name, "XRANGE", name, f"{first_dirty + 1}-0", "+", "COUNT", 1)
    timestamp = index_of(name, found[0]).max_timestamp if found else -1
    return 0 < timestamp < now_ms - max_lag_ms


async def _first_younger(log: Log, partition: Partition, oldest_ms: int, until: int) -> int:
    """The offset of the first batch younger than ``oldest_ms``, at most ``until``."""
    cursor: int | bytes = -1
    for _ in range(_MOST_CALLS):
        code, status, cursor, index, _ = await log.store.call_function(
            Purpose.READ,
            "korvet_log_offset_for_time",
            (partition.keys.log, partition.keys.meta),
            topic_id=partition.topic_id,
            timestamp=oldest_ms + 1,
            cursor=cursor,
            undated=1,
        )
        if code != ErrorCode.none or status == b"none":
            break
        if status == b"found":
            return int(cursor) - int(index.split()[0])
    return until
