"""DeleteRecords (key 21), versions 0 to 2: move the start of logs up. Version 2 is flexible.

Source: KafkaApis.handleDeleteRecordsRequest, ReplicaManager.deleteRecordsOnLocalLog
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.data_failures import UNKNOWN_TOPIC_OR_PARTITION, failure_code
from korvet.api.topic_lookup import known_topics
from korvet.errors import KorvetError
from korvet.store.catalog import Topic
from korvet.store.configs import split
from korvet.store.log import GONE

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
    log = ctx.frontend.log
    try:
        code, start = await log.trim(log.partition(topic, index), offset)
    except KorvetError as error:
        return failure_code(error, "delete_records"), _NO_WATERMARK
    return (UNKNOWN_TOPIC_OR_PARTITION if code == GONE else code), start
