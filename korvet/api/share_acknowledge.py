"""ShareAcknowledge (key 79), versions 1 and 2 (KIP-932).

- 2: renewals (KIP-1222), and the time for which they hold

Source: KafkaApis.handleShareAcknowledgeRequest
"""

from __future__ import annotations

from korvet.api import Answer, api
from korvet.api.shared.context import Context
from korvet.api.shared.share_groups import (
    Member,
    Topics,
    acknowledge,
    answered,
    check,
    ids_of,
    limits_of,
    parts_of,
    refused,
    release,
)
from korvet.api.shared.share_sessions import FINAL_EPOCH
from korvet.codes import INVALID_REQUEST
from korvet.wire import requests


@api(79, 1, 2, needs=check)
async def handle(ctx: Context, request: requests.ShareAcknowledgeRequest) -> Answer:
    """Acknowledge records. The final epoch also releases what the member holds, and ends its session."""
    sessions, epoch, ids = ctx.frontend.share_sessions, request.share_session_epoch, ids_of(request)
    if isinstance(ids, str):
        return refused(INVALID_REQUEST, ids)
    session = sessions.acknowledge(*ids, epoch)
    if isinstance(session, int):
        return refused(session)
    member = Member.of(*ids, session)
    parts, topics = parts_of(request.topics), Topics(ctx)
    await topics.look_up(list(parts))
    outcomes = await acknowledge(ctx, member, parts, topics, is_renewal=request.is_renew_ack)
    if epoch == FINAL_EPOCH:
        sessions.close(*ids)
        release(ctx.frontend, member, session)
    entries = {named: {"error_code": one.code, "error_message": one.message} for named, one in outcomes.items()}
    return answered(entries, limits_of(ctx.frontend, member.group_id).lock_ms)
