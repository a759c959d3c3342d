"""Server-side assignors of the consumer protocol: which member is to own which partitions. Pure functions.

Sources: KIP-848, org.apache.kafka.coordinator.group.assignor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from korvet.store.assignors.range import Range
from korvet.store.assignors.spec import Assignment, Assignor, AssignorError, GroupSpec, MemberSpec, changed
from korvet.store.assignors.uniform import Uniform

ASSIGNORS: Mapping[str, Assignor] = {assignor.name: assignor for assignor in (Uniform(), Range())}
"""By name; the first is the default. Source: group.consumer.assignors."""


def preferred(names: Iterable[str | None]) -> str:
    """The assignor that most members ask for, of equals the earlier of ASSIGNORS; None asks for none.

    Source: ConsumerGroup.computePreferredServerAssignor.
    """
    votes = Counter(names)
    return max(ASSIGNORS, key=votes.__getitem__)


__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "AssignorError",
    "GroupSpec",
    "MemberSpec",
    "changed",
    "preferred",
]
