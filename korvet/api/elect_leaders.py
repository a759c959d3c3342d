"""ElectLeaders (43), versions 0 to 2: let the preferred replica lead partitions, or a replica that lags.

- 1: the kind of election, and an error of the whole answer (KIP-460)   - 2: flexible

Every partition has one replica, which leads it: no election is ever needed. If the request names no topics (null), the
answer has no partition, as Kafka leaves out partitions that need no election.

Source: ControllerApis.handleElectLeaders, ReplicationControlManager.electLeaders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import read_failure
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.wire import requests
from korvet.wire.writer import Fields

_PREFERRED: Final = 0
_ELECTION_TYPES: Final = (_PREFERRED, 1)

Outcome = tuple[ErrorCode, str | None]
_NOT_NEEDED: Final[Outcome] = ErrorCode.election_not_needed, "Leader election not needed for topic partition."


def _forbidden(_ctx: Context, request: requests.ElectLeadersRequest) -> Fields:
    return _refused(request, needs.CODES[needs.CLUSTER], needs.MESSAGES[needs.CLUSTER])


@api(43, 0, 2, needs=needs.cluster(needs.ALTER, refused=_forbidden))
async def handle(ctx: Context, request: requests.ElectLeadersRequest) -> Fields:
    election_type = request.election_type
    if election_type not in _ELECTION_TYPES:
        return _refused(request, ErrorCode.invalid_request, f"Unknown election type {election_type}")
    catalog = ctx.frontend.catalog
    try:
        await catalog.refresh()
    except KorvetError as error:
        return _refused(request, read_failure(ctx, error, ErrorCode.request_timed_out), str(error))
    if request.topic_partitions is None:
        return _answer([{"topic": topic.name, "partition_result": ()} for topic in catalog.topics()])
    return _answer(
        [
            {
                "topic": requested.topic,
                "partition_result": [
                    _result(index, _outcome(ctx, requested.topic, index))
                    async for index in ctx.paced(requested.partitions)
                ],
            }
            async for requested in ctx.paced(request.topic_partitions)
        ]
    )


def _outcome(ctx: Context, name: str, index: int) -> Outcome:
    topic = ctx.frontend.catalog.topic(name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"No such topic as {name}"
    if not 0 <= index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}"
    return _NOT_NEEDED


def _refused(request: requests.ElectLeadersRequest, code: ErrorCode, message: str) -> Fields:
    results = [
        {
            "topic": requested.topic,
            "partition_result": [_result(index, (code, message)) for index in requested.partitions],
        }
        for requested in request.topic_partitions or ()
    ]
    return _answer(results, code)


def _answer(results: Sequence[Fields], code: ErrorCode = ErrorCode.none) -> Fields:
    return {"error_code": code, "replica_election_results": results}


def _result(index: int, outcome: Outcome) -> Fields:
    code, message = outcome
    return {"partition_id": index, "error_code": code, "error_message": message}
