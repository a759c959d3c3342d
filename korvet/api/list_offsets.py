"""ListOffsets (key 2), versions 1 to 10.

- 1: one offset for each partition   - 2: isolation level   - 4: leader epochs   - 6: flexible   - 7: -3, the newest
record
- 8: -4, the earliest local offset   - 9: -5, the latest tiered offset   - 10: timeout

Without remote storage all that is local is earliest, and nothing is tiered. Latest and earliest of all partitions
cost one pipelined read. Offsets by time are exact to the record, which means that one batch is opened for each.
Who reads committed records is shown the last stable offset as the latest, and no record at or above it.

Source: KafkaApis.handleListOffsetRequest, ReplicaManager.fetchOffset, UnifiedLog.fetchOffsetByTimestamp
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.data_failures import UNKNOWN_TOPIC_OR_PARTITION, read_failure_code
from korvet.api.topic_lookup import known_topics
from korvet.errors import KorvetError
from korvet.store.log import Log, Meta, Partition
from korvet.store.log.epochs import check_leader_epoch, epoch_of_offset, parse_epochs
from korvet.store.log.times import MAX_TIMESTAMP, NOTHING, Timed

LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_SINCE: Final[Mapping[int, int]] = {
    LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9,
}  # fmt: skip
_READ_COMMITTED: Final = 1
INVALID_REQUEST: Final = int(ErrorCode.invalid_request)
UNSUPPORTED_VERSION: Final = int(ErrorCode.unsupported_version)

Entry = dict[str, Any]


@api(2, 1, 10)
async def handle(ctx: Context, request: Any) -> Answer:
    """Answer each partition; one that is asked for twice is an invalid request, answered once."""
    topics = await known_topics(ctx, request.topics)
    asked = Counter((topic.name, part.partition_index) for topic in request.topics for part in topic.partitions)
    answered: list[Entry] = []
    readable: list[tuple[Entry, Partition, Any]] = []
    for topic in request.topics:
        parts = list({part.partition_index: part for part in topic.partitions}.values())
        entries = [_entry(part.partition_index) for part in parts]
        answered.append({"name": topic.name, "partitions": entries})
        known = topics.get(topic.name)
        for entry, part in zip(entries, parts, strict=True):
            index = part.partition_index
            if asked[topic.name, index] > 1:
                entry["error_code"] = INVALID_REQUEST
            elif part.timestamp < 0 and ctx.version < _SINCE.get(part.timestamp, ctx.version + 1):
                entry["error_code"] = UNSUPPORTED_VERSION
            elif isinstance(known, int):
                entry["error_code"] = known
            elif known is None or not 0 <= index < known.partitions:
                entry["error_code"] = UNKNOWN_TOPIC_OR_PARTITION
            else:
                readable.append((entry, ctx.frontend.log.partition(known, index), part))
    is_committed = getattr(request, "isolation_level", 0) == _READ_COMMITTED
    await _answer_all(ctx.frontend.log, readable, is_committed)
    return {"topics": answered}


def _entry(index: int) -> Entry:
    return {"partition_index": index, "error_code": 0, "timestamp": -1, "offset": -1, "leader_epoch": -1}


async def _answer_all(log: Log, readable: list[tuple[Entry, Partition, Any]], is_committed: bool) -> None:
    try:
        metas = await log.metas([partition for _, partition, _ in readable])
    except KorvetError as error:
        code = read_failure_code(error, "list_offsets")
        for entry, _, _ in readable:
            entry["error_code"] = code
        return
    for (entry, partition, part), meta in zip(readable, metas, strict=True):
        try:
            entry.update(await _answer(log, partition, part, meta, is_committed))
        except KorvetError as error:
            entry["error_code"] = read_failure_code(error, "list_offsets")


async def _answer(log: Log, partition: Partition, part: Any, meta: Meta | None, is_committed: bool) -> Entry:
    if meta is None:
        return {"error_code": UNKNOWN_TOPIC_OR_PARTITION}
    if (code := check_leader_epoch(getattr(part, "current_leader_epoch", -1), meta.epoch)) != 0:
        return {"error_code": code}
    found = _without_reading(part.timestamp, meta, is_committed)
    if found is None:
        found = await log.offset_for_time(partition, part.timestamp)
        if is_committed and found is not None and found.offset >= meta.stable:
            found = NOTHING
    return {"error_code": UNKNOWN_TOPIC_OR_PARTITION} if found is None else found._asdict()


def _without_reading(timestamp: int, meta: Meta, is_committed: bool) -> Timed | None:
    if timestamp == LATEST:
        return Timed(meta.stable if is_committed else meta.end, -1, meta.epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return Timed(meta.start, -1, epoch_of_offset(parse_epochs(meta.epochs), meta.start))
    return NOTHING if timestamp == LATEST_TIERED else None
