"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where a leader epoch ends, so that a client can tell a truncation.

- 2: current leader epoch, throttle time   - 3: replica id   - 4: flexible

Source: KafkaApis.handleOffsetForLeaderEpochRequest, Partition.lastOffsetForLeaderEpoch,
LeaderEpochFileCache.endOffsetFor
"""

from __future__ import annotations

from typing import Any

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.data_failures import UNKNOWN_TOPIC_OR_PARTITION, read_failure_code
from korvet.api.topic_lookup import known_topics
from korvet.errors import KorvetError
from korvet.store.log import Log, Meta, Partition
from korvet.store.log.epochs import check_leader_epoch, end_of_epoch, parse_epochs

Entry = dict[str, Any]


@api(23, 2, 4)
async def handle(ctx: Context, request: Any) -> Answer:
    """Answer each partition with the end of the epoch asked for, or of the last one before it."""
    topics = await known_topics(ctx, request.topics, field="topic")
    answered: list[Entry] = []
    readable: list[tuple[Entry, Partition, Any]] = []
    for topic in request.topics:
        known = topics.get(topic.topic)
        entries = []
        for part in topic.partitions:
            entry: Entry = {"partition": part.partition, "error_code": 0, "leader_epoch": -1, "end_offset": -1}
            entries.append(entry)
            if isinstance(known, int):
                entry["error_code"] = known
            elif known is None or not 0 <= part.partition < known.partitions:
                entry["error_code"] = UNKNOWN_TOPIC_OR_PARTITION
            else:
                readable.append((entry, ctx.frontend.log.partition(known, part.partition), part))
        answered.append({"topic": topic.topic, "partitions": entries})
    await _answer_all(ctx.frontend.log, readable)
    return {"topics": answered}


async def _answer_all(log: Log, readable: list[tuple[Entry, Partition, Any]]) -> None:
    try:
        metas = await log.metas([partition for _, partition, _ in readable])
    except KorvetError as error:
        code = read_failure_code(error, "offset_for_leader_epoch")
        for entry, _, _ in readable:
            entry["error_code"] = code
        return
    for (entry, _, part), meta in zip(readable, metas, strict=True):
        entry.update(_answer(part, meta))


def _answer(part: Any, meta: Meta | None) -> Entry:
    if meta is None:
        return {"error_code": UNKNOWN_TOPIC_OR_PARTITION}
    if (code := check_leader_epoch(part.current_leader_epoch, meta.epoch)) != 0:
        return {"error_code": code}
    epoch_end = end_of_epoch(parse_epochs(meta.epochs), part.leader_epoch, meta.end)
    return {"leader_epoch": epoch_end.epoch, "end_offset": epoch_end.end_offset}
