"""AddOffsetsToTxn (key 25), versions 0 to 4: take a group's offsets into a transaction.

- 2: PRODUCER_FENCED   - 3: flexible   - 4: TRANSACTION_ABORTABLE

Source: KafkaApis.handleAddOffsetsToTxnRequest, TransactionCoordinator.handleAddPartitionsToTransaction
"""

from __future__ import annotations

from typing import Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.transaction_failures import code_for_version
from korvet.codes import GROUP_AUTHORIZATION_FAILED, INVALID_REQUEST, TRANSACTIONAL_ID_AUTHORIZATION_FAILED
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.wire import requests

_ABORTABLE_SINCE: Final = 4
_FENCED_SINCE: Final = 2


def _check(_ctx: Context, rights: Rights, request: requests.AddOffsetsToTxnRequest) -> needs.Narrowed | None:
    if not rights.allows(needs.WRITE, needs.TRANSACTIONAL_ID, request.transactional_id):
        return needs.refusal({"error_code": TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
    if not rights.allows(needs.READ, needs.GROUP, request.group_id):
        return needs.refusal({"error_code": GROUP_AUTHORIZATION_FAILED})
    return None


@api(25, 0, 4, needs=_check)
async def handle(ctx: Context, request: requests.AddOffsetsToTxnRequest) -> Answer:
    """The transaction's code, or the group's."""
    if not request.transactional_id:
        return {"error_code": INVALID_REQUEST}
    try:
        added = await ctx.frontend.transactions.add(
            request.transactional_id, request.producer_id, request.producer_epoch, groups=[request.group_id]
        )
    except KorvetError as error:
        return {"error_code": failure_code(error, "add_offsets_to_txn")}
    return {"error_code": code_for_version(added.code or added.codes[0], ctx.version, _FENCED_SINCE, _ABORTABLE_SINCE)}
