"""AlterReplicaLogDirs (34), versions 1 and 2: move replicas to another log directory of their broker (KIP-113).

- 2: flexible

A broker shows one directory, which stands for Redis (`korvet.api.describe_log_dirs`): every replica is there already.

Source: KafkaApis.handleAlterReplicaLogDirsRequest, ReplicaManager.alterReplicaLogDirs.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import log_directory, read_failure
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.wire import requests
from korvet.wire.writer import Fields


def _all_refused(_ctx: Context, request: requests.AlterReplicaLogDirsRequest) -> Fields:
    code = ErrorCode.cluster_authorization_failed
    return {
        "results": [
            {
                "topic_name": topic.name,
                "partitions": [{"partition_index": index, "error_code": code} for index in topic.partitions],
            }
            for directory in request.dirs
            for topic in directory.topics
        ]
    }


@api(34, 1, 2, needs=needs.cluster(needs.ALTER, refused=_all_refused))
async def handle(ctx: Context, request: requests.AlterReplicaLogDirsRequest) -> Fields:
    # As in Kafka, the last directory named for a partition counts, and each partition is answered once.
    requested: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            async for index in ctx.paced(topic.partitions):
                requested.setdefault(topic.name, {})[index] = directory.path
    failure = await _read(ctx)
    return {
        "results": [
            {
                "topic_name": name,
                "partitions": [
                    {"partition_index": index, "error_code": failure or _code(ctx, name, index, path)}
                    async for index, path in ctx.paced(paths.items())
                ],
            }
            async for name, paths in ctx.paced(requested.items())
        ]
    }


async def _read(ctx: Context) -> ErrorCode | None:
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        return read_failure(ctx, error, ErrorCode.kafka_storage_error)
    return None


def _code(ctx: Context, name: str, index: int, path: str) -> ErrorCode:
    if path != log_directory(ctx):
        return ErrorCode.log_dir_not_found
    topic = ctx.frontend.catalog.topic(name)
    is_there = topic is not None and 0 <= index < topic.partitions
    return ErrorCode.none if is_there else ErrorCode.unknown_topic_or_partition
