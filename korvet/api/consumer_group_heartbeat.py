"""ConsumerGroupHeartbeat (key 68), versions 0 and 1 (KIP-848).

- 1: regular expressions; the client makes its member id itself

The front-end checks a regular expression before it calls the group. A request with an invalid expression and an invalid
member therefore gets the expression's error here, and the member's in Kafka. A name too long for a topic is
INVALID_REQUEST; Kafka keeps it. More than `MOST_SUBSCRIBED_BYTES` are UNKNOWN_SERVER_ERROR, as if Kafka's record of the
member were too large.

Source: KafkaApis.handleConsumerGroupHeartbeat, GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code, milliseconds
from korvet.api.shared.group_members import BLANK, alive, answered, refused, subscription_problem
from korvet.assignors import Assignment
from korvet.errors import KorvetError
from korvet.security.acl import WILDCARD, ResourceType
from korvet.security.rights import Rights
from korvet.store.groups.consumer_types import HeartbeatRequest
from korvet.store.groups.subscriptions import regex_problem
from korvet.wire import requests

_OWN_MEMBER_ID_SINCE: Final = 1
_JOIN, _LEAVE, _LEAVE_FOR_A_WHILE = 0, -1, -2
_UNCHANGED: Final = timedelta(milliseconds=-1)

Problem = tuple[ErrorCode, str]


def _beaten(ctx: Context, request: requests.ConsumerGroupHeartbeatRequest) -> Answer:
    """The answer to a heartbeat without news."""
    interval_ms = ctx.frontend.groups.consumers.heartbeat_interval_ms(request.group_id)
    return alive(request.member_id, request.member_epoch, interval_ms)


def _check(
    ctx: Context, rights: Rights, request: requests.ConsumerGroupHeartbeatRequest
) -> needs.Narrowed | needs.Steps | None:
    if not rights.allows(needs.READ, needs.GROUP, request.group_id):
        return _forbidden(needs.GROUP)
    has_topics = request.subscribed_topic_names or request.subscribed_topic_regex
    return _check_topics(ctx, rights, request) if has_topics else None


def _check_topics(ctx: Context, rights: Rights, request: requests.ConsumerGroupHeartbeatRequest) -> needs.Steps:
    names = request.subscribed_topic_names or ()
    if (yield from needs.denied_names(ctx, rights, needs.DESCRIBE, needs.TOPIC, names)):
        return _forbidden(needs.TOPIC)
    # Later resolutions of the expression do not know its member's rights, so it must see all topics.
    if request.subscribed_topic_regex and (
        not rights.allows(needs.DESCRIBE, needs.TOPIC, WILDCARD) or rights.is_denied_some(needs.DESCRIBE, needs.TOPIC)
    ):
        return _forbidden(needs.TOPIC)
    return None


def _forbidden(kind: ResourceType) -> needs.Narrowed:
    return needs.refusal(refused(needs.CODES[kind]))


@api(68, 0, 1, needs=_check, is_repeated=True)
async def handle(ctx: Context, request: requests.ConsumerGroupHeartbeatRequest) -> Answer:
    """Let a member join, stay or leave."""
    consumers = ctx.frontend.groups.consumers
    group_id = request.group_id
    try:
        if _says_nothing(request) and await consumers.beat(
            group_id, request.member_id, request.member_epoch, request.instance_id
        ):
            return _beaten(ctx, request)
        if request.subscribed_topic_regex:
            # An expression may take milliseconds to compile, and every client may send one.
            await ctx.frontend.turns.turn()
        problem = _problem(request, ctx.version, consumers.assignors)
        if problem is not None:
            return refused(*problem)
        answer = await consumers.heartbeat(_request(ctx, request))
    except KorvetError as error:
        return refused(failure_code(error, "consumer_group_heartbeat"))
    if answer.assignment is not None:
        await _note(ctx, group_id, answer.assignment)
    return answered(answer, consumers.heartbeat_interval_ms(group_id) if request.member_epoch >= _JOIN else 0)


def _says_nothing(request: requests.ConsumerGroupHeartbeatRequest) -> bool:
    """True if a heartbeat is a beat: it only shows that its member lives, as almost all do.

    Only its ids can be wrong, and the ids of a settled member are right.
    """
    return (
        request.topic_partitions is None
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.rack_id is None
        and request.server_assignor is None
        and request.rebalance_timeout == _UNCHANGED
        and request.member_epoch > _JOIN
        and request.instance_id != ""
    )


def _request(ctx: Context, request: requests.ConsumerGroupHeartbeatRequest) -> HeartbeatRequest:
    owned = request.topic_partitions
    return HeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack=request.rack_id,
        assignor=request.server_assignor,
        regex=request.subscribed_topic_regex,
        names=request.subscribed_topic_names,
        owned=None if owned is None else _owned(owned),
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.client_host}",
        version=ctx.version,
    )


def _owned(topics: Sequence[requests.TopicPartitions]) -> Assignment:
    owned = {topic.topic_id: tuple(sorted(set(topic.partitions))) for topic in topics if topic.topic_id is not None}
    return {topic: partitions for topic, partitions in owned.items() if partitions}


async def _note(ctx: Context, group_id: str, assignment: Assignment) -> None:
    """Store the partitions that the client will read for the group, because its Fetches do not name the group."""
    topic_by_id = ctx.frontend.catalog.topic_by_id
    read = [
        (topic.name, partition)
        for id, partitions in assignment.items()
        if (topic := topic_by_id(id)) is not None
        for partition in partitions
    ]
    await ctx.frontend.groups.readers.note(ctx.client_id or "", ctx.client_host, group_id, read)


# ------------------------------------------------------------------ mistakes of a request


def _problem(
    request: requests.ConsumerGroupHeartbeatRequest, version: int, assignors: Callable[[], Sequence[str]]
) -> Problem | None:
    why = _empty(request, version) or _out_of_place(request)
    if why is not None:
        return ErrorCode.invalid_request, why
    regex = request.subscribed_topic_regex
    if (problem := subscription_problem(request.subscribed_topic_names or (), regex or "")) is not None:
        return problem
    assignor = request.server_assignor
    if assignor is not None and assignor not in (known := assignors()):
        return ErrorCode.unsupported_assignor, (
            f"ServerAssignor {assignor} is not supported. Supported assignors: {', '.join(known)}."
        )
    wrong = regex_problem(regex) if regex and request.member_epoch >= _JOIN else None
    return None if wrong is None else (ErrorCode.invalid_regular_expression, wrong)


def _empty(request: requests.ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    needs_member_id = version >= _OWN_MEMBER_ID_SINCE or request.member_epoch > _JOIN or request.member_epoch == _LEAVE
    texts = (
        ("MemberId", request.member_id if needs_member_id else None),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    )
    return next((f"{name} can't be empty." for name, text in texts if text is not None and not text.strip(BLANK)), None)


def _out_of_place(request: requests.ConsumerGroupHeartbeatRequest) -> str | None:
    epoch = request.member_epoch
    if epoch == _JOIN:
        return _incomplete_join(request)
    if epoch == _LEAVE_FOR_A_WHILE and request.instance_id is None:
        return "InstanceId can't be null."
    return "MemberEpoch is invalid." if epoch < _LEAVE_FOR_A_WHILE else None


def _incomplete_join(request: requests.ConsumerGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout == _UNCHANGED:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.topic_partitions is None or request.topic_partitions:
        return "TopicPartitions must be empty when (re-)joining."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return None
