"""The partitions of a commit, sorted into refused ones and ones for the group."""

from __future__ import annotations

from collections.abc import Mapping, Set

from korvet.api.shared.context import Context
from korvet.api.shared.loop_turns import SLICE
from korvet.api.shared.needs import DELETE, GROUP, READ, TOPIC, denied_names
from korvet.codes import (
    COORDINATOR_NOT_AVAILABLE,
    OFFSET_METADATA_TOO_LARGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from korvet.security.rights import Rights
from korvet.store.catalog.topic import Topic
from korvet.store.groups.archived import ARCHIVE_GROUP
from korvet.store.groups.types import Offset, TopicPartition
from korvet.wire import requests
from korvet.wire.writer import Fields

Commit = requests.OffsetCommitRequest | requests.TxnOffsetCommitRequest
_Part = requests.OffsetCommitRequestPartition | requests.TxnOffsetCommitRequestPartition
Entries = dict[str, list[tuple[int, int]]]
"""Topic -> partitions, each with its code."""


def may_commit(rights: Rights, group_id: str) -> bool:
    """True if a client may commit offsets of a group.

    The archive's offsets cause the removal of records (``korvet.retention=archived``), so they need DELETE of its group
    in addition to Kafka's READ. A rule for all groups often gives READ.
    """
    if not rights.allows(READ, GROUP, group_id):
        return False
    return group_id != ARCHIVE_GROUP or rights.allows(DELETE, GROUP, group_id)


class SortedOffsets:
    """The partitions of a request: refused ones, and ones whose offsets go to the group."""

    def __init__(self) -> None:
        self.refused: Entries = {}
        self.requested: Entries = {}
        self.offsets: dict[TopicPartition, Offset] = {}

    def refuse(self, topic: str, index: int, code: int) -> None:
        """Refuse a partition; the group does not get it."""
        self.refused.setdefault(topic, []).append((index, code))

    def answers(self, code: int) -> Entries:
        """Refused partitions first, and each topic once, as in Kafka's answer.

        ``code`` is the group's. If it is not 0, each partition that went to the group gets it.
        """
        if code == 0 and not self.refused:
            return self.requested
        topics = self.refused
        for name, entries in self.requested.items():
            topics.setdefault(name, []).extend(entries if code == 0 else [(index, code) for index, _ in entries])
        return topics


async def sort_offsets(ctx: Context, request: Commit, topics: Mapping[str, Topic | int]) -> SortedOffsets:
    """Sort the partitions of an OffsetCommit or TxnOffsetCommit into refused ones and ones for the group.

    Unknown partitions are refused. A partition with too long metadata has its code among the group's partitions, and no
    offset. If a request names a partition twice, its last offset wins: Kafka writes both.

    :param topics: the answer of `known_topics` for the request.
    """
    longest = _longest(ctx)
    denied = frozenset[str]() if ctx.rights is None else await _denied(ctx, ctx.rights, request)
    result = SortedOffsets()
    count = 0
    for wanted in request.topics:
        for part in wanted.partitions:
            count += 1
            if count % SLICE == 0:
                await ctx.frontend.turns.turn()
            _sort(result, wanted.name, topics.get(wanted.name), part, longest, denied)
    return result


def _longest(ctx: Context) -> int:
    return ctx.frontend.catalog.integer(None, "offset.metadata.max.bytes")


async def _denied(ctx: Context, rights: Rights, request: Commit) -> Set[str]:
    """The topics that the client may not read."""
    names = (wanted.name for wanted in request.topics)
    return await ctx.frontend.turns.result(denied_names(ctx, rights, READ, TOPIC, names))


def refused_offsets(request: Commit, code: int) -> Fields:
    """The answer to an OffsetCommit or TxnOffsetCommit with the same code for every partition."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": part.partition_index, "error_code": code} for part in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _sort(
    result: SortedOffsets, name: str, topic: Topic | int | None, part: _Part, longest: int, denied: Set[str]
) -> None:
    index = part.partition_index
    if name in denied:
        result.refuse(name, index, TOPIC_AUTHORIZATION_FAILED)
    elif not isinstance(topic, Topic):
        result.refuse(name, index, UNKNOWN_TOPIC_OR_PARTITION if topic is None else COORDINATOR_NOT_AVAILABLE)
    elif not 0 <= index < topic.partitions:
        result.refuse(name, index, UNKNOWN_TOPIC_OR_PARTITION)
    elif _utf16_length(part.committed_metadata or "") > longest:
        result.requested.setdefault(name, []).append((index, OFFSET_METADATA_TOO_LARGE))
    else:
        result.requested.setdefault(name, []).append((index, 0))
        result.offsets[name, index] = Offset(
            part.committed_offset, part.committed_leader_epoch, topic.id, part.committed_metadata or ""
        )


def _utf16_length(text: str) -> int:
    """The length in UTF-16 units, as Kafka measures it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
