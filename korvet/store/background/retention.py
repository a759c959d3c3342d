"""Retention: removing a partition's oldest batches by age and by size, as Kafka removes segments.

korvet's unit is the batch. By age, it removes all batches before the first with a young enough largest timestamp. A
batch without timestamps has the age of its append (LogSegment.largestTimestamp takes the file's time). By size, it
removes the oldest batches as long as ``retention.bytes`` are left. With ``korvet.retention=archived`` unarchived
records stay; those of a topic in the tier leave Redis all the same once segments hold them.

Trimming is repeatable, so any front-end may do it at any time.

Source: UnifiedLog.deleteRetentionMsBreachedSegments and deleteRetentionSizeBreachedSegments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kio.schema.errors import ErrorCode

from korvet.configs.types import is_tiered, split
from korvet.redis.client import Purpose
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.groups.archived import archived_end, archived_offsets
from korvet.store.groups.types import Offset
from korvet.store.keys import Namespace
from korvet.store.log import tier
from korvet.store.log.log import Log
from korvet.store.log.state.entries import Index, index_of
from korvet.store.log.state.limits import keeps_unarchived
from korvet.store.log.state.partition import Meta, Partition

_AS_WHOLE = -2
"""A local limit that is as the whole log's."""
_MAX_SEARCH_STEPS = 64
_MAX_CALLS = 1000
"""The most calls of one search; the next retention continues after the batches that it reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A topic's limits; -1 is no limit. With ``keeps_unarchived`` it also keeps all unarchived records.

    ``local_ms`` and ``local_bytes`` are those of Redis's part of a topic in the tier.
    """

    ms: int
    bytes: int
    keeps_unarchived: bool = False
    local_ms: int = -1
    local_bytes: int = -1


def retention_of(catalog: Catalog, topic: Topic) -> Retention | None:
    """A topic's limits, or None if it keeps everything where it is."""
    is_on = "delete" in split(catalog.setting(topic, "cleanup.policy"))
    limits = Retention(
        ms=catalog.integer(topic, "retention.ms") if is_on else -1,
        bytes=catalog.integer(topic, "retention.bytes") if is_on else -1,
        keeps_unarchived=keeps_unarchived(catalog, topic),
    )
    if is_tiered(topic.configs):
        local_ms, local_bytes = (catalog.integer(topic, f"local.retention.{unit}") for unit in ("ms", "bytes"))
        return replace(
            limits,
            local_ms=limits.ms if local_ms == _AS_WHOLE else local_ms,
            local_bytes=limits.bytes if local_bytes == _AS_WHOLE else local_bytes,
        )
    return limits if limits.ms >= 0 or limits.bytes >= 0 else None


async def time_ms(namespace: Namespace, log: Log) -> int:
    """Redis's time in milliseconds, to the second: all front-ends agree on it.

    :raises StoreUnavailable, StoreError:
    """
    seconds, _ = await log.store.call(Purpose.COORDINATE, namespace.catalog.meta, "TIME")
    return int(seconds) * 1000


async def enforce_settings(
    namespace: Namespace, catalog: Catalog, log: Log, topic: Topic, index: int, now_ms: int, *, is_short: bool = False
) -> None:
    """Trim one partition by its topic's current settings, for which it first reads the catalog.

    :param is_short: as for `enforce`.
    :raises StoreUnavailable, StoreFull, StoreError:
    """
    await catalog.refresh()
    known = catalog.topic_by_id(topic.id)
    limits = retention_of(catalog, known) if known is not None else None
    if known is None or limits is None:
        return
    archived = await archived_offsets(namespace, log.store, known, [index]) if limits.keeps_unarchived else {}
    await enforce(log, log.partition(known, index), limits, now_ms, archived.get(index), is_short=is_short)


async def enforce(
    log: Log,
    partition: Partition,
    limits: Retention,
    now_ms: int,
    archived: Offset | None = None,
    *,
    is_short: bool = False,
) -> None:
    """Trim one partition to its topic's limits.

    :param now_ms: the time from `time_ms`.
    :param archived: the offset that its archive committed.
    :param is_short: true if Redis shall keep nothing that segments hold, as while producers must wait for memory.
    :raises StoreUnavailable, StoreFull, StoreError:
    """
    meta = await log.meta(partition)
    if meta is None:
        return
    most = archived_end(meta, archived) if limits.keeps_unarchived else meta.end
    keep_from = meta.start
    if keep_from < most:
        keep_from = min(most, await _kept_from(log, partition, meta, limits, now_ms))
    if keep_from > meta.start:
        # Another history may have begun meanwhile, in which this offset means nothing.
        await log.trim(partition, keep_from, meta.epoch)
    if meta.local_start < meta.tier_end:
        # An archive reads what it lacks from segments, so Redis does not wait for it.
        local_from = meta.tier_end
        if not is_short and not log.reserve.is_used_up(partition.keys.log):
            local_from = min(local_from, await local_from_of(log, partition, meta, limits, now_ms))
        if local_from > max(meta.local_start, keep_from):
            await tier.trim(log, partition, local_from, meta.epoch)


async def local_from_of(log: Log, partition: Partition, meta: Meta, limits: Retention, now_ms: int) -> int:
    """The offset from which on a topic's local limits keep batches in Redis; segments should hold those before it.

    :raises StoreUnavailable, StoreError:
    """
    return await _held_from(log, partition, meta, limits.local_ms, limits.local_bytes, now_ms)


async def _kept_from(log: Log, partition: Partition, meta: Meta, limits: Retention, now_ms: int) -> int:
    """The offset from which on a topic's limits keep batches, wherever these lie."""
    if meta.start < meta.local_start:
        oldest_ms = now_ms - limits.ms if 0 <= limits.ms <= now_ms else -1
        epoch, kept_from = await tier.kept_from(log, partition, oldest_ms, limits.bytes) or (-1, -1)
        if epoch != meta.epoch or kept_from < meta.local_start:
            return kept_from if epoch == meta.epoch else meta.start
    return await _held_from(log, partition, meta, limits.ms, limits.bytes, now_ms)


async def _held_from(log: Log, partition: Partition, meta: Meta, ms: int, keep_bytes: int, now_ms: int) -> int:
    """The offset of the first batch in Redis that limits keep."""
    start, end = meta.local_start, meta.end
    held_from = start
    if start < end and 0 <= ms <= now_ms:
        held_from = await _first_younger(log, partition, now_ms - ms, start, end)
    if start < end and keep_bytes >= 0:
        held_from = max(held_from, await _first_within(log, partition, start, end, keep_bytes))
    return held_from


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
            local_start=start,
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
