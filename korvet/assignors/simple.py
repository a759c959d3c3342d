"""The simple assignor of share groups: several members may share a partition, and each has about as many partitions.

A partition has ceil(members / partitions) members, or one fewer if no member can take another one. If all members
subscribe to the same topics, these are balanced together, else each topic alone. Source: SimpleAssignor,
SimpleHomogeneousAssignmentBuilder, SimpleHeterogeneousAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID

from korvet.assignors.spec import Assignment, GroupSpec, MemberSpec, common_topics, in_order, subscribers

Partition = tuple[UUID, int]


class Simple:
    name = "simple"

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]:
        names = sorted(spec.members)
        members = [spec.members[name] for name in names]
        by_topic = subscribers(spec, names)
        targets: list[dict[UUID, list[int]]] = [{} for _ in names]
        topics = in_order(by_topic)
        pools = [[topic] for topic in topics] if common_topics(spec) is None else [topics] if topics else []
        for pool in pools:
            sharers = by_topic[pool[0]]
            partitions = [(topic, number) for topic in pool for number in range(spec.partitions[topic])]
            for at, held in zip(sharers, _shared(partitions, [members[at] for at in sharers]), strict=True):
                for topic, number in sorted(held, key=lambda one: one[1]):
                    targets[at].setdefault(topic, []).append(number)
        return {
            name: {topic: tuple(numbers) for topic, numbers in target.items()}
            for name, target in zip(names, targets, strict=True)
        }


def _shared(partitions: Sequence[Partition], members: Sequence[MemberSpec]) -> list[set[Partition]]:
    """The partitions of each member. A member keeps what it has, as far as balance allows."""
    sharing = -(-len(members) // len(partitions)) if partitions else 0
    total = sharing * len(partitions)
    ends = [-(-total * at // len(members)) for at in range(len(members) + 1)]
    quotas = [end - start for start, end in pairwise(ends)]
    sharers: dict[Partition, set[int]] = {partition: set() for partition in partitions}
    held = [
        {one for topic, numbers in member.current.items() for number in numbers if (one := (topic, number)) in sharers}
        for member in members
    ]
    for at, mine in enumerate(held):
        for partition in mine:
            sharers[partition].add(at)

    def take(at: int, partition: Partition) -> None:
        held[at].remove(partition)
        sharers[partition].remove(at)

    for at, mine in enumerate(held):
        # The partitions that most members share go first, so that fewer members have to give up theirs.
        shared_most = sorted(mine, key=lambda one: (-len(sharers[one]), one))
        for partition in shared_most[: max(len(mine) - quotas[at], 0)]:
            take(at, partition)
    for partition, of in sharers.items():
        for at in sorted(of)[: max(len(of) - sharing, 0)]:
            take(at, partition)
    _fill(sharers, sharing, held, quotas)
    return held


def _fill(sharers: dict[Partition, set[int]], sharing: int, held: list[set[Partition]], quotas: Sequence[int]) -> None:
    """Give the partitions with too few members to members with too few partitions, in turn."""
    unfilled = [at for at, mine in enumerate(held) if len(mine) < quotas[at]]
    turn = 0
    for partition, of in sharers.items():
        tried = 0
        while len(of) < sharing and tried < len(unfilled):
            turn %= len(unfilled)
            at = unfilled[turn]
            if at in of:
                turn, tried = turn + 1, tried + 1
                continue
            of.add(at)
            held[at].add(partition)
            tried = 0
            if len(held[at]) < quotas[at]:
                turn += 1
            else:
                del unfilled[turn]
