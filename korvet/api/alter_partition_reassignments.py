"""AlterPartitionReassignments (45), versions 0 and 1: move partitions to other brokers, or stop moving them (KIP-455).

- 1: whether the number of replicas may change (KIP-860)

A partition has one replica, at the broker that leads it, as Metadata shows. A request to put it there succeeds at once.
No other broker can get it, because the leader is only a hint that the front-ends compute. Nothing ever moves.

Source: ControllerApis.handleAlterPartitionReassignments, ReplicationControlManager.alterPartitionReassignments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import node_ids, read_failure
from korvet.api.shared.assignments import replicas_problem
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.wire import requests
from korvet.wire.writer import Fields

Outcome = tuple[ErrorCode, str | None]
_DONE: Final[Outcome] = ErrorCode.none, None
_NOTHING_TO_STOP: Final[Outcome] = ErrorCode.no_reassignment_in_progress, None


def _all_refused(_ctx: Context, request: requests.AlterPartitionReassignmentsRequest) -> Fields:
    code, message = ErrorCode.cluster_authorization_failed, needs.MESSAGES[needs.CLUSTER]
    responses = [
        {"name": requested.name, "partitions": [_result(part, (code, message)) for part in requested.partitions]}
        for requested in request.topics
    ]
    return _answer(request.allow_replication_factor_change, responses, code, message)


@api(45, 0, 1, needs=needs.cluster(needs.ALTER, refused=_all_refused))
async def handle(ctx: Context, request: requests.AlterPartitionReassignmentsRequest) -> Fields:
    may_change = request.allow_replication_factor_change
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        code = read_failure(ctx, error, ErrorCode.request_timed_out)
        return _answer(may_change, [], code, str(error))
    known = node_ids(ctx)
    responses = [
        {
            "name": requested.name,
            "partitions": [
                _result(part, _outcome(ctx, requested.name, part, known))
                async for part in ctx.paced(requested.partitions)
            ],
        }
        async for requested in ctx.paced(request.topics)
    ]
    return _answer(may_change, responses)


def _outcome(ctx: Context, name: str, part: requests.ReassignablePartition, known: list[int]) -> Outcome:
    topic, index = ctx.frontend.catalog.topic(name), part.partition_index
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {name}."
    if not 0 <= index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition, f"Unable to find partition {name}:{index}."
    if part.replicas is None:
        return _NOTHING_TO_STOP
    problem = replicas_problem(part.replicas, known)
    if problem is not None:
        return problem
    leader_id = ctx.listener.nodes.leader(name, index).id
    if list(part.replicas) != [leader_id]:
        return ErrorCode.invalid_replica_assignment, (
            f"Partition {name}-{index} cannot be moved from broker {leader_id}: its records lie in Redis, and every "
            "front-end serves them."
        )
    return _DONE


def _answer(
    may_change: bool, responses: Sequence[Fields], code: ErrorCode = ErrorCode.none, message: str | None = None
) -> Fields:
    return {
        "allow_replication_factor_change": may_change,
        "error_code": code,
        "error_message": message,
        "responses": responses,
    }


def _result(part: requests.ReassignablePartition, outcome: Outcome) -> Fields:
    code, message = outcome
    return {"partition_index": part.partition_index, "error_code": code, "error_message": message}
