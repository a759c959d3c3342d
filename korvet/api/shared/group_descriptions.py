"""The descriptions of consumer groups and of share groups.

Source: KafkaApis.handleConsumerGroupDescribe and handleShareGroupDescribe
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from korvet.api.shared import needs
from korvet.api.shared.admin import GROUP_OPERATIONS, NOT_REQUESTED
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.loop_turns import with_few_repeats
from korvet.assignors import Assignment
from korvet.codes import GROUP_AUTHORIZATION_FAILED, GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, TOPIC_AUTHORIZATION_FAILED
from korvet.errors import KorvetError
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.consumer_types import ConsumerDescription, ConsumerMember
from korvet.wire.writer import Fields

_HIDDEN: Final = "The group has described topic(s) that the client is not authorized to describe."

Shown = Callable[[ConsumerDescription], tuple[str, Sequence[Fields]]]
"""Returns a group's assignor, and for each member the fields that groups of another type lack."""


class Describing(Protocol):
    """A request for descriptions."""

    @property
    def group_ids(self) -> Sequence[str]: ...
    @property
    def include_authorized_operations(self) -> bool: ...


def _refused(group_id: str) -> Fields:
    return _without_group(group_id, GROUP_AUTHORIZATION_FAILED)


check: Final = needs.items(needs.GROUP, needs.DESCRIBE, field="group_ids", answered="groups", refused=_refused)
"""The check of the right to describe each group."""


async def described(ctx: Context, request: Describing, type: str, shown: Shown) -> Fields:
    """Epochs and members of each group.

    :param type: of the groups: consumer or share.
    """
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        code = failure_code(error, f"{type}_group_describe")
        return {"groups": [_without_group(group_id, code) for group_id in request.group_ids]}
    groups = await ctx.gathered(with_few_repeats(request.group_ids), partial(_described, ctx, type, shown))
    return {
        "groups": [{"authorized_operations": _operations(ctx, request, group["group_id"]), **group} for group in groups]
    }


def _operations(ctx: Context, request: Describing, group_id: str) -> int:
    if not request.include_authorized_operations:
        return NOT_REQUESTED
    return needs.operations(ctx, needs.GROUP, group_id, GROUP_OPERATIONS)


async def _described(ctx: Context, type: str, shown: Shown, group_id: str) -> Fields:
    if not group_id:
        return _without_group(group_id, INVALID_GROUP_ID)
    try:
        group = await ctx.frontend.groups.administration.describe(group_id)
    except KorvetError as error:
        return _without_group(group_id, failure_code(error, f"{type}_group_describe"))
    if group is None or group.type != type or group.consumer is None:
        why = "not found" if group is None else f"is not a {type} group"
        return _without_group(group_id, GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
    catalog, (assignor, more) = ctx.frontend.catalog, shown(group.consumer)
    members = [{**_member(catalog, one), **own} for one, own in zip(group.consumer.members, more, strict=True)]
    if await _has_hidden_topics(ctx, members):
        return _without_group(group_id, TOPIC_AUTHORIZATION_FAILED, _HIDDEN)
    return {
        "group_id": group_id,
        "error_code": 0,
        "group_state": group.state,
        "group_epoch": group.consumer.epoch,
        "assignment_epoch": group.consumer.target_epoch,
        "assignor_name": assignor,
        "members": members,
    }


def _member(catalog: Catalog, member: ConsumerMember) -> Fields:
    return {
        "member_id": member.id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.names),
        "assignment": assigned_topics(catalog, member.owned),
    }


def _without_group(group_id: str, code: int, message: str | None = None) -> Fields:
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


def assigned_topics(catalog: Catalog, assignment: Assignment) -> Fields:
    """The assignment in a description without deleted topics, as in Kafka."""
    named = [(catalog.topic_by_id(id), id, partitions) for id, partitions in assignment.items()]
    return {
        "topic_partitions": [
            {"topic_id": id, "topic_name": topic.name, "partitions": partitions}
            for topic, id, partitions in named
            if topic is not None
        ]
    }


async def _has_hidden_topics(ctx: Context, members: Iterable[Mapping[str, Fields]]) -> bool:
    """True if members have topics that the client may not describe. Kafka, too, shows a group whole or not at all."""
    assignments = (member.get(field, {}) for member in members for field in ("assignment", "target_assignment"))
    names = {topic["topic_name"] for one in assignments for topic in one.get("topic_partitions", ())}
    return bool(await needs.unseen(ctx, needs.TOPIC, names))
