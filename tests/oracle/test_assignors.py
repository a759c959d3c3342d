"""korvet's assignors beside Kafka's: equal groups get equally large targets, and no more partitions move."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from korvet.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec
from tests.kafka.process import Driver
from tests.store.assignor_specs import assign, check, moves, sizes, topic

GROUPS = 600
Kafkas = Callable[[Sequence[tuple[str, GroupSpec]]], list[dict[str, Assignment]]]


def random_group(random: Random) -> GroupSpec:
    """A group whose members hold some of its partitions, spread over some or all of them."""
    topics = [topic(number) for number in range(1, random.randint(2, 7))]
    partitions = {one: random.randint(1, 12) for one in topics}
    names = [f"member-{number}" for number in range(random.randint(1, 9))]
    holders = random.sample(names, random.randint(1, len(names)))
    held: dict[str, dict[Any, list[int]]] = {name: {} for name in names}
    density = random.choice((0, 0.8, 1))
    for one, count in partitions.items():
        for partition in range(count):
            if random.random() < density:
                held[random.choice(holders)].setdefault(one, []).append(partition)
    common = frozenset(random.sample(topics, random.randint(1, len(topics)))) if random.random() < 0.4 else None
    members = {}
    for name in names:
        subscribed = common or frozenset(one for one in topics if random.random() < 0.6)
        instance = f"{random.random()}-{name}" if random.random() < 0.3 else None
        current = {one: tuple(many) for one, many in held[name].items()}
        members[name] = MemberSpec(id=name, instance_id=instance, topics=subscribed, current=current)
    return GroupSpec(members=members, partitions=partitions)


def _asked(name: str, spec: GroupSpec) -> dict[str, Any]:
    def numbered(held: Assignment) -> dict[int, Sequence[int]]:
        return {one.int: many for one, many in held.items()}

    members = {
        one.id: {"instance": one.instance_id, "topics": [of.int for of in one.topics], "current": numbered(one.current)}
        for one in spec.members.values()
    }
    partitions = {one.int: count for one, count in spec.partitions.items()}
    return {"assignor": name, "partitions": partitions, "members": members}


@pytest.fixture
def kafkas(driver: Driver, tmp_path: Path) -> Kafkas:
    """The targets of Kafka's assignors for groups; a member that Kafka's answer lacks has no partitions."""

    def kafkas(asked: Sequence[tuple[str, GroupSpec]]) -> list[dict[str, Assignment]]:
        groups = tmp_path / "groups.json"
        groups.write_text(json.dumps([_asked(name, spec) for name, spec in asked]))
        told = driver.call("run", tool="Assignors", arguments=[str(groups)])
        assert told["exit"] == 0, told["output"]
        return [
            {
                member: {topic(number): tuple(many) for number, many in target.get(member, {}).items()}
                for member in spec.members
            }
            for (_, spec), target in zip(asked, json.loads(told["output"]), strict=True)
        ]

    return kafkas


def test_targets_of_small_groups_are_as_good_as_kafkas(kafkas: Kafkas) -> None:
    random = Random(848)
    asked = [(random.choice(["uniform", "uniform", "range"]), random_group(random)) for _ in range(GROUPS)]
    for (name, spec), theirs in zip(asked, kafkas(asked), strict=True):
        check(spec, theirs)
        ours = assign(name, spec)
        assert sorted(sizes(ours).values()) == sorted(sizes(theirs).values()), spec
        assert moves(spec, ours) == moves(spec, theirs), spec
        if name == "range":
            assert ours == theirs, spec


@pytest.mark.parametrize("name", ASSIGNORS)
def test_targets_of_large_groups_are_as_good_as_kafkas(name: str, kafkas: Kafkas) -> None:
    """A hundred members of a thousand partitions: first they join, then half of them leave."""
    random = Random(97)
    topics = {topic(number): 20 for number in range(1, 51)}
    members = {
        id: MemberSpec(id=id, topics=frozenset(random.sample(list(topics), 12)))
        for id in (f"member-{number:03}" for number in range(100))
    }
    first = GroupSpec(members=members, partitions=topics)
    targets = assign(name, first)
    stay = {
        id: MemberSpec(id=id, topics=one.topics, current=targets[id]) for id, one in members.items() if int(id[-3:]) % 2
    }
    second = GroupSpec(members=stay, partitions=topics)
    for spec, theirs in zip((first, second), kafkas([(name, first), (name, second)]), strict=True):
        ours = assign(name, spec)
        assert sorted(sizes(ours).values()) == sorted(sizes(theirs).values())
        assert moves(spec, ours) <= moves(spec, theirs)
