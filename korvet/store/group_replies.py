"""The replies of the group functions, read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from korvet.store.consumer_types import ConsumerDescription, ConsumerMember, parse_assignment
from korvet.store.group_types import GroupDescription, GroupMember, Joined, JoinedMember, Offset, Place, Synced

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"


def text(value: bytes) -> str:
    """What classic members say in their metadata may be any bytes: what is no text is replaced, as in Java."""
    return value.decode(errors="replace")


def named(reply: Any) -> dict[str, Any]:
    """The names and values behind a reply's code."""
    return {text(name): value for name, value in zip(reply[1::2], reply[2::2], strict=True)}


def joined(reply: Any) -> Joined:
    code, member_id = reply[0], text(reply[1])
    if code != 0:
        return Joined(code=code, member_id=member_id)
    _, _, _, _, generation, protocol_type, protocol, leader, skip_assignment, told = reply
    return Joined(
        code=code,
        member_id=member_id,
        generation=generation,
        protocol_type=text(protocol_type),
        protocol=text(protocol),
        leader=text(leader),
        skip_assignment=bool(skip_assignment),
        members=[
            JoinedMember(text(id), text(instance_id) or None, metadata)
            for id, instance_id, metadata in zip(told[::3], told[1::3], told[2::3], strict=True)
        ],
    )


def synced(reply: Any) -> Synced:
    if reply[0] != 0:
        return Synced(code=reply[0])
    return Synced(code=0, protocol_type=text(reply[3]), protocol=text(reply[4]), assignment=reply[5])


def described(reply: Any) -> GroupDescription:
    found = named(reply)
    is_consumer = type_of(found) == CONSUMER
    return GroupDescription(
        id=text(found["id"]),
        locator=text(found["locator"]),
        state=text(found["state"]),
        generation=found["generation"],
        protocol_type=text(found["protocol_type"]),
        protocol=text(found["protocol"]),
        leader=text(found["leader"]),
        members=() if is_consumer else [_described_member(told) for told in found["members"]],
        consumer=_consumer_described(found) if is_consumer else None,
    )


def type_of(found: Mapping[str, Any]) -> str:
    """The protocol that a group's members speak, of what a reply named."""
    return text(found["type"]) if "type" in found else CLASSIC


def _consumer_described(found: Mapping[str, Any]) -> ConsumerDescription:
    return ConsumerDescription(
        epoch=found["generation"],
        target_epoch=found["target_epoch"],
        members=[_consumer_member(named((0, *told))) for told in found["members"]],
    )


def _consumer_member(of: Mapping[str, Any]) -> ConsumerMember:
    return ConsumerMember(
        id=text(of["member_id"]),
        instance_id=text(of["instance_id"]) or None,
        rack=text(of["rack"]) or None,
        client_id=text(of["client_id"]),
        client_host=text(of["client_host"]),
        epoch=of["member_epoch"],
        previous_epoch=of["previous_epoch"],
        state=text(of["member_state"]),
        assignor=text(of["assignor"]) or None,
        names=[text(name) for name in of["topics"]],
        regex=text(of["regex"]),
        owned=parse_assignment(text(of["owned"])),
        revoking=parse_assignment(text(of["revoking"])),
        target=parse_assignment(text(of["target"])),
        is_classic=bool(of["is_classic"]),
    )


def _described_member(told: Any) -> GroupMember:
    of = named((0, *told))
    return GroupMember(
        id=text(of["member_id"]),
        instance_id=text(of["instance_id"]) or None,
        client_id=text(of["client_id"]),
        client_host=text(of["client_host"]),
        metadata=of["metadata"],
        assignment=of["assignment"],
    )


def place(name: bytes) -> Place:
    topic, _, partition = text(name).rpartition(":")
    return topic, int(partition)


def offset(position: bytes) -> Offset:
    at, leader_epoch, topic_id, metadata = text(position).split(" ", 3)
    return Offset(int(at), int(leader_epoch), UUID(topic_id), metadata)
