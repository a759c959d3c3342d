"""JoinGroup (key 11), versions 0 to 9.

- 1: rebalance timeout   - 4: the member id is required   - 5: static members   - 6: flexible   - 7: protocol type in
the answer   - 8: reason   - 9: skip_assignment

Source: KafkaApis.handleJoinGroupRequest, GroupCoordinatorService.joinGroup
"""

from __future__ import annotations

from typing import Any, Final

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.group_failures import INVALID_GROUP_ID, failure_code, milliseconds
from korvet.errors import KorvetError
from korvet.store.group_types import Joined, JoinRequest

_NULLABLE_SINCE: Final = 7


@api(11, 0, 9)
async def handle(ctx: Context, request: Any) -> Answer:
    """Join and wait for the next generation."""
    if not request.group_id:
        return _answer(ctx, Joined(code=INVALID_GROUP_ID, member_id=request.member_id))
    try:
        joined = await ctx.frontend.groups.join(_request(ctx, request), ctx.frontend.draining)
    except KorvetError as error:
        joined = Joined(code=failure_code(error, "join_group"), member_id=request.member_id)
    return _answer(ctx, joined)


def _request(ctx: Context, request: Any) -> JoinRequest:
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.client_host}",
        session_timeout_ms=milliseconds(request.session_timeout),
        rebalance_timeout_ms=milliseconds(getattr(request, "rebalance_timeout", request.session_timeout)),
        protocol_type=request.protocol_type,
        protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
        version=ctx.version,
    )


def _answer(ctx: Context, joined: Joined) -> Answer:
    return {
        "error_code": joined.code,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        # Before v7 it cannot be null.
        "protocol_name": joined.protocol or (None if ctx.version >= _NULLABLE_SINCE else ""),
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": member.id, "group_instance_id": member.instance_id, "metadata": member.metadata}
            for member in joined.members
        ],
    }
