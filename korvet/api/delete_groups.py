"""DeleteGroups (key 42), versions 0 to 3; 2 is flexible, and 3 has messages, which only streams groups need.

Source: KafkaApis.handleDeleteGroupsRequest, GroupCoordinatorShard.deleteGroups
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import AT_ONCE, Context
from korvet.api.shared.group_failures import failure_code
from korvet.errors import KorvetError
from korvet.wire import requests


@api(
    42,
    0,
    3,
    needs=needs.items(
        needs.GROUP,
        needs.DELETE,
        field="groups_names",
        answered="results",
        refused=lambda group_id: {"group_id": group_id, "error_code": ErrorCode.group_authorization_failed},
    ),
)
async def handle(ctx: Context, request: requests.DeleteGroupsRequest) -> Answer:
    """Remove the groups without members, several at a time; a group that is named twice gets one answer."""
    group_ids = list(dict.fromkeys(request.groups_names))
    outcomes: list[int | KorvetError] = []
    async for some in ctx.sliced(group_ids, AT_ONCE):
        outcomes += await ctx.frontend.groups.administration.delete(some)
    codes = [outcome if isinstance(outcome, int) else failure_code(outcome, "delete_groups") for outcome in outcomes]
    results = zip(group_ids, codes, strict=True)
    return {"results": [{"group_id": group_id, "error_code": code} for group_id, code in results]}
