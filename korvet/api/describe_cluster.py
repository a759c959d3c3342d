"""DescribeCluster (60), versions 0 to 2: the cluster id and the brokers.

- 1: the kind of endpoints, brokers or controllers (KIP-919); korvet has brokers only
- 2: fenced brokers (KIP-1073); none is ever fenced

Source: KafkaApis.handleDescribeCluster, AuthHelper.computeDescribeClusterResponse.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import CLUSTER_OPERATIONS, NOT_REQUESTED, brokers
from korvet.api.shared.context import Context
from korvet.wire import requests
from korvet.wire.writer import Fields

_BROKERS = 1
_CONTROLLERS = 2


@api(60, 0, 2, needs=needs.nothing)
async def handle(ctx: Context, request: requests.DescribeClusterRequest) -> Fields:
    wanted = request.endpoint_type
    if wanted == _CONTROLLERS:
        return _refusal(
            ErrorCode.mismatched_endpoint_type,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if wanted != _BROKERS:
        return _refusal(ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {wanted}")
    return {
        "cluster_id": ctx.frontend.catalog.cluster_id,
        "controller_id": ctx.listener.nodes.own_id,
        "brokers": brokers(ctx, "broker_id"),
        "cluster_authorized_operations": (
            needs.cluster_operations(ctx, CLUSTER_OPERATIONS)
            if request.include_cluster_authorized_operations
            else NOT_REQUESTED
        ),
    }


def _refusal(code: ErrorCode, message: str) -> Fields:
    return {"error_code": code, "error_message": message, "cluster_id": "", "controller_id": -1, "brokers": ()}
