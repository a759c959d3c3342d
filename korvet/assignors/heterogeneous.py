"""Uniform targets for members with different subscriptions: keep, hand out, then level topic by topic.

Members keep their partitions of topics to which they still subscribe. Partitions without an owner go to the subscribers
with the fewest partitions in all. Then, topic by topic, partitions go from the subscribers with the most to those with
the fewest, until a whole round moves none. Members whose subscriptions overlap in part may end in a chain of loads that
differ by one each. Kafka does not look for a longer exchange either. Source: UniformHeterogeneousAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from uuid import UUID

from korvet.assignors.spec import Assignment, GroupSpec, subscribers

_ROUNDS = 16
_NOBODY = -1


def balanced(spec: GroupSpec) -> dict[str, Assignment]:
    """The target of every member.

    Raises:
        AssignorError: a member subscribes to a topic that has no partitions in ``spec``.
    """
    members = sorted(spec.members)
    balance = _Balance(members, subscribers(spec, members), spec.partitions)
    balance.keep(spec)
    balance.hand_out()
    balance.level()
    return balance.targets()


class _Balance:
    """The owner of each partition, and each member's number of partitions. Members are indexes of their list."""

    def __init__(
        self, members: Sequence[str], subscribers: Mapping[UUID, Sequence[int]], partitions: Mapping[UUID, int]
    ) -> None:
        self._members = members
        self._subscribers = subscribers
        self._owners = {topic: [_NOBODY] * partitions[topic] for topic in subscribers}
        self._sizes = [0] * len(members)
        self._topics = sorted(subscribers, key=self._scarcity)

    def _scarcity(self, topic: UUID) -> tuple[float, int, int]:
        """The sort key: most partitions for each subscriber first, then fewest subscribers."""
        count = len(self._subscribers[topic])
        return -len(self._owners[topic]) / count, count, topic.int

    def keep(self, spec: GroupSpec) -> None:
        """Let each member keep its partitions of topics to which it subscribes.

        The present target may come from a front-end with another catalog. So the first of two owners keeps a partition,
        and unknown partitions do not count.
        """
        for at, member in enumerate(map(spec.members.__getitem__, self._members)):
            for topic in member.current.keys() & member.topics:
                owners = self._owners[topic]
                for partition in member.current[topic]:
                    if partition < len(owners) and owners[partition] == _NOBODY:
                        owners[partition] = at
                        self._sizes[at] += 1

    def hand_out(self) -> None:
        """Give partitions without an owner to the subscribers with the fewest partitions."""
        for topic in self._topics:
            owners = self._owners[topic]
            free = [partition for partition, owner in enumerate(owners) if owner == _NOBODY]
            if free:
                takers = _Takers(self._by_size(topic), self._sizes)
                for partition in free:
                    owners[partition] = taker = takers.next()
                    self._sizes[taker] += 1

    def level(self) -> None:
        """Move partitions until each topic's subscribers differ by at most one partition, or the rounds are over."""
        shared = [topic for topic in self._topics if len(self._subscribers[topic]) > 1]
        last = None
        for _ in range(_ROUNDS):
            for topic in shared:
                if topic is last:
                    return
                if self._level(topic) or last is None:
                    last = topic

    def _level(self, topic: UUID) -> bool:
        """Level one topic; true if a partition moved."""
        sizes = [self._sizes[at] for at in self._subscribers[topic]]
        if max(sizes) - min(sizes) <= 1:
            return False
        order = self._by_size(topic)
        takers = _Takers(order, self._sizes)
        givers = _Givers(order, self._sizes, self._owners[topic])
        moved = False
        while givers and givers.size - takers.size > 1:
            partition, giver = givers.next()
            taker = takers.next()
            self._owners[topic][partition] = taker
            self._sizes[giver] -= 1
            self._sizes[taker] += 1
            moved = True
        return moved

    def _by_size(self, topic: UUID) -> list[int]:
        return sorted(self._subscribers[topic], key=self._sizes.__getitem__)

    def targets(self) -> dict[str, Assignment]:
        """Each member's partitions."""
        found: list[dict[UUID, tuple[int, ...]]] = [{} for _ in self._members]
        for topic, owners in self._owners.items():
            for at, partitions in _held(owners).items():
                found[at][topic] = tuple(partitions)
        return dict(zip(self._members, found, strict=True))


def _held(owners: Sequence[int]) -> dict[int, list[int]]:
    """A topic's partitions by owner, ascending."""
    held: dict[int, list[int]] = {}
    for partition, owner in enumerate(owners):
        held.setdefault(owner, []).append(partition)
    return held


class _Takers:
    """The subscribers of a topic, the least loaded first; equals by their index in ``order``, which is by size.

    The heap holds size * n + index for each of the n subscribers; each partition taken adds n.
    """

    def __init__(self, order: Sequence[int], sizes: Sequence[int]) -> None:
        self._order = order
        self._heap = [sizes[member] * len(order) + at for at, member in enumerate(order)]

    @property
    def size(self) -> int:
        """The next subscriber's number of partitions."""
        return self._heap[0] // len(self._order)

    def next(self) -> int:
        """The subscriber that takes the next partition."""
        taker = self._heap[0]
        heapreplace(self._heap, taker + len(self._order))
        return self._order[taker % len(self._order)]


class _Givers:
    """The subscribers that own partitions of a topic, the most loaded first; equals from the end of ``order``.

    The heap holds -(size * n + index). A subscriber without partitions left leaves it.
    """

    def __init__(self, order: Sequence[int], sizes: Sequence[int], owners: Sequence[int]) -> None:
        self._order = order
        self._held = _held(owners)
        self._heap = [-(sizes[member] * len(order) + at) for at, member in enumerate(order) if member in self._held]
        heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def size(self) -> int:
        """The next subscriber's number of partitions."""
        return -self._heap[0] // len(self._order)

    def next(self) -> tuple[int, int]:
        """The next partition to move, and its owner."""
        giver = self._order[-self._heap[0] % len(self._order)]
        held = self._held[giver]
        partition = held.pop()
        if held:
            heapreplace(self._heap, self._heap[0] + len(self._order))
        else:
            heappop(self._heap)
        return partition, giver
