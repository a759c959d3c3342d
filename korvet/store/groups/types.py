"""Requests and answers of groups, as values. Codes are Kafka's, 0 is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from korvet.store.groups.consumer_types import ConsumerDescription

TopicPartition = tuple[str, int]
"""A topic's name and the number of one of its partitions."""


def name_of(partition: TopicPartition) -> str:
    """A partition's name in Redis, `topic:partition`."""
    return f"{partition[0]}:{partition[1]}"


def partition_of(name: str) -> TopicPartition:
    """The partition of such a name.

    :raises ValueError: the text is no such name.
    """
    topic, _, number = name.rpartition(":")
    return topic, int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup. ``member_id`` is empty if there is none yet; protocols are (name, metadata), preferred first."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    version: int


class JoinedMember(NamedTuple):
    """A member in the answer to the leader's join."""

    id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a join; ``members`` are for the leader."""

    code: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup. ``protocol`` is type and name if the client names them; the leader sends assignments."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol: tuple[str, str] | None
    assignments: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The answer to a sync."""

    code: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Offset(NamedTuple):
    """A committed offset; ``leader_epoch`` is -1 if the client named none."""

    offset: int
    leader_epoch: int
    topic_id: UUID
    metadata: str


class CommitRequest(NamedTuple):
    """An OffsetCommit; ``generation`` is -1 for a consumer that is not a member."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    version: int
    offsets: Sequence[tuple[TopicPartition, Offset]]

    @property
    def partitions(self) -> Sequence[tuple[TopicPartition, str]]:
        """The partitions, each with its topic's id in hex."""
        return [(one, offset.topic_id.hex) for one, offset in self.offsets]


class GroupMember(NamedTuple):
    """A member, for administrators. ``is_awaited`` is true until it joins the rebalance, or syncs."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes
    is_awaited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group, for administrators; ``id`` never changes, ``locator`` is its path in the namespace.

    The type is classic, consumer or share. A group of another type than classic has its state here and the rest in
    ``consumer``. In a classic group ``pending`` has
    the ids that must still join, and ``is_initial`` is true while a first rebalance waits for further members.
    """

    id: str
    locator: str
    type: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: Sequence[GroupMember]
    pending: Sequence[str] = ()
    rebalance_ends_in_ms: int | None = None
    sync_ends_in_ms: int | None = None
    is_initial: bool = False
    consumer: ConsumerDescription | None = None


class ListedGroup(NamedTuple):
    """A group in a list; the type is classic, consumer or share."""

    group_id: str
    state: str
    protocol_type: str
    type: str
