"""The topics that a request names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import read_failure_code
from korvet.api.shared.loop_turns import SLICE
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic
from korvet.wire import requests

Indexed = (
    requests.DeleteRecordsTopic
    | requests.ListOffsetsTopic
    | requests.OffsetCommitRequestTopic
    | requests.OffsetDeleteRequestTopic
    | requests.TxnOffsetCommitRequestTopic
)


def indexed(topics: Iterable[Indexed]) -> list[tuple[str, list[int]]]:
    """The topics of a request, for `known_topics`."""
    return [(topic.name, [part.partition_index for part in topic.partitions]) for topic in topics]


async def known_topics(ctx: Context, requested: Sequence[tuple[str, Iterable[int]]]) -> Mapping[str, Topic | int]:
    """The existing topics of a request, by name.

    The catalog is read if its cache lacks one of the topics or partitions. If that fails, a missing topic has the error
    code for its answer instead.

    :param requested: the names of topics, each with the indexes of its partitions.
    """
    catalog = ctx.frontend.catalog
    known: dict[str, Topic | int] = {}
    for is_fresh in (False, True):
        is_whole = True
        for name, indexes in requested:
            topic = catalog.topic(name)
            if topic is not None:
                known[topic.name] = topic
            is_whole = is_whole and topic is not None and max(indexes, default=-1) < topic.partitions
        if len(requested) > SLICE:
            await ctx.frontend.turns.turn()
        if is_fresh or is_whole:
            break
        try:
            await catalog.refresh()
        except KorvetError as error:
            code = read_failure_code(error, "catalog")
            return {name: code for name, _ in requested} | known
        known.clear()
    return known
