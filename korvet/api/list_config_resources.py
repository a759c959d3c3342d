"""ListConfigResources (key 74), versions 0 and 1: the resources that have configs, by type (KIP-1142).

- 0: client metrics only
- 1: the client chooses types; none chosen means all

All topics and brokers are named, the groups that have configs of their own, and the subscriptions of client metrics.

Source: KafkaApis.handleListConfigResources
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import node_ids, read_failure
from korvet.api.shared.config_resources import RESOURCE_TYPES, ResourceType
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.store.catalog.settings import Owner
from korvet.wire import requests
from korvet.wire.writer import Fields

_TYPES_SINCE: Final = 1


@api(74, 0, 1, needs=needs.cluster(needs.DESCRIBE_CONFIGS, refused=needs.failed(needs.CLUSTER, config_resources=())))
async def handle(ctx: Context, request: requests.ListConfigResourcesRequest) -> Fields:
    named = request.resource_types if ctx.version >= _TYPES_SINCE else (ResourceType.CLIENT_METRICS,)
    chosen = named or tuple(ResourceType)
    if not RESOURCE_TYPES.issuperset(chosen):
        return {"error_code": ErrorCode.unsupported_version, "config_resources": ()}
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        return {"error_code": read_failure(ctx, error, ErrorCode.request_timed_out), "config_resources": ()}
    resources = [{"resource_name": name, "resource_type": kind} for kind in chosen for name in _names(ctx, kind)]
    return {"error_code": ErrorCode.none, "config_resources": resources}


def _names(ctx: Context, kind: int) -> Iterable[str]:
    if kind == ResourceType.TOPIC:
        return [topic.name for topic in ctx.frontend.catalog.topics()]
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return map(str, node_ids(ctx))
    return ctx.frontend.catalog.owned(Owner.GROUP if kind == ResourceType.GROUP else Owner.CLIENT_METRICS)
