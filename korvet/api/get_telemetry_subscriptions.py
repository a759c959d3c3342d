"""GetTelemetrySubscriptions (key 71), version 0: the metrics that a client has to push, and how often (KIP-714).

A client without an id gets one. It may repeat the request at each push interval; earlier only if its last push was
refused for its subscription or its codec. Clients send sums since their start: Kafka requests differences, which are
right only while every push goes to the same process.

Source: ClientMetricsManager.processGetTelemetrySubscriptionRequest
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.telemetry import ASKS_AGAIN
from korvet.wire import requests
from korvet.wire.batch import GZIP, LZ4, SNAPPY, ZSTD
from korvet.wire.writer import Fields

_CODECS: Final = (ZSTD, LZ4, GZIP, SNAPPY)
_NOTHING: Final[Fields] = {
    "client_instance_id": None, "subscription_id": 0, "push_interval": 0, "telemetry_max_bytes": 0,
    "delta_temporality": False,
}  # fmt: skip


@api(71, 0, 0, needs=needs.nothing)
async def handle(ctx: Context, request: requests.GetTelemetrySubscriptionsRequest) -> Fields:
    telemetry, id = ctx.frontend.telemetry, request.client_instance_id or uuid4()
    instance = telemetry.instance(ctx.peer, ctx.traits(id), id)
    if not instance.may_get() and instance.last_error not in ASKS_AGAIN:
        return {**_NOTHING, "error_code": ErrorCode.throttling_quota_exceeded}
    instance.last_error = ErrorCode.none
    return {
        "client_instance_id": id,
        "subscription_id": instance.subscription_id,
        "accepted_compression_types": _CODECS,
        "push_interval": instance.interval_ms,
        "telemetry_max_bytes": telemetry.most_bytes,
        "delta_temporality": False,
        "requested_metrics": instance.metrics,
    }
