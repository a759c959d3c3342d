"""ShareGroupHeartbeat (key 76), version 1 (KIP-932).

A name too long for a topic is INVALID_REQUEST; Kafka keeps it.

Source: KafkaApis.handleShareGroupHeartbeat, GroupCoordinatorService.throwIfShareGroupHeartbeatRequestIsInvalid
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.group_members import BLANK, alive, answered, refused, subscription_problem
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.store.groups.consumer_types import ShareHeartbeatRequest
from korvet.wire import requests

_JOIN, _LEAVE = 0, -1
_MOST_MEMBER_ID: Final = 36


def _check(
    ctx: Context, rights: Rights, request: requests.ShareGroupHeartbeatRequest
) -> needs.Narrowed | needs.Steps | None:
    if not rights.allows(needs.READ, needs.GROUP, request.group_id):
        return needs.refusal(refused(ErrorCode.group_authorization_failed))
    has_topics = request.subscribed_topic_names and _is_member_id(request.member_id)
    return _check_topics(ctx, rights, request) if has_topics else None


def _check_topics(ctx: Context, rights: Rights, request: requests.ShareGroupHeartbeatRequest) -> needs.Steps:
    names = request.subscribed_topic_names or ()
    if (yield from needs.denied_names(ctx, rights, needs.DESCRIBE, needs.TOPIC, names)):
        return needs.refusal(refused(ErrorCode.topic_authorization_failed))
    return None


@api(76, 1, 1, needs=_check, is_repeated=True)
async def handle(ctx: Context, request: requests.ShareGroupHeartbeatRequest) -> Answer:
    """Let a member join, stay or leave."""
    shares = ctx.frontend.groups.shares
    group_id, member_id, epoch = request.group_id, request.member_id, request.member_epoch
    says_nothing = epoch > _JOIN and request.subscribed_topic_names is None and request.rack_id is None
    try:
        if says_nothing and await shares.beat(group_id, member_id, epoch):
            return alive(member_id, epoch, shares.heartbeat_interval_ms(group_id))
        problem = _problem(request)
        if problem is not None:
            return refused(*problem)
        answer = await shares.heartbeat(
            ShareHeartbeatRequest(
                group_id=group_id,
                member_id=member_id,
                member_epoch=epoch,
                rack=request.rack_id,
                names=request.subscribed_topic_names,
                client_id=ctx.client_id or "",
                client_host=f"/{ctx.client_host}",
            )
        )
    except KorvetError as error:
        return refused(failure_code(error, "share_group_heartbeat"))
    return answered(answer, shares.heartbeat_interval_ms(group_id) if epoch >= _JOIN else 0)


def _is_member_id(member_id: str) -> bool:
    return 0 < len(member_id) <= _MOST_MEMBER_ID


def _problem(request: requests.ShareGroupHeartbeatRequest) -> tuple[ErrorCode, str | None] | None:
    """The problem with a request, in Kafka's order, or None."""
    names = request.subscribed_topic_names or ()
    why = None
    texts = (("MemberId", request.member_id), ("GroupId", request.group_id), ("RackId", request.rack_id))
    empty = [name for name, text in texts if text is not None and not text.strip(BLANK)]
    if not _is_member_id(request.member_id):
        return ErrorCode.invalid_request, None
    if empty:
        why = f"{empty[0]} can't be empty."
    elif request.member_epoch == _JOIN and not names:
        why = "SubscribedTopicNames must be set in first request."
    elif request.member_epoch < _LEAVE:
        why = "MemberEpoch is invalid."
    return subscription_problem(names) if why is None else (ErrorCode.invalid_request, why)
