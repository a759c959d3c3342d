"""LeaveGroup (key 13), versions 0 to 5.

- 3: several members, by member id or instance id   - 4: flexible   - 5: reason

Source: KafkaApis.handleLeaveGroupRequest, GroupCoordinatorService.leaveGroup
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.codes import GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID
from korvet.errors import KorvetError
from korvet.wire import requests

_SEVERAL_SINCE: Final = 3


@api(13, 0, 5, needs=needs.group(needs.READ, lambda *_: {"error_code": GROUP_AUTHORIZATION_FAILED, "members": ()}))
async def handle(ctx: Context, request: requests.LeaveGroupRequest) -> Answer:
    """Take the members out of the group; before v3 the one member's code is the answer's."""
    members = _members(ctx, request)
    if not request.group_id:
        return {"error_code": INVALID_GROUP_ID, "members": ()}
    try:
        codes = await ctx.frontend.groups.classic.leave(request.group_id, members)
    except KorvetError as error:
        return {"error_code": failure_code(error, "leave_group"), "members": ()}
    if ctx.version < _SEVERAL_SINCE:
        return {"error_code": codes[0]}
    return {
        "error_code": 0,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": code}
            for (member_id, instance_id), code in zip(members, codes, strict=True)
        ],
    }


def _members(ctx: Context, request: requests.LeaveGroupRequest) -> Sequence[tuple[str, str | None]]:
    if ctx.version < _SEVERAL_SINCE:
        return [(request.member_id, None)]
    return [(member.member_id, member.group_instance_id) for member in request.members]
