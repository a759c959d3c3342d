"""ConsumerGroupDescribe (key 69), versions 0 and 1: groups of the consumer protocol (KIP-848).

- 1: the protocol that each member speaks

Source: KafkaApis.handleConsumerGroupDescribe, ConsumerGroup.asDescribedGroup
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.admin import NOT_REQUESTED
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.group_members import HIDDEN, assigned_topics, has_hidden_topics, operations
from korvet.api.shared.loop_turns import with_few_repeats
from korvet.errors import KorvetError
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.consumer_types import ConsumerMember
from korvet.store.groups.replies import CONSUMER
from korvet.store.groups.types import GroupDescription
from korvet.wire import requests


def _refused(group_id: str) -> dict[str, Any]:
    return _without_group(group_id, ErrorCode.group_authorization_failed, None)


@api(
    69,
    0,
    1,
    needs=needs.items(
        needs.GROUP,
        needs.DESCRIBE,
        field="group_ids",
        answered="groups",
        refused=_refused,
    ),
)
async def handle(ctx: Context, request: requests.ConsumerGroupDescribeRequest) -> Answer:
    """Epochs and members of each group, with their assignments and targets."""
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        code = failure_code(error, "consumer_group_describe")
        return {"groups": [_without_group(group_id, code, None) for group_id in request.group_ids]}
    groups = await ctx.gathered(with_few_repeats(request.group_ids), partial(_described, ctx))
    return {
        "groups": [{"authorized_operations": operations(ctx, request, group["group_id"]), **group} for group in groups]
    }


async def _described(ctx: Context, group_id: str) -> dict[str, Any]:
    if not group_id:
        return _without_group(group_id, ErrorCode.invalid_group_id, None)
    try:
        group = await ctx.frontend.groups.administration.describe(group_id)
    except KorvetError as error:
        return _without_group(group_id, failure_code(error, "consumer_group_describe"), None)
    if group is None or group.type != CONSUMER:
        why = "not found" if group is None else "is not a consumer group"
        return _without_group(group_id, ErrorCode.group_id_not_found, f"Group {group_id} {why}.")
    fields = _fields(ctx, group)
    if await has_hidden_topics(ctx, fields["members"], "assignment", "target_assignment"):
        return _without_group(group_id, ErrorCode.topic_authorization_failed, HIDDEN)
    return {"group_id": group_id, **fields}


def _without_group(group_id: str, code: int, message: str | None) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "error_code": code,
        "error_message": message,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
        "authorized_operations": NOT_REQUESTED,
    }


def _fields(ctx: Context, group: GroupDescription) -> dict[str, Any]:
    assert group.consumer is not None
    consumers = ctx.frontend.groups.consumers
    return {
        "error_code": 0,
        "group_state": group.state,
        "group_epoch": group.consumer.epoch,
        "assignment_epoch": group.consumer.target_epoch,
        "assignor_name": consumers.assignor_of(member.assignor for member in group.consumer.members),
        "members": [_member(ctx.frontend.catalog, member) for member in group.consumer.members],
    }


def _member(catalog: Catalog, member: ConsumerMember) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.names),
        "subscribed_topic_regex": member.regex,
        "assignment": assigned_topics(catalog, member.owned),
        "target_assignment": assigned_topics(catalog, member.target),
        "member_type": 0 if member.is_classic else 1,
    }
