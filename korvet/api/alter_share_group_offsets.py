"""AlterShareGroupOffsets (key 91), version 0 (KIP-932).

Source: KafkaApis.handleAlterShareGroupOffsetsRequest, GroupMetadataManager.alterShareGroupOffsets
"""

from __future__ import annotations

from typing import Any, Final

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.share_offsets import answered, check, failed
from korvet.api.shared.topic_lookup import known_topics
from korvet.codes import GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, UNKNOWN_TOPIC_OR_PARTITION
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.wire import requests

_API: Final = "alter_share_group_offsets"


def _refused(topic: requests.AlterShareGroupOffsetsRequestTopic) -> dict[str, Any]:
    partition = {"error_code": needs.CODES[needs.TOPIC], "error_message": needs.MESSAGES[needs.TOPIC]}
    partitions = [{"partition_index": one.partition_index, **partition} for one in topic.partitions]
    return {"topic_name": topic.topic_name, "topic_id": None, "partitions": partitions}


@api(91, 0, 0, needs=check(needs.READ, _refused))
async def handle(ctx: Context, request: requests.AlterShareGroupOffsetsRequest) -> Answer:
    """Set the start offsets of share partitions of a group without members; a group that is unknown is made."""
    if not request.group_id:
        return answered(code=INVALID_GROUP_ID)
    indexes = [(topic.topic_name, [one.partition_index for one in topic.partitions]) for topic in request.topics]
    known = await known_topics(ctx, indexes)
    # A topic that is named twice is altered once; of a partition that is named twice the last offset counts.
    offsets: dict[str, dict[int, int]] = {topic.topic_name: {} for topic in request.topics}
    for topic in request.topics:
        offsets[topic.topic_name].update((one.partition_index, one.start_offset) for one in topic.partitions)
    moved = [
        (found, {index: start for index, start in of.items() if 0 <= index < found.partitions})
        for name, of in offsets.items()
        if isinstance(found := known.get(name), Topic)
    ]
    try:
        outcomes = await ctx.frontend.groups.shares.move(request.group_id, moved)
    except KorvetError as error:
        return answered(code=failure_code(error, _API))
    if isinstance(outcomes, int):
        why = f"Group {request.group_id} is not a share group." if outcomes == GROUP_ID_NOT_FOUND else None
        return answered((), outcomes, why)
    codes = {
        (one.topic.name, one.index): failure_code(outcome, _API) if isinstance(outcome, KorvetError) else outcome
        for one, outcome in outcomes
    }
    return answered([_topic(name, known.get(name), of, codes) for name, of in offsets.items()])


def _topic(
    name: str, topic: Topic | int | None, offsets: dict[int, int], codes: dict[tuple[str, int], int]
) -> dict[str, Any]:
    unknown = topic if isinstance(topic, int) else UNKNOWN_TOPIC_OR_PARTITION
    found = [(index, codes.get((name, index), unknown)) for index in offsets]
    return {
        "topic_name": name,
        "topic_id": topic.id if isinstance(topic, Topic) else None,
        "partitions": [{"partition_index": index, **failed(code)} for index, code in found],
    }
