"""JoinGroup (key 11), versions 0 to 9.

- 1: rebalance timeout   - 4: the member id is required   - 5: static members   - 6: flexible
- 7: protocol type in the answer   - 8: reason   - 9: skip_assignment

A protocol that is named twice counts once, with its first metadata; in Kafka 4.1.2 such a member's group hangs. More
than `MOST_PROTOCOLS` are INCONSISTENT_GROUP_PROTOCOL. More than `MOST_METADATA_BYTES` are UNKNOWN_SERVER_ERROR, as if
Kafka's record of the group were too large.

Source: KafkaApis.handleJoinGroupRequest, GroupCoordinatorService.joinGroup
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from korvet.api import IN_TURN, Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code, milliseconds
from korvet.codes import GROUP_AUTHORIZATION_FAILED, INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID, UNKNOWN_SERVER_ERROR
from korvet.errors import KorvetError
from korvet.store.groups.types import Joined, JoinRequest
from korvet.wire import requests

_NULL_PROTOCOL_SINCE: Final = 7
_REBALANCE_TIMEOUT_SINCE: Final = 1
MOST_PROTOCOLS: Final = 100
"""The most protocols of a member."""
MOST_METADATA_BYTES: Final = 1 << 20
"""The metadata of all protocols of a member; Kafka has a mebibyte for a whole group (max.message.bytes)."""


def _forbidden(ctx: Context, _request: object) -> Answer:
    return _answer(ctx, Joined(code=GROUP_AUTHORIZATION_FAILED, member_id=""))


@api(11, 0, 9, needs=needs.group(needs.READ, _forbidden), start=IN_TURN)
async def handle(ctx: Context, request: requests.JoinGroupRequest) -> Answer:
    """Let a member join, and wait for the next generation."""
    if not request.group_id:
        return _answer(ctx, Joined(code=INVALID_GROUP_ID, member_id=request.member_id))
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    if (code := _excess(protocols)) != 0:
        return _answer(ctx, Joined(code=code, member_id=request.member_id))
    try:
        joined = await ctx.frontend.groups.classic.join(_request(ctx, request, protocols), ctx.frontend.draining)
    except KorvetError as error:
        joined = Joined(code=failure_code(error, "join_group"), member_id=request.member_id)
    return _answer(ctx, joined)


def _excess(protocols: Mapping[str, bytes]) -> int:
    """The code for too many protocols, or too many bytes of metadata; 0 if neither."""
    if len(protocols) > MOST_PROTOCOLS:
        return INCONSISTENT_GROUP_PROTOCOL
    size_bytes = sum(len(name) + len(metadata) for name, metadata in protocols.items())
    return UNKNOWN_SERVER_ERROR if size_bytes > MOST_METADATA_BYTES else 0


def _request(ctx: Context, request: requests.JoinGroupRequest, protocols: Mapping[str, bytes]) -> JoinRequest:
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.client_host}",
        session_timeout_ms=milliseconds(request.session_timeout),
        # Version 0 has one timeout for both.
        rebalance_timeout_ms=milliseconds(
            request.rebalance_timeout if ctx.version >= _REBALANCE_TIMEOUT_SINCE else request.session_timeout
        ),
        protocol_type=request.protocol_type,
        protocols=list(protocols.items()),
        version=ctx.version,
    )


def _answer(ctx: Context, joined: Joined) -> Answer:
    return {
        "error_code": joined.code,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        # Before this version it cannot be null.
        "protocol_name": joined.protocol or (None if ctx.version >= _NULL_PROTOCOL_SINCE else ""),
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": id, "group_instance_id": instance_id, "metadata": metadata}
            for id, instance_id, metadata in joined.members
        ],
    }
