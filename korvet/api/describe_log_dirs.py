"""DescribeLogDirs (key 35), versions 1 to 5: the bytes that each partition takes, and Redis's total and usable bytes.

- 2: flexible   - 3: an error of the whole answer   - 4: total and usable bytes (KIP-827)
- 5: cordoned directories (KIP-1066), of which korvet has none

A node has one log directory, which stands for Redis. Each partition lies in the directory of the node that leads it by
the hints. So a client that queries all nodes gets each partition once. A partition's bytes are its batches' in Redis,
as its local files' would be in Kafka. Total and usable bytes are all of Redis's, -1 without maxmemory.

Source: KafkaApis.handleDescribeLogDirsRequest, ReplicaManager.describeLogDirs
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import log_directory, read_failure
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.store.capacity import log_bytes, memory_of_primaries
from korvet.store.log.state.partition import Partition
from korvet.wire import requests
from korvet.wire.writer import Fields

_NO_LAG: Final = 0


@api(35, 1, 5, needs=needs.cluster(needs.DESCRIBE, refused=needs.failed(needs.CLUSTER, results=())))
async def handle(ctx: Context, request: requests.DescribeLogDirsRequest) -> Fields:
    directory = log_directory(ctx)
    store = ctx.frontend.store
    try:
        await ctx.frontend.catalog.refresh()
        partitions = sorted(_wanted(ctx, request.topics), key=lambda one: (one.topic.name, one.index))
        sizes = await log_bytes(store, partitions)
        total_bytes, usable_bytes, _ = await memory_of_primaries(store)
    except KorvetError as error:
        code = read_failure(ctx, error, ErrorCode.kafka_storage_error)
        return {"error_code": 0, "results": [{"error_code": code, "log_dir": directory, "topics": ()}]}
    result = {
        "error_code": 0,
        "log_dir": directory,
        "topics": _topics(zip(partitions, sizes, strict=True)),
        "total_bytes": total_bytes,
        "usable_bytes": usable_bytes,
    }
    return {"error_code": 0, "results": [result]}


def _wanted(ctx: Context, topics: Iterable[requests.DescribableLogDirTopic] | None) -> set[Partition]:
    """The existing partitions of this node among the given topics; None means all topics."""
    catalog, log, nodes = ctx.frontend.catalog, ctx.frontend.log, ctx.listener.nodes
    requested = (
        [(topic, range(topic.partitions)) for topic in catalog.topics()]
        if topics is None
        else [(topic, one.partitions) for one in topics if (topic := catalog.topic(one.topic)) is not None]
    )
    return {
        log.partition(topic, index)
        for topic, indexes in requested
        for index in indexes
        if 0 <= index < topic.partitions and nodes.leads(topic.name, index, ctx.target)
    }


def _topics(sized: Iterable[tuple[Partition, int]]) -> list[Fields]:
    return [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": partition.index,
                    "partition_size": size,
                    "offset_lag": _NO_LAG,
                    "is_future_key": False,
                }
                for partition, size in same
            ],
        }
        for name, same in groupby(sized, key=lambda one: one[0].topic.name)
    ]
