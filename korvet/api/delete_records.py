"""DeleteRecords (key 21), versions 0 to 2: move the start of logs up. Version 2 is flexible.

With korvet.retention=archived a log's start moves no further than the archive: an offset beyond is POLICY_VIOLATION.

Source: KafkaApis.handleDeleteRecordsRequest, ReplicaManager.deleteRecordsOnLocalLog
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import failure_code
from korvet.api.shared.topic_lookup import indexed, known_topics
from korvet.codes import (
    FENCED_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    POLICY_VIOLATION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from korvet.configs.types import split
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.store.contract import GONE
from korvet.store.groups.archived import archived_end, archived_offsets
from korvet.store.groups.types import Offset
from korvet.store.log.state.partition import Partition
from korvet.wire import requests

log = structlog.get_logger()

_NO_WATERMARK: Final = -1


def _refused(topic: requests.DeleteRecordsTopic) -> dict[str, Any]:
    entries = [
        {
            "partition_index": part.partition_index,
            "low_watermark": _NO_WATERMARK,
            "error_code": TOPIC_AUTHORIZATION_FAILED,
        }
        for part in topic.partitions
    ]
    return {"name": topic.name, "partitions": entries}


@api(21, 0, 2, needs=needs.topics(needs.DELETE, _refused))
async def handle(ctx: Context, request: requests.DeleteRecordsRequest) -> Answer:
    """Trim each partition to its offset, -1 for its end; if a partition is named twice, the last offset counts."""
    topics = await known_topics(ctx, indexed(request.topics))
    requested: dict[str, dict[int, requests.DeleteRecordsPartition]] = {}
    for topic in request.topics:
        requested.setdefault(topic.name, {}).update((part.partition_index, part) for part in topic.partitions)
    return {
        "topics": [
            {
                "name": name,
                "partitions": await ctx.gathered(list(parts.values()), partial(_trimmed, ctx, topics.get(name))),
            }
            async for name, parts in ctx.paced(requested.items())
        ]
    }


async def _trimmed(ctx: Context, topic: Topic | int | None, part: requests.DeleteRecordsPartition) -> dict[str, int]:
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
    partition = ctx.frontend.log.partition(topic, index)
    try:
        code, start = await _trim_as_seen(ctx, partition, offset)
    except KorvetError as error:
        return failure_code(error, "delete_records"), _NO_WATERMARK
    return (UNKNOWN_TOPIC_OR_PARTITION if code == GONE else code), start


async def _trim_as_seen(ctx: Context, partition: Partition, offset: int) -> tuple[int, int]:
    """Trim to an offset of the log as it is now.

    A call that runs late deletes no records that were appended after it was sent, and none of another history.

    :raises StoreUnavailable, StoreFull, StoreError:
    """
    partitions = ctx.frontend.log
    committed = await _archived(ctx, partition) if await partitions.keeps_unarchived(partition) else None
    meta = await partitions.meta(partition)
    if meta is None:
        return GONE, _NO_WATERMARK
    wanted = meta.end if offset == -1 else offset
    if not 0 <= wanted <= meta.end:
        return OFFSET_OUT_OF_RANGE, _NO_WATERMARK
    if committed is not None and wanted > (archived := archived_end(meta, committed.offset)):
        # The answer has no field for the reason.
        log.warning(
            "records are not deleted: korvet.retention=archived keeps them until they are archived",
            topic=partition.topic.name, partition=partition.index, offset=wanted, archived=archived,
        )  # fmt: skip
        return POLICY_VIOLATION, _NO_WATERMARK
    code, start = await partitions.trim(partition, wanted, meta.epoch)
    # Another history has begun; clients retry.
    return (NOT_LEADER_OR_FOLLOWER if code == FENCED_LEADER_EPOCH else code), start


class _Archive(NamedTuple):
    """The archive's committed offsets, for a topic that may lose only archived records."""

    offset: Offset | None


async def _archived(ctx: Context, partition: Partition) -> _Archive:
    frontend = ctx.frontend
    found = await archived_offsets(frontend.namespace, frontend.store, partition.topic, [partition.index])
    return _Archive(found.get(partition.index))
