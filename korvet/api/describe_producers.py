"""DescribeProducers (key 61), version 0: the producers that a partition remembers, and their open transactions.

Source: KafkaApis.handleDescribeProducersRequest, ReplicaManager.activeProducerState
"""

from __future__ import annotations

from typing import Any, Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import read_failure_code
from korvet.api.shared.topic_lookup import known_topics
from korvet.codes import INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.store.topics import name_problem
from korvet.wire import requests
from korvet.wire.markers import COORDINATOR_EPOCH

_NO_EPOCH: Final = -1
_WHY: Final = {
    TOPIC_AUTHORIZATION_FAILED: needs.MESSAGES[needs.TOPIC],
    UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
}


def _refused(topic: requests.TopicRequest) -> dict[str, Any]:
    code = TOPIC_AUTHORIZATION_FAILED
    return {"name": topic.name, "partitions": [_answer(index, code) for index in topic.partition_indexes]}


@api(61, 0, 0, needs=needs.topics(needs.READ, _refused))
async def handle(ctx: Context, request: requests.DescribeProducersRequest) -> Answer:
    """The active producers of each partition, once for each."""
    known = await known_topics(ctx, [(topic.name, topic.partition_indexes) for topic in request.topics])
    requested: dict[str, list[int]] = {}
    for topic in request.topics:
        requested.setdefault(topic.name, []).extend(topic.partition_indexes)
    return {
        "topics": [
            {
                "name": name,
                "partitions": [
                    await _described(ctx, name, known.get(name), index)
                    async for index in ctx.paced(dict.fromkeys(indexes))
                ],
            }
            async for name, indexes in ctx.paced(requested.items())
        ]
    }


async def _described(ctx: Context, name: str, topic: Topic | int | None, index: int) -> dict[str, Any]:
    if isinstance(topic, int):
        return _answer(index, topic)
    if topic is None and (illegal := name_problem(name)) is not None:
        return {**_answer(index, INVALID_TOPIC_EXCEPTION), "error_message": illegal}
    if topic is None:
        return _answer(index, UNKNOWN_TOPIC_OR_PARTITION)
    if not 0 <= index < topic.partitions:
        # As in Kafka, an existing topic gets no message.
        return {**_answer(index, UNKNOWN_TOPIC_OR_PARTITION), "error_message": None}
    log = ctx.frontend.log
    try:
        producers = await log.producers(log.partition(topic, index))
    except KorvetError as error:
        return _answer(index, read_failure_code(error, "describe_producers"))
    if producers is None:
        return _answer(index, UNKNOWN_TOPIC_OR_PARTITION)
    return {
        **_answer(index, 0),
        "active_producers": [
            {
                "producer_id": one.producer_id,
                "producer_epoch": one.epoch,
                "last_sequence": one.last_sequence,
                "last_timestamp": one.last_timestamp,
                "coordinator_epoch": COORDINATOR_EPOCH if one.transactional_id else _NO_EPOCH,
                "current_txn_start_offset": one.first_open,
            }
            for one in producers
        ],
    }


def _answer(index: int, code: int) -> dict[str, Any]:
    return {"partition_index": index, "error_code": code, "error_message": _WHY.get(code), "active_producers": ()}
