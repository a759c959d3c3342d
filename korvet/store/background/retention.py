"""Retention: removing a partition's oldest batches by age and by size, as Kafka removes segments.

korvet's unit is the batch. By age, it removes all batches before the first with a young enough largest timestamp. A
batch without timestamps has the age of its append (LogSegment.largestTimestamp takes the file's time). By size, it
removes the oldest batches as long as ``retention.bytes`` are left. With ``korvet.retention=archived`` unarchived
records stay.

Trimming is repeatable, so any front-end may do it at any time.

Source: UnifiedLog.deleteRetentionMsBreachedSegments and deleteRetentionSizeBreachedSegments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from korvet.configs.types import split
from korvet.redis.client import Purpose
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.groups.archived import archived_end, archived_offsets
from korvet.store.groups.types import Offset
from korvet.store.keys import Namespace
from korvet.store.log.log import Log
from korvet.store.log.state.entries import Index, index_of
from korvet.store.log.state.limits import keeps_unarchived
from korvet.store.log.state.partition import Partition

_MAX_SEARCH_STEPS = 64
_MAX_CALLS = 1000
"""The most calls of one search; the next retention continues after the batches that it reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A topic's limits; -1 is no limit. With ``keeps_unarchived`` it also keeps all unarchived records."""

    ms: int
    bytes: int
    keeps_unarchived: bool = False


def retention_of(catalog: Catalog, topic: Topic) -> Retention | None:
    """A topic's limits, or None if it keeps everything."""
    limits = Retention(
        ms=catalog.integer(topic, "retention.ms"),
        bytes=catalog.integer(topic, "retention.bytes"),
        keeps_unarchived=keeps_unarchived(catalog, topic),
    )
    is_on = "delete" in split(catalog.setting(topic, "cleanup.policy"))
    return limits if is_on and (limits.ms >= 0 or limits.bytes >= 0) else None


async def time_ms(namespace: Namespace, log: Log) -> int:
    """Redis's time in milliseconds, to the second: all front-ends agree on it.

    :raises StoreUnavailable, StoreError:
    """
    seconds, _ = await log.store.call(Purpose.COORDINATE, namespace.catalog.meta, "TIME")
    return int(seconds) * 1000


async def enforce_settings(
    namespace: Namespace, catalog: Catalog, log: Log, topic: Topic, index: int, now_ms: int
) -> None:
    """Trim one partition by its topic's current settings, for which it first reads the catalog.

    :raises StoreUnavailable, StoreFull, StoreError:
    """
    await catalog.refresh()
    known = catalog.topic_by_id(topic.id)
    limits = retention_of(catalog, known) if known is not None else None
    if known is None or limits is None:
        return
    archived = await archived_offsets(namespace, log.store, known, [index]) if limits.keeps_unarchived else {}
    await enforce(log, log.partition(known, index), limits, now_ms, archived.get(index))


async def enforce(
    log: Log, partition: Partition, limits: Retention, now_ms: int, archived: Offset | None = None
) -> None:
    """Trim one partition to its topic's limits.

    :param now_ms: the time from `time_ms`.
    :param archived: the offset that its archive committed.
    :raises StoreUnavailable, StoreFull, StoreError:
    """
    meta = await log.meta(partition)
    if meta is None:
        return
    most = archived_end(meta, archived) if limits.keeps_unarchived else meta.end
    if meta.start >= most:
        return
    keep_from = meta.start
    if 0 <= limits.ms <= now_ms:
        keep_from = await _first_younger(log, partition, now_ms - limits.ms, meta.start, meta.end)
    if limits.bytes >= 0:
        keep_from = max(keep_from, await _first_within(log, partition, meta.start, meta.end, limits.bytes))
    keep_from = min(keep_from, most)
    if keep_from > meta.start:
        # Another history may have begun meanwhile, in which this offset means nothing.
        await log.trim(partition, keep_from, meta.epoch)


async def _first_younger(log: Log, partition: Partition, oldest_ms: int, start: int, end: int) -> int:
    """The offset of the first batch of ``oldest_ms`` or later, ``end`` if none, or where a long search stopped."""
    keys = (partition.keys.log, partition.keys.meta)
    cursor: int | bytes = -1
    for _ in range(_MAX_CALLS):
        code, status, cursor, index, _ = await log.store.call_function(
            Purpose.READ,
            "korvet_log_offset_for_time",
            keys,
            topic_id=partition.topic_id,
            timestamp=oldest_ms,
            cursor=cursor,
            undated=1,
        )
        if code != ErrorCode.none:
            return start
        if status == b"found":
            return int(cursor) - int(index.split()[0])
        if status == b"none":
            return end
    return int(cursor)


async def _first_within(log: Log, partition: Partition, start: int, end: int, keep_bytes: int) -> int:
    """The offset of the first batch to keep so that ``keep_bytes`` are left: a binary search over the stream."""
    first, last = await _entry(log, partition, start), await _entry(log, partition, end - 1)
    if first is None or last is None:
        return start
    before = first.running_bytes - first.size_bytes
    excess = last.running_bytes - before - keep_bytes
    low, high = start, end
    for _ in range(_MAX_SEARCH_STEPS):
        if low >= high or excess <= 0:
            break
        at = (low + high) // 2
        middle = await _entry(log, partition, at)
        if middle is None:
            return start
        if middle.running_bytes - before > excess:
            # In a log with gaps the entry may begin above.
            high = min(at, middle.next_offset - middle.records)
        else:
            low = middle.next_offset
    return low


async def _entry(log: Log, partition: Partition, offset: int) -> Index | None:
    """The index of the batch that holds an offset, or of the next one; None past the end.

    :raises CorruptEntry: korvet did not write the entry.
    """
    name = partition.keys.log
    found: list[Any] = await log.store.call(Purpose.READ, name, "XRANGE", name, f"{offset + 1}-0", "+", "COUNT", 1)
    return index_of(name, found[0]) if found else None
