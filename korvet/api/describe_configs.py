"""DescribeConfigs (32), versions 1 to 4: the configs of topics, brokers, groups and client metrics, with their sources.

- 1: sources and synonyms (KIP-226); 3: types and documentation (KIP-569)

A broker follows the cluster's configs. A group also has facts that only korvet reports (GROUP_FACTS). Korvet has no
configs of broker loggers: such a resource is answered with INVALID_REQUEST.

Source: kafka.server.ConfigHelper.describeConfigs.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared.admin import MALFORMED_MESSAGE, read_failure
from korvet.api.shared.config_entries import (
    Entry,
    broker_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    topic_entries,
)
from korvet.api.shared.config_resources import (
    RESOURCE_TYPES,
    Resource,
    ResourceType,
    config_needs,
    refused_change,
    unsupported,
)
from korvet.api.shared.context import Context
from korvet.api.shared.nodes import Node
from korvet.configs.types import is_integer
from korvet.errors import KorvetError
from korvet.security.acl import Operation
from korvet.store.topics import name_problem
from korvet.wire import requests
from korvet.wire.writer import Fields

AT_ONCE = 20
"""The resources that one turn describes; a topic has forty configs."""


def _refused(resource: Resource, code: ErrorCode, message: str) -> Fields:
    return {**refused_change(resource, code, message), "configs": ()}


@api(32, 1, 4, needs=config_needs(Operation.DESCRIBE_CONFIGS, "results", _refused))
async def handle(ctx: Context, request: requests.DescribeConfigsRequest) -> Fields:
    if any(resource.resource_type not in RESOURCE_TYPES for resource in request.resources):
        malformed = ErrorCode.invalid_request, MALFORMED_MESSAGE
        return {"results": [_refused(resource, *malformed) for resource in request.resources]}
    try:
        await ctx.frontend.catalog.refresh()
        resources = dict.fromkeys(request.resources)
        return {
            "results": [
                await _describe(ctx, request, one) async for one in ctx.frontend.turns.paced(resources, size=AT_ONCE)
            ]
        }
    except KorvetError as error:
        code = read_failure(ctx, error, ErrorCode.request_timed_out)
        return {"results": [_refused(resource, code, str(error)) for resource in request.resources]}


async def _describe(
    ctx: Context, request: requests.DescribeConfigsRequest, resource: requests.DescribeConfigsResource
) -> Fields:
    found = await _entries(ctx, resource)
    if not isinstance(found, list):
        return _refused(resource, *found)
    wanted = resource.configuration_keys and frozenset(resource.configuration_keys)
    # Java's older clients send an empty list for "all".
    entries = [entry for entry in found if not wanted or entry["name"] in wanted]
    hidden: dict[str, object] = {} if request.include_synonyms else {"synonyms": ()}
    if not request.include_documentation:
        hidden["documentation"] = None
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [{**entry, **hidden} for entry in entries],
    }


async def _entries(ctx: Context, resource: requests.DescribeConfigsResource) -> list[Entry] | tuple[ErrorCode, str]:
    catalog, name = ctx.frontend.catalog, resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        illegal = name_problem(name)
        if illegal is not None:
            return ErrorCode.invalid_topic_exception, illegal
        topic = catalog.topic(name)
        return (ErrorCode.unknown_topic_or_partition, "") if topic is None else topic_entries(catalog, topic)
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            return cluster_entries(catalog)
        broker = _broker(ctx, name)
        if not isinstance(broker, Node):
            return ErrorCode.invalid_request, broker
        return broker_entries(catalog, broker)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            return ErrorCode.invalid_request, "Group name must not be empty"
        return group_entries(catalog, name, await ctx.frontend.groups.administration.describe(name))
    if resource.resource_type == ResourceType.CLIENT_METRICS:
        if not name:
            return ErrorCode.invalid_request, "Client metrics subscription name must not be empty"
        return client_metrics_entries(catalog, name)
    return ErrorCode.invalid_request, unsupported(resource.resource_type)


def _broker(ctx: Context, name: str) -> Node | str:
    """The broker whose id is the resource's name, or why there is none."""
    if not is_integer(name):
        return f"Broker id must be an integer, but it is: {name}"
    nodes = {node.id: node for node in ctx.listener.nodes.all()}
    if int(name) not in nodes:
        return f"Unexpected broker id, expected {' or '.join(map(str, nodes))} or empty string, but received {name}"
    return nodes[int(name)]
