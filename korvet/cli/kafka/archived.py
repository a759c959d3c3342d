"""The archived ends of partitions, as retention counts them.

A committed offset counts up to the end of its leader epoch in the log as it is now. It counts for nothing without an
epoch, or with one that the log does not know. Source: korvet.store.groups.archived
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4 import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderPartition, OffsetForLeaderTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import BrokerError, check
from korvet.cli.kafka.offsets import Committed, TopicPartition, committed_positions, leaders_of

ARCHIVE_GROUP = "korvet.archive"
"""The group whose committed offsets are the ends of the archived records."""


def archived_positions(client: Client) -> dict[TopicPartition, Committed]:
    """The archive's committed offsets that have an epoch, by partition; empty if this client may not see them."""
    try:
        found = committed_positions(client, ARCHIVE_GROUP)
    except BrokerError as error:
        if error.code is ErrorCode.group_authorization_failed:
            return {}
        raise
    return {partition: position for partition, position in found.items() if position.leader_epoch >= 0}


def archived_ends(client: Client, positions: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:
    """The offsets below which retention takes records for archived; a partition is left out if it takes none."""
    return retried(lambda: _archived_ends_once(client, positions)) if positions else {}


def _archived_ends_once(client: Client, positions: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:
    leaders = leaders_of(client, sorted(positions))
    ends = {}
    for leader in sorted(set(leaders.values())):
        request = _request({each: positions[each].leader_epoch for each, at in leaders.items() if at == leader})
        for topic in client.ask(request, OffsetForLeaderEpochResponse, leader).topics:
            for item in topic.partitions:
                partition = TopicPartition(topic.topic, int(item.partition))
                check(item.error_code, f"leader epochs of {partition}")
                if item.leader_epoch == positions[partition].leader_epoch:
                    ends[partition] = min(positions[partition].offset, int(item.end_offset))
    return ends


def _request(epochs: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(
        replica_id=BrokerId(-1),
        topics=tuple(
            OffsetForLeaderTopic(
                topic=TopicName(topic),
                partitions=tuple(
                    OffsetForLeaderPartition(partition=i32(each.partition), leader_epoch=i32(epochs[each]))
                    for each in same
                ),
            )
            for topic, same in groupby(sorted(epochs), key=lambda partition: partition.topic)
        ),
    )
