"""What the heartbeats of consumer groups and of share groups have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from korvet.assignors import Assignment
from korvet.store.topics import MAX_NAME_LENGTH
from korvet.wire.writer import Fields

MOST_SUBSCRIBED_BYTES: Final = 1 << 20
"""The topic names and the regular expression of a member; Kafka has a mebibyte for its record (max.message.bytes)."""
BLANK: Final = "".join(map(chr, range(33)))
"""The characters that Java's String.trim removes."""


def alive(member_id: str, member_epoch: int, interval_ms: int) -> Fields:
    """The answer to a heartbeat without an error and without an assignment."""
    return {"member_id": member_id, "member_epoch": member_epoch, "heartbeat_interval": interval_ms, "error_code": 0}


def assigned_ids(assignment: Assignment) -> dict[str, Any]:
    """The assignment in the answer to a heartbeat."""
    topics = assignment.items()
    return {"topic_partitions": [{"topic_id": topic, "partitions": partitions} for topic, partitions in topics]}


def is_too_long(names: Iterable[str]) -> bool:
    """True if one of the names is too long for a topic."""
    return any(len(name) > MAX_NAME_LENGTH for name in names)
