"""The uniform assignor: members get equally many partitions, and keep as many of their own as that allows.

If all subscribe to the same P partitions, each of M members gets P // M, and P % M members get one more: preferably
those that hold so many already. So no partition moves without need.
Source: UniformAssignor, UniformHomogeneousAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import islice
from uuid import UUID

from korvet.assignors.heterogeneous import balanced
from korvet.assignors.spec import Assignment, GroupSpec, check_topics, common_topics, in_order

_Kept = dict[UUID, list[int]]


class Uniform:
    name = "uniform"

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]:
        topics = common_topics(spec)
        return balanced(spec) if topics is None else _dealt(spec, topics)


def _dealt(spec: GroupSpec, topics: Set[UUID]) -> dict[str, Assignment]:
    """The target of every member; all of them subscribe to ``topics``.

    Raises:
        AssignorError: a topic has no partitions in ``spec``.
    """
    check_topics(spec, topics)
    taken = {topic: bytearray(spec.partitions[topic]) for topic in in_order(topics)}
    targets = {}
    unfilled = []
    for member, room, kept in _keeping(spec, taken):
        targets[member] = kept
        if room:
            unfilled.append((room, kept))
    rest = ((topic, partition) for topic, flags in taken.items() for partition, flag in enumerate(flags) if not flag)
    for room, kept in unfilled:
        for topic, partition in islice(rest, room):
            kept.setdefault(topic, []).append(partition)
    return {member: _assignment(kept) for member, kept in targets.items()}


def _keeping(spec: GroupSpec, taken: dict[UUID, bytearray]) -> Iterator[tuple[str, int, _Kept]]:
    """Each member, the number of partitions that it lacks, and the partitions that it keeps, marked in ``taken``."""
    members = sorted(spec.members)
    quota, extras = divmod(sum(map(len, taken.values())), max(len(members), 1))
    for left, member in zip(range(len(members), 0, -1), members, strict=True):
        has_extra = extras > 0
        kept, room = _keep(spec.members[member].current, taken, quota + has_extra)
        if room and has_extra and left > extras:
            # A later member may already hold one more, which then need not move.
            has_extra = False
            room -= 1
        extras -= has_extra
        yield member, room, kept


def _keep(current: Assignment, taken: dict[UUID, bytearray], room: int) -> tuple[_Kept, int]:
    """The partitions of its present target that a member keeps, and the number that it still lacks.

    The present target may come from a front-end with another catalog. So unknown partitions do not count, nor
    partitions that another member keeps.
    """
    kept: _Kept = {}
    for topic, partitions in current.items():
        flags = taken.get(topic)
        if flags is None:
            continue
        mine = [partition for partition in partitions if partition < len(flags) and not flags[partition]][:room]
        for partition in mine:
            flags[partition] = 1
        if mine:
            kept[topic] = mine
            room -= len(mine)
    return kept, room


def _assignment(kept: _Kept) -> Assignment:
    return {topic: tuple(sorted(partitions)) for topic, partitions in kept.items()}
