"""CreatePartitions (37), versions 0 to 3: give topics more partitions.

- 3: topics beyond the quota of mutations are refused (KIP-599)

The answer lists names given twice first, with an error, then the others in the order of the request.

Source: ControllerApis.createPartitions, ReplicationControlManager.createPartitions.
"""

from __future__ import annotations

from collections import Counter

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import TENANT_IS_FULL, change_failure, node_ids
from korvet.api.shared.assignments import replicas_problem
from korvet.api.shared.context import Context
from korvet.api.shared.mutations import EXCEEDED, Mutations
from korvet.configs.brokers import MOST_PARTITIONS
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.store.catalog.topic import Topic
from korvet.store.topics import grow_topic
from korvet.wire import requests
from korvet.wire.writer import Fields

Outcome = tuple[ErrorCode, str | None]
_STRICT_SINCE = 3
_DONE: Outcome = (ErrorCode.none, None)
_UNKNOWN: Outcome = (ErrorCode.unknown_topic_or_partition, None)


def _check(ctx: Context, rights: Rights, request: requests.CreatePartitionsRequest) -> needs.Steps:
    times = Counter(topic.name for topic in request.topics)
    # Kafka checks names that are given twice before the rights.
    once = [name for name, count in times.items() if count == 1]
    denied = yield from needs.denied_names(ctx, rights, needs.ALTER, needs.TOPIC, once)
    if not denied:
        return None
    kept, refused = yield from needs.parted(ctx, request.topics, denied, lambda topic: topic.name, _forbidden)
    return needs.Narrowed(
        needs.left(request, "topics", kept),
        lambda answer: {"results": [*(answer["results"] if answer else ()), *refused]},
    )


def _forbidden(topic: requests.CreatePartitionsTopic) -> Fields:
    return _result(topic.name, (ErrorCode.topic_authorization_failed, None))


@api(37, 0, 3, needs=_check)
async def handle(ctx: Context, request: requests.CreatePartitionsRequest) -> Fields:
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        failure = change_failure(ctx, error)
        return {"results": [_result(topic.name, failure) for topic in request.topics]}
    times = Counter(topic.name for topic in request.topics)
    twice = ErrorCode.invalid_request, "Duplicate topic name."
    refused = [_result(name, twice) for name, count in times.items() if count > 1]
    once = [topic for topic in request.topics if times[topic.name] == 1]
    mutations = Mutations(ctx, _STRICT_SINCE)
    grown = [
        _result(requested.name, await _grow(ctx, requested, request.validate_only, mutations))
        async for requested in ctx.paced(once)
    ]
    return {"results": refused + grown, "throttle_time": mutations.throttle_ms}


async def _grow(
    ctx: Context, requested: requests.CreatePartitionsTopic, validate_only: bool, mutations: Mutations
) -> Outcome:
    frontend = ctx.frontend
    topic = frontend.catalog.topic(requested.name)
    if topic is None:
        return _UNKNOWN
    problem = _problem(ctx, topic, requested)
    if problem is None and not mutations.take(requested.count - topic.partitions):
        problem = EXCEEDED
    if problem is not None or validate_only:
        return problem or _DONE
    try:
        code = await grow_topic(frontend.catalog, frontend.log, topic, requested.count)
    except KorvetError as error:
        return change_failure(ctx, error)
    if code is ErrorCode.invalid_partitions:
        # Another front-end has given it more since; the cache knows by now.
        return _problem(ctx, frontend.catalog.topic(requested.name) or topic, requested) or (code, None)
    return code, TENANT_IS_FULL if code is ErrorCode.policy_violation else None


def _problem(ctx: Context, topic: Topic, requested: requests.CreatePartitionsTopic) -> Outcome | None:
    invalid = ErrorCode.invalid_partitions
    if requested.count == topic.partitions:
        return invalid, f"Topic already has {topic.partitions} partition(s)."
    if requested.count < topic.partitions:
        return invalid, (
            f"The topic {topic.name} currently has {topic.partitions} partition(s); "
            f"{requested.count} would not be an increase."
        )
    more = requested.count - topic.partitions
    if requested.count > MOST_PARTITIONS:
        return ErrorCode.policy_violation, f"A topic has at most {MOST_PARTITIONS} partitions."
    if requested.assignments is None:
        return None
    if len(requested.assignments) != more:
        return ErrorCode.invalid_replica_assignment, (
            f"Attempted to add {more} additional partition(s), "
            f"but only {len(requested.assignments)} assignment(s) were specified."
        )
    known = node_ids(ctx)
    problems = (replicas_problem(assignment.broker_ids, known) for assignment in requested.assignments)
    return next((problem for problem in problems if problem is not None), None)


def _result(name: str, outcome: Outcome) -> Fields:
    code, message = outcome
    return {"name": name, "error_code": code, "error_message": message}
