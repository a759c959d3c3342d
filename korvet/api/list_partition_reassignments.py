"""ListPartitionReassignments (46), version 0: the partitions that are being moved. There are none.

A partition lies in Redis, and every front-end serves it: nothing moves between brokers. The answer leaves out
partitions that do not move or do not exist, as Kafka's does.

Source: ReplicationControlManager.listPartitionReassignments; KIP-455.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.wire import requests
from korvet.wire.writer import Fields


@api(
    46,
    0,
    0,
    needs=needs.cluster(
        needs.DESCRIBE,
        refused=lambda _, request: {
            "error_code": ErrorCode.cluster_authorization_failed,
            "error_message": needs.MESSAGES[needs.CLUSTER],
            "topics": [_named(topic) for topic in request.topics or ()],
        },
    ),
)
async def handle(_ctx: Context, _request: requests.ListPartitionReassignmentsRequest) -> Fields:
    return {"error_code": 0, "error_message": None, "topics": ()}


def _named(topic: requests.ListPartitionReassignmentsTopics) -> Fields:
    """A topic of the request, as Kafka's refusal names it."""
    nowhere = {"replicas": (), "adding_replicas": (), "removing_replicas": ()}
    return {"name": topic.name, "partitions": [{"partition_index": at, **nowhere} for at in topic.partition_indexes]}
