"""ListGroups (key 16), versions 0 to 5.

- 3: flexible   - 4: by state   - 5: by type

Source: KafkaApis.handleListGroupsRequest, GroupMetadataManager.listGroups
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.errors import KorvetError
from korvet.wire import requests


@api(16, 0, 5, needs=needs.by_handler)
async def handle(ctx: Context, request: requests.ListGroupsRequest) -> Answer:
    """This node's groups with one of the given states and types, in upper or lower case."""
    states = {state.lower() for state in request.states_filter}
    types = {type_.lower() for type_ in request.types_filter}
    try:
        groups = await ctx.frontend.groups.administration.list(partial(_shown, ctx))
    except KorvetError as error:
        return {"error_code": failure_code(error, "list_groups"), "groups": ()}
    return {
        "error_code": 0,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.type,
            }
            for group in groups
            if (not states or group.state.lower() in states) and (not types or group.type in types)
        ],
    }


async def _shown(ctx: Context, group_ids: Sequence[str]) -> Sequence[str]:
    """This node's groups that the client may describe. The states of others are not read."""
    own = [group_id async for group_id in ctx.paced(group_ids) if ctx.listener.nodes.lists(group_id, ctx.target)]
    if ctx.rights is not None and ctx.rights.quiet.allows_on_cluster(needs.DESCRIBE):
        return own
    unseen = await needs.unseen(ctx, needs.GROUP, own)
    return [group_id for group_id in own if group_id not in unseen]
