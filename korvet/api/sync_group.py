"""SyncGroup (key 14), versions 0 to 5.

- 3: static members   - 4: flexible   - 5: protocol type and name, which must be given

If a member is named twice, its last assignment wins, as in Kafka. More than `MOST_ASSIGNED_BYTES` of assignments are
UNKNOWN_SERVER_ERROR, as if Kafka's record of the group were too large.

Source: KafkaApis.handleSyncGroupRequest, GroupCoordinatorService.syncGroup
"""

from __future__ import annotations

from typing import Final

from korvet.api import IN_TURN, Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.codes import GROUP_AUTHORIZATION_FAILED, INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID, UNKNOWN_SERVER_ERROR
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.store.groups.types import Synced, SyncRequest
from korvet.wire import requests
from korvet.wire.assignment import assigned_partitions

_CONSUMER: Final = "consumer"
_NAMES_PROTOCOL_SINCE: Final = 5
MOST_ASSIGNED_BYTES: Final = 1 << 20
"""The assignments of all members with their ids; Kafka has as many bytes for a whole group (max.message.bytes)."""


def _check(ctx: Context, rights: Rights, request: requests.SyncGroupRequest) -> needs.Narrowed | None:
    if ctx.version >= _NAMES_PROTOCOL_SINCE and (request.protocol_type is None or request.protocol_name is None):
        # Kafka checks these before the rights.
        return None
    if rights.allows(needs.READ, needs.GROUP, request.group_id):
        return None
    return needs.refusal(_answer(Synced(code=GROUP_AUTHORIZATION_FAILED)))


@api(14, 0, 5, needs=_check, start=IN_TURN)
async def handle(ctx: Context, request: requests.SyncGroupRequest) -> Answer:
    """Store the leader's assignments, or wait for the member's own."""
    protocol: tuple[str, str] | None = None
    if ctx.version >= _NAMES_PROTOCOL_SINCE:
        if request.protocol_type is None or request.protocol_name is None:
            return _answer(Synced(code=INCONSISTENT_GROUP_PROTOCOL))
        protocol = (request.protocol_type, request.protocol_name)
    if not request.group_id:
        return _answer(Synced(code=INVALID_GROUP_ID))
    assignments = {assigned.member_id: assigned.assignment for assigned in request.assignments}
    if sum(len(member_id) + len(assigned) for member_id, assigned in assignments.items()) > MOST_ASSIGNED_BYTES:
        return _answer(Synced(code=UNKNOWN_SERVER_ERROR))
    requested = SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol=protocol,
        assignments=list(assignments.items()),
    )
    try:
        synced = await ctx.frontend.groups.classic.sync(requested, ctx.frontend.draining)
    except KorvetError as error:
        synced = Synced(code=failure_code(error, "sync_group"))
    await _note(ctx, request.group_id, synced)
    return _answer(synced)


def _answer(synced: Synced) -> Answer:
    return {
        "error_code": synced.code,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


async def _note(ctx: Context, group_id: str, synced: Synced) -> None:
    """Store the partitions that the client will read for the group, because its Fetches do not name the group."""
    if synced.code != 0 or synced.protocol_type != _CONSUMER:
        return
    topic = ctx.frontend.catalog.topic
    read = [
        (name, partition)
        for name, partition in assigned_partitions(synced.assignment)
        if (known := topic(name)) is not None and 0 <= partition < known.partitions
    ]
    await ctx.frontend.groups.readers.note(ctx.client_id or "", ctx.client_host, group_id, read)
