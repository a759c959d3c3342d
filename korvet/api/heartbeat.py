"""Heartbeat (key 12), versions 0 to 4.

- 3: static members   - 4: flexible

Source: KafkaApis.handleHeartbeatRequest, GroupCoordinatorService.heartbeat
"""

from __future__ import annotations

from typing import Any

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.group_failures import INVALID_GROUP_ID, failure_code
from korvet.errors import KorvetError
from korvet.wire import group_responses


@api(12, 0, 4)
async def handle(ctx: Context, request: Any) -> Answer:
    """One call."""
    if not request.group_id:
        return [group_responses.heartbeat(ctx.version, INVALID_GROUP_ID)]
    instance_id = getattr(request, "group_instance_id", None)
    try:
        code = await ctx.frontend.groups.heartbeat(
            request.group_id, request.member_id, instance_id, request.generation_id
        )
    except KorvetError as error:
        code = failure_code(error, "heartbeat")
    return [group_responses.heartbeat(ctx.version, code)]
