"""A topic's life, as sequences of idempotent steps over the catalog and the partitions.

The catalog's entry comes before the partitions' keys and goes after them. Whoever dies in between leaves a topic whose
keys are made on first use, or one marked as deleting, which any front-end's `finish_deletions` brings to its end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final
from uuid import uuid4

import structlog
from kio.schema.errors import ErrorCode

from korvet.errors import StoreError, StoreFull, StoreUnavailable
from korvet.store.catalog import Catalog, Topic
from korvet.store.log import Log

logger = structlog.get_logger()

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Names that mean something to Kafka's clients; korvet keeps no state in topics."""
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
MAX_NAME_LENGTH: Final = 249
MAX_PARTITIONS_PER_REQUEST: Final = 10_000

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """Why a topic cannot have this name, in Kafka's words, or None (org.apache.kafka.common.internals.Topic)."""
    why = _name_problem(name)
    return None if why is None else f"Topic name is invalid: {why}"


def _name_problem(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def colliding_topics(name: str, topics: Collection[Topic]) -> list[str]:
    """Existing topics whose names differ from this one in '.' and '_' only, which metrics cannot tell apart."""
    unified = name.replace(".", "_")
    if unified == name and "_" not in name:
        return []
    return sorted(topic.name for topic in topics if topic.name != name and topic.name.replace(".", "_") == unified)


async def create_topic(
    catalog: Catalog, log: Log, name: str, partitions: int, configs: Mapping[str, str]
) -> tuple[ErrorCode, Topic | None]:
    """Create a topic and its partitions' keys. TOPIC_ALREADY_EXISTS, and no topic with it.

    :raises StoreUnavailable, StoreFull, StoreError: when it is not in the catalog, or that is not known.
    """
    code, topic = await catalog.create(name, uuid4(), partitions, configs)
    if topic is not None:
        await _make_partitions(log, topic)
    return code, topic


async def grow_topic(catalog: Catalog, log: Log, topic: Topic, partitions: int) -> ErrorCode:
    """Raise a topic's number of partitions. UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS.

    :raises StoreUnavailable, StoreFull, StoreError: as for `create_topic`.
    """
    code, grown = await catalog.grow(topic, partitions)
    if grown is not None:
        await _make_partitions(log, grown)
    return code


async def _make_partitions(log: Log, topic: Topic) -> None:
    # The topic exists from its entry on; where this does not succeed, its keys are made on first use.
    with suppress(StoreUnavailable, StoreFull):
        await log.create_partitions(topic)


async def delete_topic(catalog: Catalog, log: Log, topic: Topic) -> ErrorCode:
    """Delete a topic and all its data. UNKNOWN_TOPIC_OR_PARTITION.

    :raises StoreUnavailable, StoreError: when it is not marked, or that is not known.
    """
    code = await catalog.begin_delete(topic)
    if code == ErrorCode.none:
        # It is gone for clients; what cannot be removed now is removed by `finish_deletions`. The topic may have grown
        # since the caller saw it: as it was marked it stays.
        marked = next((one for one in catalog.deleting() if one.id == topic.id), None)
        if marked is not None:
            with suppress(StoreUnavailable):
                await _remove(catalog, log, marked)
    return code


async def finish_deletions(catalog: Catalog, log: Log) -> None:
    """Bring deletions to their end that somebody began and did not finish. Anyone may, at any time.

    A topic that cannot be removed is told of in the log, and does not keep the others.

    :raises StoreUnavailable, StoreError: where the catalog cannot be read, or Redis is lost.
    """
    await catalog.refresh()
    for topic in tuple(catalog.deleting()):
        try:
            await _remove(catalog, log, topic)
        except StoreError as error:
            logger.error("a topic's data cannot be removed", topic=topic.name, reason=str(error))


async def _remove(catalog: Catalog, log: Log, topic: Topic) -> None:
    await log.delete_partitions(topic)
    await catalog.finish_delete(topic)
