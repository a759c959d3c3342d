"""Groups of both protocols as Kafka's tests set them up."""

from __future__ import annotations

import struct
from typing import Any

from tests.lua.consumer import of
from tests.lua.group import NONE
from tests.lua.mixed import MixedGroup

INSTANCE = "instance-id"
NEW = "consumer-member"
POISON = struct.pack(">hi", 1, -1)
"""A subscription with a negative count of topics."""


def entered(mixed: MixedGroup, member: str = NEW, *, instance: str = "") -> int:
    """A member of the consumer protocol joins; returns its epoch."""
    answer = mixed.enter(member, instance=instance)
    assert (answer.code, answer.status) == (NONE, "ready"), answer
    return answer.epoch


def with_classic(mixed: MixedGroup, *assigned: dict[str, list[int]], **options: Any) -> list[str]:
    """A Stable consumer group of classic members with assignments, and NEW without partitions."""
    entered(mixed)
    ids = []
    for topics in assigned:
        ids.append(mixed.known(protocols=mixed.says()))
        mixed.targets[ids[-1]] = of(**topics)
        mixed.classic(ids[-1], **options)
    mixed.beat(NEW, 1)
    generation = mixed.epochs[0]
    for member in ids:
        assert mixed.classic(member, mixed.says(owned=assigned[ids.index(member)]), **options).generation == generation
        mixed.synced(member, generation)
    assert mixed.state == "Stable"
    return ids
