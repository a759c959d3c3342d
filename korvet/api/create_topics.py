"""CreateTopics (19), versions 2 to 7.

- 4: -1 means the cluster's number of partitions or replicas (KIP-464); Kafka 4.1 does so at every version
- 5: the answer shows the topic and its configs (KIP-525)
- 6: topics beyond the quota of mutations are refused (KIP-599)
- 7: the answer shows the topic's id

Each topic of a request is checked by itself, in the order of the request; names given twice come last.

Source: ControllerApis.createTopics, ReplicationControlManager.createTopics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import uuid4

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import TENANT_IS_FULL, change_failure, node_ids
from korvet.api.shared.assignments import count_problem, manual_problem
from korvet.api.shared.config_entries import created_entries
from korvet.api.shared.config_resources import topic_misconfigured
from korvet.api.shared.context import Context
from korvet.api.shared.mutations import EXCEEDED, Mutations
from korvet.configs.brokers import MOST_PARTITIONS
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.topics import CLUSTER_METADATA_TOPIC, colliding_topics, create_topic, name_problem
from korvet.wire import requests
from korvet.wire.writer import Fields

AT_ONCE = 20
"""The created topics that one turn writes into the answer: each has forty settings."""
_STRICT_SINCE = 6
Problem = tuple[ErrorCode, str]


def _check(ctx: Context, rights: Rights, request: requests.CreateTopicsRequest) -> needs.Steps:
    if rights.quiet.allows_on_cluster(needs.CREATE):
        return None
    times = Counter(topic.name for topic in request.topics)
    # Kafka checks names that are given twice before the rights.
    once = [name for name, count in times.items() if count == 1 and name != CLUSTER_METADATA_TOPIC]
    denied = yield from needs.denied_names(ctx, rights, needs.CREATE, needs.TOPIC, once)
    if not denied:
        return None
    kept, refused = yield from needs.parted(ctx, request.topics, denied, lambda topic: topic.name, _forbidden)
    return needs.Narrowed(
        needs.left(request, "topics", kept),
        lambda answer: {"topics": [*(answer["topics"] if answer else ()), *refused]},
    )


def _forbidden(topic: requests.CreatableTopic) -> Fields:
    return _refused(topic.name, (ErrorCode.topic_authorization_failed, "Authorization failed."))


@api(19, 2, 7, needs=_check)
async def handle(ctx: Context, request: requests.CreateTopicsRequest) -> Fields:
    catalog = ctx.frontend.catalog
    try:
        await catalog.refresh()
    except KorvetError as error:
        failure = change_failure(ctx, error)
        return {"topics": [_refused(topic.name, failure) for topic in request.topics]}
    mutations = Mutations(ctx, _STRICT_SINCE)
    times = Counter(topic.name for topic in request.topics)
    once = [topic for topic in request.topics if times[topic.name] == 1]
    # All are checked before any is created, so two new names of one request do not collide.
    problems = [await _problem(ctx, catalog, requested) async for requested in ctx.paced(once)]
    if sum(_partitions(catalog, requested) for requested in once) > MOST_PARTITIONS:
        excess = ErrorCode.policy_violation, "Excessively large number of partitions per request."
        problems = [excess for _ in once]
    results = [
        _refused(requested.name, problem)
        if problem is not None
        else await _create(ctx, requested, request.validate_only, mutations)
        async for requested, problem in ctx.frontend.turns.paced(zip(once, problems, strict=True), size=AT_ONCE)
    ]
    twice = ErrorCode.invalid_request, "Duplicate topic name."
    return {
        "topics": results + [_refused(name, twice) for name, count in times.items() if count > 1],
        "throttle_time": mutations.throttle_ms,
    }


async def _problem(ctx: Context, catalog: Catalog, requested: requests.CreatableTopic) -> Problem | None:
    name = requested.name
    if name == CLUSTER_METADATA_TOPIC:
        return ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited."
    illegal = name_problem(name)
    if illegal is not None:
        return ErrorCode.invalid_topic_exception, illegal
    if catalog.topic(name) is not None:
        return _exists(name)
    colliding = colliding_topics(name, catalog.unified())
    if colliding:
        return (
            ErrorCode.invalid_topic_exception,
            f"Topic '{name}' collides with existing topic: {', '.join(colliding)}",
        )
    misconfigured = await topic_misconfigured(ctx, {config.name: config.value for config in requested.configs}, {})
    if misconfigured is not None:
        return misconfigured
    if requested.assignments:
        return manual_problem(requested, node_ids(ctx))
    return count_problem(requested.num_partitions, requested.replication_factor)


def _exists(name: str) -> Problem:
    return ErrorCode.topic_already_exists, f"Topic '{name}' already exists."


def _partitions(catalog: Catalog, requested: requests.CreatableTopic) -> int:
    if requested.assignments:
        return len(requested.assignments)
    return catalog.integer(None, "num.partitions") if requested.num_partitions == -1 else requested.num_partitions


async def _create(
    ctx: Context, requested: requests.CreatableTopic, validate_only: bool, mutations: Mutations
) -> Fields:
    frontend = ctx.frontend
    partitions = _partitions(frontend.catalog, requested)
    if not mutations.take(partitions):
        return _refused(requested.name, EXCEEDED)
    configs = {config.name: config.value or "" for config in requested.configs}
    if validate_only:
        return _created(ctx, Topic(name=requested.name, id=uuid4(), partitions=partitions, configs=configs))
    try:
        code, topic = await create_topic(frontend.catalog, frontend.log, requested.name, partitions, configs)
    except KorvetError as error:
        return _refused(requested.name, change_failure(ctx, error))
    if topic is None:
        if code is ErrorCode.topic_already_exists:
            return _refused(requested.name, _exists(requested.name))
        is_full = code is ErrorCode.policy_violation
        return _refused(requested.name, (code, TENANT_IS_FULL if is_full else "The topic was not created."))
    return _created(ctx, topic)


def _created(ctx: Context, topic: Topic) -> Fields:
    rights = ctx.rights
    if rights is not None and not rights.sees(needs.DESCRIBE_CONFIGS, needs.TOPIC, topic.name):
        return _created_without_configs(topic)
    entries: list[Mapping[str, object]] = created_entries(ctx.frontend.catalog, topic)
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": topic.partitions,
        "replication_factor": 1,
        "configs": entries,
    }


def _created_without_configs(topic: Topic) -> Fields:
    """The answer for a client without the right to see configs, and the numbers that follow from them."""
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "topic_config_error_code": ErrorCode.topic_authorization_failed,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }


def _refused(name: str, problem: Problem) -> Fields:
    code, message = problem
    return {"name": name, "topic_id": None, "error_code": code, "error_message": message, "configs": ()}
