"""Changes of configs, for AlterConfigs and IncrementalAlterConfigs: topics, groups, client metrics and brokers.

A request names resources; each is checked and applied by itself. A broker follows the configs for all brokers (the
empty name), because every front-end serves every request. A group need not exist to have configs.

Source: kafka.server.ConfigAdminManager, ConfigurationControlManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api.shared.admin import change_failure, node_ids
from korvet.api.shared.context import Context
from korvet.api.shared.loop_turns import SLICE
from korvet.api.shared.needs import CODES, MESSAGES, Narrowed, Needs, Steps, left
from korvet.configs.brokers import BROKER_CONFIGS
from korvet.configs.client_metrics import UnknownConfig, subscription
from korvet.configs.groups import GROUP_CONFIGS
from korvet.configs.listeners import broker_config
from korvet.configs.topics import TOPIC_CONFIGS, VALUE_SCHEMA
from korvet.configs.types import TIERED, Config, group_problem, is_integer, problem, topic_problem
from korvet.configs.value_schema import is_made, is_value_schema
from korvet.errors import KorvetError
from korvet.security import acl as security
from korvet.security.acl import Operation
from korvet.security.rights import Rights
from korvet.store.catalog.settings import ConfigChange, Owner
from korvet.store.topics import name_problem
from korvet.wire import requests
from korvet.wire.writer import Fields

Outcome = tuple[ErrorCode, str | None]
DONE: Outcome = (ErrorCode.none, None)


class ResourceType(IntEnum):
    """A kind of resource that has configs (org.apache.kafka.common.config.ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


RESOURCE_TYPES = frozenset(ResourceType)
MOST_OWNERS: Final[Mapping[Owner, int]] = {Owner.GROUP: 1000, Owner.CLIENT_METRICS: 100, Owner.BROKER: 1000}
"""The most resources of a kind with configs of their own: each change of one reads and writes all, and front-ends keep
them. Each new connection of a client is matched against all subscriptions of client metrics."""
Known = Mapping[str, Config]
Resource = requests.AlterConfigsResource | requests.DescribeConfigsResource
AlterRequest = requests.AlterConfigsRequest | requests.IncrementalAlterConfigsRequest
MakeChange = Callable[[requests.AlterConfigsResource, Mapping[str, str], Known], ConfigChange | Outcome]
"""(resource of the request, configs set now, table of its configs) -> the change, or the reason why there is none."""


def unsupported(resource_type: int) -> str:
    """The message for a resource type that Kafka has and korvet lacks."""
    return f"Korvet has no configs of resource type {ResourceType(resource_type).name}"


KINDS: Final[Mapping[int, security.ResourceType]] = {
    ResourceType.TOPIC: security.ResourceType.TOPIC,
    ResourceType.GROUP: security.ResourceType.GROUP,
}
"""The types of resources with rights of their own; for all others the cluster's rights count."""


def config_needs(operation: Operation, answered: str, refused: Callable[[Resource, ErrorCode, str], Fields]) -> Needs:
    """The check of each resource that a request describes or changes."""

    def check(ctx: Context, rights: Rights, request: AlterRequest | requests.DescribeConfigsRequest) -> Steps:
        kept, others = list[Resource](), list[Fields]()
        for resource in request.resources:
            if ctx.frontend.turns.is_due(max(1, SLICE // rights.weight)):
                yield
            kind = _denied_kind(rights, operation, resource)
            if kind is None:
                kept.append(resource)
            else:
                others.append(refused(resource, CODES[kind], MESSAGES[kind]))
        if not others:
            return None
        return Narrowed(
            left(request, "resources", kept),
            lambda answer: {answered: [*(answer[answered] if answer else ()), *others]},
        )

    return check


def _denied_kind(rights: Rights, operation: Operation, resource: Resource) -> security.ResourceType | None:
    """The type of the resource on which the operation is not allowed; None if it is allowed."""
    kind = KINDS.get(resource.resource_type)
    if kind is not None:
        return None if rights.allows(operation, kind, resource.resource_name) else kind
    if resource.resource_type == ResourceType.BROKER_LOGGER and operation is Operation.ALTER_CONFIGS:
        operation = Operation.CLUSTER_ACTION
    return None if rights.allows_on_cluster(operation) else security.ResourceType.CLUSTER


def refused_change(resource: Resource, code: ErrorCode, message: str) -> Fields:
    """The answer for a resource whose change is not allowed."""
    return _response(resource, (code, message))


async def alter(ctx: Context, request: AlterRequest, make_change: MakeChange) -> Fields:
    """The answer to a request of either API."""
    resources = request.resources
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        failure = change_failure(ctx, error)
        return {"responses": [_response(resource, failure) for resource in resources]}
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    responses = []
    async for resource in ctx.paced(resources):
        if times[resource.resource_type, resource.resource_name] > 1:
            outcome: Outcome = ErrorCode.invalid_request, "Each resource must appear at most once."
        else:
            outcome = _malformed(resource) or await _alter(ctx, resource, make_change, request.validate_only)
        responses.append(_response(resource, outcome))
    return {"responses": responses}


def _malformed(resource: requests.AlterConfigsResource) -> Outcome | None:
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        return ErrorCode.invalid_request, "Error due to duplicate config keys"
    nulls = [config.name for config in resource.configs if config.value is None and not _is_delete(config)]
    if nulls:
        return ErrorCode.invalid_request, f"Null value not supported for : {', '.join(nulls)}"
    return None


def _is_delete(config: requests.AlterableConfig) -> bool:
    return config.config_operation == 1


async def _alter(
    ctx: Context, resource: requests.AlterConfigsResource, make_change: MakeChange, validate_only: bool
) -> Outcome:
    if resource.resource_type == ResourceType.TOPIC:
        return await _alter_topic(ctx, resource, make_change, validate_only)
    if resource.resource_type == ResourceType.BROKER:
        return await _alter_broker(ctx, resource, make_change, validate_only)
    if resource.resource_type == ResourceType.GROUP:
        return await _alter_group(ctx, resource, make_change, validate_only)
    if resource.resource_type == ResourceType.CLIENT_METRICS:
        return await _alter_client_metrics(ctx, resource, make_change, validate_only)
    if resource.resource_type in RESOURCE_TYPES:
        return ErrorCode.invalid_request, unsupported(resource.resource_type)
    return ErrorCode.invalid_request, f"Unknown resource type {resource.resource_type}"


async def _alter_topic(
    ctx: Context, resource: requests.AlterConfigsResource, make_change: MakeChange, validate_only: bool
) -> Outcome:
    catalog, name = ctx.frontend.catalog, resource.resource_name
    if not name:
        return ErrorCode.invalid_request, "Default topic resources are not allowed."
    illegal = name_problem(name)
    if illegal is not None:
        return ErrorCode.invalid_topic_exception, illegal
    topic = catalog.topic(name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist."
    change = make_change(resource, topic.configs, TOPIC_CONFIGS)
    if not isinstance(change, ConfigChange):
        return change
    misconfigured = await topic_misconfigured(ctx, change.applied_to(topic.configs), topic.configs)
    if misconfigured is not None:
        return misconfigured
    if validate_only:
        return DONE
    try:
        return await catalog.configure(topic, change), None
    except KorvetError as error:
        return change_failure(ctx, error)


async def topic_misconfigured(
    ctx: Context, configs: Mapping[str, str | None], stored: Mapping[str, str]
) -> tuple[ErrorCode, str] | None:
    """The code and the reason why a topic with the stored configs cannot have these, or None.

    A schema is compiled in a thread, because that takes a while.
    """
    schema = configs.get(VALUE_SCHEMA) or ""
    if schema != stored.get(VALUE_SCHEMA) and not is_made(schema):
        await ctx.frontend.log.in_thread(partial(is_value_schema, schema))
    catalog, guard = ctx.frontend.catalog, ctx.frontend.log.guard
    try:
        has_tier = TIERED in configs and bool(await (catalog.tier() if guard is None else guard.tier()))
    except KorvetError as error:
        return change_failure(ctx, error)
    why = topic_problem(configs, TOPIC_CONFIGS, stored, partial(catalog.setting, None), has_tier=has_tier)
    return None if why is None else (ErrorCode.invalid_config, why)


async def _alter_group(
    ctx: Context, resource: requests.AlterConfigsResource, make_change: MakeChange, validate_only: bool
) -> Outcome:
    catalog, name = ctx.frontend.catalog, resource.resource_name
    if not name:
        return ErrorCode.invalid_request, "Default group resources are not allowed."
    own = catalog.own(Owner.GROUP, name)
    change = make_change(resource, own, GROUP_CONFIGS)
    if not isinstance(change, ConfigChange):
        return change
    why = group_problem(change.applied_to(own), GROUP_CONFIGS, lambda config: catalog.setting(None, config))
    if why is not None:
        return ErrorCode.invalid_config, why
    return await _apply_own(ctx, Owner.GROUP, name, change, validate_only)


async def _alter_client_metrics(
    ctx: Context, resource: requests.AlterConfigsResource, make_change: MakeChange, validate_only: bool
) -> Outcome:
    catalog, name = ctx.frontend.catalog, resource.resource_name
    if not name:
        return ErrorCode.invalid_request, "Subscription name can't be empty"
    own = catalog.own(Owner.CLIENT_METRICS, name)
    # Kafka's controller does not know which of these configs are lists.
    change = make_change(resource, own, {})
    if not isinstance(change, ConfigChange):
        return change
    try:
        subscription(change.applied_to(own))
    except UnknownConfig as error:
        return ErrorCode.invalid_request, str(error)
    except ValueError as error:
        return ErrorCode.invalid_config, str(error)
    return await _apply_own(ctx, Owner.CLIENT_METRICS, name, change, validate_only)


async def _apply_own(ctx: Context, owner: Owner, name: str, change: ConfigChange, validate_only: bool) -> Outcome:
    """Apply checked changes to the configs of a resource other than a topic."""
    most = MOST_OWNERS[owner]
    try:
        code = await ctx.frontend.catalog.configure_own(owner, name, change, most, validate_only=validate_only)
    except KorvetError as error:
        return change_failure(ctx, error)
    if code is ErrorCode.policy_violation:
        return code, f"{most} resources of this type have configs of their own already."
    return code, None


async def _alter_broker(
    ctx: Context, resource: requests.AlterConfigsResource, make_change: MakeChange, validate_only: bool
) -> Outcome:
    """Change the configs of all brokers, or of one: the latter are stored and shown, but not in force."""
    catalog, name, known = ctx.frontend.catalog, resource.resource_name, node_ids(ctx)
    if name and not is_integer(name):
        return ErrorCode.invalid_request, f"Node id must be an integer, but it is: {name}"
    if name and int(name) not in known:
        expected = " or ".join(map(str, known))
        return ErrorCode.invalid_request, f"Unexpected broker id, expected {expected}, but received {name}"
    broker = str(int(name)) if name else ""
    own = catalog.own(Owner.BROKER, broker) if name else catalog.cluster_configs()
    change = make_change(resource, own, BROKER_CONFIGS)
    if not isinstance(change, ConfigChange):
        return change
    why = _broker_problem(change)
    if why is not None:
        return ErrorCode.invalid_request, why
    if name:
        return await _apply_own(ctx, Owner.BROKER, broker, change, validate_only)
    if validate_only:
        return DONE
    try:
        return await catalog.configure_cluster(change), None
    except KorvetError as error:
        return change_failure(ctx, error)


def _broker_problem(change: ConfigChange) -> str | None:
    configs = {name: broker_config(name) for name in change.set}
    fixed = [name for name, config in configs.items() if config is not None and config.read_only]
    if fixed:
        return f"Cannot update these configs dynamically: Set({', '.join(fixed)})"
    for name, value in change.set.items():
        config = configs[name]
        if config is None:
            return f"Unknown broker config name: {name}"
        why = problem(config, value)
        if why is not None:
            return why
    return None


def _response(resource: Resource, outcome: Outcome) -> Fields:
    code, message = outcome
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
