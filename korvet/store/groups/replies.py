"""Readers of the group functions' replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from korvet.errors import StoreError
from korvet.store.groups.consumer_types import ConsumerDescription, ConsumerMember, parse_assignment
from korvet.store.groups.types import (
    GroupDescription,
    GroupMember,
    Joined,
    JoinedMember,
    Offset,
    Synced,
    TopicPartition,
    partition_of,
)

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"


def text(value: bytes) -> str:
    """A reply's bytes as text. Classic members may send any bytes; bytes that are no text are replaced, as in Java."""
    return value.decode(errors="replace")


def named(reply: Any) -> dict[str, Any]:
    """The names and values after a reply's code."""
    return {text(name): value for name, value in zip(reply[1::2], reply[2::2], strict=True)}


def joined(reply: Any) -> Joined:
    code, member_id = reply[0], text(reply[1])
    if code != 0:
        return Joined(code=code, member_id=member_id)
    _, _, _, _, generation, protocol_type, protocol, leader, skip_assignment, members = reply
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
            for id, instance_id, metadata in zip(members[::3], members[1::3], members[2::3], strict=True)
        ],
    )


def synced(reply: Any) -> Synced:
    if reply[0] != 0:
        return Synced(code=reply[0])
    return Synced(code=0, protocol_type=text(reply[3]), protocol=text(reply[4]), assignment=reply[5])


def described(found: Mapping[str, Any]) -> GroupDescription:
    """The group in a reply. A member repeated across pages counts once."""
    type_ = type_of(found)
    members = {member["member_id"]: member for member in (named((0, *flat)) for flat in found["members"])}
    return GroupDescription(
        id=text(found["id"]),
        locator=text(found["locator"]),
        type=type_,
        state=text(found["state"]),
        generation=found["generation"],
        protocol_type=text(found["protocol_type"]),
        protocol=text(found["protocol"]),
        leader=text(found["leader"]),
        members=[] if type_ != CLASSIC else [_described_member(member) for member in members.values()],
        pending=[text(id) for id in found["pending"]],
        rebalance_ends_in_ms=found["rebalance_ends_in_ms"],
        sync_ends_in_ms=found["sync_ends_in_ms"],
        is_initial=bool(found.get("is_initial")),
        consumer=_consumer_described(found, members.values()) if type_ != CLASSIC else None,
    )


def type_of(found: Mapping[str, Any]) -> str:
    """A group's type: classic, consumer or share; by a reply's names."""
    return text(found["type"]) if "type" in found else CLASSIC


def _consumer_described(found: Mapping[str, Any], members: Iterable[Mapping[str, Any]]) -> ConsumerDescription:
    return ConsumerDescription(
        epoch=found["generation"],
        target_epoch=found["target_epoch"],
        members=[_consumer_member(member) for member in members],
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


def _described_member(of: Mapping[str, Any]) -> GroupMember:
    return GroupMember(
        id=text(of["member_id"]),
        instance_id=text(of["instance_id"]) or None,
        client_id=text(of["client_id"]),
        client_host=text(of["client_host"]),
        metadata=of["metadata"],
        assignment=of["assignment"],
        is_awaited=bool(of.get("is_awaited")),
    )


def topic_partition(name: bytes) -> TopicPartition:
    """The partition of a field of :offsets.

    :raises StoreError: korvet did not write the field.
    """
    try:
        return partition_of(text(name))
    except ValueError:
        raise _unreadable(name) from None


def offset(position: bytes) -> Offset:
    """The committed offset of a position.

    :raises StoreError: korvet did not write the position.
    """
    try:
        at, leader_epoch, topic_id, metadata = text(position).split(" ", 3)
        return Offset(int(at), int(leader_epoch), UUID(topic_id), metadata)
    except ValueError:
        raise _unreadable(position) from None


def _unreadable(found: bytes) -> StoreError:
    return StoreError(f"a group's :offsets hold {found[:100]!r}, which is no committed offset: HDEL its field")
