"""What the heartbeats and descriptions of consumer groups and of share groups have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from korvet.api.shared import needs
from korvet.api.shared.admin import GROUP_OPERATIONS, NOT_REQUESTED
from korvet.api.shared.context import Context
from korvet.assignors import Assignment
from korvet.store.catalog.catalog import Catalog
from korvet.store.topics import MAX_NAME_LENGTH
from korvet.wire.writer import Fields

MOST_SUBSCRIBED_BYTES: Final = 1 << 20
"""The topic names and the regular expression of a member; Kafka has a mebibyte for its record (max.message.bytes)."""
BLANK: Final = "".join(map(chr, range(33)))
"""The characters that Java's String.trim removes."""
HIDDEN: Final = "The group has described topic(s) that the client is not authorized to describe."


class OfOperations(Protocol):
    """A request that may ask for the operations that its client is allowed."""

    @property
    def include_authorized_operations(self) -> bool: ...


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


def assigned_topics(catalog: Catalog, assignment: Assignment) -> dict[str, Any]:
    """The assignment in a description without deleted topics, as in Kafka."""
    named = [(catalog.topic_by_id(id), id, partitions) for id, partitions in assignment.items()]
    return {
        "topic_partitions": [
            {"topic_id": id, "topic_name": topic.name, "partitions": partitions}
            for topic, id, partitions in named
            if topic is not None
        ]
    }


async def has_hidden_topics(ctx: Context, members: Sequence[Mapping[str, Any]], *assignments: str) -> bool:
    """True if members have topics that the client may not describe. A group is shown whole or not at all, as in Kafka.

    :param assignments: the names of the fields of a member with its topics.
    """
    if ctx.rights is None:
        return False
    names = {
        topic["topic_name"]
        for member in members
        for assignment in assignments
        for topic in member[assignment]["topic_partitions"]
    }
    return bool(await needs.unseen(ctx, needs.TOPIC, names))


def operations(ctx: Context, request: OfOperations, group_id: str) -> int:
    """The operations on a group that its client is allowed, if the request asks for them."""
    if not request.include_authorized_operations:
        return NOT_REQUESTED
    return needs.operations(ctx, needs.GROUP, group_id, GROUP_OPERATIONS)
