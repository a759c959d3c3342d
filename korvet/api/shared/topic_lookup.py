"""The topics that a request names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import read_failure_code
from korvet.api.shared.loop_turns import SLICE
from korvet.errors import KorvetError
from korvet.store.catalog.topic import Topic


def _indexes(wanted: Any) -> Iterable[int]:
    return (int(_index(part)) for part in wanted.partitions)


def topics_at_hand(ctx: Context, asked: Sequence[Any]) -> Mapping[str, Topic] | None:
    """The topics of a short request, by name; None if the catalog's cache lacks one of its topics or partitions, or if
    the request is long.

    :param asked: the request's entries, with the topic's name and its partitions.
    """
    if len(asked) > SLICE:
        return None
    known: dict[str, Topic] = {}
    count, catalog = 0, ctx.frontend.catalog
    for wanted in asked:
        count += len(wanted.partitions)
        topic = catalog.topic(wanted.name)
        if topic is None or count > SLICE:
            return None
        for part in wanted.partitions:
            if _index(part) >= topic.partitions:
                return None
        known[wanted.name] = topic
    return known


async def known_topics(
    ctx: Context,
    asked: Iterable[Any],
    *,
    field: str = "name",
    indexes: Callable[[Any], Iterable[int]] = _indexes,
) -> Mapping[str, Topic | int]:
    """The existing topics of a request, by name.

    The catalog is read if its cache lacks one of the topics or partitions. If that fails, a missing topic has the error
    code for its answer instead.

    :param asked: the request's entries, with the topic's name in ``field`` and its partitions.
    :param indexes: tells an entry's partition indexes, if its partitions are not entities with an index.
    """
    asked = list(asked)
    catalog = ctx.frontend.catalog
    known: dict[str, Topic | int] = {}
    for is_fresh in (False, True):
        for wanted in asked:
            topic = catalog.topic(getattr(wanted, field))
            if topic is not None:
                known[topic.name] = topic
        if len(asked) > SLICE:
            await ctx.frontend.turns.turn()
        if is_fresh or all(_has_partitions(known.get(getattr(wanted, field)), indexes(wanted)) for wanted in asked):
            break
        try:
            await catalog.refresh()
        except KorvetError as error:
            code = read_failure_code(error, "catalog")
            return {getattr(wanted, field): code for wanted in asked} | known
        known.clear()
    return known


def _has_partitions(topic: Topic | int | None, indexes: Iterable[int]) -> bool:
    return isinstance(topic, Topic) and all(index < topic.partitions for index in indexes)


def _index(part: Any) -> int:
    index = getattr(part, "partition_index", None)
    return int(part.partition if index is None else index)
