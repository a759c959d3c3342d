"""Short notations of groups and assignments for the tests of the assignors, and the rules for every target."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from korvet.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec


def topic(number: int | str) -> UUID:
    """The id of the topic that the notation calls T<number>."""
    return UUID(int=int(number))


def assignment(text: str) -> dict[UUID, tuple[int, ...]]:
    """'T1:0,1 T2:3' as an assignment; '' is none."""
    parts = (part[1:].split(":") for part in text.split())
    return {topic(number): tuple(map(int, partitions.split(","))) for number, partitions in parts}


def target(**members: str) -> dict[str, Assignment]:
    """Assignments by member, each as `assignment` reads it."""
    return {member: assignment(text) for member, text in members.items()}


def member(name: str, text: str, instance: str | None = None) -> MemberSpec:
    """A member from 'T1 T2 | T1:0,1': its subscribed topics, and behind the bar its present target."""
    topics, _, current = text.partition("|")
    subscribed = frozenset(topic(number.removeprefix("T")) for number in topics.split())
    return MemberSpec(id=name, instance_id=instance, topics=subscribed, current=assignment(current))


def group(sizes: str, /, **members: str) -> GroupSpec:
    """A group from 'T1=3 T2=2'; each member is written as `member` reads it."""
    partitions = (size[1:].split("=") for size in sizes.split())
    return GroupSpec(
        members={name: member(name, text) for name, text in members.items()},
        partitions={topic(number): int(count) for number, count in partitions},
    )


def with_members(spec: GroupSpec, *members: MemberSpec) -> GroupSpec:
    """The same topics with these members, in this order."""
    return GroupSpec(members={one.id: one for one in members}, partitions=spec.partitions)


def assigned(spec: GroupSpec, targets: Mapping[str, Assignment]) -> GroupSpec:
    """The group after every member has taken its target."""
    found = (
        MemberSpec(id=one.id, instance_id=one.instance_id, topics=one.topics, current=targets.get(one.id, {}))
        for one in spec.members.values()
    )
    return with_members(spec, *found)


def assign(name: str, spec: GroupSpec) -> dict[str, Assignment]:
    """The target that the assignor of this name computes, checked."""
    targets = ASSIGNORS[name].assign(spec)
    check(spec, targets)
    return targets


def check(spec: GroupSpec, targets: Mapping[str, Assignment]) -> None:
    """Every member has a target, and one of the targets holds every partition of a subscribed topic."""
    assert targets.keys() == spec.members.keys()
    owned = [(topic, partition) for held in targets.values() for topic, many in held.items() for partition in many]
    subscribed = {topic for one in spec.members.values() for topic in one.topics}
    assert sorted(owned) == sorted((topic, p) for topic in subscribed for p in range(spec.partitions[topic]))
    for name, held in targets.items():
        assert held.keys() <= spec.members[name].topics
        assert all(many and list(many) == sorted(many) for many in held.values())


def sizes(targets: Mapping[str, Assignment]) -> dict[str, int]:
    """The number of partitions of each member."""
    return {name: sum(map(len, held.values())) for name, held in targets.items()}


def moves(spec: GroupSpec, targets: Mapping[str, Assignment]) -> int:
    """The number of partitions that go to a member that did not have them."""
    return sum(
        len(set(many).difference(spec.members[name].current.get(topic, ())))
        for name, held in targets.items()
        for topic, many in held.items()
    )
