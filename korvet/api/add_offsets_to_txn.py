"""AddOffsetsToTxn (key 25), versions 0 to 4: take a group's offsets into a transaction.

- 2: PRODUCER_FENCED   - 3: flexible   - 4: TRANSACTION_ABORTABLE

Source: KafkaApis.handleAddOffsetsToTxnRequest, TransactionCoordinator.handleAddPartitionsToTransaction
"""

from __future__ import annotations

from typing import Any, Final

from korvet.api import Answer, api
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.transaction_failures import told
from korvet.codes import INVALID_REQUEST
from korvet.errors import KorvetError

_ABORTABLE_SINCE: Final = 4
_FENCED_SINCE: Final = 2


@api(25, 0, 4)
async def handle(ctx: Context, request: Any) -> Answer:
    """The transaction's code, or the group's."""
    if not request.transactional_id:
        return {"error_code": INVALID_REQUEST}
    try:
        added = await ctx.frontend.transactions.add(
            request.transactional_id, request.producer_id, request.producer_epoch, groups=[request.group_id]
        )
    except KorvetError as error:
        return {"error_code": failure_code(error, "add_offsets_to_txn")}
    return {"error_code": told(added.code or added.codes[0], ctx.version, _FENCED_SINCE, _ABORTABLE_SINCE)}
