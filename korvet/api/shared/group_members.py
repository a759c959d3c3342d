"""What the heartbeats of consumer groups and of share groups have in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.store.groups.consumer_types import Heartbeaten
from korvet.store.topics import MAX_NAME_LENGTH
from korvet.wire.writer import Fields

MOST_SUBSCRIBED_BYTES: Final = 1 << 20
"""The topic names and the regular expression of a member; Kafka has a mebibyte for its record (max.message.bytes)."""
BLANK: Final = "".join(map(chr, range(33)))
"""The characters that Java's String.trim removes."""


def alive(member_id: str, member_epoch: int, interval_ms: int) -> Fields:
    """The answer to a heartbeat without an error and without an assignment."""
    return {"member_id": member_id, "member_epoch": member_epoch, "heartbeat_interval": interval_ms, "error_code": 0}


def answered(answer: Heartbeaten, interval_ms: int) -> Fields:
    """The answer to a heartbeat."""
    if answer.code != 0:
        return refused(answer.code, answer.message)
    fields = alive(answer.member_id, answer.member_epoch, interval_ms)
    if answer.assignment is None:
        return fields
    topics = answer.assignment.items()
    assigned = [{"topic_id": topic, "partitions": partitions} for topic, partitions in topics]
    return {**fields, "assignment": {"topic_partitions": assigned}}


def refused(code: int, message: str | None = None) -> Fields:
    """The answer to a heartbeat with an error."""
    return {"error_code": code, "error_message": message, "member_epoch": 0, "heartbeat_interval": 0}


def subscription_problem(names: Collection[str], regex: str = "") -> tuple[ErrorCode, str] | None:
    """The reason why a subscription is too large, or None."""
    if any(len(name) > MAX_NAME_LENGTH for name in names):
        return ErrorCode.invalid_request, f"SubscribedTopicNames: a topic's name has at most {MAX_NAME_LENGTH} letters."
    if sum(map(len, names)) + len(regex.encode()) > MOST_SUBSCRIBED_BYTES:
        return ErrorCode.unknown_server_error, f"A member's subscription has at most {MOST_SUBSCRIBED_BYTES} bytes."
    return None
