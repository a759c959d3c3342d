"""OffsetFetch (key 9), versions 1 to 10.

- 2: every topic (null), an error for all   - 5: leader epochs   - 6: flexible   - 7: require_stable   - 8: several
groups   - 9: member id and epoch, which a member of a group of the consumer protocol must have (KIP-848)
- 10: topics by their ids

A partition without a committed offset is -1 without an error. So is one whose group or topic does not exist, and one
whose offset belongs to a former topic of the same name. With require_stable, a partition whose offset an open
transaction may change is UNSTABLE_OFFSET_COMMIT.

If the group cannot be read, its partitions up to version 7 have NOT_COORDINATOR beside the error for all. Kafka has
only the error for all: aiokafka 0.14 ignores it, and would start over as if nothing were committed.

Source: KafkaApis.handleOffsetFetchRequest, OffsetMetadataManager.fetchOffsets
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.group_failures import failure_code
from korvet.api.shared.topic_lookup import known_topics
from korvet.codes import COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_TOPIC_ID
from korvet.errors import KorvetError
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.groups.consumer import ConsumerGroups
from korvet.store.groups.types import Offset, TopicPartition
from korvet.store.topics import MAX_NAME_LENGTH
from korvet.wire import requests

_BATCHED_SINCE: Final = 8
_BY_ID_SINCE: Final = 10
_Topics = Sequence[tuple[str, Sequence[int]]]
"""The names of topics, each with the indexes of its partitions."""


class _Requested(NamedTuple):
    """The topics requested for a group; None stands for all topics."""

    group_id: str
    topics: _Topics | None
    member_id: str | None = None
    member_epoch: int = -1


def _named(
    topics: Iterable[requests.OffsetFetchRequestTopic | requests.OffsetFetchRequestTopics] | None,
) -> _Topics | None:
    return None if topics is None else [(topic.name, topic.partition_indexes) for topic in topics]


_UNSTABLE_OFFSET_COMMIT: Final = ErrorCode.unstable_offset_commit
_NOTHING: Final = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


@api(9, 1, 10, needs=needs.by_handler)
async def handle(ctx: Context, request: requests.OffsetFetchRequest) -> Answer:
    """The committed offsets of one group, or of several."""
    if ctx.version >= _BATCHED_SINCE:
        # All topics of a group are answered once, however often the request names the group.
        groups = list({one.group_id if one.topics is None else one: one for one in request.groups}.values())
        answer_one = _answer_by_id if ctx.version >= _BY_ID_SINCE else _answer_by_name
        answers = await ctx.gathered(groups, lambda one: answer_one(ctx, one, request.require_stable))
        return {"groups": [{"group_id": one.group_id, **answer} for one, answer in zip(groups, answers, strict=True)]}
    topics = _named(request.topics)
    answer = await _answer(ctx, _Requested(request.group_id, topics), request.require_stable)
    if (code := answer["error_code"]) != 0:
        answer["topics"] = _refused(topics or (), code)
    return answer


async def _answer_by_name(ctx: Context, group: requests.OffsetFetchRequestGroup, is_stable: bool) -> dict[str, Any]:
    requested = _Requested(group.group_id, _named(group.topics), group.member_id, group.member_epoch)
    return await _answer(ctx, requested, is_stable)


async def _answer_by_id(ctx: Context, group: requests.OffsetFetchRequestGroup, is_stable: bool) -> dict[str, Any]:
    wanted = [(topic.topic_id or UUID(int=0), topic.partition_indexes) for topic in group.topics or ()]
    known = await known_topics(ctx, wanted)
    named, unknown = list[tuple[str, Sequence[int]]](), list[dict[str, Any]]()
    for id, indexes in wanted:
        topic = known.get(id, UNKNOWN_TOPIC_ID)
        if isinstance(topic, Topic):
            named.append((topic.name, indexes))
        elif topic == UNKNOWN_TOPIC_ID:
            unknown.append({"topic_id": id, "partitions": [_unread(index, topic) for index in indexes]})
        else:
            return {"error_code": COORDINATOR_NOT_AVAILABLE, "topics": []}
    requested = _Requested(group.group_id, None if group.topics is None else named, group.member_id, group.member_epoch)
    answer = await _answer(ctx, requested, is_stable)
    found = [(ctx.frontend.catalog.topic(topic["name"]), topic) for topic in answer["topics"]]
    shown = [{**entry, "topic_id": topic.id} for topic, entry in found if topic is not None]
    return {**answer, "topics": [*shown, *(unknown if answer["error_code"] == 0 else ())]}


async def _answer(ctx: Context, requested: _Requested, is_stable: bool) -> dict[str, Any]:
    rights = ctx.rights
    if rights is None:
        return await _allowed(ctx, requested, is_stable)
    if not rights.allows(needs.DESCRIBE, needs.GROUP, requested.group_id):
        return {"error_code": ErrorCode.group_authorization_failed, "topics": []}
    if requested.topics is None:
        answer = await _allowed(ctx, requested, is_stable)
        unseen = await needs.unseen(ctx, needs.TOPIC, (topic["name"] for topic in answer["topics"]))
        return {**answer, "topics": [topic for topic in answer["topics"] if topic["name"] not in unseen]}
    names = (name for name, _ in requested.topics)
    denied = await ctx.frontend.turns.result(needs.denied_names(ctx, rights, needs.DESCRIBE, needs.TOPIC, names))
    if not denied:
        return await _allowed(ctx, requested, is_stable)
    left = [(name, indexes) for name, indexes in requested.topics if name not in denied]
    answer = await _allowed(ctx, requested._replace(topics=left), is_stable)
    others = [(name, indexes) for name, indexes in requested.topics if name in denied]
    refused = _refused(others, ErrorCode.topic_authorization_failed)
    return {**answer, "topics": [*answer["topics"], *(refused if answer["error_code"] == 0 else ())]}


async def _allowed(ctx: Context, requested: _Requested, is_stable: bool) -> dict[str, Any]:
    partitions = None
    if requested.topics is not None:
        partitions = list(
            dict.fromkeys(
                (name, index) for name, indexes in requested.topics if len(name) <= MAX_NAME_LENGTH for index in indexes
            )
        )
    groups = ctx.frontend.groups
    unstable: Set[TopicPartition] = frozenset()
    try:
        if (code := await _refusal(groups.consumers, requested)) != 0:
            return {"error_code": code, "topics": []}
        if is_stable:
            found, unstable = await groups.offsets.fetch_stable(requested.group_id, partitions)
        else:
            found = await groups.offsets.fetch(requested.group_id, partitions)
        committed = await _of_present_topics(ctx.frontend.catalog, found)
    except KorvetError as error:
        return {"error_code": failure_code(error, "offset_fetch"), "topics": []}
    topics: Iterable[tuple[str, Iterable[int]]]
    if requested.topics is None:
        by_topic: dict[str, list[int]] = {}
        for name, index in sorted({*committed, *unstable}):
            by_topic.setdefault(name, []).append(index)
        topics = by_topic.items()
    else:
        topics = requested.topics
    return {
        "error_code": 0,
        "topics": [
            {
                "name": name,
                "partitions": [_entry((name, index), committed, unstable) async for index in ctx.paced(indexes)],
            }
            async for name, indexes in ctx.paced(topics)
        ],
    }


async def _refusal(consumers: ConsumerGroups, requested: _Requested) -> int:
    if requested.member_id is None and requested.member_epoch < 0:
        return 0
    return await consumers.fetch_refusal(requested.group_id, requested.member_id, requested.member_epoch)


async def _of_present_topics(
    catalog: Catalog, found: Mapping[TopicPartition, Offset]
) -> Mapping[TopicPartition, Offset]:
    """The offsets without deleted topics; the catalog is read again before any is left out."""
    present = _present(catalog, found)
    if len(present) < len(found):
        await catalog.refresh()
        present = _present(catalog, found)
    return present


def _present(catalog: Catalog, found: Mapping[TopicPartition, Offset]) -> Mapping[TopicPartition, Offset]:
    ids = {name: topic.id for name in {name for name, _ in found} if (topic := catalog.topic(name)) is not None}
    return {partition: offset for partition, offset in found.items() if ids.get(partition[0]) == offset.topic_id}


def _refused(topics: _Topics, code: int) -> list[dict[str, Any]]:
    return [{"name": name, "partitions": [_unread(index, code) for index in indexes]} for name, indexes in topics]


def _unread(index: int, code: int) -> dict[str, Any]:
    if code == COORDINATOR_NOT_AVAILABLE:
        code = NOT_COORDINATOR
    return {"partition_index": index, "error_code": code, **_NOTHING}


def _entry(
    partition: TopicPartition, committed: Mapping[TopicPartition, Offset], unstable: Set[TopicPartition]
) -> dict[str, Any]:
    _, index = partition
    offset = committed.get(partition)
    if offset is None:
        code = _UNSTABLE_OFFSET_COMMIT if partition in unstable else 0
        return {"partition_index": index, "error_code": code, **_NOTHING}
    return {
        "partition_index": index,
        "error_code": 0,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
    }
