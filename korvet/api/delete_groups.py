"""DeleteGroups (key 42), versions 0 to 2; 2 is flexible.

Source: KafkaApis.handleDeleteGroupsRequest, GroupCoordinatorShard.deleteGroups
"""

from __future__ import annotations

from typing import Any

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.group_failures import failure_code
from korvet.errors import KorvetError


@api(42, 0, 2)
async def handle(ctx: Context, request: Any) -> Answer:
    """Remove each group that has no members, one after the other; one that is named twice is answered once."""
    results = [(group_id, await _deleted(ctx, group_id)) for group_id in dict.fromkeys(request.groups_names)]
    return {"results": [{"group_id": group_id, "error_code": code} for group_id, code in results]}


async def _deleted(ctx: Context, group_id: str) -> int:
    try:
        return await ctx.frontend.groups.delete(group_id)
    except KorvetError as error:
        return failure_code(error, "delete_groups")
