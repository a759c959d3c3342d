"""DescribeTransactions (key 65), version 0: the state of transactional ids.

Source: KafkaApis.handleDescribeTransactionsRequest, TransactionCoordinator.handleDescribeTransactions
"""

from __future__ import annotations

from functools import partial
from typing import Any

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.codes import INVALID_REQUEST, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_NOT_FOUND
from korvet.errors import KorvetError
from korvet.store.transactions.types import TransactionDescription
from korvet.wire import requests


def _refused(transactional_id: str) -> dict[str, Any]:
    return _without(transactional_id, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@api(
    65,
    0,
    0,
    needs=needs.items(
        needs.TRANSACTIONAL_ID,
        needs.DESCRIBE,
        field="transactional_ids",
        answered="transaction_states",
        refused=_refused,
    ),
)
async def handle(ctx: Context, request: requests.DescribeTransactionsRequest) -> Answer:
    """State, producer and partitions of each transactional id."""
    ids = list(dict.fromkeys(request.transactional_ids))
    return {"transaction_states": await ctx.gathered(ids, partial(_described, ctx))}


async def _described(ctx: Context, transactional_id: str) -> dict[str, Any]:
    if not transactional_id:
        return _without(transactional_id, INVALID_REQUEST)
    try:
        found = await ctx.frontend.transactions.describe_all(transactional_id)
    except KorvetError as error:
        return _without(transactional_id, failure_code(error, "describe_transactions"))
    return _without(transactional_id, TRANSACTIONAL_ID_NOT_FOUND) if found is None else await _fields(ctx, found)


def _without(transactional_id: str, code: int) -> dict[str, Any]:
    return {
        "error_code": code,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": (),
    }


async def _fields(ctx: Context, found: TransactionDescription) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    unseen = await needs.unseen(ctx, needs.TOPIC, (name for (name, _), _ in found.partitions))
    for (name, index), _ in found.partitions:
        if name not in unseen:
            topics.setdefault(name, []).append(index)
    return {
        "error_code": 0,
        "transactional_id": found.transactional_id,
        "transaction_state": found.state,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.started_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "topics": [{"topic": name, "partitions": sorted(indexes)} for name, indexes in topics.items()],
    }
