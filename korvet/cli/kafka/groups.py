"""Groups over the wire: list, describe and delete consumer groups and share groups, and remove their members."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.framing import Request, request
from korvet.cli.kafka.offsets import TopicPartition
from korvet.cli.kafka.topics import GROUP, described_configs
from korvet.errors import KorvetError
from korvet.wire.assignment import assigned_partitions

CONSUMER = "consumer"
STATE_DEAD, STATE_EMPTY = "Dead", "Empty"
GROUP_FACTS = {"korvet.group.id": "id", "korvet.group.locator": "locator", "korvet.group.waits": "waits"}
"""Configs of a group that korvet's brokers show -> their names here."""
CLASSIC_TYPE, CONSUMER_TYPE, SHARE_TYPE = "classic", "consumer", "share"
_OTHER_TYPES = (SHARE_TYPE, "streams")
"""The types that this does not describe (KIP-1071), or not on brokers without the API for it."""
_LEAVES = -1
_REASON = "removed by korvet groups remove-member"
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

    A member of the consumer protocol also has a target and an epoch, and one of a share group an epoch. ``protocol`` is
    None if the broker does not report it.
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
    """A group as DescribeGroups, ConsumerGroupDescribe or ShareGroupDescribe shows it; an unknown one is ``Dead``.

    ``protocol`` is the chosen assignor. A group of another type than classic has its epoch and its target's.
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
    version = 5 if client.serves("list_groups", 5) else 4
    message = request("list_groups", version, states_filter=tuple(states), types_filter=tuple(types))
    found: dict[str, ListedGroup] = {}
    for node in client.brokers():
        answer = client.ask(message, node)
        check(answer.error_code, "list of groups")
        for item in answer.groups:
            type_ = item.group_type.lower() or CLASSIC_TYPE
            if not types or type_ in types:
                found[item.group_id] = ListedGroup(
                    group=item.group_id, state=item.group_state, protocol_type=item.protocol_type, type=type_
                )
    return [found[group] for group in sorted(found)]


def existing_group(client: Client, group: str) -> Group:
    """A group's state and members, of any of the three types.

    :raises KorvetError: if the group does not exist.
    """
    found = describe_group(client, group)
    if found.state != STATE_DEAD:
        return found
    for listed in list_groups(client, types=_OTHER_TYPES) if client.serves("list_groups", 5) else ():
        if listed.group == group:
            raise KorvetError(f"group {group!r} is of the type {listed.type}, which only Kafka's own tools describe")
    raise KorvetError(f"no group {group!r}; see all groups with: korvet groups list")


def describe_group(client: Client, group: str) -> Group:
    """A group as `existing_group` has it; an unknown one is ``Dead``."""
    described = _described(client, "describe_groups", 5, group)
    if described.group_state == STATE_DEAD and client.serves("consumer_group_describe", 0):
        version = 1 if client.serves("consumer_group_describe", 1) else 0
        consumer = _described(client, "consumer_group_describe", version, group)
        if consumer.error_code is ErrorCode.none:
            return _modern_group(consumer, CONSUMER_TYPE, _consumer_member)
    if described.group_state == STATE_DEAD and client.serves("share_group_describe", 1):
        share = _described(client, "share_group_describe", 1, group)
        if share.error_code is ErrorCode.none:
            return _modern_group(share, SHARE_TYPE, _share_member)
    return Group(
        group=group,
        type=CLASSIC_TYPE,
        state=described.group_state,
        protocol_type=described.protocol_type,
        protocol=described.protocol_data,
        members=tuple(_member(member) for member in described.members),
    )


def describing(api: str, version: int, groups: Iterable[str]) -> Request:
    """A request that describes groups by one of the three APIs."""
    names = tuple(groups)
    return request(api, version, groups=names, group_ids=names)


@retried
def _described(client: Client, api: str, version: int, group: str) -> Any:
    """An API's entry for a group, which may have the code for an unknown group.

    A broker of Kafka may have its share groups turned off (share.version 0).
    """
    (found,) = client.ask_coordinator(group, describing(api, version, (group,))).groups
    if found.error_code not in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
        check(found.error_code, f"group {group!r}", found.error_message)
    return found


def _modern_group(described: Any, type_: str, member_of: Callable[[Any], Member]) -> Group:
    return Group(
        group=described.group_id,
        type=type_,
        state=described.group_state,
        protocol_type=type_,
        protocol=described.assignor_name,
        members=tuple(member_of(member) for member in described.members),
        epoch=int(described.group_epoch),
        target_epoch=int(described.assignment_epoch),
    )


def _consumer_member(member: Any) -> Member:
    protocol = CLASSIC_TYPE if member.member_type == _CLASSIC_MEMBER else CONSUMER_TYPE
    return Member(
        id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=_assigned(member.assignment),
        target=_assigned(member.target_assignment),
        epoch=int(member.member_epoch),
        protocol=None if member.member_type == _UNKNOWN_MEMBER_TYPE else protocol,
    )


def _share_member(member: Any) -> Member:
    return Member(
        id=member.member_id,
        instance_id=None,
        client_id=member.client_id,
        host=member.client_host,
        assignment=_assigned(member.assignment),
        epoch=int(member.member_epoch),
        protocol=SHARE_TYPE,
    )


def _assigned(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, int(partition))
            for topic in assignment.topic_partitions
            for partition in topic.partitions
        )
    )


def _member(member: Any) -> Member:
    assignment = member.member_assignment
    return Member(
        id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=tuple(sorted(TopicPartition(*one) for one in assigned_partitions(assignment, len(assignment)))),
    )


def group_facts(client: Client, group: str) -> Mapping[str, str]:
    """Facts that only korvet reports about a group: ``id``, ``locator`` and, while it waits, ``waits``; else empty."""
    resource = {"resource_type": GROUP, "resource_name": group, "configuration_keys": tuple(GROUP_FACTS)}
    (result,) = described_configs(client, [resource])
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


@retried
def delete_group(client: Client, group: str) -> None:
    """Delete a group and its offsets.

    :raises BrokerError: with NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, …
    """
    (result,) = client.ask_coordinator(group, request("delete_groups", 2, groups_names=(group,))).results
    check(result.error_code, f"group {group!r}")


def chosen_members(group: Group, ids: Sequence[str], instances: Sequence[str]) -> list[Member]:
    """The members with these ids and instance ids, in the group's order.

    :raises KorvetError: if an id is not of a member of the group.
    """
    known = {member.id for member in group.members}
    known_instances = {member.instance_id for member in group.members}
    unknown = [f"member {id!r}" for id in ids if id not in known]
    unknown += [f"member with the instance id {id!r}" for id in instances if id not in known_instances]
    if unknown:
        raise KorvetError(
            f"group {group.group!r} has no {unknown[0]}; see its members with: korvet groups describe {group.group}"
        )
    return [member for member in group.members if member.id in ids or member.instance_id in instances]


@retried
def remove_member(client: Client, group: str, member: Member) -> None:
    """Take a member out, as if it left by itself.

    :raises BrokerError: with UNKNOWN_MEMBER_ID, if it has left meanwhile, …
    """
    left: dict[str, Any] = {"member_id": member.id, "group_instance_id": member.instance_id, "reason": _REASON}
    if member.protocol == CONSUMER_TYPE:
        left |= {"member_epoch": _LEAVES, "instance_id": member.instance_id, "topic_partitions": None}
        answer = client.ask_coordinator(group, request("consumer_group_heartbeat", 0, group_id=group, **left))
        code, message = answer.error_code, answer.error_message
    elif member.protocol == SHARE_TYPE:
        fields = {"group_id": group, "member_id": member.id, "member_epoch": _LEAVES}
        answer = client.ask_coordinator(group, request("share_group_heartbeat", 1, **fields))
        code, message = answer.error_code, answer.error_message
    else:
        answer = client.ask_coordinator(group, request("leave_group", 5, group_id=group, members=[left]))
        check(answer.error_code, f"group {group!r}")
        ((code, message),) = [(one.error_code, None) for one in answer.members]
    check(code, f"member {member.id!r} of group {group!r}", message)
