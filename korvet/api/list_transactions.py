"""ListTransactions (key 66), versions 0 to 2: the transactional ids of this node.

- 1: a filter by the transaction's duration   - 2: a filter by a regular expression (KIP-1152)

Source: KafkaApis.handleListTransactionsRequest, TransactionStateManager.listTransactionStates
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.errors import KorvetError
from korvet.patterns import compiled
from korvet.store.transactions.types import Listed
from korvet.wire import requests

STATES: Final = frozenset(
    {
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    }
)  # fmt: skip
Matches = Callable[[str], Any]


@api(66, 0, 2, needs=needs.by_handler)
async def handle(ctx: Context, request: requests.ListTransactionsRequest) -> Answer:
    """The transactional ids that pass all filters, and the filter's states that do not exist."""
    unknown = [state for state in request.state_filters if state not in STATES]
    answer: dict[str, Any] = {"error_code": 0, "unknown_state_filters": unknown, "transaction_states": ()}
    pattern = request.transactional_id_pattern
    matches: Matches | None = None
    try:
        if pattern:
            # Clients choose the pattern, and all requests share the turns.
            await ctx.frontend.turns.turn()
            matches = compiled(pattern).fullmatch
    except ValueError:
        return {**answer, "error_code": ErrorCode.invalid_regular_expression, "unknown_state_filters": ()}
    transactions = ctx.frontend.transactions
    try:
        found, now_ms = await transactions.all(partial(_shown, ctx, matches)), await transactions.now_ms()
    except KorvetError as error:
        return {**answer, "error_code": failure_code(error, "list_transactions"), "unknown_state_filters": ()}
    answer["transaction_states"] = [
        {"transactional_id": one.transactional_id, "producer_id": one.producer_id, "transaction_state": one.state}
        for one in found
        if _is_wanted(request, one, now_ms)
    ]
    return answer


async def _shown(ctx: Context, matches: Matches | None, ids: Sequence[str]) -> Sequence[str]:
    """This node's ids that the client may describe, and that match. The states of others are not read."""
    own = [one async for one in ctx.paced(ids) if ctx.listener.nodes.lists(one, ctx.target)]
    unseen = await needs.unseen(ctx, needs.TRANSACTIONAL_ID, own)
    seen = [one for one in own if one not in unseen]
    if matches is None or not seen:
        return seen
    # A hostile expression takes milliseconds for a long id.
    return await ctx.frontend.log.in_thread(lambda: list(filter(matches, seen)))


def _is_wanted(request: requests.ListTransactionsRequest, one: Listed, now_ms: int) -> bool:
    duration_ms = request.duration_filter
    if request.producer_id_filters and one.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and one.state not in request.state_filters:
        return False
    return duration_ms < 0 or now_ms - one.started_ms > duration_ms
