"""OffsetFetch (key 9), versions 1 to 9.

- 2: every topic (null), an error for all   - 5: leader epochs   - 6: flexible   - 7: require_stable   - 8: several
groups   - 9: member id and epoch, which a member of a group of the consumer protocol must have (KIP-848)

What is not committed is -1 without an error, also where the group or the topic does not exist, and where the offset
belongs to a former topic of the same name. With require_stable, what an open transaction may change is
UNSTABLE_OFFSET_COMMIT.

Where the group cannot be read, its partitions up to version 7 carry NOT_COORDINATOR beside the error for all, which
Kafka has alone: aiokafka 0.14 does not look at that one, and would begin anew where nothing seems to be committed.

Source: KafkaApis.handleOffsetFetchRequest, OffsetMetadataManager.fetchOffsets
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.group_failures import COORDINATOR_NOT_AVAILABLE, failure_code
from korvet.errors import KorvetError
from korvet.store.catalog import Catalog
from korvet.store.consumer_groups import ConsumerGroups
from korvet.store.group_types import Offset, Place

_BATCHED_SINCE: Final = 8
_UNSTABLE_OFFSET_COMMIT: Final = ErrorCode.unstable_offset_commit
_NOT_COORDINATOR: Final = int(ErrorCode.not_coordinator)
_NOTHING: Final = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


@api(9, 1, 9)
async def handle(ctx: Context, request: Any) -> Answer:
    """The committed offsets of one group, or of several."""
    is_stable = getattr(request, "require_stable", False)
    if ctx.version >= _BATCHED_SINCE:
        answers = [(asked.group_id, await _answer(ctx, asked, is_stable)) for asked in request.groups]
        return {"groups": [{"group_id": group_id, **answer} for group_id, answer in answers]}
    answer = await _answer(ctx, request, is_stable)
    if (code := answer["error_code"]) != 0:
        answer["topics"] = [
            {"name": topic.name, "partitions": [_unread(index, code) for index in topic.partition_indexes]}
            for topic in request.topics or ()
        ]
    return answer


async def _answer(ctx: Context, asked: Any, is_stable: bool) -> dict[str, Any]:
    places = None
    if asked.topics is not None:
        places = [(topic.name, index) for topic in asked.topics for index in topic.partition_indexes]
    groups = ctx.frontend.groups
    unstable: Set[Place] = frozenset()
    try:
        if (code := await _refusal(groups.consumers, asked)) != 0:
            return {"error_code": code, "topics": []}
        if is_stable:
            found, unstable = await groups.fetch_stable(asked.group_id, places)
        else:
            found = await groups.fetch(asked.group_id, places)
        committed = await _of_present_topics(ctx.frontend.catalog, found)
    except KorvetError as error:
        return {"error_code": failure_code(error, "offset_fetch"), "topics": []}
    if places is None:
        by_topic: dict[str, list[int]] = {}
        for name, index in sorted({*committed, *unstable}):
            by_topic.setdefault(name, []).append(index)
        topics: Iterable[tuple[str, Iterable[int]]] = by_topic.items()
    else:
        topics = [(topic.name, topic.partition_indexes) for topic in asked.topics]
    return {
        "error_code": 0,
        "topics": [
            {"name": name, "partitions": [_entry((name, index), committed, unstable) for index in indexes]}
            for name, indexes in topics
        ],
    }


async def _refusal(consumers: ConsumerGroups, asked: Any) -> int:
    member_id, epoch = getattr(asked, "member_id", None), getattr(asked, "member_epoch", -1)
    if member_id is None and epoch < 0:
        return 0
    return await consumers.fetch_refusal(asked.group_id, member_id, epoch)


async def _of_present_topics(catalog: Catalog, found: Mapping[Place, Offset]) -> Mapping[Place, Offset]:
    """Without the offsets of topics that are gone. The catalog is read where its cache would have some go."""
    present = _present(catalog, found)
    if len(present) < len(found):
        await catalog.refresh()
        present = _present(catalog, found)
    return present


def _present(catalog: Catalog, found: Mapping[Place, Offset]) -> Mapping[Place, Offset]:
    ids = {name: topic.id for name in {name for name, _ in found} if (topic := catalog.topic(name)) is not None}
    return {place: offset for place, offset in found.items() if ids.get(place[0]) == offset.topic_id}


def _unread(index: int, code: int) -> dict[str, Any]:
    if code == COORDINATOR_NOT_AVAILABLE:
        code = _NOT_COORDINATOR
    return {"partition_index": index, "error_code": code, **_NOTHING}


def _entry(place: Place, committed: Mapping[Place, Offset], unstable: Set[Place]) -> dict[str, Any]:
    _, index = place
    offset = committed.get(place)
    if offset is None:
        code = _UNSTABLE_OFFSET_COMMIT if place in unstable else 0
        return {"partition_index": index, "error_code": code, **_NOTHING}
    return {
        "partition_index": index,
        "error_code": 0,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
    }
