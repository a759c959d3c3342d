"""Offsets over the wire: logs' starts, ends and sizes, their offsets by time, and the offsets that groups committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.framing import Request, request

LATEST, EARLIEST = -1, -2
"""Timestamps of ListOffsets that stand for the log's end and its start."""
_EARLIEST_LOCAL, _LATEST_TIERED = -4, -5
_TIER_SINCE = 9
"""The first version of ListOffsets with both."""
NO_OFFSET = -1
NO_LEADER = -1
NO_REPLICA = -1
"""The replica id of a client."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LogPosition(NamedTuple):
    """A record's offset, and its timestamp in milliseconds since 1970; -1 without a record."""

    offset: int
    timestamp: int


class Committed(NamedTuple):
    """A committed offset and its leader epoch, -1 if it was committed without."""

    offset: int
    leader_epoch: int


class Standing(NamedTuple):
    """Where a group is in a partition: a consumer group's committed offset, or a share partition's start offset.

    The end is None if there is no such partition. The lag is in records; that of a share group has no finished ones.
    """

    offset: int | None
    end: int | None
    lag: int | None


Say = Callable[[TopicPartition], Mapping[str, Any]] | None
"""The fields of a partition in a request; None if it stands there as a bare number."""


def by_topic(partitions: Iterable[TopicPartition], say: Say) -> list[dict[str, Any]]:
    """A request's topics with their partitions, whatever its schema calls names and numbers."""

    def number_of(one: TopicPartition) -> Any:
        number = one.partition
        return number if say is None else {"partition": number, "partition_index": number, **say(one)}

    topics: dict[str, list[Any]] = {}
    for one in partitions:
        topics.setdefault(one.topic, []).append(number_of(one))
    return [{"name": topic, "topic": topic, "partitions": own} for topic, own in topics.items()]


def by_partition(topics: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """The partitions of an answer's topics, whatever its schema calls names and numbers."""
    for topic in topics:
        name = topic.name if hasattr(topic, "name") else topic.topic
        for item in topic.partitions:
            number = item.partition_index if hasattr(item, "partition_index") else item.partition
            yield TopicPartition(str(name), int(number)), item


def ask_leaders(
    client: Client, partitions: Iterable[TopicPartition], say: Say, api: str, version: int, **fields: Any
) -> Iterator[Any]:
    """The answers of the leaders, each to a request for its own partitions; see `by_topic`.

    A partition that does not exist, or no longer does, is left out.
    """
    leaders = leaders_of(client, sorted(set(partitions)))
    for leader in sorted(set(leaders.values())):
        own = [one for one, at in leaders.items() if at == leader]
        yield client.ask(request(api, version, topics=by_topic(own, say), **fields), leader)


def committed_offsets(client: Client, group: str) -> dict[TopicPartition, int]:
    """A group's committed offsets, by partition."""
    return {partition: found.offset for partition, found in committed_positions(client, group).items()}


@retried
def committed_positions(client: Client, group: str) -> dict[TopicPartition, Committed]:
    """A group's committed offsets with their leader epochs, by partition."""
    (found,) = client.ask_coordinator(group, fetching((group,))).groups
    check(found.error_code, f"offsets of group {group!r}")
    positions = {}
    for partition, item in by_partition(found.topics):
        check(item.error_code, f"offset of group {group!r} in {partition}")
        if item.committed_offset != NO_OFFSET:
            positions[partition] = Committed(int(item.committed_offset), int(item.committed_leader_epoch))
    return positions


def fetching(groups: Iterable[str]) -> Request:
    """A request for all offsets of groups."""
    return request("offset_fetch", 8, groups=[{"group_id": group, "topics": None} for group in groups])


def standings(
    client: Client, group: str, assigned: Iterable[TopicPartition], *, is_share: bool
) -> dict[TopicPartition, Standing]:
    """Where a group is in the partitions for which it has an offset, and in the assigned ones; in their order."""
    lags = share_offsets(client, group) if is_share else {}
    offsets = {one: start for one, (start, _) in lags.items()} if is_share else committed_offsets(client, group)
    partitions = sorted({*offsets, *assigned})
    ends = log_offsets(client, partitions, LATEST)
    found = {}
    for one in partitions:
        offset, end = offsets.get(one), ends.get(one)
        lag = None if offset is None or end is None else max(end - offset, 0)
        found[one] = Standing(offset, end, lags[one][1] if one in lags else lag)
    return found


@retried
def share_offsets(client: Client, group: str) -> dict[TopicPartition, tuple[int, int | None]]:
    """The start offset and the lag of each share partition of a group that has a start."""
    (found,) = client.ask_coordinator(group, share_fetching((group,))).groups
    check(found.error_code, f"offsets of group {group!r}", found.error_message)
    return started(found)


def share_fetching(groups: Iterable[str]) -> Request:
    """A request for all share partitions of share groups."""
    asked = [{"group_id": group, "topics": None} for group in groups]
    return request("describe_share_group_offsets", 1, groups=asked)


def started(group: Any) -> dict[TopicPartition, tuple[int, int | None]]:
    """The start offsets and lags in a group's answer."""
    return {
        TopicPartition(str(topic.topic_name), int(one.partition_index)): (
            int(one.start_offset),
            int(one.lag) if one.lag >= 0 else None,
        )
        for topic in group.topics
        for one in topic.partitions
        if one.error_code is ErrorCode.none and one.start_offset != NO_OFFSET
    }


@retried
def alter_share_offsets(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set the start offsets of a share group without members.

    :raises BrokerError: with NON_EMPTY_GROUP if the group has members.
    """
    topics: dict[str, list[dict[str, int]]] = {}
    for partition, offset in offsets.items():
        entry = {"partition_index": partition.partition, "start_offset": offset}
        topics.setdefault(partition.topic, []).append(entry)
    asked = [{"topic_name": topic, "partitions": entries} for topic, entries in topics.items()]
    answer = client.ask_coordinator(group, request("alter_share_group_offsets", 0, group_id=group, topics=asked))
    check(answer.error_code, f"offsets of group {group!r}", answer.error_message)
    for topic in answer.responses:
        for one in topic.partitions:
            place = TopicPartition(str(topic.topic_name), int(one.partition_index))
            check(one.error_code, f"offset of group {group!r} in {place}", one.error_message)


@retried
def commit_offsets(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members, as a consumer that is no member does.

    :raises BrokerError: with UNKNOWN_MEMBER_ID if the group has members.
    """
    for partition, code in try_to_commit(client, group, offsets).items():
        check(code, f"offset of group {group!r} in {partition}")


def try_to_commit(
    client: Client, group: str, offsets: Mapping[TopicPartition, int], *, member: str = "", epoch: int = -1
) -> dict[TopicPartition, ErrorCode]:
    """Ask once to commit offsets; returns each partition's code.

    :param member: the member of the consumer protocol that commits, in its ``epoch``. Brokers before Kafka 4.0 know
        neither such members nor the request's version for them.
    :raises BrokerError: if the coordinator does not answer.
    """
    answer = client.ask_coordinator(
        group,
        request(
            "offset_commit",
            9 if member else 8,
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member,
            topics=by_topic(offsets, lambda one: {"committed_offset": offsets[one], "committed_metadata": ""}),
        ),
    )
    return {partition: item.error_code for partition, item in by_partition(answer.topics)}


def log_offsets(client: Client, partitions: Collection[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """The offset of each partition's first record at or after a time (ms since 1970), or at `LATEST` or `EARLIEST`.

    It is -1 if there is no such record. Partitions that do not exist are left out.
    """
    return {partition: found.offset for partition, found in log_positions(client, partitions, timestamp).items()}


def log_limits(
    client: Client, partitions: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The starts and the ends of partitions' logs. Partitions that do not exist are in neither."""
    starts, ends = log_offsets(client, partitions, EARLIEST), log_offsets(client, partitions, LATEST)
    there = [partition for partition in starts if partition in ends]
    return {one: starts[one] for one in there}, {one: ends[one] for one in there}


def offsets_at(client: Client, ends: Mapping[TopicPartition, int], time_ms: int) -> dict[TopicPartition, int]:
    """The offset of each partition's first record at or after a time, else the partition's end, as ``ends`` has it.

    A time before 1970 counts as 1970, because `EARLIEST` and `LATEST` are numbers below zero.
    """
    found = log_offsets(client, ends, max(0, time_ms))
    return {partition: end if found.get(partition, -1) < 0 else found[partition] for partition, end in ends.items()}


@retried
def log_positions(
    client: Client,
    partitions: Collection[TopicPartition],
    timestamp: int,
    left_out: Collection[ErrorCode] = (),
    version: int = 7,
) -> dict[TopicPartition, LogPosition]:
    """As `log_offsets`, with the timestamps of the records that were found.

    :param left_out: partitions with these codes are not in the result, instead of an error for all.
    :param version: of ListOffsets.
    """
    say, reader = {"timestamp": timestamp}, {"replica_id": NO_REPLICA, "isolation_level": 0}
    found = {}
    for answer in ask_leaders(client, partitions, lambda _: say, "list_offsets", version, **reader):
        for partition, item in by_partition(answer.topics):
            if item.error_code not in left_out:
                check(item.error_code, f"offsets of {partition}")
                found[partition] = LogPosition(int(item.offset), int(item.timestamp))
    return found


def oldest_times(client: Client, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The timestamp of each partition's first record, in ms since 1970; a partition without any is left out, and one
    whose first record is in a tier that is away."""
    found = log_positions(client, partitions, 0, (ErrorCode.kafka_storage_error,))
    return {partition: position.timestamp for partition, position in found.items() if position.offset != NO_OFFSET}


def tier_limits(client: Client, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset that is not only in the tier, and the offset after the last one in it, of partitions of topics
    with `remote.storage.enable`. They are equal if nothing is in the tier."""
    local, tiered = (
        log_positions(client, partitions, at, version=_TIER_SINCE) for at in (_EARLIEST_LOCAL, _LATEST_TIERED)
    )
    return {one: (local[one].offset, max(local[one].offset, tiered[one].offset + 1)) for one in local if one in tiered}


@retried
def log_bytes(client: Client, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The bytes of each partition's log at its leader. Partitions that do not exist are left out.

    :raises BrokerError: if a leader fails to answer.
    """
    sizes = {}
    for answer in ask_leaders(client, partitions, None, "describe_log_dirs", 2):
        for directory in answer.results:
            check(directory.error_code, f"log directory {directory.log_dir}")
            for partition, item in by_partition(directory.topics):
                if not item.is_future_key:
                    sizes[partition] = int(item.partition_size)
    return sizes


def leaders_of(client: Client, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The node that leads each partition. Partitions that do not exist are left out.

    :raises BrokerError: with LEADER_NOT_AVAILABLE.
    """
    if not wanted:
        return {}
    topics = client.topics(sorted({partition.topic for partition in wanted}))
    leaders = {partition: int(item.leader_id) for partition, item in by_partition(topics.values())}
    found = {partition: leaders[partition] for partition in wanted if partition in leaders}
    for partition, leader in found.items():
        check(ErrorCode.leader_not_available if leader == NO_LEADER else ErrorCode.none, f"partition {partition}")
    return found
