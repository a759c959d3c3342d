"""The uniform assignor: members get equally many partitions, and keep as many of their own as that allows.

Source: UniformAssignor.
"""

from __future__ import annotations

from korvet.assignors.heterogeneous import balanced
from korvet.assignors.homogeneous import dealt
from korvet.assignors.spec import Assignment, GroupSpec, common_topics


class Uniform:
    name = "uniform"

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]:
        topics = common_topics(spec)
        return balanced(spec) if topics is None else dealt(spec, topics)
