"""ShareGroupDescribe (key 77), version 1 (KIP-932).

Source: KafkaApis.handleShareGroupDescribe, ShareGroup.asDescribedGroup
"""

from __future__ import annotations

from korvet.api import Answer, api
from korvet.api.shared.context import Context
from korvet.api.shared.group_descriptions import check, described
from korvet.assignors import SIMPLE
from korvet.store.groups.replies import SHARE
from korvet.wire import requests


@api(77, 1, 1, needs=check)
async def handle(ctx: Context, request: requests.ShareGroupDescribeRequest) -> Answer:
    """Epochs and members of each group, with their assignments."""
    return await described(ctx, request, SHARE, lambda group: (SIMPLE.name, [{} for _ in group.members]))
