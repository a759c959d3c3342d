"""DeleteTopics (20), versions 1 to 6.

- 5: the answer has error messages; topics beyond the quota of mutations are refused (KIP-599)
- 6: topics may be named by id (KIP-516)

Source: ControllerApis.deleteTopics.
"""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import change_failure
from korvet.api.shared.changes import noted
from korvet.api.shared.context import Context
from korvet.api.shared.mutations import EXCEEDED, Mutations
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.store.topics import delete_topic
from korvet.wire import requests
from korvet.wire.writer import Fields

_UNKNOWN = (ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
_UNKNOWN_ID = (ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
_TWICE = (ErrorCode.invalid_request, "The provided topic name maps to an ID that was already supplied.")
_STRICT_SINCE = 5
Requested = tuple[str | None, UUID | None]


@api(20, 1, 6, needs=needs.by_handler)
async def handle(ctx: Context, request: requests.DeleteTopicsRequest) -> Fields:
    requested = _requested(request)
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        failure = change_failure(ctx, error)
        return {"responses": [_result(name, topic_id, *failure) for name, topic_id in requested]}
    refused, topics = await _resolve(ctx, requested)
    mutations = Mutations(ctx, _STRICT_SINCE)
    with noted(ctx, [topic.name for topic in topics]) as change:
        deleted = [await _delete(ctx, topic, mutations) for topic in topics]
        change.ended(one["error_code"] for one in deleted)
    return {"responses": refused + deleted, "throttle_time": mutations.throttle_ms}


def _requested(request: requests.DeleteTopicsRequest) -> list[Requested]:
    return [
        *((topic.name, topic.topic_id) for topic in request.topics),
        *((name, None) for name in request.topic_names),
    ]


async def _resolve(ctx: Context, requested: list[Requested]) -> tuple[list[Fields], list[Topic]]:
    """The answers for names and ids that cannot be deleted, and the topics to delete, each once."""
    refused: list[Fields] = []
    found: dict[UUID, Topic] = {}
    times = Counter(requested)
    async for name, topic_id in ctx.paced(sorted(times, key=_is_by_name)):
        problem = _ambiguity(name, topic_id, times[name, topic_id])
        topic = _look_up(ctx, name, topic_id) if problem is None else None
        if problem is None and (known := topic.name if topic is not None else name) is not None:
            problem = _forbidden(ctx, known, exists=topic is not None)
            if problem is not None:
                shown = known if topic_id is None or _is_seen(ctx, known) else None
                refused.append(_result(shown, topic_id, *problem))
                continue
        if topic is not None and found.pop(topic.id, None) is None:
            found[topic.id] = topic
            continue
        if topic is not None:
            topic_id, problem = topic.id, _TWICE
        refused.append(_result(name, topic_id, *(problem or (_UNKNOWN if topic_id is None else _UNKNOWN_ID))))
    return refused, list(found.values())


def _forbidden(ctx: Context, name: str, *, exists: bool) -> tuple[ErrorCode, str] | None:
    """The refusal if the client may not delete a topic; only a client that may describe it learns if it exists."""
    rights = ctx.rights
    if rights is None or rights.quiet.allows_on_cluster(needs.DELETE) or (not exists and _is_seen(ctx, name)):
        return None
    if rights.allows(needs.DELETE, needs.TOPIC, name):
        return None
    return ErrorCode.topic_authorization_failed, needs.MESSAGES[needs.TOPIC]


def _is_seen(ctx: Context, name: str) -> bool:
    return ctx.rights is None or ctx.rights.sees(needs.DESCRIBE, needs.TOPIC, name)


def _is_by_name(requested: Requested) -> bool:
    return requested[1] is None


def _ambiguity(name: str | None, topic_id: UUID | None, times: int) -> tuple[ErrorCode, str] | None:
    if name is None and topic_id is None:
        return ErrorCode.invalid_request, "Neither topic name nor id were specified."
    if name is not None and topic_id is not None:
        return ErrorCode.invalid_request, "You may not specify both topic name and topic id."
    if times > 1:
        return ErrorCode.invalid_request, f"Duplicate topic {'name' if topic_id is None else 'id'}."
    return None


def _look_up(ctx: Context, name: str | None, topic_id: UUID | None) -> Topic | None:
    catalog = ctx.frontend.catalog
    return catalog.topic(name or "") if topic_id is None else catalog.topic_by_id(topic_id)


async def _delete(ctx: Context, topic: Topic, mutations: Mutations) -> Fields:
    frontend = ctx.frontend
    if not mutations.take(topic.partitions):
        return _result(topic.name, topic.id, *EXCEEDED)
    try:
        code = await delete_topic(frontend.catalog, frontend.log, topic)
    except KorvetError as error:
        return _result(topic.name, topic.id, *change_failure(ctx, error))
    # Any code means that another front-end was faster, and has deleted the whole topic.
    return _result(topic.name, topic.id, *((code, None) if code is ErrorCode.none else _UNKNOWN))


def _result(name: str | None, topic_id: UUID | None, code: ErrorCode, message: str | None) -> Fields:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
