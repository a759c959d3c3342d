"""DescribeGroups (key 15), versions 0 to 6.

- 3: authorized operations   - 4: instance ids   - 5: flexible
- 6: GROUP_ID_NOT_FOUND; before, an unknown group is a Dead one without an error

Groups of the consumer protocol are not found here (see ConsumerGroupDescribe).

Source: KafkaApis.handleDescribeGroupsRequest, GroupMetadataManager.describeGroups
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.admin import GROUP_OPERATIONS, NOT_REQUESTED
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.loop_turns import with_few_repeats
from korvet.errors import KorvetError
from korvet.store.groups.types import GroupDescription
from korvet.wire import requests

_NOT_FOUND_SINCE: Final = 6


def _refused(group_id: str) -> dict[str, Any]:
    return _without_group(group_id, "", ErrorCode.group_authorization_failed, None)


@api(15, 0, 6, needs=needs.items(needs.GROUP, needs.DESCRIBE, field="groups", answered="groups", refused=_refused))
async def handle(ctx: Context, request: requests.DescribeGroupsRequest) -> Answer:
    """State and members of each group."""
    is_requested = request.include_authorized_operations
    groups = await ctx.gathered(with_few_repeats(request.groups), partial(_described, ctx))
    return {
        "groups": [
            {"authorized_operations": _operations(ctx, group) if is_requested else NOT_REQUESTED, **group}
            for group in groups
        ]
    }


def _operations(ctx: Context, group: dict[str, Any]) -> int:
    if group["error_code"] != 0:
        return NOT_REQUESTED
    return needs.operations(ctx, needs.GROUP, group["group_id"], GROUP_OPERATIONS)


async def _described(ctx: Context, group_id: str) -> dict[str, Any]:
    try:
        group = await ctx.frontend.groups.administration.describe(group_id)
    except KorvetError as error:
        return _without_group(group_id, "", failure_code(error, "describe_groups"), None)
    if group is not None and group.consumer is None:
        return {"group_id": group_id, **_fields(group)}
    if ctx.version < _NOT_FOUND_SINCE:
        return _without_group(group_id, "Dead", 0, None)
    why = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
    return _without_group(group_id, "Dead", ErrorCode.group_id_not_found, why)


def _without_group(group_id: str, state: str, code: int, message: str | None) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "error_code": code,
        "error_message": message,
        "group_state": state,
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
    }


def _fields(group: GroupDescription) -> dict[str, Any]:
    return {
        "error_code": 0,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol if group.state == "Stable" else "",
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }
