"""AddPartitionsToTxn (key 24), versions 0 to 5: take partitions into a transaction.

- 2: PRODUCER_FENCED   - 3: flexible   - 4: several transactions, and to verify only (KIP-890)
- 5: TRANSACTION_ABORTABLE

Versions from 4 on are for brokers among themselves. As on Kafka without an authorizer, anybody may send them.

A partition that does not exist has the whole transaction's request fail: the others are OPERATION_NOT_ATTEMPTED.

Source: KafkaApis.handleAddPartitionsToTxnRequest, TransactionCoordinator.handleAddPartitionsToTransaction and
handleVerifyPartitionsInTransaction
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.group_failures import failure_code
from korvet.api.topic_lookup import known_topics
from korvet.api.transaction_failures import INVALID_REQUEST, told
from korvet.errors import KorvetError
from korvet.store.catalog import Topic
from korvet.store.group_types import Place

_BATCHED_SINCE: Final = 4
_FENCED_SINCE: Final = 2
OPERATION_NOT_ATTEMPTED: Final = int(ErrorCode.operation_not_attempted)
UNKNOWN_TOPIC_OR_PARTITION: Final = int(ErrorCode.unknown_topic_or_partition)

Codes = Mapping[Place, int]


@api(24, 0, 5)
async def handle(ctx: Context, request: Any) -> Answer:
    """A code for each partition."""
    if ctx.version < _BATCHED_SINCE:
        codes = await _codes(
            ctx,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            request.v3_and_below_topics,
        )
        return {"results_by_topic_v3_and_below": _results(codes)}
    results = []
    for asked in request.transactions:
        codes = await _codes(
            ctx,
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            asked.topics,
            is_verified=asked.verify_only,
        )
        results.append({"transactional_id": asked.transactional_id, "topic_results": _results(codes)})
    return {"error_code": 0, "results_by_transaction": results}


async def _codes(
    ctx: Context, transactional_id: str, producer_id: int, epoch: int, topics: Any, *, is_verified: bool = False
) -> Codes:
    places = [(topic.name, index) for topic in topics for index in topic.partitions]
    known = await _known(ctx, topics)
    missing = {place: code for place in places if (code := _missing(known, place)) != 0}
    if missing:
        return {place: missing.get(place, OPERATION_NOT_ATTEMPTED) for place in places}
    if not transactional_id:
        return dict.fromkeys(places, INVALID_REQUEST)
    ids = {name: topic.id.hex for name, topic in known.items() if isinstance(topic, Topic)}
    try:
        added = await ctx.frontend.transactions.add(
            transactional_id,
            producer_id,
            epoch,
            [(f"{name}:{index}", ids[name]) for name, index in places],
            is_verified=is_verified,
        )
    except KorvetError as error:
        return dict.fromkeys(places, failure_code(error, "add_partitions_to_txn"))
    code = told(added.code, ctx.version, _FENCED_SINCE)
    return dict.fromkeys(places, code) if code != 0 else dict(zip(places, added.codes, strict=True))


async def _known(ctx: Context, topics: Any) -> Mapping[str, Topic | int]:
    return await known_topics(ctx, topics, indexes=lambda topic: topic.partitions)


def _missing(known: Mapping[str, Topic | int], place: Place) -> int:
    topic = known.get(place[0])
    if isinstance(topic, int):
        return topic
    return 0 if topic is not None and 0 <= place[1] < topic.partitions else UNKNOWN_TOPIC_OR_PARTITION


def _results(codes: Codes) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, int]]] = {}
    for (name, index), code in codes.items():
        by_topic.setdefault(name, []).append({"partition_index": index, "partition_error_code": code})
    return [{"name": name, "results_by_partition": results} for name, results in by_topic.items()]
