"""The partitions of a commit, sorted into refused ones and ones for the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from uuid import UUID

from korvet.api.shared.context import Context
from korvet.api.shared.loop_turns import SLICE
from korvet.api.shared.needs import ALTER, READ, TOPIC, denied_names
from korvet.api.shared.topic_lookup import TopicKey, known_topics
from korvet.codes import (
    COORDINATOR_NOT_AVAILABLE,
    OFFSET_METADATA_TOO_LARGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from korvet.security.rights import Rights
from korvet.store.catalog.topic import Topic
from korvet.store.groups.archived import ARCHIVE_GROUP
from korvet.store.groups.types import Offset, TopicPartition
from korvet.wire import requests
from korvet.wire.writer import Fields

Commit = requests.OffsetCommitRequest | requests.TxnOffsetCommitRequest
_Wanted = requests.OffsetCommitRequestTopic | requests.TxnOffsetCommitRequestTopic
Entries = dict[TopicKey, list[dict[str, int]]]
"""Topic -> partitions of the answer, each with its code."""


class SortedOffsets:
    """The partitions of a request: refused ones, and ones whose offsets go to the group."""

    __slots__ = ("offsets", "refused", "requested")

    def __init__(self) -> None:
        self.refused: Entries = {}
        self.requested: Entries = {}
        self.offsets: dict[TopicPartition, Offset] = {}

    def answer(self, code: int) -> Fields:
        """The answer: refused partitions first, and each topic once, as in Kafka's.

        :param code: the group's. If it is not 0, each partition that went to the group gets it.
        """
        for key, entries in self.requested.items():
            if code != 0:
                for entry in entries:
                    entry["error_code"] = code
            self.refused.setdefault(key, []).extend(entries)
        refused = self.refused.items()
        return {"topics": [{"name": key, "topic_id": key, "partitions": entries} for key, entries in refused]}


async def sort_offsets(ctx: Context, request: Commit, *, by_id: bool) -> SortedOffsets:
    """Sort the partitions of an OffsetCommit or TxnOffsetCommit into refused ones and ones for the group.

    Unknown partitions are refused. A partition with too long metadata has its code among the group's partitions, and no
    offset. If a request names a partition twice, its last offset wins: Kafka writes both.

    :param by_id: true if the request names topics by their ids.
    """
    wanted_topics: Sequence[_Wanted] = request.topics
    keys = [_key(wanted, by_id) for wanted in wanted_topics]
    indexes = [[part.partition_index for part in wanted.partitions] for wanted in wanted_topics]
    topics = await known_topics(ctx, list(zip(keys, indexes, strict=True)))
    longest = ctx.frontend.catalog.integer(None, "offset.metadata.max.bytes")
    denied = frozenset[str]() if ctx.rights is None else await _denied(ctx, ctx.rights, request.group_id, keys, topics)
    result = SortedOffsets()
    count = 0
    for key, wanted in zip(keys, wanted_topics, strict=True):
        topic = topics.get(key, UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC_OR_PARTITION)
        if _name(key, topics) in denied:
            topic = TOPIC_AUTHORIZATION_FAILED
        elif isinstance(topic, int) and key in topics:
            topic = COORDINATOR_NOT_AVAILABLE
        for part in wanted.partitions:
            count += 1
            if count % SLICE == 0:
                await ctx.frontend.turns.turn()
            index, metadata = part.partition_index, part.committed_metadata or ""
            entries, code = result.requested, 0
            if not isinstance(topic, Topic):
                entries, code = result.refused, topic
            elif not 0 <= index < topic.partitions:
                entries, code = result.refused, UNKNOWN_TOPIC_OR_PARTITION
            elif 2 * len(metadata) > longest and _utf16_length(metadata) > longest:
                code = OFFSET_METADATA_TOO_LARGE
            else:
                offset = Offset(part.committed_offset, part.committed_leader_epoch, topic.id, metadata)
                result.offsets[topic.name, index] = offset
            entries.setdefault(key, []).append({"partition_index": index, "error_code": code})
    return result


def _key(wanted: _Wanted, by_id: bool) -> TopicKey:
    return wanted.topic_id or UUID(int=0) if by_id else wanted.name


def _name(key: TopicKey, topics: Mapping[TopicKey, Topic | int]) -> str | None:
    """The name of a topic; None of an unknown id."""
    topic = topics.get(key)
    return topic.name if isinstance(topic, Topic) else key if isinstance(key, str) else None


async def _denied(
    ctx: Context, rights: Rights, group_id: str, keys: Iterable[TopicKey], topics: Mapping[TopicKey, Topic | int]
) -> Set[str]:
    """The names of topics that the client may not read.

    The archive's offsets cause the removal of records (``korvet.retention=archived``), so they need ALTER of the topic,
    too. A rule for all groups often gives READ.
    """
    names = [name for key in keys if (name := _name(key, topics)) is not None]
    denied = await ctx.frontend.turns.result(denied_names(ctx, rights, READ, TOPIC, names))
    if group_id != ARCHIVE_GROUP:
        return denied
    return denied | await ctx.frontend.turns.result(denied_names(ctx, rights, ALTER, TOPIC, names))


def refused_offsets(request: Commit, code: int) -> Fields:
    """The answer to an OffsetCommit or TxnOffsetCommit with the same code for every partition."""
    return {
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {"partition_index": part.partition_index, "error_code": code} for part in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _utf16_length(text: str) -> int:
    """The length in UTF-16 units, as Kafka measures it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
