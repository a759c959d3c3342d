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
    end,
    limits_of,
    name_of,
    parts_of,
    refused,
)
from korvet.api.shared.share_sessions import FINAL_EPOCH
from korvet.codes import INVALID_REQUEST, SHARE_SESSION_NOT_FOUND
from korvet.wire import requests


@api(79, 1, 2, needs=check)
async def handle(ctx: Context, request: requests.ShareAcknowledgeRequest) -> Answer:
    """Acknowledge records. The final epoch also releases what the member holds, and ends its session."""
    epoch, parts, name = request.share_session_epoch, parts_of(request.topics), name_of(request)
    if name is None:
        return refused(INVALID_REQUEST)
    session = ctx.frontend.share_sessions.acknowledge(ctx.share_opener, name, epoch, parts)
    if isinstance(session, int):
        return refused(session)
    member, topics = Member.of(session), Topics(ctx)
    await topics.look_up(list(parts))
    outcomes = await acknowledge(ctx, member, parts, topics, is_renewal=request.is_renew_ack)
    if session.is_elsewhere and not any(one.code == 0 for one in outcomes.values()):
        return refused(SHARE_SESSION_NOT_FOUND)
    if epoch == FINAL_EPOCH:
        end(ctx.frontend, session)
    entries = {named: {"error_code": one.code, "error_message": one.message} for named, one in outcomes.items()}
    return answered(entries, limits_of(ctx.frontend, member.group_id).lock_ms)
