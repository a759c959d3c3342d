"""SyncGroup (key 14), versions 0 to 5.

- 3: static members   - 4: flexible   - 5: protocol type and name, which must be there

Source: KafkaApis.handleSyncGroupRequest, GroupCoordinatorService.syncGroup
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.group_failures import INVALID_GROUP_ID, failure_code
from korvet.errors import KorvetError
from korvet.store.group_types import Synced, SyncRequest
from korvet.wire.assignment import assigned_places

_CONSUMER: Final = "consumer"
_NAMES_PROTOCOL_SINCE: Final = 5


@api(14, 0, 5)
async def handle(ctx: Context, request: Any) -> Answer:
    """Hand in or wait for assignments."""
    protocol: tuple[str, str] | None = None
    if ctx.version >= _NAMES_PROTOCOL_SINCE:
        if request.protocol_type is None or request.protocol_name is None:
            return {"error_code": ErrorCode.inconsistent_group_protocol}
        protocol = (request.protocol_type, request.protocol_name)
    if not request.group_id:
        return {"error_code": INVALID_GROUP_ID}
    asked = SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
        protocol=protocol,
        assignments=[(assigned.member_id, assigned.assignment) for assigned in request.assignments],
    )
    try:
        synced = await ctx.frontend.groups.sync(asked, ctx.frontend.draining)
    except KorvetError as error:
        synced = Synced(code=failure_code(error, "sync_group"))
    await _note(ctx, request.group_id, synced)
    return {
        "error_code": synced.code,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


async def _note(ctx: Context, group_id: str, synced: Synced) -> None:
    """Remember what the client is going to read for the group: its Fetches do not say it."""
    if synced.code != 0 or synced.protocol_type != _CONSUMER:
        return
    topic = ctx.frontend.catalog.topic
    places = [
        (name, partition)
        for name, partition in assigned_places(synced.assignment)
        if (known := topic(name)) is not None and 0 <= partition < known.partitions
    ]
    await ctx.frontend.groups.redis_groups.note_reader(ctx.client_id or "", ctx.client_host, group_id, places)
