"""Metadata (3), versions 0 to 13: the brokers, and topics with their partitions.

- 0: an empty list means all topics; from 1 null does, and an empty list means none
- 4: the client may forbid automatic creation
- 7: leader epochs; 8 to 10: authorized operations of the cluster; 8: of topics
- 10: topic ids; only from 12 a request may name a topic by its id
- 13: an error of the whole answer

A topic that is created automatically is in the answer at once: clients wait 100 ms and more before they repeat the
request. Kafka always answers UNKNOWN_TOPIC_OR_PARTITION first. Korvet does so only if the topic was deleted a moment
ago: a client that deletes a topic and requests it sees that it is gone, although the request creates the topic again. A
client beyond its quota of mutations gets the same answer, and no topic (ControllerApis.createTopics).

The leader is a hint (`korvet.api.shared.nodes`). While the store is unavailable, the answer has the topics as last
read, and their partitions have no leader. Such an answer waits a little, because some clients repeat the request at
once.

Source: KafkaApis.handleTopicMetadataRequest, KRaftMetadataCache.getTopicMetadata; KIP-516.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import anyio
from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.admin import CLUSTER_OPERATIONS, NOT_REQUESTED, TOPIC_OPERATIONS, read_failure
from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import PASSING_S
from korvet.api.shared.mutations import Mutations
from korvet.api.shared.partition_epochs import LeaderEpoch, leader_epochs
from korvet.codes import INVALID_REQUEST, LEADER_NOT_AVAILABLE, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.store.topics import INTERNAL_TOPICS, colliding_topics, create_topic, name_problem
from korvet.wire import requests
from korvet.wire.writer import Fields, Rows

_NULL_MEANS_ALL_SINCE = 1
_BY_ID_SINCE = 12

Found = Topic | Fields
"""A topic, or the answer for one that cannot be described."""


@api(3, 0, 13, needs=needs.by_handler)
async def handle(ctx: Context, request: requests.MetadataRequest) -> Answer:
    if not _is_valid(ctx, request):
        return _refused(request)
    found = await _find(ctx, request)
    with_operations = request.include_topic_authorized_operations
    known = [topic for topic in found if isinstance(topic, Topic)]
    epochs = await leader_epochs(ctx, [(topic, range(topic.partitions)) for topic in known])
    if any(known.error == LEADER_NOT_AVAILABLE for known in epochs.values()) or any(
        one["error_code"] == LEADER_NOT_AVAILABLE for one in found if not isinstance(one, Topic)
    ):
        # The answer is written after the wait: thousands of clients wait at a time in an outage.
        await anyio.sleep(PASSING_S)
    return {
        "brokers": [{"node_id": node.id, "host": node.host, "port": node.port} for node in ctx.listener.nodes.all()],
        "cluster_id": ctx.frontend.catalog.cluster_id,
        "controller_id": ctx.listener.nodes.own_id,
        "cluster_authorized_operations": needs.cluster_operations(ctx, CLUSTER_OPERATIONS)
        if request.include_cluster_authorized_operations
        else NOT_REQUESTED,
        "topics": Rows(
            len(found),
            lambda: (
                _described(ctx, topic, epochs, with_operations)
                if isinstance(topic, Topic)
                else _missed(ctx, topic, with_operations)
                for topic in found
            ),
        ),
    }


def _described(
    ctx: Context, topic: Topic, epochs: Mapping[tuple[str, int], LeaderEpoch], with_operations: bool
) -> Fields:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "topic_authorized_operations": needs.operations(ctx, needs.TOPIC, topic.name, TOPIC_OPERATIONS)
        if with_operations
        else NOT_REQUESTED,
        "partitions": Rows(
            topic.partitions,
            lambda: (_partition(ctx, topic, index, epochs[topic.name, index]) for index in range(topic.partitions)),
        ),
    }


def _missed(ctx: Context, topic: Fields, with_operations: bool) -> Fields:
    """The answer for a topic that cannot be described, with the operations on a name that the client may describe."""
    name = topic["name"]
    if not with_operations or name is None or topic["error_code"] == TOPIC_AUTHORIZATION_FAILED:
        return _named_for(ctx, topic)
    operations = needs.operations(ctx, needs.TOPIC, name, TOPIC_OPERATIONS)
    return {**_named_for(ctx, topic), "topic_authorized_operations": operations}


def _named_for(ctx: Context, topic: Fields) -> Fields:
    """The answer with a name that the version allows: before requests by topic id, no name may be null."""
    return topic if topic["name"] is not None or ctx.version >= _BY_ID_SINCE else {**topic, "name": ""}


def _partition(ctx: Context, topic: Topic, index: int, known: LeaderEpoch) -> Fields:
    """A partition with one replica, at the node that is its leader for clients."""
    node_id = ctx.listener.nodes.leader(topic.name, index).id
    has_leader = known.error is ErrorCode.none
    nodes = (node_id,)
    return {
        "error_code": known.error,
        "partition_index": index,
        "leader_id": node_id if has_leader else -1,
        "leader_epoch": known.epoch,
        "replica_nodes": nodes,
        "isr_nodes": nodes,
    }


def _is_valid(ctx: Context, request: requests.MetadataRequest) -> bool:
    """True if the version allows the way in which the request names each topic (MetadataRequest, KAFKA-10547)."""
    for topic in request.topics or ():
        if topic.name is None and topic.topic_id is None:
            return False
        if ctx.version < _BY_ID_SINCE and (topic.name is None or topic.topic_id is not None):
            return False
    return True


def _refused(request: requests.MetadataRequest) -> Answer:
    topics = [_without(INVALID_REQUEST, topic.name or "", topic.topic_id) for topic in request.topics or ()]
    return {
        "brokers": (),
        "cluster_id": None,
        "controller_id": -1,
        "topics": topics,
        "cluster_authorized_operations": NOT_REQUESTED,
        "error_code": INVALID_REQUEST,
    }


async def _find(ctx: Context, request: requests.MetadataRequest) -> Sequence[Found]:
    catalog = ctx.frontend.catalog
    try:
        await catalog.refresh()
    except KorvetError as error:
        return await _unreadable(ctx, request, read_failure(ctx, error, ErrorCode.leader_not_available))
    if _wants_all(ctx, request):
        return await _seen(ctx)
    found: dict[object, Found] = {}
    topics = request.topics or ()
    # As in Kafka: if a request names one topic by its id, topics named by name are left out.
    by_id = any(requested.topic_id is not None for requested in topics)
    async for requested in ctx.paced(topics):
        topic_id, name = requested.topic_id, requested.name
        if topic_id is not None:
            topic = catalog.topic_by_id(topic_id)
            if topic is not None and not _may_describe(ctx, topic.name):
                found[topic_id] = _without(TOPIC_AUTHORIZATION_FAILED, None, topic_id)
            else:
                found[topic_id if topic is None else topic.name] = topic or _without(UNKNOWN_TOPIC_ID, None, topic_id)
        elif name is not None and not by_id and name not in found:
            found[name] = await _named(ctx, name, request.allow_auto_topic_creation)
    return list(found.values())


async def _named(ctx: Context, name: str, may_create: bool) -> Found:
    """The topic of a name. A client without rights gets the same answer whether it exists or not."""
    if not _may_describe(ctx, name):
        return _unknown(name, TOPIC_AUTHORIZATION_FAILED)
    topic = ctx.frontend.catalog.topic(name)
    if topic is not None:
        return topic
    rights = ctx.rights
    if may_create and rights is not None and name_problem(name) is None and _creates(ctx):
        may_create = rights.quiet.allows_on_cluster(needs.CREATE) or rights.allows(needs.CREATE, needs.TOPIC, name)
        if not may_create:
            return _unknown(name, TOPIC_AUTHORIZATION_FAILED)
    return await _missing(ctx, name, may_create)


def _may_describe(ctx: Context, name: str) -> bool:
    return ctx.rights is None or ctx.rights.allows(needs.DESCRIBE, needs.TOPIC, name)


async def _seen(ctx: Context) -> Sequence[Found]:
    """All topics that the client may describe."""
    topics = list(ctx.frontend.catalog.topics())
    if ctx.rights is None:
        return topics
    unseen = await needs.unseen(ctx, needs.TOPIC, (topic.name for topic in topics))
    return [topic for topic in topics if topic.name not in unseen]


def _creates(ctx: Context) -> bool:
    """True if clients' requests create topics that do not exist."""
    return ctx.frontend.catalog.boolean(None, "auto.create.topics.enable")


def _wants_all(ctx: Context, request: requests.MetadataRequest) -> bool:
    if ctx.version < _NULL_MEANS_ALL_SINCE:
        return not request.topics
    return request.topics is None


async def _missing(ctx: Context, name: str, may_create: bool) -> Found:
    """Create a topic that does not exist, or return why it is not created."""
    catalog = ctx.frontend.catalog
    if name_problem(name) is not None:
        return _unknown(name, ErrorCode.invalid_topic_exception)
    if not may_create or name in INTERNAL_TOPICS or not _creates(ctx) or colliding_topics(name, catalog.unified()):
        return _unknown(name, ErrorCode.unknown_topic_or_partition)
    partitions = catalog.integer(None, "num.partitions")
    if not Mutations(ctx, strict_since=0).take(partitions):
        return _unknown(name, ErrorCode.unknown_topic_or_partition)
    was_deleted = catalog.was_deleted_just_now(name)
    try:
        _, topic = await create_topic(catalog, ctx.frontend.log, name, partitions, {})
    except KorvetError as error:
        return _unknown(name, read_failure(ctx, error, ErrorCode.leader_not_available))
    if was_deleted:
        return _unknown(name, ErrorCode.unknown_topic_or_partition)
    # Another front-end may have been faster. A topic whose deletion is under way can be created in a moment.
    return topic or catalog.topic(name) or _unknown(name, ErrorCode.unknown_topic_or_partition)


def _unknown(name: str, code: int) -> Fields:
    return {**_without(code, name), "is_internal": name in INTERNAL_TOPICS}


def _without(code: int, name: str | None, topic_id: UUID | None = None) -> Fields:
    """The answer for a topic that cannot be described."""
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "topic_authorized_operations": NOT_REQUESTED,
        "partitions": (),
    }


async def _unreadable(ctx: Context, request: requests.MetadataRequest, code: ErrorCode) -> Sequence[Found]:
    """The topics as they were last read; a topic not in the cache gets a retriable error.

    Topics keep their partitions: a group's leader would consider a topic without any deleted, and rebalance.
    """
    catalog = ctx.frontend.catalog
    if _wants_all(ctx, request):
        return await _seen(ctx)
    unread: list[Found] = []
    async for requested in ctx.paced(request.topics or ()):
        topic_id, name = requested.topic_id, requested.name or ""
        if topic_id is not None:
            topic = catalog.topic_by_id(topic_id)
            if topic is not None and not _may_describe(ctx, topic.name):
                unread.append(_without(TOPIC_AUTHORIZATION_FAILED, None, topic_id))
            else:
                unread.append(topic or _without(code, None, topic_id))
        elif not _may_describe(ctx, name):
            unread.append(_unknown(name, TOPIC_AUTHORIZATION_FAILED))
        else:
            unread.append(catalog.topic(name) or _without(code, name))
    return unread
