"""AddOffsetsToTxn (key 25), versions 0 to 4: take a group's offsets into a transaction.

- 2: PRODUCER_FENCED   - 3: flexible   - 4: TRANSACTION_ABORTABLE

Source: KafkaApis.handleAddOffsetsToTxnRequest, TransactionCoordinator.handleAddPartitionsToTransaction
"""

from __future__ import annotations

from typing import Any, Final

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.group_failures import failure_code
from korvet.api.transaction_failures import INVALID_REQUEST, told
from korvet.errors import KorvetError

_FENCED_SINCE: Final = 2


@api(25, 0, 4)
async def handle(ctx: Context, request: Any) -> Answer:
    """A code."""
    if not request.transactional_id:
        return {"error_code": INVALID_REQUEST}
    try:
        added = await ctx.frontend.transactions.add(
            request.transactional_id, request.producer_id, request.producer_epoch, [(request.group_id, "")]
        )
    except KorvetError as error:
        return {"error_code": failure_code(error, "add_offsets_to_txn")}
    return {"error_code": told(added.code or added.codes[0], ctx.version, _FENCED_SINCE)}
