"""EndTxn (key 26), versions 0 to 5: commit or abort a transaction.

- 2: PRODUCER_FENCED   - 3: flexible   - 4: TRANSACTION_ABORTABLE
- 5: each transaction raises the epoch, and the answer has the next one (KIP-890)

The answer is sent when the decision is carried out, so a client that reads afterwards finds the transaction ended. If
the decision cannot be carried out now, the answer is sent all the same: the decision stands, and a sweep carries it
out.

Source: KafkaApis.handleEndTxnRequest, TransactionCoordinator.endTransaction
"""

from __future__ import annotations

from typing import Any, Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.transaction_failures import code_for_version
from korvet.codes import INVALID_REQUEST, TRANSACTIONAL_ID_AUTHORIZATION_FAILED
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.wire import requests

_ABORTABLE_SINCE: Final = 4
_FENCED_SINCE: Final = 2
_RAISES_EPOCH_SINCE: Final = 5
_NONE: Final = -1


def _check(_ctx: Context, rights: Rights, request: requests.EndTxnRequest) -> needs.Narrowed | None:
    if rights.allows(needs.WRITE, needs.TRANSACTIONAL_ID, request.transactional_id):
        return None
    return needs.refusal(_refused(TRANSACTIONAL_ID_AUTHORIZATION_FAILED))


@api(26, 0, 5, needs=_check)
async def handle(ctx: Context, request: requests.EndTxnRequest) -> Answer:
    """A code, and with version 5 the producer's next id and epoch."""
    if not request.transactional_id:
        return _refused(INVALID_REQUEST)
    try:
        ended = await ctx.frontend.transactions.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            is_commit=request.committed,
            version=2 if ctx.version >= _RAISES_EPOCH_SINCE else 1,
        )
    except KorvetError as error:
        return _refused(failure_code(error, "end_txn"))
    if ended.code != 0:
        return _refused(code_for_version(ended.code, ctx.version, _FENCED_SINCE, _ABORTABLE_SINCE))
    return {"error_code": 0, "producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}


def _refused(code: int) -> dict[str, Any]:
    return {"error_code": code, "producer_id": _NONE, "producer_epoch": _NONE}
