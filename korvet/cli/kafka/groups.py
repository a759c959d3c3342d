"""Consumer groups over the wire: list, describe and delete them."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
from kio.schema.types import GroupId
from kio.static.primitive import i8

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.offsets import TopicPartition

CONSUMER = "consumer"
STATE_DEAD, STATE_EMPTY = "Dead", "Empty"
GROUP_RESOURCE = 32
GROUP_FACTS = {"korvet.group.id": "id", "korvet.group.locator": "locator", "korvet.group.waits": "waits"}
"""Configs of a group that korvet's brokers show -> their names here."""
CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"
_LIST_GROUPS, _CONSUMER_GROUP_DESCRIBE = 16, 69
_TYPES_SINCE = 5
_UNKNOWN_MEMBER_TYPE, _CLASSIC_MEMBER = -1, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group as ListGroups shows it; before Kafka 4.0 every listed group is classic."""

    group: str
    state: str
    protocol_type: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a group and its partitions.

    A member of the consumer protocol also has a target and an epoch. ``protocol`` is None if the broker does not tell
    it.
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
    """A group as DescribeGroups or ConsumerGroupDescribe shows it; an unknown group is ``Dead``.

    ``protocol`` is the chosen assignor. A group of the consumer protocol has its epoch and its target's.
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
    """The groups of every broker, by id; states and types filter them if any are named."""
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
    """A group's state and members, whichever of the two protocols it uses."""
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
    """The group, or None if no group of the consumer protocol has this id."""
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
    """ConsumerGroupDescribe's entry for a group, which may have the code for an unknown group."""
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
    """Partitions of a ConsumerProtocolAssignment of any version; empty if the bytes are none.

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
    """Facts that only korvet tells of a group: ``id``, ``locator`` and, while it waits, ``waits``; else empty."""
    resource = DescribeConfigsResource(
        resource_type=i8(GROUP_RESOURCE), resource_name=group, configuration_keys=tuple(GROUP_FACTS)
    )
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=False, include_documentation=False)
    (result,) = client.ask(request, DescribeConfigsResponse).results
    # Brokers before 4.0 do not know groups as resources.
    shown = {entry.name: entry.value for entry in result.configs if entry.value}
    return {name: shown[config] for config, name in GROUP_FACTS.items() if config in shown}


def members_in_the_way(client: Client, group: str, rule: str) -> str | None:
    """The reason why a change that needs a group without members cannot be made now, or None.

    :param rule: such as "offsets can be reset only while nobody consumes".
    """
    found = describe_group(client, group)
    if found.state in (STATE_EMPTY, STATE_DEAD):
        return None
    count = len(found.members)
    return (
        f"group {group!r} is {found.state} with {count} member{'s' if count != 1 else ''}; "
        f"{rule}: stop its consumers and try again"
    )


def deletion_hindrance(client: Client, group: str) -> str | None:
    """The reason why a group cannot be deleted now, or None."""
    return members_in_the_way(client, group, "it can be deleted only while nobody consumes")


def delete_group(client: Client, group: str) -> None:
    """Delete a group and its offsets.

    :raises BrokerError: with NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, …
    """
    request = DeleteGroupsRequest(groups_names=(GroupId(group),))

    def attempt() -> None:
        result = client.ask_coordinator(group, request, DeleteGroupsResponse).results[0]
        check(result.error_code, f"group {group!r}")

    retried(attempt)
