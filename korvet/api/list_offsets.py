"""ListOffsets (key 2), versions 1 to 11.

- 1: one offset for each partition   - 2: isolation level   - 4: leader epochs   - 6: flexible
- 7: -3, the record with the largest timestamp   - 8: -4, the earliest local offset
- 9: -5, the latest tiered offset   - 10: timeout   - 11: -6, the earliest offset that is not in the tier yet

The earliest local offset is the first one in Redis, and the latest tiered offset the last one in segments, -1 if there
are none. The earliest offset that is not in the tier yet follows it, and is -1 without `remote.storage.enable`. The
record with the largest timestamp is the one in Redis, as in Kafka's local log. The latest and earliest offsets of all
partitions cost one pipelined read. An offset by time is exact to the record: one batch is opened for it. A reader of
committed records gets the last stable offset as the latest, and no record at or above it.

Source: KafkaApis.handleListOffsetRequest, ReplicaManager.fetchOffset, UnifiedLog.fetchOffsetByTimestamp
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import read_failure_code
from korvet.api.shared.topic_lookup import indexed, known_topics
from korvet.codes import INVALID_REQUEST, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION
from korvet.configs.types import is_tiered
from korvet.errors import KorvetError
from korvet.store.log.log import Log
from korvet.store.log.partitions.source import Timed
from korvet.store.log.reading.times import MAX_TIMESTAMP, NOTHING
from korvet.store.log.state.epochs import check_leader_epoch, epoch_of_offset, parse_epochs
from korvet.store.log.state.partition import Meta, Partition
from korvet.wire import requests

LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING: Final = -6
_SINCE: Final[Mapping[int, int]] = {
    LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9,
    EARLIEST_PENDING: 11,
}  # fmt: skip
_READ_COMMITTED: Final = 1

Entry = dict[str, Any]


def _refused(topic: requests.ListOffsetsTopic) -> Entry:
    entries = [{**_entry(part.partition_index), "error_code": TOPIC_AUTHORIZATION_FAILED} for part in topic.partitions]
    return {"name": topic.name, "partitions": entries}


@api(2, 1, 11, needs=needs.topics(needs.DESCRIBE, _refused))
async def handle(ctx: Context, request: requests.ListOffsetsRequest) -> Answer:
    """Answer each partition; one that is named twice is INVALID_REQUEST, answered once."""
    topics = await known_topics(ctx, indexed(request.topics))
    requested = Counter((topic.name, part.partition_index) for topic in request.topics for part in topic.partitions)
    answered: list[Entry] = []
    readable: list[tuple[Entry, Partition, requests.ListOffsetsPartition]] = []
    async for topic in ctx.paced(request.topics):
        parts = list({part.partition_index: part for part in topic.partitions}.values())
        entries = [_entry(part.partition_index) for part in parts]
        answered.append({"name": topic.name, "partitions": entries})
        known = topics.get(topic.name)
        async for entry, part in ctx.paced(zip(entries, parts, strict=True)):
            index = part.partition_index
            if requested[topic.name, index] > 1:
                entry["error_code"] = INVALID_REQUEST
            elif part.timestamp < 0 and ctx.version < _SINCE.get(part.timestamp, ctx.version + 1):
                entry["error_code"] = UNSUPPORTED_VERSION
            elif isinstance(known, int):
                entry["error_code"] = known
            elif known is None or not 0 <= index < known.partitions:
                entry["error_code"] = UNKNOWN_TOPIC_OR_PARTITION
            else:
                readable.append((entry, ctx.frontend.log.partition(known, index), part))
    is_committed = request.isolation_level == _READ_COMMITTED
    async for some in ctx.sliced(readable):
        await _answer_all(ctx.frontend.log, some, is_committed)
    return {"topics": answered}


def _entry(index: int) -> Entry:
    return {"partition_index": index, "error_code": 0, "timestamp": -1, "offset": -1, "leader_epoch": -1}


async def _answer_all(
    log: Log, readable: Sequence[tuple[Entry, Partition, requests.ListOffsetsPartition]], is_committed: bool
) -> None:
    metas = await log.metas([partition for _, partition, _ in readable])
    in_tier: list[tuple[Entry, Partition, requests.ListOffsetsPartition, Meta]] = []
    for (entry, partition, part), meta in zip(readable, metas, strict=True):
        if isinstance(meta, Meta) and meta.start < meta.local_start and part.timestamp >= 0:
            in_tier.append((entry, partition, part, meta))
        else:
            await _answer_one(log, entry, partition, part, meta, is_committed)
    # A slow tier takes for many partitions as long as for one.
    if in_tier:
        await asyncio.gather(*(_answer_one(log, *one, is_committed) for one in in_tier))


async def _answer_one(
    log: Log,
    entry: Entry,
    partition: Partition,
    part: requests.ListOffsetsPartition,
    meta: Meta | KorvetError | None,
    is_committed: bool,
) -> None:
    try:
        entry.update(await _answer(log, partition, part, meta, is_committed))
    except KorvetError as error:
        entry["error_code"] = read_failure_code(error, "list_offsets")


async def _answer(
    log: Log,
    partition: Partition,
    part: requests.ListOffsetsPartition,
    meta: Meta | KorvetError | None,
    is_committed: bool,
) -> Entry:
    """:raises KorvetError: if the partition cannot be read."""
    if isinstance(meta, KorvetError):
        raise meta
    if meta is None:
        return {"error_code": UNKNOWN_TOPIC_OR_PARTITION}
    if (code := check_leader_epoch(part.current_leader_epoch, meta.epoch)) != 0:
        return {"error_code": code}
    found = _without_reading(partition, part.timestamp, meta, is_committed)
    if found is None:
        found = await log.offset_for_time(partition, part.timestamp, meta)
        if is_committed and found is not None and found.offset >= meta.stable:
            found = NOTHING
    return {"error_code": UNKNOWN_TOPIC_OR_PARTITION} if found is None else found._asdict()


def _without_reading(partition: Partition, timestamp: int, meta: Meta, is_committed: bool) -> Timed | None:
    if timestamp == LATEST:
        return Timed(meta.stable if is_committed else meta.end, -1, meta.epoch)
    offset = {
        EARLIEST: meta.start,
        EARLIEST_LOCAL: meta.local_start,
        LATEST_TIERED: max(-1, meta.tier_end - 1),
        EARLIEST_PENDING: max(meta.start, meta.tier_end) if is_tiered(partition.topic.configs) else -1,
    }.get(timestamp)
    if offset is None:
        return None
    return Timed(offset, -1, epoch_of_offset(parse_epochs(meta.epochs), offset)) if offset >= 0 else NOTHING
