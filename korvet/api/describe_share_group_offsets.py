"""DescribeShareGroupOffsets (key 90), versions 0 and 1 (KIP-932).

- 1: lag (KIP-1226)

Source: KafkaApis.handleDescribeShareGroupOffsetsRequest, GroupCoordinatorService.describeShareGroupOffsets
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.topic_lookup import known_topics
from korvet.codes import GROUP_AUTHORIZATION_FAILED
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.store.log.state.partition import Partition
from korvet.store.shares.types import SharePartition
from korvet.wire import requests

_NONE: Final = {"start_offset": -1, "leader_epoch": 0, "lag": -1, "error_code": 0, "error_message": None}
"""A partition without a share partition. Kafka's answer is no error, as that of OffsetFetch."""


def _refused(group: requests.DescribeShareGroupOffsetsRequestGroup) -> dict[str, Any]:
    return _answered(group.group_id, (), GROUP_AUTHORIZATION_FAILED)


@api(
    90,
    0,
    1,
    needs=needs.items(
        needs.GROUP,
        needs.DESCRIBE,
        field="groups",
        answered="groups",
        refused=_refused,
        name=lambda group: group.group_id,
    ),
)
async def handle(ctx: Context, request: requests.DescribeShareGroupOffsetsRequest) -> Answer:
    """The start offset and the lag of share partitions: of the named ones, or of all of a group."""
    # All topics of a group are answered once, however often the request names the group.
    groups = list({one.group_id if one.topics is None else one: one for one in request.groups}.values())
    return {"groups": await ctx.gathered(groups, partial(_described, ctx))}


async def _described(ctx: Context, group: requests.DescribeShareGroupOffsetsRequestGroup) -> dict[str, Any]:
    try:
        if group.topics is None:
            return _answered(group.group_id, await _all(ctx, group.group_id))
        return _answered(group.group_id, await _some(ctx, group.group_id, group.topics))
    except KorvetError as error:
        return _answered(group.group_id, (), failure_code(error, "describe_share_group_offsets"))


def _answered(group_id: str, topics: Sequence[dict[str, Any]], code: int = 0) -> dict[str, Any]:
    return {"group_id": group_id, "topics": topics, "error_code": code, "error_message": None}


async def _all(ctx: Context, group_id: str) -> list[dict[str, Any]]:
    """The topics in which the group has share partitions, without those that the client may not describe."""
    await ctx.frontend.catalog.refresh()
    found = await ctx.frontend.groups.shares.topics(group_id)
    lines = {} if found is None else found.topics
    unseen = await needs.unseen(ctx, needs.TOPIC, lines)
    topics = [topic for topic in ctx.frontend.groups.shares.existing(lines) if topic.name not in unseen]
    return await _topics(ctx, group_id, [(topic, range(topic.partitions)) for topic in topics])


async def _some(
    ctx: Context, group_id: str, topics: Sequence[requests.DescribeShareGroupOffsetsRequestTopic]
) -> list[dict[str, Any]]:
    """The named topics: first the known ones, then unknown ones, then those that the client may not describe."""
    unseen = await needs.unseen(ctx, needs.TOPIC, [topic.topic_name for topic in topics])
    known = await known_topics(ctx, [(topic.topic_name, topic.partitions) for topic in topics])
    found, unknown, hidden = [], [], []
    for topic in topics:
        existing = known.get(topic.topic_name)
        if topic.topic_name in unseen:
            code, message = needs.CODES[needs.TOPIC], needs.MESSAGES[needs.TOPIC]
            hidden.append(_without(topic, {**_NONE, "error_code": code, "error_message": message}))
        elif isinstance(existing, Topic):
            found.append((existing, topic.partitions))
        else:
            unknown.append(_without(topic, {**_NONE, "error_code": existing or 0}))
    return [*await _topics(ctx, group_id, found), *unknown, *hidden]


def _without(topic: requests.DescribeShareGroupOffsetsRequestTopic, partition: dict[str, Any]) -> dict[str, Any]:
    partitions = [{"partition_index": index, **partition} for index in topic.partitions]
    return {"topic_name": topic.topic_name, "topic_id": None, "partitions": partitions}


async def _topics(ctx: Context, group_id: str, topics: Sequence[tuple[Topic, Iterable[int]]]) -> list[dict[str, Any]]:
    existing = [(topic, [at for at in indexes if 0 <= at < topic.partitions]) for topic, indexes in topics]
    described = await ctx.frontend.groups.shares.describe(group_id, existing)
    by_place = {(partition.topic.name, partition.index): _partition(partition, found) for partition, found in described}
    return [
        {
            "topic_name": topic.name,
            "topic_id": topic.id,
            "partitions": [{"partition_index": at, **by_place.get((topic.name, at), _NONE)} for at in indexes],
        }
        for topic, indexes in topics
    ]


def _partition(partition: Partition, found: SharePartition | KorvetError | None) -> dict[str, Any]:
    if isinstance(found, KorvetError):
        return {**_NONE, "error_code": failure_code(found, "describe_share_group_offsets")}
    if found is None or found.start < 0:
        return _NONE
    return {**_NONE, "start_offset": found.start, "leader_epoch": partition.last_epoch, "lag": found.lag}
