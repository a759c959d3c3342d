"""The topics that a request names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import read_failure_code
from korvet.api.shared.loop_turns import SLICE
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.wire import requests

Indexed = requests.DeleteRecordsTopic | requests.ListOffsetsTopic | requests.OffsetDeleteRequestTopic
TopicKey = str | UUID
"""A topic as a request names it: by name, or by id."""
K = TypeVar("K", bound=TopicKey)


def indexed(topics: Iterable[Indexed]) -> list[tuple[str, list[int]]]:
    """The topics of a request, for `known_topics`."""
    return [(topic.name, [part.partition_index for part in topic.partitions]) for topic in topics]


async def known_topics(ctx: Context, requested: Sequence[tuple[K, Iterable[int]]]) -> Mapping[K, Topic | int]:
    """The existing topics of a request, by name or id.

    The catalog is read if its cache lacks one of the topics or partitions. If that fails, a missing topic has the error
    code for its answer instead.

    :param requested: the topics, each with the indexes of its partitions.
    """
    catalog = ctx.frontend.catalog
    known: dict[K, Topic | int] = {}
    for is_fresh in (False, True):
        is_whole = True
        for key, indexes in requested:
            topic = catalog.topic_by_id(key) if isinstance(key, UUID) else catalog.topic(key)
            if topic is not None:
                known[key] = topic
            is_whole = is_whole and topic is not None and max(indexes, default=-1) < topic.partitions
        if len(requested) > SLICE:
            await ctx.frontend.turns.turn()
        if is_fresh or is_whole:
            break
        try:
            await catalog.refresh()
        except KorvetError as error:
            code = read_failure_code(error, "catalog")
            return {key: code for key, _ in requested} | known
        known.clear()
    return known
