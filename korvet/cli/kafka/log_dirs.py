"""The bytes of partitions and the times of their oldest records, over the wire."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from kio.schema.describe_log_dirs.v2 import DescribeLogDirsRequest, DescribeLogDirsResponse
from kio.schema.describe_log_dirs.v2.request import DescribableLogDirTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.offsets import NO_OFFSET, TopicPartition, leaders_of, log_positions

_ANY_TIME = 0


def log_bytes(client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The bytes of each partition's log at its leader; a partition that does not exist (any more) is left out.

    :raises BrokerError: if a leader cannot tell.
    """
    wanted = sorted(set(partitions))
    return retried(lambda: _log_bytes_once(client, wanted)) if wanted else {}


def _log_bytes_once(client: Client, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
    leaders = leaders_of(client, wanted)
    sizes = {}
    for leader in sorted(set(leaders.values())):
        request = _describe([partition for partition in wanted if leaders.get(partition) == leader])
        for directory in client.ask(request, DescribeLogDirsResponse, leader).results:
            check(directory.error_code, f"log directory {directory.log_dir} of node {leader}")
            for topic in directory.topics:
                for item in topic.partitions:
                    if not item.is_future_key:
                        sizes[TopicPartition(topic.name, item.partition_index)] = int(item.partition_size)
    return sizes


def _describe(partitions: list[TopicPartition]) -> DescribeLogDirsRequest:
    return DescribeLogDirsRequest(
        topics=tuple(
            DescribableLogDirTopic(
                topic=TopicName(topic), partitions=tuple(i32(partition.partition) for partition in same)
            )
            for topic, same in groupby(partitions, key=lambda partition: partition.topic)
        )
    )


def oldest_times(client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The timestamp of each partition's first record, in ms since 1970; a partition without any is left out."""
    found = log_positions(client, partitions, _ANY_TIME)
    return {partition: position.timestamp for partition, position in found.items() if position.offset != NO_OFFSET}
