"""What is asked of groups and what they answer, as values. Codes are Kafka's, 0 is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from korvet.store.consumer_types import ConsumerDescription

Place = tuple[str, int]
"""A topic's name and a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup. ``member_id`` is empty for who has none yet; protocols are (name, metadata), preferred first."""

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
    """A member as the leader is told of it."""

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
    """A SyncGroup. ``protocol`` is type and name where the client names them; assignments are the leader's."""

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
    """A committed offset; ``leader_epoch`` is -1 where the client named none."""

    offset: int
    leader_epoch: int
    topic_id: UUID
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """An OffsetCommit; ``generation`` is -1 for a consumer that is not a member."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    version: int
    offsets: Sequence[tuple[Place, Offset]]


class GroupMember(NamedTuple):
    """A member as an administrator sees it."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as an administrator sees it; ``id`` is its own and stays, ``locator`` says whose it is.

    Of a group of the consumer protocol only the state is here, and ``consumer`` has the rest.
    """

    id: str
    locator: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: Sequence[GroupMember]
    consumer: ConsumerDescription | None = None


class ListedGroup(NamedTuple):
    """A group in a list; the type is classic or consumer."""

    group_id: str
    state: str
    protocol_type: str
    type: str
