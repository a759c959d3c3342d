"""DescribeTopicPartitions (75), version 0: topics by name, a page of partitions at a time (KIP-966).

A page ends when the limit is reached; the cursor says where the next one starts.

Source: DescribeTopicPartitionsRequestHandler, KRaftMetadataCache.describeTopicResponse.
"""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import TOPIC_OPERATIONS, read_failure
from korvet.api.shared.context import Context
from korvet.api.shared.partition_epochs import LeaderEpoch, leader_epochs
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.store.catalog.topic import Topic
from korvet.store.topics import INTERNAL_TOPICS, name_problem
from korvet.wire import requests
from korvet.wire.writer import Fields


def _check(ctx: Context, rights: Rights, request: requests.DescribeTopicPartitionsRequest) -> needs.Steps:
    requested = sorted({topic.name for topic in request.topics})
    denied = yield from needs.denied_names(ctx, rights, needs.DESCRIBE, needs.TOPIC, requested)
    if not denied:
        return None
    _, refused = yield from needs.parted(ctx, requested, denied, str, _forbidden)
    left = replace(request, topics=tuple(topic for topic in request.topics if topic.name not in denied))
    return needs.Narrowed(
        left if left.topics else None,
        lambda answer: {
            "next_cursor": answer.get("next_cursor") if answer else None,
            "topics": [*refused, *(answer["topics"] if answer else ())],
        },
    )


def _forbidden(name: str) -> Fields:
    code = ErrorCode.topic_authorization_failed
    return {"error_code": code, "name": name, "is_internal": False, "partitions": ()}


@api(75, 0, 0, needs=_check)
async def handle(ctx: Context, request: requests.DescribeTopicPartitionsRequest) -> Fields:
    catalog = ctx.frontend.catalog
    cursor = request.cursor
    first_name = "" if cursor is None else cursor.topic_name
    try:
        await catalog.refresh()
    except KorvetError as error:
        return _failed(request, read_failure(ctx, error, ErrorCode.leader_not_available))
    requested = {topic.name for topic in request.topics} or await _seen(ctx)
    if cursor is not None and (cursor.partition_index < 0 or (request.topics and first_name not in requested)):
        return _failed(request, ErrorCode.invalid_request)
    names = sorted(name for name in requested if name >= first_name)
    start = 0 if cursor is None else cursor.partition_index
    page, next_cursor = _page(ctx, names, {first_name: start}, request.response_partition_limit)
    epochs = await leader_epochs(ctx, [(topic, span) for topic, span in page if isinstance(topic, Topic)])
    return {
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.id,
                "is_internal": topic.name in INTERNAL_TOPICS,
                "partitions": [_partition(ctx, topic, p, epochs[topic.name, p]) async for p in ctx.paced(span)],
                "topic_authorized_operations": needs.operations(ctx, needs.TOPIC, topic.name, TOPIC_OPERATIONS),
            }
            if isinstance(topic, Topic)
            else _unknown(ctx, topic)
            async for topic, span in ctx.paced(page)
        ],
        "next_cursor": next_cursor,
    }


async def _seen(ctx: Context) -> set[str]:
    """The names of all topics that the client may describe."""
    names = {topic.name for topic in ctx.frontend.catalog.topics()}
    return names - await needs.unseen(ctx, needs.TOPIC, names)


def _partition(ctx: Context, topic: Topic, index: int, known: LeaderEpoch) -> Fields:
    """A partition with one replica, at its leader."""
    leader_id = ctx.listener.nodes.leader(topic.name, index).id
    nodes = (leader_id,)
    return {
        "error_code": known.error,
        "partition_index": index,
        "leader_id": leader_id if known.error is ErrorCode.none else -1,
        "leader_epoch": known.epoch,
        "replica_nodes": nodes,
        "isr_nodes": nodes,
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": (),
    }


def _page(
    ctx: Context, names: list[str], starts: dict[str, int], limit: int
) -> tuple[list[tuple[Topic | str, range]], Fields | None]:
    """The topics of this page with their partitions, and the next cursor; an unknown topic is given as its name."""
    catalog = ctx.frontend.catalog
    # A limit below one still yields one partition, or a client would never come to the end.
    left = max(min(limit, catalog.integer(None, "max.request.partition.size.limit")), 1)
    page: list[tuple[Topic | str, range]] = []
    for name in names:
        start = starts.get(name, 0)
        if left == 0:
            return page, {"topic_name": name, "partition_index": start}
        topic = catalog.topic(name)
        if topic is None:
            page.append((name, range(0)))
            continue
        span = range(start, min(start + left, topic.partitions))
        page.append((topic, span))
        left -= len(span)
        if span.stop < topic.partitions and span:
            return page, {"topic_name": name, "partition_index": span.stop}
    return page, None


def _unknown(ctx: Context, name: str) -> Fields:
    illegal = name_problem(name) is not None
    return {
        "error_code": ErrorCode.invalid_topic_exception if illegal else ErrorCode.unknown_topic_or_partition,
        "name": name,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": (),
        "topic_authorized_operations": needs.operations(ctx, needs.TOPIC, name, TOPIC_OPERATIONS),
    }


def _failed(request: requests.DescribeTopicPartitionsRequest, code: ErrorCode) -> Fields:
    return {"topics": [{"error_code": code, "name": topic.name, "partitions": ()} for topic in request.topics]}
