"""DeleteGroups (key 42), versions 0 to 2; 2 is flexible.

Source: KafkaApis.handleDeleteGroupsRequest, GroupCoordinatorShard.deleteGroups
"""

from __future__ import annotations

from typing import Any

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.group_failures import failure_code


@api(42, 0, 2)
async def handle(ctx: Context, request: Any) -> Answer:
    """Remove the groups that have no members, all of them together; one that is named twice is answered once."""
    group_ids = list(dict.fromkeys(request.groups_names))
    outcomes = await ctx.frontend.groups.delete(group_ids)
    codes = [outcome if isinstance(outcome, int) else failure_code(outcome, "delete_groups") for outcome in outcomes]
    results = zip(group_ids, codes, strict=True)
    return {"results": [{"group_id": group_id, "error_code": code} for group_id, code in results]}
