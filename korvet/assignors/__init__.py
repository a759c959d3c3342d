"""Server-side assignors of consumer groups and share groups: pure functions that compute each member's target.

Sources: KIP-848, org.apache.kafka.coordinator.group.assignor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from korvet.assignors.range import Range
from korvet.assignors.simple import Simple
from korvet.assignors.spec import Assignment, Assignor, AssignorError, GroupSpec, MemberSpec, changed
from korvet.assignors.uniform import Uniform

ASSIGNORS: Mapping[str, Assignor] = {assignor.name: assignor for assignor in (Uniform(), Range())}
"""The assignors by name; the first is the default. Source: group.consumer.assignors."""
SIMPLE: Assignor = Simple()
"""The assignor of share groups. Source: group.share.assignors."""


def preferred(names: Iterable[str | None]) -> str:
    """The assignor that most members prefer; None is no preference. Of equals, the earlier of ASSIGNORS wins.

    Source: ConsumerGroup.computePreferredServerAssignor.
    """
    votes = Counter(names)
    return max(ASSIGNORS, key=votes.__getitem__)


__all__ = [
    "ASSIGNORS",
    "SIMPLE",
    "Assignment",
    "Assignor",
    "AssignorError",
    "GroupSpec",
    "MemberSpec",
    "changed",
    "preferred",
]
