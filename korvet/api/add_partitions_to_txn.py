"""AddPartitionsToTxn (key 24), versions 0 to 5: take partitions into a transaction.

- 2: PRODUCER_FENCED   - 3: flexible   - 4: several transactions, and ``verify_only`` (KIP-890)
- 5: TRANSACTION_ABORTABLE

Versions from 4 on are for brokers among themselves. With an authorizer they need CLUSTER_ACTION.

A partition that does not exist fails the whole transaction's request: the others are OPERATION_NOT_ATTEMPTED.

Source: KafkaApis.handleAddPartitionsToTxnRequest, TransactionCoordinator.handleAddPartitionsToTransaction and
handleVerifyPartitionsInTransaction
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.topic_lookup import known_topics
from korvet.api.shared.transaction_failures import code_for_version
from korvet.codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    INVALID_REQUEST,
    OPERATION_NOT_ATTEMPTED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from korvet.errors import KorvetError
from korvet.security.rights import Rights
from korvet.store.catalog.topic import Topic
from korvet.store.groups.types import TopicPartition
from korvet.store.topics import INTERNAL_TOPICS
from korvet.wire import requests

_BATCHED_SINCE: Final = 4
_ABORTABLE_SINCE: Final = 4
_FENCED_SINCE: Final = 2

Codes = Mapping[TopicPartition, int]


def _check(ctx: Context, rights: Rights, request: requests.AddPartitionsToTxnRequest) -> needs.Steps:
    if ctx.version >= _BATCHED_SINCE:
        if rights.allows_on_cluster(needs.CLUSTER_ACTION):
            return None
        return needs.refusal({"error_code": CLUSTER_AUTHORIZATION_FAILED, "results_by_transaction": ()})
    requested = request.v3_and_below_topics
    partitions = [(topic.name, index) for topic in requested for index in topic.partitions]
    if not rights.allows(needs.WRITE, needs.TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        return _refusal(dict.fromkeys(partitions, TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    denied = yield from needs.denied_names(ctx, rights, needs.WRITE, needs.TOPIC, (topic.name for topic in requested))
    if not denied:
        return None
    known = ctx.frontend.catalog.topic
    codes = {}
    for name, index in partitions:
        if ctx.frontend.turns.is_due():
            yield
        topic = known(name)
        if name in denied or name in INTERNAL_TOPICS:
            codes[name, index] = TOPIC_AUTHORIZATION_FAILED
        elif topic is None or not 0 <= index < topic.partitions:
            codes[name, index] = UNKNOWN_TOPIC_OR_PARTITION
        else:
            codes[name, index] = OPERATION_NOT_ATTEMPTED
    return _refusal(codes)


def _refusal(codes: Codes) -> needs.Narrowed:
    return needs.refusal({"results_by_topic_v3_and_below": _results(codes)})


@api(24, 0, 5, needs=_check)
async def handle(ctx: Context, request: requests.AddPartitionsToTxnRequest) -> Answer:
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
    results = await ctx.gathered(list(dict.fromkeys(request.transactions)), partial(_transaction, ctx))
    return {"error_code": 0, "results_by_transaction": results}


async def _transaction(ctx: Context, requested: requests.AddPartitionsToTxnTransaction) -> dict[str, Any]:
    codes = await _codes(
        ctx,
        requested.transactional_id,
        requested.producer_id,
        requested.producer_epoch,
        requested.topics,
        is_verified=requested.verify_only,
    )
    return {"transactional_id": requested.transactional_id, "topic_results": _results(codes)}


async def _codes(
    ctx: Context,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    requested: Sequence[requests.AddPartitionsToTxnTopic],
    *,
    is_verified: bool = False,
) -> Codes:
    partitions = list(dict.fromkeys((topic.name, index) for topic in requested for index in topic.partitions))
    known = await known_topics(ctx, [(topic.name, topic.partitions) for topic in requested])
    missing = {partition: code for partition in partitions if (code := _missing(known, partition)) != 0}
    if missing:
        return {partition: missing.get(partition, OPERATION_NOT_ATTEMPTED) for partition in partitions}
    if not transactional_id:
        return dict.fromkeys(partitions, INVALID_REQUEST)
    log, topics = ctx.frontend.log, {name: topic for name, topic in known.items() if isinstance(topic, Topic)}
    try:
        added = await ctx.frontend.transactions.add(
            transactional_id,
            producer_id,
            epoch,
            [log.partition(topics[name], index) for name, index in partitions],
            is_verified=is_verified,
        )
    except KorvetError as error:
        return dict.fromkeys(partitions, failure_code(error, "add_partitions_to_txn"))
    codes = added.codes if added.code == 0 else [added.code] * len(partitions)
    return {
        partition: code_for_version(code, ctx.version, _FENCED_SINCE, _ABORTABLE_SINCE)
        for partition, code in zip(partitions, codes, strict=True)
    }


def _missing(known: Mapping[str, Topic | int], partition: TopicPartition) -> int:
    """The code for a partition that cannot be added; 0 if it can. Nobody may write to an internal topic."""
    if partition[0] in INTERNAL_TOPICS:
        return TOPIC_AUTHORIZATION_FAILED
    topic = known.get(partition[0])
    if isinstance(topic, int):
        return topic
    return 0 if topic is not None and 0 <= partition[1] < topic.partitions else UNKNOWN_TOPIC_OR_PARTITION


def _results(codes: Codes) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, int]]] = {}
    for (name, index), code in codes.items():
        by_topic.setdefault(name, []).append({"partition_index": index, "partition_error_code": code})
    return [{"name": name, "results_by_partition": results} for name, results in by_topic.items()]
