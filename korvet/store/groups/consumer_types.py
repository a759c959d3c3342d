"""Requests and answers of groups of the consumer protocol (KIP-848), as values; codes are Kafka's, 0 is none.

Redis keeps an assignment as text: for each topic its id in hex, a colon, and its partitions with commas between them.
The topics are ordered by id, with spaces between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from korvet.assignors import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A ConsumerGroupHeartbeat. None, and a timeout of -1 ms, mean no change; a regex of '' ends the former one."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack: str | None
    assignor: str | None
    regex: str | None
    names: Sequence[str] | None
    owned: Assignment | None
    rebalance_timeout_ms: int
    client_id: str
    client_host: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeatRequest:
    """A ShareGroupHeartbeat. None means no change."""

    group_id: str
    member_id: str
    member_epoch: int
    rack: str | None
    names: Sequence[str] | None
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeaten:
    """The answer to a heartbeat; ``assignment`` is None if the member already has it."""

    code: int
    member_id: str
    member_epoch: int = 0
    assignment: Assignment | None = None
    message: str | None = None


class Subscriber(NamedTuple):
    """A member in a snapshot: its subscription, and its present target as text."""

    id: str
    instance_id: str | None
    rack: str | None
    assignor: str | None
    names: Sequence[str]
    regex: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a group for a new target; the type is consumer or share.

    ``topics`` are the topics of the last target, as `Subscribed.text`. They were looked up in the catalog whose
    `topics_digest` is ``catalog_version``.
    """

    id: str
    type: str
    epoch: int
    target_epoch: int
    catalog_version: str
    topics: str
    members: Sequence[Subscriber]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member, for administrators.

    A regex of '' is none. The member reads ``owned``, must still revoke ``revoking``, and moves towards ``target``.
    ``is_classic`` is true if it speaks the classic protocol.
    """

    id: str
    instance_id: str | None
    rack: str | None
    client_id: str
    client_host: str
    epoch: int
    previous_epoch: int
    state: str
    assignor: str | None
    names: Sequence[str]
    regex: str
    owned: Assignment
    revoking: Assignment
    target: Assignment
    is_classic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDescription:
    """A group of this protocol, or a share group, for administrators."""

    epoch: int
    target_epoch: int
    members: Sequence[ConsumerMember]


def assignment_text(assignment: Mapping[UUID, Collection[int]]) -> str:
    """An assignment as Redis has it."""
    topics = sorted((topic.hex, partitions) for topic, partitions in assignment.items() if partitions)
    return " ".join(f"{topic}:{','.join(map(str, sorted(partitions)))}" for topic, partitions in topics)


def parse_assignment(text: str) -> dict[UUID, tuple[int, ...]]:
    """An assignment from its text.

    :raises ValueError: the text is no assignment.
    """
    topics = (part.partition(":") for part in text.split())
    return {UUID(hex=topic): tuple(map(int, partitions.split(","))) for topic, _, partitions in topics}
