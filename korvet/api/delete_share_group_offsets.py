"""DeleteShareGroupOffsets (key 92), version 0 (KIP-932).

Source: KafkaApis.handleDeleteShareGroupOffsetsRequest, GroupMetadataManager.sharePartitionsEligibleForOffsetDeletion
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

_API: Final = "delete_share_group_offsets"


def _refused(topic: requests.DeleteShareGroupOffsetsRequestTopic) -> dict[str, Any]:
    return {"topic_name": topic.topic_name, "topic_id": None, **needs.failed(needs.TOPIC)()}


@api(92, 0, 0, needs=check(needs.DELETE, _refused))
async def handle(ctx: Context, request: requests.DeleteShareGroupOffsetsRequest) -> Answer:
    """Delete the share partitions of a group without members in some topics."""
    group_id, shares = request.group_id, ctx.frontend.groups.shares
    if not group_id:
        return answered(code=INVALID_GROUP_ID)
    names = list(dict.fromkeys(topic.topic_name for topic in request.topics))
    known = await known_topics(ctx, [(name, ()) for name in names])
    try:
        found = await shares.topics(group_id)
        code = await shares.forget(group_id, names)
        is_other = code == GROUP_ID_NOT_FOUND and await ctx.frontend.groups.administration.state(group_id) is not None
    except KorvetError as error:
        return answered(code=failure_code(error, _API))
    if found is None or code != 0:
        why = f"Group {group_id} is not a share group." if is_other else f"Group {group_id} not found."
        return answered((), code, why if code == GROUP_ID_NOT_FOUND else None)
    return answered([{"topic_name": name, **_topic(known.get(name), found.topics.get(name))} for name in names])


def _topic(topic: Topic | int | None, line: str | None) -> dict[str, Any]:
    if not isinstance(topic, Topic):
        code = topic or UNKNOWN_TOPIC_OR_PARTITION
        return {"topic_id": None, **failed(code)}
    if line is None or not line.startswith(topic.id.hex):
        why = "There is no offset information to delete."
        return {"topic_id": None, **failed(UNKNOWN_TOPIC_OR_PARTITION, why)}
    return {"topic_id": topic.id, **failed(0)}
