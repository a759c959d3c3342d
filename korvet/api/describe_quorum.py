"""DescribeQuorum (55), versions 0 to 2: the nodes that hold the cluster's metadata, and the offset of each.

- 1: when each was last seen (KIP-836)   - 2: messages, directories and endpoints (KIP-853)

The catalog lies in Redis, and every front-end reads it there. So the brokers are the voters, and none ever lags. The
answering node is the leader, as in Metadata. Offsets are the catalog's version, which counts its changes.

Source: KafkaRaftClient.handleDescribeQuorumRequest, DescribeQuorumRequest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import read_failure
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.store.topics import CLUSTER_METADATA_TOPIC
from korvet.wire import requests
from korvet.wire.writer import Fields

_LEADER_EPOCH: Final = 1
"""There are no elections, so the first epoch never ends."""
_LISTENER: Final = "PLAINTEXT"
_UNKNOWN: Final = (ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")


@api(
    55,
    0,
    2,
    needs=needs.cluster(
        needs.DESCRIBE,
        refused=lambda *_: {
            "error_code": ErrorCode.cluster_authorization_failed,
            "error_message": needs.MESSAGES[needs.CLUSTER],
            "topics": (),
            "nodes": (),
        },
    ),
)
async def handle(ctx: Context, request: requests.DescribeQuorumRequest) -> Fields:
    if not _names_metadata(request.topics):
        return _answer(
            [
                {
                    "topic_name": topic.topic_name,
                    "partitions": [_unknown(part.partition_index) async for part in ctx.paced(topic.partitions)],
                }
                async for topic in ctx.paced(request.topics)
            ]
        )
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        code = read_failure(ctx, error, ErrorCode.request_timed_out)
        return {"error_code": code, "error_message": str(error), "topics": (), "nodes": ()}
    return {
        **_answer([{"topic_name": CLUSTER_METADATA_TOPIC, "partitions": [_partition(ctx)]}]),
        "nodes": [
            {"node_id": node.id, "listeners": [{"name": _LISTENER, "host": node.host, "port": node.port}]}
            for node in ctx.listener.nodes.all()
        ],
    }


def _names_metadata(topics: Sequence[requests.TopicData]) -> bool:
    """True if the request names the one partition of the metadata, and nothing else."""
    requested = [(topic.topic_name, part.partition_index) for topic in topics for part in topic.partitions]
    return len(topics) == 1 and requested == [(CLUSTER_METADATA_TOPIC, 0)]


def _partition(ctx: Context) -> Fields:
    catalog, now_ms = ctx.frontend.catalog, time.time_ns() // 1_000_000
    directory_id = UUID(bytes=blake2b(catalog.cluster_id.encode(), digest_size=16).digest())
    return {
        "partition_index": 0,
        "error_code": 0,
        "error_message": "",
        "leader_id": ctx.listener.nodes.own_id,
        "leader_epoch": _LEADER_EPOCH,
        "high_watermark": catalog.version,
        "current_voters": [
            {
                "replica_id": node.id,
                "replica_directory_id": directory_id,
                "log_end_offset": catalog.version,
                "last_fetch_timestamp": now_ms,
                "last_caught_up_timestamp": now_ms,
            }
            for node in ctx.listener.nodes.all()
        ],
        "observers": (),
    }


def _unknown(index: int) -> Fields:
    code, message = _UNKNOWN
    return {
        "partition_index": index,
        "error_code": code,
        "error_message": message,
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": (),
        "observers": (),
    }


def _answer(topics: list[Fields]) -> Fields:
    return {"error_code": 0, "error_message": "", "topics": topics, "nodes": ()}
