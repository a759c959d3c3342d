"""Offsets over the wire: logs' starts and ends, their offsets by time, and the offsets that groups committed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7 import ListOffsetsRequest, ListOffsetsResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.offset_commit import v8 as commit_v8
from kio.schema.offset_commit import v9 as commit_v9
from kio.schema.offset_fetch.v8 import OffsetFetchRequest, OffsetFetchResponse
from kio.schema.offset_fetch.v8.request import OffsetFetchRequestGroup
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import check

LATEST, EARLIEST = -1, -2
"""Timestamps of ListOffsets that stand for the log's end and its start."""
NO_OFFSET = -1
NO_LEADER = -1


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LogPosition(NamedTuple):
    """A record's offset, and its timestamp in milliseconds since 1970; -1 if there is none."""

    offset: int
    timestamp: int


class Committed(NamedTuple):
    """A committed offset and its leader epoch, -1 if it was committed without."""

    offset: int
    leader_epoch: int


def committed_offsets(client: Client, group: str) -> dict[TopicPartition, int]:
    """A group's committed offsets, by partition."""
    return {partition: found.offset for partition, found in committed_positions(client, group).items()}


def committed_positions(client: Client, group: str) -> dict[TopicPartition, Committed]:
    """A group's committed offsets with their leader epochs, by partition."""
    request = OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=GroupId(group), topics=None),), require_stable=False
    )

    def attempt() -> dict[TopicPartition, Committed]:
        found = client.ask_coordinator(group, request, OffsetFetchResponse).groups[0]
        check(found.error_code, f"offsets of group {group!r}")
        positions = {}
        for topic in found.topics:
            for item in topic.partitions:
                check(item.error_code, f"offset of group {group!r} in {topic.name}-{item.partition_index}")
                if item.committed_offset != NO_OFFSET:
                    position = Committed(int(item.committed_offset), int(item.committed_leader_epoch))
                    positions[TopicPartition(topic.name, item.partition_index)] = position
        return positions

    return retried(attempt)


def commit_offsets(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members, as a consumer that is no member does.

    :raises BrokerError: with UNKNOWN_MEMBER_ID if the group has members.
    """

    def attempt() -> None:
        for partition, code in try_to_commit(client, group, offsets).items():
            check(code, f"offset of group {group!r} in {partition}")

    retried(attempt)


def try_to_commit(
    client: Client, group: str, offsets: Mapping[TopicPartition, int], *, member: str = "", epoch: int = -1
) -> dict[TopicPartition, ErrorCode]:
    """Ask once to commit offsets; returns each partition's code.

    :param member: the member of the consumer protocol that commits, in its ``epoch``. Brokers before Kafka 4.0 know
        neither such members nor the request's version for them.
    :raises BrokerError: if the coordinator does not answer.
    """
    version: Any = commit_v9 if member else commit_v8
    request = version.OffsetCommitRequest(
        group_id=GroupId(group),
        generation_id_or_member_epoch=i32(epoch),
        member_id=member,
        topics=tuple(
            version.request.OffsetCommitRequestTopic(
                name=TopicName(topic),
                partitions=tuple(
                    version.request.OffsetCommitRequestPartition(
                        partition_index=i32(partition.partition),
                        committed_offset=i64(offsets[partition]),
                        committed_metadata="",
                    )
                    for partition in partitions
                ),
            )
            for topic, partitions in groupby(sorted(offsets), key=lambda partition: partition.topic)
        ),
    )
    answer = client.ask_coordinator(group, request, version.OffsetCommitResponse)
    return {
        TopicPartition(topic.name, int(item.partition_index)): item.error_code
        for topic in answer.topics
        for item in topic.partitions
    }


def log_offsets(client: Client, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """The offset of each partition's first record at or after a time (ms since 1970), or at `LATEST` or `EARLIEST`.

    It is -1 if there is no such record. A partition that does not exist (any more) is left out.
    """
    return {partition: found.offset for partition, found in log_positions(client, partitions, timestamp).items()}


def offsets_at(client: Client, ends: Mapping[TopicPartition, int], time_ms: int) -> dict[TopicPartition, int]:
    """The offset of each partition's first record at or after a time, else the partition's end, as ``ends`` has it.

    A time before 1970 counts as 1970, because `EARLIEST` and `LATEST` are numbers below zero.
    """
    found = log_offsets(client, ends, max(0, time_ms))
    return {partition: end if found.get(partition, -1) < 0 else found[partition] for partition, end in ends.items()}


def log_positions(
    client: Client, partitions: Iterable[TopicPartition], timestamp: int, left_out: Collection[ErrorCode] = ()
) -> dict[TopicPartition, LogPosition]:
    """As `log_offsets`, with the timestamps of the records that were found.

    :param left_out: partitions with these codes are not in the result, instead of an error for all.
    """
    wanted = sorted(set(partitions))
    return retried(lambda: _log_positions_once(client, wanted, timestamp, left_out)) if wanted else {}


def _log_positions_once(
    client: Client, wanted: list[TopicPartition], timestamp: int, left_out: Collection[ErrorCode]
) -> dict[TopicPartition, LogPosition]:
    leaders = leaders_of(client, wanted)
    found = {}
    for leader in sorted(set(leaders.values())):
        request = _list_offsets([partition for partition in wanted if leaders.get(partition) == leader], timestamp)
        for topic in client.ask(request, ListOffsetsResponse, leader).topics:
            for item in topic.partitions:
                if item.error_code in left_out:
                    continue
                check(item.error_code, f"offsets of {topic.name}-{item.partition_index}")
                partition = TopicPartition(topic.name, item.partition_index)
                found[partition] = LogPosition(int(item.offset), int(item.timestamp))
    return found


def leaders_of(client: Client, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The node that leads each partition; one that does not exist (any more) is left out.

    :raises BrokerError: with LEADER_NOT_AVAILABLE.
    """
    topics = client.topics(sorted({partition.topic for partition in wanted}))
    leaders = {
        TopicPartition(name, item.partition_index): int(item.leader_id)
        for name, topic in topics.items()
        for item in topic.partitions
    }
    found = {partition: leaders[partition] for partition in wanted if partition in leaders}
    for partition, leader in found.items():
        check(ErrorCode.leader_not_available if leader == NO_LEADER else ErrorCode.none, f"partition {partition}")
    return found


def _list_offsets(partitions: list[TopicPartition], timestamp: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        topics=tuple(
            ListOffsetsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    ListOffsetsPartition(partition_index=i32(partition.partition), timestamp=i64(timestamp))
                    for partition in same
                ),
            )
            for topic, same in groupby(partitions, key=lambda partition: partition.topic)
        ),
    )
