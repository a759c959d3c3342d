"""WriteTxnMarkers (key 27), versions 1 and 2: end a producer's open transaction in partitions.

Kafka's brokers send it to each other, and administrators send it to end a transaction that hangs
(Admin.abortTransaction, KIP-664). It needs ALTER or CLUSTER_ACTION on the cluster. Korvet's own markers need
no request.

- 2: the transaction's version. From its version 2 on a marker has the epoch after the transaction's (KIP-1228).

Whatever the coordinator says, the marker ends the transaction that is open in the partition now. The partition refuses
later batches of it, and the coordinator's own marker then has no effect. Without an open transaction no marker is
written.

Source: KafkaApis.handleWriteTxnMarkersRequest, ProducerAppendInfo.appendEndTxnMarker, checkProducerEpoch
"""

from __future__ import annotations

from typing import Any, Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import read_failure_code
from korvet.api.shared.topic_lookup import known_topics
from korvet.codes import CLUSTER_AUTHORIZATION_FAILED, INVALID_PRODUCER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.store.contract import GONE
from korvet.store.log.appending.markers import Ending
from korvet.wire import requests

_BUMPS_SINCE: Final = 2
_LAST_EPOCH: Final = 2**15 - 1


def _all_refused(_ctx: Context, request: requests.WriteTxnMarkersRequest) -> dict[str, Any]:
    code = CLUSTER_AUTHORIZATION_FAILED
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [{"partition_index": one, "error_code": code} for one in topic.partition_indexes],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }


@api(27, 1, 2, needs=needs.cluster(needs.ALTER, needs.CLUSTER_ACTION, refused=_all_refused))
async def handle(ctx: Context, request: requests.WriteTxnMarkersRequest) -> Answer:
    """A code for each partition of each marker."""
    return {"markers": [await _written(ctx, marker) async for marker in ctx.paced(request.markers)]}


async def _written(ctx: Context, marker: requests.WritableTxnMarker) -> dict[str, Any]:
    known = await known_topics(ctx, [(topic.name, topic.partition_indexes) for topic in marker.topics])
    return {
        "producer_id": marker.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": await _code(ctx, known.get(topic.name), index, marker)}
                    async for index in ctx.paced(dict.fromkeys(topic.partition_indexes))
                ],
            }
            async for topic in ctx.paced(marker.topics)
        ],
    }


async def _code(ctx: Context, topic: Topic | int | None, index: int, marker: requests.WritableTxnMarker) -> int:
    if isinstance(topic, int):
        return topic
    if topic is None or not 0 <= index < topic.partitions:
        return UNKNOWN_TOPIC_OR_PARTITION
    try:
        code = await _end(ctx, topic, index, marker)
    except KorvetError as error:
        # The marker may be sent again, whatever its outcome. Kafka's admin client does so only on a missing leader.
        return read_failure_code(error, "write_txn_markers")
    return UNKNOWN_TOPIC_OR_PARTITION if code == GONE else code


async def _end(ctx: Context, topic: Topic, index: int, marker: requests.WritableTxnMarker) -> int:
    log = ctx.frontend.log
    partition = log.partition(topic, index)
    producers = await log.producers(partition, marker.producer_id)
    if producers is None:
        return GONE
    if not producers:
        return 0
    (found,) = producers
    if marker.producer_epoch < found.epoch:
        return INVALID_PRODUCER_EPOCH
    if found.ordinal < 0:
        return 0
    is_bumped = marker.producer_epoch > found.epoch or marker.producer_epoch == _LAST_EPOCH
    if marker.transaction_version >= _BUMPS_SINCE and not is_bumped:
        return INVALID_PRODUCER_EPOCH
    # The ordinal identifies the transaction: if it has ended since, the marker does not affect the next one.
    ending = Ending(found.ordinal, marker.producer_id, marker.producer_epoch, marker.transaction_result)
    return await log.mark(partition, ending)
