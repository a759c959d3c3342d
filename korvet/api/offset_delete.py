"""OffsetDelete (key 47), version 0 (KIP-496).

Source: KafkaApis.handleOffsetDeleteRequest, OffsetMetadataManager.deleteOffsets
"""

from __future__ import annotations

from typing import Any

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.topic_lookup import indexed, known_topics
from korvet.codes import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_AUTHORIZATION_FAILED,
    INVALID_GROUP_ID,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.wire import requests

Entry = dict[str, Any]


def _group_refused(*_: object) -> Entry:
    return {"error_code": GROUP_AUTHORIZATION_FAILED, "topics": ()}


def _refused(topic: requests.OffsetDeleteRequestTopic) -> Entry:
    entries = [
        {"partition_index": part.partition_index, "error_code": TOPIC_AUTHORIZATION_FAILED} for part in topic.partitions
    ]
    return {"name": topic.name, "partitions": entries}


@api(47, 0, 0, needs=needs.every(needs.group(needs.DELETE, _group_refused), needs.topics(needs.READ, _refused)))
async def handle(ctx: Context, request: requests.OffsetDeleteRequest) -> Answer:
    """Delete the committed offsets of partitions whose topic no member of the group subscribes to."""
    if not request.group_id:
        return {"error_code": INVALID_GROUP_ID, "topics": ()}
    known = await known_topics(ctx, indexed(request.topics))
    answered = [
        (topic.name, [_entry(part, known.get(topic.name)) for part in topic.partitions]) for topic in request.topics
    ]
    requested = [(name, entry) for name, entries in answered for entry in entries if entry["error_code"] == 0]
    try:
        ids = {name: topic.id.hex for name, topic in known.items() if isinstance(topic, Topic)}
        pairs = [((name, entry["partition_index"]), ids[name]) for name, entry in requested]
        code, codes = await ctx.frontend.groups.offsets.delete(request.group_id, pairs)
    except KorvetError as error:
        code, codes = failure_code(error, "offset_delete"), ()
    if code != 0:
        return {"error_code": code, "topics": ()}
    for (_, entry), outcome in zip(requested, codes, strict=True):
        entry["error_code"] = outcome
    return {"error_code": 0, "topics": [{"name": name, "partitions": entries} for name, entries in answered]}


def _entry(part: requests.OffsetDeleteRequestPartition, topic: Topic | int | None) -> Entry:
    index = part.partition_index
    if isinstance(topic, int):
        code = COORDINATOR_NOT_AVAILABLE
    else:
        code = 0 if topic is not None and 0 <= index < topic.partitions else UNKNOWN_TOPIC_OR_PARTITION
    return {"partition_index": index, "error_code": code}
