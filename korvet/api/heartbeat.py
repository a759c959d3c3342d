"""Heartbeat (key 12), versions 0 to 4.

- 3: static members   - 4: flexible

Source: KafkaApis.handleHeartbeatRequest, GroupCoordinatorService.heartbeat
"""

from __future__ import annotations

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.codes import GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID
from korvet.errors import KorvetError
from korvet.wire import requests


def _forbidden(_ctx: Context, _request: object) -> Answer:
    return {"error_code": GROUP_AUTHORIZATION_FAILED}


@api(12, 0, 4, needs=needs.group(needs.READ, _forbidden), is_repeated=True)
async def handle(ctx: Context, request: requests.HeartbeatRequest) -> Answer:
    """The group's code."""
    if not request.group_id:
        return {"error_code": INVALID_GROUP_ID}
    instance_id = request.group_instance_id
    try:
        code = await ctx.frontend.groups.classic.heartbeat(
            request.group_id, request.member_id, instance_id, request.generation_id
        )
    except KorvetError as error:
        code = failure_code(error, "heartbeat")
    return {"error_code": code}
