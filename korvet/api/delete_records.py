"""DeleteRecords (key 21), versions 0 to 2: move the start of logs up. Version 2 is flexible.

With korvet.retention=archived a log's start moves no further than the archive: beyond it is POLICY_VIOLATION.

Source: KafkaApis.handleDeleteRecordsRequest, ReplicaManager.deleteRecordsOnLocalLog
"""

from __future__ import annotations

from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.data_failures import UNKNOWN_TOPIC_OR_PARTITION, failure_code
from korvet.api.topic_lookup import known_topics
from korvet.errors import KorvetError
from korvet.store.catalog import Topic
from korvet.store.configs import split
from korvet.store.log import GONE, Partition
from korvet.store.log.archived import archived_end, archived_offsets

log = structlog.get_logger()

FENCED_LEADER_EPOCH: Final = int(ErrorCode.fenced_leader_epoch)
NOT_LEADER_OR_FOLLOWER: Final = int(ErrorCode.not_leader_or_follower)
OFFSET_OUT_OF_RANGE: Final = int(ErrorCode.offset_out_of_range)
POLICY_VIOLATION: Final = int(ErrorCode.policy_violation)
_NO_WATERMARK: Final = -1


@api(21, 0, 2)
async def handle(ctx: Context, request: Any) -> Answer:
    """Trim each partition to its offset, -1 for its end."""
    topics = await known_topics(ctx, request.topics)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [await _trimmed(ctx, topics.get(topic.name), part) for part in topic.partitions],
            }
            for topic in request.topics
        ]
    }


async def _trimmed(ctx: Context, topic: Topic | int | None, part: Any) -> dict[str, int]:
    code, start = await _trim(ctx, topic, part.partition_index, part.offset)
    return {
        "partition_index": part.partition_index,
        "low_watermark": start if code == 0 else _NO_WATERMARK,
        "error_code": code,
    }


async def _trim(ctx: Context, topic: Topic | int | None, index: int, offset: int) -> tuple[int, int]:
    if isinstance(topic, int):
        return topic, _NO_WATERMARK
    if topic is None or not 0 <= index < topic.partitions:
        return UNKNOWN_TOPIC_OR_PARTITION, _NO_WATERMARK
    if "delete" not in split(ctx.frontend.catalog.setting(topic, "cleanup.policy")):
        return POLICY_VIOLATION, _NO_WATERMARK
    partitions = ctx.frontend.log
    partition = partitions.partition(topic, index)
    try:
        if await partitions.keeps_unarchived(partition):
            code, start = await _trim_archived(ctx, partition, offset)
        else:
            code, start = await partitions.trim(partition, offset)
    except KorvetError as error:
        return failure_code(error, "delete_records"), _NO_WATERMARK
    return (UNKNOWN_TOPIC_OR_PARTITION if code == GONE else code), start


async def _trim_archived(ctx: Context, partition: Partition, offset: int) -> tuple[int, int]:
    frontend, topic, index = ctx.frontend, partition.topic, partition.index
    committed = await archived_offsets(frontend.namespace, frontend.store, topic, [index])
    (meta,) = await frontend.log.metas([partition])
    if meta is None:
        return GONE, _NO_WATERMARK
    wanted = meta.end if offset == -1 else offset
    archived = archived_end(meta, committed.get(index))
    if wanted > meta.end:
        return OFFSET_OUT_OF_RANGE, _NO_WATERMARK
    if wanted > archived:
        # The answer has no place for it.
        log.warning(
            "records that are not archived are not deleted: korvet.retention=archived",
            topic=topic.name, partition=index, offset=wanted, archived=archived,
        )  # fmt: skip
        return POLICY_VIOLATION, _NO_WATERMARK
    code, start = await frontend.log.trim(partition, wanted, meta.epoch)
    # Another history has begun: clients ask again.
    return (NOT_LEADER_OR_FOLLOWER if code == FENCED_LEADER_EPOCH else code), start
