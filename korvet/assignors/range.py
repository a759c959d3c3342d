"""The range assignor: the subscribers of each topic get contiguous ranges, in one order of members for all topics.

So topics with equally many partitions are co-partitioned, if all members subscribe to them. Static members come first,
by instance id: a restart under another member id moves no partition. Source: RangeAssignor.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from korvet.assignors.spec import Assignment, GroupSpec, MemberSpec, in_order, subscribers


class Range:
    name = "range"

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]:
        members = [member.id for member in sorted(spec.members.values(), key=_rank)]
        by_topic = subscribers(spec, members)
        targets: list[dict[UUID, tuple[int, ...]]] = [{} for _ in members]
        for topic in in_order(by_topic):
            for at, partitions in zip(by_topic[topic], _ranges(spec, topic, len(by_topic[topic])), strict=False):
                targets[at][topic] = partitions
        return dict(zip(members, targets, strict=True))


def _rank(member: MemberSpec) -> tuple[bool, str]:
    return (True, member.id) if member.instance_id is None else (False, member.instance_id)


def _ranges(spec: GroupSpec, topic: UUID, shares: int) -> Iterator[tuple[int, ...]]:
    """The ranges of a topic, at most ``shares`` and the longer ones first; none is empty."""
    size, longer = divmod(spec.partitions[topic], shares)
    start = 0
    for share in range(shares if size else longer):
        end = start + size + (share < longer)
        yield tuple(range(start, end))
        start = end
