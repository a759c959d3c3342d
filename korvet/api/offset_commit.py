"""OffsetCommit (key 8), versions 2 to 9.

- 5: no retention time   - 6: leader epochs   - 7: static members   - 8: flexible   - 9: GROUP_ID_NOT_FOUND

The retention time of versions 2 to 4 is not looked at: offsets live as long as offsets.retention.minutes says.

Source: KafkaApis.handleOffsetCommitRequest, OffsetMetadataManager.commitOffset
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.group_failures import COORDINATOR_NOT_AVAILABLE, failure_code
from korvet.api.topic_lookup import known_topics
from korvet.errors import KorvetError
from korvet.store.catalog import Topic
from korvet.store.group_types import CommitRequest, Offset, Place
from korvet.wire import group_responses

OFFSET_METADATA_TOO_LARGE: Final = int(ErrorCode.offset_metadata_too_large)
UNKNOWN_TOPIC_OR_PARTITION: Final = int(ErrorCode.unknown_topic_or_partition)

Entries = dict[str, list[tuple[int, int]]]
"""Topic -> partitions, each with its code."""


class SortedOffsets:
    """The partitions of a request: those that are refused, and those that the group is asked for."""

    def __init__(self) -> None:
        self.refused: Entries = {}
        self.asked: Entries = {}
        self.offsets: list[tuple[Place, Offset]] = []

    def answers(self, code: int) -> Entries:
        """Refused partitions first, and topics once, as Kafka puts its answer together.

        ``code`` is the group's, and where it is not 0, that of all that it was asked for.
        """
        topics = self.refused
        for name, entries in self.asked.items():
            topics.setdefault(name, []).extend(entries if code == 0 else [(index, code) for index, _ in entries])
        return topics


@api(8, 2, 9)
async def handle(ctx: Context, request: Any) -> Answer:
    """Commit what can be; partitions that do not exist are refused before the group is asked."""
    sorted_ = sort_offsets(ctx, request, await known_topics(ctx, request.topics))
    if not sorted_.asked:
        return _packed(ctx.version, sorted_, 0)
    asked = CommitRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id_or_member_epoch,
        version=ctx.version,
        offsets=sorted_.offsets,
    )
    try:
        code = await ctx.frontend.groups.commit(asked)
    except KorvetError as error:
        code = failure_code(error, "offset_commit")
    return _packed(ctx.version, sorted_, code)


def _packed(version: int, sorted_: SortedOffsets, code: int) -> Answer:
    return [group_responses.offset_commit(version, sorted_.answers(code).items())]


def sort_offsets(ctx: Context, request: Any, topics: Any) -> SortedOffsets:
    """What of an OffsetCommit or TxnOffsetCommit the group is to be asked for, and what not.

    :param topics: those of the request that exist.
    """
    longest = int(ctx.frontend.catalog.setting(None, "offset.metadata.max.bytes"))
    result = SortedOffsets()
    for wanted in request.topics:
        topic = topics.get(wanted.name)
        for part in wanted.partitions:
            index = part.partition_index
            if not isinstance(topic, Topic):
                code = UNKNOWN_TOPIC_OR_PARTITION if topic is None else COORDINATOR_NOT_AVAILABLE
                result.refused.setdefault(wanted.name, []).append((index, code))
            elif not 0 <= index < topic.partitions:
                result.refused.setdefault(wanted.name, []).append((index, UNKNOWN_TOPIC_OR_PARTITION))
            elif _utf16_length(part.committed_metadata or "") > longest:
                result.asked.setdefault(wanted.name, []).append((index, OFFSET_METADATA_TOO_LARGE))
            else:
                result.asked.setdefault(wanted.name, []).append((index, 0))
                epoch = getattr(part, "committed_leader_epoch", -1)
                offset = Offset(part.committed_offset, epoch, topic.id, part.committed_metadata or "")
                result.offsets.append(((wanted.name, index), offset))
    return result


def _utf16_length(text: str) -> int:
    """The length as Kafka measures it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
