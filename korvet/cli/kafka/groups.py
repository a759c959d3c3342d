"""Consumer groups and offsets over the wire: list, describe, delete groups, read and write what they committed."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from kio.schema.consumer_group_describe import v0 as consumer_v0
from kio.schema.consumer_group_describe import v1 as consumer_v1
from kio.schema.consumer_group_describe.v0.response import Assignment
from kio.schema.delete_groups.v2 import DeleteGroupsRequest, DeleteGroupsResponse
from kio.schema.describe_configs.v4 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsResource
from kio.schema.describe_groups.v5 import DescribeGroupsRequest, DescribeGroupsResponse
from kio.schema.describe_groups.v5.response import DescribedGroup, DescribedGroupMember
from kio.schema.errors import ErrorCode
from kio.schema.list_groups import v4 as list_v4
from kio.schema.list_groups import v5 as list_v5
from kio.schema.list_offsets.v7 import ListOffsetsRequest, ListOffsetsResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.offset_commit.v8 import OffsetCommitRequest, OffsetCommitResponse
from kio.schema.offset_commit.v8.request import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kio.schema.offset_fetch.v8 import OffsetFetchRequest, OffsetFetchResponse
from kio.schema.offset_fetch.v8.request import OffsetFetchRequestGroup
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from korvet.cli.kafka.client import Client, check, retried

LATEST, EARLIEST = -1, -2
"""Timestamps of ListOffsets that stand for the log's end and its start."""
NO_OFFSET = -1
NO_LEADER = -1
CONSUMER = "consumer"
STATE_DEAD, STATE_EMPTY = "Dead", "Empty"
GROUP_RESOURCE = 32
GROUP_FACTS = {"korvet.group.id": "id", "korvet.group.locator": "locator", "korvet.group.waits": "waits"}
"""Configs of a group that korvet's brokers show, and what they are called here."""
CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"
_LIST_GROUPS, _CONSUMER_GROUP_DESCRIBE = 16, 69
_TYPES_SINCE = 5
_UNKNOWN_MEMBER_TYPE, _CLASSIC_MEMBER = -1, 0


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LogPosition(NamedTuple):
    """A record's offset, and its timestamp in milliseconds since 1970; -1 where there is none."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group as ListGroups shows it; before Kafka 4.0 all that are listed are classic."""

    group: str
    state: str
    protocol_type: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a group and the partitions it was assigned.

    Of a group of the consumer protocol there is also what it is to have in the end, and its epoch; ``protocol`` is the
    one that the member speaks, None where the broker does not tell.
    """

    id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None = None
    epoch: int | None = None
    protocol: str | None = CLASSIC_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group as DescribeGroups or ConsumerGroupDescribe shows it; one that nobody knows is ``Dead``.

    ``protocol`` is the chosen assignor. The epochs are those of a group of the consumer protocol, and of its target.
    """

    group: str
    type: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[Member, ...]
    epoch: int | None = None
    target_epoch: int | None = None


def list_groups(client: Client, states: Iterable[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
    """The groups of every broker, by id, only those in the named states and of the named types where any are named."""
    found: dict[str, ListedGroup] = {}
    knows_types = client.serves(_LIST_GROUPS, _TYPES_SINCE)
    for node in client.brokers():
        for listed in (
            _listed(client, node, tuple(states), tuple(types))
            if knows_types
            else _listed_classic(client, node, tuple(states))
        ):
            if not types or listed.type in types:
                found[listed.group] = listed
    return [found[group] for group in sorted(found)]


def _listed(client: Client, node: int, states: tuple[str, ...], types: tuple[str, ...]) -> Iterator[ListedGroup]:
    request = list_v5.ListGroupsRequest(states_filter=states, types_filter=types)
    response = client.ask(request, list_v5.ListGroupsResponse, node)
    check(response.error_code, "list of groups")
    for item in response.groups:
        yield ListedGroup(
            group=item.group_id,
            state=item.group_state,
            protocol_type=item.protocol_type,
            type=item.group_type.lower(),
        )


def _listed_classic(client: Client, node: int, states: tuple[str, ...]) -> Iterator[ListedGroup]:
    response = client.ask(list_v4.ListGroupsRequest(states_filter=states), list_v4.ListGroupsResponse, node)
    check(response.error_code, "list of groups")
    for item in response.groups:
        yield ListedGroup(
            group=item.group_id, state=item.group_state, protocol_type=item.protocol_type, type=CLASSIC_TYPE
        )


def describe_group(client: Client, group: str) -> Group:
    """A group's state and members, whichever of the two protocols it is of."""
    described = _described_classic(client, group)
    if described.state == STATE_DEAD and client.serves(_CONSUMER_GROUP_DESCRIBE, 0):
        return _described_consumer(client, group) or described
    return described


def _described_classic(client: Client, group: str) -> Group:
    request = DescribeGroupsRequest(groups=(GroupId(group),), include_authorized_operations=False)

    def attempt() -> DescribedGroup:
        described = client.ask_coordinator(group, request, DescribeGroupsResponse).groups[0]
        check(described.error_code, f"group {group!r}")
        return described

    described = retried(attempt)
    return Group(
        group=group,
        type=CLASSIC_TYPE,
        state=described.group_state,
        protocol_type=described.protocol_type,
        protocol=described.protocol_data,
        members=tuple(_member(member) for member in described.members),
    )


def _described_consumer(client: Client, group: str) -> Group | None:
    """None where there is no such group of the consumer protocol."""
    described = retried(lambda: _consumer_group(client, group))
    if described.error_code is ErrorCode.group_id_not_found:
        return None
    return Group(
        group=group,
        type=CONSUMER_TYPE,
        state=described.group_state,
        protocol_type=CONSUMER,
        protocol=described.assignor_name,
        members=tuple(_consumer_member(member) for member in described.members),
        epoch=int(described.group_epoch),
        target_epoch=int(described.assignment_epoch),
    )


def _consumer_group(client: Client, group: str) -> Any:
    """A described group of either version, or one whose code is that there is none."""
    schema: Any = consumer_v1 if client.serves(_CONSUMER_GROUP_DESCRIBE, 1) else consumer_v0
    request = schema.ConsumerGroupDescribeRequest(group_ids=(GroupId(group),), include_authorized_operations=False)
    described = client.ask_coordinator(group, request, schema.ConsumerGroupDescribeResponse).groups[0]
    if described.error_code is not ErrorCode.group_id_not_found:
        check(described.error_code, f"group {group!r}", described.error_message)
    return described


def _consumer_member(member: Any) -> Member:
    type_ = getattr(member, "member_type", _UNKNOWN_MEMBER_TYPE)
    protocol = CLASSIC_TYPE if type_ == _CLASSIC_MEMBER else CONSUMER_TYPE
    return Member(
        id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=_assigned(member.assignment),
        target=_assigned(member.target_assignment),
        epoch=int(member.member_epoch),
        protocol=None if type_ == _UNKNOWN_MEMBER_TYPE else protocol,
    )


def _assigned(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, int(partition))
            for topic in assignment.topic_partitions
            for partition in topic.partitions
        )
    )


def _member(member: DescribedGroupMember) -> Member:
    return Member(
        id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=parse_assignment(member.member_assignment),
    )


def parse_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Partitions of a ConsumerProtocolAssignment of any version; empty where the bytes are something else.

    Source: ConsumerProtocolAssignment.json; later versions only append to version 0.
    """
    partitions = []
    try:
        at = 6
        for _ in range(struct.unpack_from(">hi", data)[1] if data else 0):
            (length,) = struct.unpack_from(">h", data, at)
            topic = data[at + 2 : at + 2 + length].decode()
            (count,) = struct.unpack_from(">i", data, at + 2 + length)
            at += 6 + length
            partitions += [TopicPartition(topic, item) for item in struct.unpack_from(f">{count}i", data, at)]
            at += 4 * count
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(partitions))


def group_facts(client: Client, group: str) -> Mapping[str, str]:
    """What korvet alone tells of a group: ``id``, ``locator`` and, while it ``waits``, for what; else nothing."""
    resource = DescribeConfigsResource(
        resource_type=i8(GROUP_RESOURCE), resource_name=group, configuration_keys=tuple(GROUP_FACTS)
    )
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=False, include_documentation=False)
    (result,) = client.ask(request, DescribeConfigsResponse).results
    # Brokers before 4.0 do not know groups as resources.
    shown = {entry.name: entry.value for entry in result.configs if entry.value}
    return {name: shown[config] for config, name in GROUP_FACTS.items() if config in shown}


def delete_group(client: Client, group: str) -> None:
    """Delete a group and its offsets.

    :raises BrokerError: with NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, …
    """
    request = DeleteGroupsRequest(groups_names=(GroupId(group),))

    def attempt() -> None:
        result = client.ask_coordinator(group, request, DeleteGroupsResponse).results[0]
        check(result.error_code, f"group {group!r}")

    retried(attempt)


def committed_offsets(client: Client, group: str) -> dict[TopicPartition, int]:
    """What a group has committed, by partition."""
    request = OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=GroupId(group), topics=None),), require_stable=False
    )

    def attempt() -> dict[TopicPartition, int]:
        found = client.ask_coordinator(group, request, OffsetFetchResponse).groups[0]
        check(found.error_code, f"offsets of group {group!r}")
        offsets = {}
        for topic in found.topics:
            for item in topic.partitions:
                check(item.error_code, f"offset of group {group!r} in {topic.name}-{item.partition_index}")
                if item.committed_offset != NO_OFFSET:
                    offsets[TopicPartition(topic.name, item.partition_index)] = int(item.committed_offset)
        return offsets

    return retried(attempt)


def commit_offsets(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members, as a consumer that is no member does.

    :raises BrokerError: with UNKNOWN_MEMBER_ID when the group has members.
    """
    request = OffsetCommitRequest(
        group_id=GroupId(group),
        generation_id_or_member_epoch=i32(-1),
        member_id="",
        topics=tuple(
            OffsetCommitRequestTopic(
                name=TopicName(topic),
                partitions=tuple(
                    OffsetCommitRequestPartition(
                        partition_index=i32(place.partition),
                        committed_offset=i64(offsets[place]),
                        committed_metadata="",
                    )
                    for place in places
                ),
            )
            for topic, places in groupby(sorted(offsets), key=lambda place: place.topic)
        ),
    )

    def attempt() -> None:
        response = client.ask_coordinator(group, request, OffsetCommitResponse)
        for topic in response.topics:
            for item in topic.partitions:
                check(item.error_code, f"offset of group {group!r} in {topic.name}-{item.partition_index}")

    retried(attempt)


def log_offsets(client: Client, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """Where each partition's log has its first record at or after a time (ms since 1970), or `LATEST` or `EARLIEST`.

    -1 where there is no such record. A partition that does not exist (any more) is left out.
    """
    return {place: found.offset for place, found in log_positions(client, partitions, timestamp).items()}


def log_positions(
    client: Client, partitions: Iterable[TopicPartition], timestamp: int
) -> dict[TopicPartition, LogPosition]:
    """As `log_offsets`, with the timestamps of the records that were found."""
    wanted = sorted(set(partitions))
    return retried(lambda: _log_positions_once(client, wanted, timestamp)) if wanted else {}


def _log_positions_once(
    client: Client, wanted: list[TopicPartition], timestamp: int
) -> dict[TopicPartition, LogPosition]:
    leaders = leaders_of(client, wanted)
    found = {}
    for leader in sorted(set(leaders.values())):
        request = _list_offsets([place for place in wanted if leaders.get(place) == leader], timestamp)
        for topic in client.ask(request, ListOffsetsResponse, leader).topics:
            for item in topic.partitions:
                check(item.error_code, f"offsets of {topic.name}-{item.partition_index}")
                place = TopicPartition(topic.name, item.partition_index)
                found[place] = LogPosition(int(item.offset), int(item.timestamp))
    return found


def leaders_of(client: Client, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The node that leads each partition; one that does not exist (any more) is left out.

    :raises BrokerError: with LEADER_NOT_AVAILABLE.
    """
    topics = client.topics(sorted({place.topic for place in wanted}))
    leaders = {
        TopicPartition(name, item.partition_index): int(item.leader_id)
        for name, topic in topics.items()
        for item in topic.partitions
    }
    found = {place: leaders[place] for place in wanted if place in leaders}
    for place, leader in found.items():
        check(ErrorCode.leader_not_available if leader == NO_LEADER else ErrorCode.none, f"partition {place}")
    return found


def _list_offsets(places: list[TopicPartition], timestamp: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        topics=tuple(
            ListOffsetsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    ListOffsetsPartition(partition_index=i32(place.partition), timestamp=i64(timestamp))
                    for place in same
                ),
            )
            for topic, same in groupby(places, key=lambda place: place.topic)
        ),
    )
