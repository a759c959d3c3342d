"""Metadata (3), versions 0 to 13: the brokers, and topics with their partitions.

- 0: an empty list means all topics; from 1 null does, and an empty list means none
- 4: the client may forbid automatic creation
- 7: leader epochs; 8 to 10: authorized operations of the cluster; 8: of topics
- 10: topic ids; only from 12 a request may name a topic by its id
- 13: an error of the whole answer

A topic that is created automatically is in the answer at once: clients wait 100 ms and more before they ask again.
Kafka always answers UNKNOWN_TOPIC_OR_PARTITION first. Korvet does so only if the topic was deleted a moment ago. So a
client that deletes a topic and asks for it hears that it is gone, although its request creates the topic anew. The
leader is a hint (`korvet.api.shared.nodes`). While the store is away, topics are as they were last read, and their
partitions have no leader.

Source: KafkaApis.handleTopicMetadataRequest, KRaftMetadataCache.getTopicMetadata; KIP-516.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared.admin import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS, brokers, read_failure
from korvet.api.shared.context import Context
from korvet.api.shared.partition_epochs import described, leader_epochs
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.store.topics import INTERNAL_TOPICS, colliding_topics, create_topic, name_problem
from korvet.wire.codec import Fields

_NULL_MEANS_ALL_SINCE = 1
_BY_ID_SINCE = 12

Found = Topic | Fields
"""A topic, or the answer's entry for one that cannot be described."""


@api(3, 0, 13)
async def handle(ctx: Context, request: Any) -> Fields:
    if not _is_valid(ctx, request):
        return _refused(request)
    found = await _find(ctx, request)
    operations = TOPIC_OPERATIONS if getattr(request, "include_topic_authorized_operations", False) else NOT_ASKED
    known = [topic for topic in found if isinstance(topic, Topic)]
    epochs = await leader_epochs(ctx, [(topic, range(topic.partitions)) for topic in known])
    return {
        "brokers": brokers(ctx, "node_id"),
        "cluster_id": ctx.frontend.catalog.cluster_id,
        "controller_id": ctx.listener.nodes.own_id,
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.id,
                "is_internal": topic.name in INTERNAL_TOPICS,
                "partitions": [
                    described(ctx, topic, p, epochs[topic.name, p]) async for p in ctx.paced(range(topic.partitions))
                ],
                "topic_authorized_operations": operations,
            }
            if isinstance(topic, Topic)
            else topic
            async for topic in ctx.paced(found)
        ],
        "cluster_authorized_operations": (
            CLUSTER_OPERATIONS if getattr(request, "include_cluster_authorized_operations", False) else NOT_ASKED
        ),
    }


def _is_valid(ctx: Context, request: Any) -> bool:
    """Whether the request names each topic in a way that the version knows (MetadataRequest, KAFKA-10547)."""
    for topic in request.topics or ():
        topic_id = getattr(topic, "topic_id", None)
        if topic.name is None and topic_id is None:
            return False
        if ctx.version < _BY_ID_SINCE and (topic.name is None or topic_id is not None):
            return False
    return True


def _refused(request: Any) -> Fields:
    return {
        "brokers": (),
        "controller_id": -1,
        "topics": [
            {
                "error_code": ErrorCode.invalid_request,
                "name": topic.name or "",
                "topic_id": topic.topic_id,
                "partitions": (),
            }
            for topic in request.topics
        ],
        "error_code": ErrorCode.invalid_request,
        "cluster_authorized_operations": NOT_ASKED,
    }


async def _find(ctx: Context, request: Any) -> list[Found]:
    catalog = ctx.frontend.catalog
    try:
        await catalog.refresh()
    except KorvetError as error:
        return _unreadable(ctx, request, read_failure(ctx, error, ErrorCode.leader_not_available))
    if _wants_all(ctx, request):
        return list(catalog.topics())
    found: dict[object, Found] = {}
    may_create = getattr(request, "allow_auto_topic_creation", True)
    by_id = any(getattr(asked, "topic_id", None) is not None for asked in request.topics)
    async for asked in ctx.paced(request.topics):
        topic_id = getattr(asked, "topic_id", None)
        if topic_id is None and by_id:
            # As in Kafka: if a request names one topic by its id, topics named by name are left out.
            continue
        if topic_id is not None:
            topic = catalog.topic_by_id(topic_id)
            found[topic_id if topic is None else topic.name] = topic or _unknown_id(topic_id)
        elif asked.name not in found:
            found[asked.name] = catalog.topic(asked.name) or await _missing(ctx, asked.name, may_create)
    return list(found.values())


def _wants_all(ctx: Context, request: Any) -> bool:
    if ctx.version < _NULL_MEANS_ALL_SINCE:
        return not request.topics
    return request.topics is None


async def _missing(ctx: Context, name: str, may_create: bool) -> Found:
    """Create a topic that does not exist, or say why it is not created."""
    catalog = ctx.frontend.catalog
    if name_problem(name) is not None:
        return _unknown(name, ErrorCode.invalid_topic_exception)
    if (
        not may_create
        or name in INTERNAL_TOPICS
        or catalog.setting(None, "auto.create.topics.enable").lower() != "true"
        or colliding_topics(name, catalog.unified())
    ):
        return _unknown(name, ErrorCode.unknown_topic_or_partition)
    partitions = int(catalog.setting(None, "num.partitions"))
    was_deleted = catalog.was_deleted_just_now(name)
    try:
        _, topic = await create_topic(catalog, ctx.frontend.log, name, partitions, {})
    except KorvetError as error:
        return _unknown(name, read_failure(ctx, error, ErrorCode.leader_not_available))
    if was_deleted:
        return _unknown(name, ErrorCode.unknown_topic_or_partition)
    # Another front-end may have been faster. A topic whose deletion is under way can be created in a moment.
    return topic or catalog.topic(name) or _unknown(name, ErrorCode.unknown_topic_or_partition)


def _unknown(name: str, code: ErrorCode) -> Fields:
    return {"error_code": code, "name": name, "is_internal": name in INTERNAL_TOPICS, "partitions": ()}


def _unknown_id(topic_id: UUID) -> Fields:
    return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id, "partitions": ()}


def _unreadable(ctx: Context, request: Any, code: ErrorCode) -> list[Found]:
    """The topics as they were last read; a topic not in the cache gets an error on which the client asks again.

    Topics keep their partitions: a group's leader would take a topic without any for deleted, and rebalance.
    """
    catalog = ctx.frontend.catalog
    if _wants_all(ctx, request):
        return list(catalog.topics())
    unread: list[Found] = []
    for asked in request.topics:
        topic_id = getattr(asked, "topic_id", None)
        if topic_id is not None:
            unread.append(catalog.topic_by_id(topic_id) or {**_unknown_id(topic_id), "error_code": code})
        else:
            unread.append(catalog.topic(asked.name) or {"error_code": code, "name": asked.name, "partitions": ()})
    return unread
