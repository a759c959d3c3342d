"""The uniform assignor: members get equally many partitions, and keep what they have as far as that allows.

Source: UniformAssignor.
"""

from __future__ import annotations

from korvet.store.assignors.heterogeneous import balanced
from korvet.store.assignors.homogeneous import dealt
from korvet.store.assignors.spec import Assignment, GroupSpec, common_topics


class Uniform:
    name = "uniform"

    def assign(self, spec: GroupSpec) -> dict[str, Assignment]:
        topics = common_topics(spec)
        return balanced(spec) if topics is None else dealt(spec, topics)
