"""What an assignor is told of a group, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol
from uuid import UUID

from korvet.errors import KorvetError

Assignment = Mapping[UUID, tuple[int, ...]]
"""The partitions of each topic, ascending; no topic is there without a partition."""


class AssignorError(KorvetError):
    """An assignor cannot compute a target. Source: PartitionAssignorException."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member: the topics that it subscribes to, and its target so far."""

    id: str
    instance_id: str | None = None
    rack: str | None = None
    topics: frozenset[UUID] = frozenset()
    current: Assignment = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group: its members by id, and how many partitions each topic has that somebody subscribes to."""

    members: Mapping[str, MemberSpec]
    partitions: Mapping[UUID, int]


class Assignor(Protocol):
    """Computes targets; pure, and the same for the same group in whichever order its members come."""

    @property
    def name(self) -> str:
        """By which members ask for it."""

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]:
        """The target of every member.

        Raises:
            AssignorError: a member subscribes to a topic that ``spec.partitions`` does not have.
        """


def in_order(topics: Iterable[UUID]) -> list[UUID]:
    """Topics by id."""
    return sorted(topics, key=attrgetter("int"))


def common_topics(spec: GroupSpec) -> frozenset[UUID] | None:
    """The topics that all members subscribe to, None where they differ. Source: SubscriptionType.HOMOGENEOUS."""
    subscriptions = (member.topics for member in spec.members.values())
    first = next(subscriptions, frozenset())
    return first if all(topics is first or topics == first for topics in subscriptions) else None


def subscribers(spec: GroupSpec, members: Iterable[str]) -> dict[UUID, list[int]]:
    """For each topic the places in ``members`` of those who subscribe to it, ascending.

    Raises:
        AssignorError: a topic has no partitions in ``spec``.
    """
    found: dict[UUID, list[int]] = {}
    for place, member in enumerate(members):
        for topic in spec.members[member].topics:
            found.setdefault(topic, []).append(place)
    check_topics(spec, found)
    return found


def check_topics(spec: GroupSpec, topics: Iterable[UUID]) -> None:
    """Raises AssignorError where a topic has no partitions in ``spec``."""
    for topic in topics:
        if topic not in spec.partitions:
            raise AssignorError(f"Members are subscribed to topic {topic} which doesn't exist in the topic metadata.")


def changed(spec: GroupSpec, targets: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """The targets that differ from what their members have so far. Source: TargetAssignmentBuilder.build."""
    members = spec.members
    return {member: target for member, target in targets.items() if target != members[member].current}
