"""OffsetDelete (key 47), version 0 (KIP-496).

Source: KafkaApis.handleOffsetDeleteRequest, OffsetMetadataManager.deleteOffsets
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.group_failures import COORDINATOR_NOT_AVAILABLE, INVALID_GROUP_ID, failure_code
from korvet.api.topic_lookup import known_topics
from korvet.errors import KorvetError
from korvet.store.catalog import Topic

UNKNOWN_TOPIC_OR_PARTITION: Final = int(ErrorCode.unknown_topic_or_partition)

Entry = dict[str, Any]


@api(47, 0, 0)
async def handle(ctx: Context, request: Any) -> Answer:
    """Forget what was committed for partitions that no member of the group reads."""
    if not request.group_id:
        return {"error_code": INVALID_GROUP_ID, "topics": ()}
    known = await known_topics(ctx, request.topics)
    answered = [
        (topic.name, [_entry(part, known.get(topic.name)) for part in topic.partitions]) for topic in request.topics
    ]
    asked = [(name, entry) for name, entries in answered for entry in entries if entry["error_code"] == 0]
    try:
        ids = {name: topic.id.hex for name, topic in known.items() if isinstance(topic, Topic)}
        places = [((name, entry["partition_index"]), ids[name]) for name, entry in asked]
        code, codes = await ctx.frontend.groups.delete_offsets(request.group_id, places)
    except KorvetError as error:
        code, codes = failure_code(error, "offset_delete"), ()
    if code != 0:
        return {"error_code": code, "topics": ()}
    for (_, entry), outcome in zip(asked, codes, strict=True):
        entry["error_code"] = outcome
    return {"error_code": 0, "topics": [{"name": name, "partitions": entries} for name, entries in answered]}


def _entry(part: Any, topic: Topic | int | None) -> Entry:
    index = part.partition_index
    if isinstance(topic, int):
        code = COORDINATOR_NOT_AVAILABLE
    else:
        code = 0 if topic is not None and 0 <= index < topic.partitions else UNKNOWN_TOPIC_OR_PARTITION
    return {"partition_index": index, "error_code": code}
