"""WriteTxnMarkers (key 27), version 1: end what is open of a producer in partitions, whatever its coordinator says.

Kafka's coordinators send it among brokers, and administrators to end a transaction that hangs (Admin.abortTransaction,
KIP-664). As on Kafka without an authorizer, anybody may send it. Korvet's own markers need no request.

The marker ends the transaction that is open in the partition now: batches of it that come later are refused, and the
coordinator's own marker for it then finds nothing to do. Where nothing is open none is written, for it would tell
nobody anything.

Source: KafkaApis.handleWriteTxnMarkersRequest, ProducerAppendInfo.appendEndTxnMarker
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.data_failures import UNKNOWN_TOPIC_OR_PARTITION, read_failure_code
from korvet.api.topic_lookup import known_topics
from korvet.errors import KorvetError
from korvet.store.catalog import Topic
from korvet.store.log import GONE, Ending

INVALID_PRODUCER_EPOCH: Final = int(ErrorCode.invalid_producer_epoch)


@api(27, 1, 1)
async def handle(ctx: Context, request: Any) -> Answer:
    """A code for each partition of each marker."""
    return {"markers": [await _written(ctx, marker) for marker in request.markers]}


async def _written(ctx: Context, marker: Any) -> dict[str, Any]:
    known = await known_topics(ctx, marker.topics, indexes=lambda topic: topic.partition_indexes)
    return {
        "producer_id": marker.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": await _code(ctx, known.get(topic.name), index, marker)}
                    for index in topic.partition_indexes
                ],
            }
            for topic in marker.topics
        ],
    }


async def _code(ctx: Context, topic: Topic | int | None, index: int, marker: Any) -> int:
    if isinstance(topic, int):
        return topic
    if topic is None or not 0 <= index < topic.partitions:
        return UNKNOWN_TOPIC_OR_PARTITION
    try:
        code = await _end(ctx, topic, index, marker)
    except KorvetError as error:
        # May be sent again, whatever became of it: Kafka's admin client does so only where it is told of no leader.
        return read_failure_code(error, "write_txn_markers")
    return UNKNOWN_TOPIC_OR_PARTITION if code == GONE else code


async def _end(ctx: Context, topic: Topic, index: int, marker: Any) -> int:
    log = ctx.frontend.log
    partition = log.partition(topic, index)
    producers = await log.producers(partition)
    if producers is None:
        return GONE
    found = next((one for one in producers if one.producer_id == marker.producer_id), None)
    if found is None:
        return 0
    if marker.producer_epoch < found.epoch:
        return INVALID_PRODUCER_EPOCH
    if found.ordinal < 0:
        return 0
    # By its ordinal: where that transaction has ended since, the marker changes nothing of the next one.
    ending = Ending(found.ordinal, marker.producer_id, marker.producer_epoch, marker.transaction_result)
    return await log.mark(partition, ending)
