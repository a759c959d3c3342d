"""OffsetCommit (key 8), versions 2 to 10.

- 5: no retention time   - 6: leader epochs   - 7: static members   - 8: flexible   - 9: GROUP_ID_NOT_FOUND
- 10: topics by their ids (KIP-848)

Korvet ignores the retention time of versions 2 to 4: offsets live as long as offsets.retention.minutes says.

Source: KafkaApis.handleOffsetCommitRequest, OffsetMetadataManager.commitOffset
"""

from __future__ import annotations

from typing import Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.sorted_offsets import refused_offsets, sort_offsets
from korvet.codes import GROUP_AUTHORIZATION_FAILED
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.store.groups.types import CommitRequest
from korvet.wire import requests

_BY_ID_SINCE: Final = 10


def _check(_ctx: Context, rights: Rights, request: requests.OffsetCommitRequest) -> needs.Narrowed | None:
    if rights.allows(needs.READ, needs.GROUP, request.group_id):
        return None
    return needs.refusal(refused_offsets(request, GROUP_AUTHORIZATION_FAILED))


@api(8, 2, 10, needs=_check)
async def handle(ctx: Context, request: requests.OffsetCommitRequest) -> Answer:
    """Commit offsets; partitions that do not exist are refused before the call to the group."""
    sorted_ = await sort_offsets(ctx, request, by_id=ctx.version >= _BY_ID_SINCE)
    if not sorted_.requested:
        return sorted_.answer(0)
    requested = CommitRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        version=ctx.version,
        offsets=list(sorted_.offsets.items()),
    )
    try:
        code = await ctx.frontend.groups.offsets.commit(requested)
    except KorvetError as error:
        code = failure_code(error, "offset_commit")
    return sorted_.answer(code)
