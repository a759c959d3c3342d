"""PushTelemetry (key 72), version 0: metrics of a client, as an OTLP MetricsData (KIP-714).

Source: ClientMetricsManager.processPushTelemetryRequest
"""

from __future__ import annotations

from time import monotonic
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.telemetry import Instance, Push
from korvet.wire import requests
from korvet.wire.batch import ZSTD
from korvet.wire.writer import Fields

_RESERVED_ID: Final = 1
"""An id that Kafka reserves, like the id of zeros, which is read as None."""


@api(72, 0, 0, needs=needs.nothing)
async def handle(ctx: Context, request: requests.PushTelemetryRequest) -> Fields:
    telemetry, id = ctx.frontend.telemetry, request.client_instance_id
    if id is None or id.int == _RESERVED_ID:
        return {"error_code": ErrorCode.invalid_request}
    traits = ctx.traits(id)
    instance = telemetry.instance(ctx.peer, traits, id)
    code = _refusal(instance, request, telemetry.most_bytes)
    instance.is_terminating = request.terminating
    if code is ErrorCode.none and request.metrics and telemetry.receiver is not None:
        instance.taken_at = monotonic()
        push = Push(
            namespace=ctx.frontend.namespace.name,
            client=traits,
            principal=ctx.principal,
            interval_ms=instance.interval_ms,
            codec=request.compression_type,
            data=request.metrics,
        )
        code = await telemetry.receiver.receive(push, telemetry.most_bytes)
    instance.last_error = code
    return {"error_code": code}


def _refusal(instance: Instance, request: requests.PushTelemetryRequest, most_bytes: int) -> ErrorCode:
    """The reason why a push is refused, in the order of Kafka's checks."""
    if instance.is_terminating:
        return ErrorCode.invalid_request
    if not instance.may_push(is_last=request.terminating):
        return ErrorCode.throttling_quota_exceeded
    if request.subscription_id != instance.subscription_id:
        return ErrorCode.unknown_subscription_id
    if not 0 <= request.compression_type <= ZSTD:
        return ErrorCode.unsupported_compression_type
    return ErrorCode.telemetry_too_large if len(request.metrics) > most_bytes else ErrorCode.none
