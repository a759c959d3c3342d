"""OffsetForLeaderEpoch (key 23), versions 2 to 4: the end of a leader epoch, from which a client detects a truncation.

- 2: current leader epoch, throttle time   - 3: replica id   - 4: flexible

Source: KafkaApis.handleOffsetForLeaderEpochRequest, Partition.lastOffsetForLeaderEpoch,
LeaderEpochFileCache.endOffsetFor
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import read_failure_code
from korvet.api.shared.topic_lookup import known_topics
from korvet.codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.store.log.log import Log
from korvet.store.log.state.epochs import check_leader_epoch, end_of_epoch, parse_epochs
from korvet.store.log.state.partition import Meta, Partition
from korvet.wire import requests

Entry = dict[str, Any]


def _refused(topic: requests.OffsetForLeaderTopic) -> Entry:
    entries = [
        {"partition": part.partition, "error_code": TOPIC_AUTHORIZATION_FAILED, "leader_epoch": -1, "end_offset": -1}
        for part in topic.partitions
    ]
    return {"topic": topic.topic, "partitions": entries}


_describes = needs.topics(needs.DESCRIBE, _refused, name="topic")


def _check(
    ctx: Context, rights: Rights, request: requests.OffsetForLeaderEpochRequest
) -> needs.Narrowed | needs.Steps | None:
    return None if rights.quiet.allows_on_cluster(needs.CLUSTER_ACTION) else _describes(ctx, rights, request)


@api(23, 2, 4, needs=_check)
async def handle(ctx: Context, request: requests.OffsetForLeaderEpochRequest) -> Answer:
    """Answer each partition with the end of the given epoch, or of the last one before it."""
    indexes = [(topic.topic, [part.partition for part in topic.partitions]) for topic in request.topics]
    topics = await known_topics(ctx, indexes)
    answered: list[Entry] = []
    readable: list[tuple[Entry, Partition, requests.OffsetForLeaderPartition]] = []
    async for topic in ctx.paced(request.topics):
        known = topics.get(topic.topic)
        entries = []
        async for part in ctx.paced(topic.partitions):
            entry: Entry = {"partition": part.partition, "error_code": 0, "leader_epoch": -1, "end_offset": -1}
            entries.append(entry)
            if isinstance(known, int):
                entry["error_code"] = known
            elif known is None or not 0 <= part.partition < known.partitions:
                entry["error_code"] = UNKNOWN_TOPIC_OR_PARTITION
            else:
                readable.append((entry, ctx.frontend.log.partition(known, part.partition), part))
        answered.append({"topic": topic.topic, "partitions": entries})
    async for some in ctx.sliced(readable):
        await _answer_all(ctx.frontend.log, some)
    return {"topics": answered}


async def _answer_all(log: Log, readable: Sequence[tuple[Entry, Partition, requests.OffsetForLeaderPartition]]) -> None:
    partitions = list(dict.fromkeys(partition for _, partition, _ in readable))
    metas = dict(zip(partitions, await log.metas(partitions), strict=True))
    for entry, partition, part in readable:
        try:
            entry.update(_answer(part, metas[partition]))
        except KorvetError as error:
            entry["error_code"] = read_failure_code(error, "offset_for_leader_epoch")


def _answer(part: requests.OffsetForLeaderPartition, meta: Meta | KorvetError | None) -> Entry:
    """:raises KorvetError: if the partition cannot be read."""
    if isinstance(meta, KorvetError):
        raise meta
    if meta is None:
        return {"error_code": UNKNOWN_TOPIC_OR_PARTITION}
    if (code := check_leader_epoch(part.current_leader_epoch, meta.epoch)) != 0:
        return {"error_code": code}
    epoch_end = end_of_epoch(parse_epochs(meta.epochs), part.leader_epoch, meta.end)
    return {"leader_epoch": epoch_end.epoch, "end_offset": epoch_end.end_offset}
