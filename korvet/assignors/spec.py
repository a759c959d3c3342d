"""The input of an assignor, a group, and its output, an assignment for each member."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol
from uuid import UUID

from korvet.errors import KorvetError

Assignment = Mapping[UUID, tuple[int, ...]]
"""The partitions of each topic, ascending. Each topic has at least one."""


class AssignorError(KorvetError):
    """An assignor cannot compute a target. Source: PartitionAssignorException."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member: the topics to which it subscribes, and its present target."""

    id: str
    instance_id: str | None = None
    rack: str | None = None
    topics: frozenset[UUID] = frozenset()
    current: Assignment = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group: its members by id, and the number of partitions of each subscribed topic."""

    members: Mapping[str, MemberSpec]
    partitions: Mapping[UUID, int]


class Assignor(Protocol):
    """An assignor computes targets. It is pure, and the order of the members does not matter."""

    @property
    def name(self) -> str:
        """The name by which members choose this assignor."""

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]:
        """The target of every member.

        Raises:
            AssignorError: a member subscribes to a topic that ``spec.partitions`` does not have.
        """


def in_order(topics: Iterable[UUID]) -> list[UUID]:
    """Topics in the order of their ids."""
    return sorted(topics, key=attrgetter("int"))


def common_topics(spec: GroupSpec) -> frozenset[UUID] | None:
    """The topics to which all members subscribe; None if members differ. Source: SubscriptionType.HOMOGENEOUS."""
    subscriptions = (member.topics for member in spec.members.values())
    first = next(subscriptions, frozenset())
    return first if all(topics is first or topics == first for topics in subscriptions) else None


def subscribers(spec: GroupSpec, members: Iterable[str]) -> dict[UUID, list[int]]:
    """The subscribers of each topic, as indexes of ``members``, ascending.

    Raises:
        AssignorError: a topic has no partitions in ``spec``.
    """
    found: dict[UUID, list[int]] = {}
    for at, member in enumerate(members):
        for topic in spec.members[member].topics:
            found.setdefault(topic, []).append(at)
    check_topics(spec, found)
    return found


def check_topics(spec: GroupSpec, topics: Iterable[UUID]) -> None:
    """Check that each topic has partitions in ``spec``.

    Raises:
        AssignorError: one has none.
    """
    for topic in topics:
        if topic not in spec.partitions:
            raise AssignorError(f"Members are subscribed to topic {topic} which doesn't exist in the topic metadata.")


def changed(spec: GroupSpec, targets: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """The targets that differ from their members' present ones. Source: TargetAssignmentBuilder.build."""
    members = spec.members
    return {member: target for member, target in targets.items() if target != members[member].current}
