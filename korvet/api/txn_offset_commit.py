"""TxnOffsetCommit (key 28), versions 0 to 6: offsets that become committed with a transaction.

- 2: leader epochs   - 3: flexible, group metadata (KIP-447)   - 4: TRANSACTION_ABORTABLE
- 5: the request adds the group to the transaction; before, the client sends AddOffsetsToTxn first (KIP-890)
- 6: topics by their ids, GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH (KIP-1319)

Source: KafkaApis.handleTxnOffsetCommitRequest, GroupCoordinatorService.commitTransactionalOffsets,
OffsetMetadataManager.commitTransactionalOffset
"""

from __future__ import annotations

from typing import Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.sorted_offsets import SortedOffsets, refused_offsets, sort_offsets
from korvet.codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    INVALID_GROUP_ID,
    INVALID_PRODUCER_EPOCH,
    INVALID_REQUEST,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.store.groups.groups import Groups
from korvet.store.groups.types import CommitRequest
from korvet.wire import requests

_ABORTABLE_SINCE: Final = 4
_JOINS_SINCE: Final = 5
_BY_ID_SINCE: Final = 6
_PRECISE_SINCE: Final = 6


def _check(_ctx: Context, rights: Rights, request: requests.TxnOffsetCommitRequest) -> needs.Narrowed | None:
    if not rights.allows(needs.WRITE, needs.TRANSACTIONAL_ID, request.transactional_id):
        return needs.refusal(refused_offsets(request, TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    if not rights.allows(needs.READ, needs.GROUP, request.group_id):
        return needs.refusal(refused_offsets(request, GROUP_AUTHORIZATION_FAILED))
    return None


@api(28, 0, 6, needs=_check)
async def handle(ctx: Context, request: requests.TxnOffsetCommitRequest) -> Answer:
    """Keep offsets for the transaction; partitions that do not exist are refused before the call to the group."""
    sorted_ = await sort_offsets(ctx, request, by_id=ctx.version >= _BY_ID_SINCE)
    if not sorted_.requested:
        return sorted_.answer(0)
    return sorted_.answer(await _hold(ctx, request, sorted_))


async def _hold(ctx: Context, request: requests.TxnOffsetCommitRequest, sorted_: SortedOffsets) -> int:
    if not request.group_id:
        return INVALID_GROUP_ID
    if not request.transactional_id:
        return INVALID_REQUEST
    requested = CommitRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        version=ctx.version,
        offsets=list(sorted_.offsets.items()),
    )
    try:
        code = await ctx.frontend.transactions.commit_offsets(
            requested,
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            joins=ctx.version >= _JOINS_SINCE,
        )
        if code == ILLEGAL_GENERATION and ctx.version >= _PRECISE_SINCE:
            code = await _precise(ctx.frontend.groups, request)
    except KorvetError as error:
        return failure_code(error, "txn_offset_commit")
    return _code_for_version(ctx.version, code)


async def _precise(groups: Groups, request: requests.TxnOffsetCommitRequest) -> int:
    """The reason of ILLEGAL_GENERATION, which older versions have for all these."""
    code = await groups.consumers.fetch_refusal(request.group_id, request.member_id, request.generation_id)
    if code == 0 and await groups.administration.state(request.group_id) is None:
        return GROUP_ID_NOT_FOUND
    return code or ILLEGAL_GENERATION


def _code_for_version(version: int, code: int) -> int:
    """A code of the transaction's coordinator as the version's clients know it."""
    if code == PRODUCER_FENCED:
        return INVALID_PRODUCER_EPOCH
    if code == TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return INVALID_TXN_STATE
    if code == CONCURRENT_TRANSACTIONS and version < _JOINS_SINCE:
        return COORDINATOR_LOAD_IN_PROGRESS
    return code
