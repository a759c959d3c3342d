"""A topic's life, as sequences of idempotent steps over the catalog and the partitions.

The catalog's entry is made before the partitions' keys and removed after them. A front-end that dies in between leaves
a topic that gets its keys on first use, or one marked as deleting, which any front-end's `finish_deletions` finishes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

import structlog
from kio.schema.errors import ErrorCode

from korvet.errors import KorvetError, StoreError, StoreFull, StoreUnavailable
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.log.log import Log

logger = structlog.get_logger()

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Names with a meaning for Kafka's clients; korvet keeps no state in topics."""
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
MAX_NAME_LENGTH: Final = 249
"""The longest name of a topic (org.apache.kafka.common.internals.Topic)."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """The problem with a topic's name, in Kafka's words, or None (org.apache.kafka.common.internals.Topic)."""
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


def colliding_topics(name: str, unified: Mapping[str, Sequence[str]]) -> list[str]:
    """Existing topics whose names differ from this one only in '.' and '_', so that metrics would collide.

    :param unified: `unified_names` of the existing topics.
    """
    return sorted(other for other in unified.get(name.replace(".", "_"), ()) if other != name)


async def create_topic(
    catalog: Catalog, log: Log, name: str, partitions: int, configs: Mapping[str, str]
) -> tuple[ErrorCode, Topic | None]:
    """Create a topic and its partitions' keys. TOPIC_ALREADY_EXISTS, and no topic with it.

    :raises LostTier: the tier has a topic of this name that Redis lost.
    :raises StoreUnavailable, StoreFull, StoreError: the catalog does not have it, or may not.
    """
    if log.guard is not None:
        await log.guard.check_name(name)
    code, topic = await catalog.create(name, uuid4(), partitions, configs)
    if topic is not None:
        await _make_partitions(log, topic, 0)
    return code, topic


async def grow_topic(catalog: Catalog, log: Log, topic: Topic, partitions: int) -> ErrorCode:
    """Raise a topic's number of partitions. UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS.

    :raises StoreUnavailable, StoreFull, StoreError: as for `create_topic`.
    """
    code, grown = await catalog.grow(topic, partitions)
    if grown is not None:
        await _make_partitions(log, grown, topic.partitions)
    return code


async def _make_partitions(log: Log, topic: Topic, first: int) -> None:
    # The topic exists from its entry on. If this fails, its keys are made on first use.
    with suppress(StoreUnavailable, StoreFull):
        await log.create_partitions(topic, first)


async def delete_topic(catalog: Catalog, log: Log, topic: Topic) -> ErrorCode:
    """Delete a topic and all its data. UNKNOWN_TOPIC_OR_PARTITION.

    :raises StoreUnavailable, StoreError: the topic is not marked as deleting, or may not be.
    """
    code = await catalog.begin_delete(topic)
    if code == ErrorCode.none:
        # It is gone for clients, and `finish_deletions` removes what this cannot. The topic may have grown since the
        # caller saw it. A marked topic does not change.
        marked = next((one for one in catalog.deleting() if one.id == topic.id), None)
        if marked is not None:
            with suppress(StoreUnavailable):
                await _remove(catalog, log, marked)
    return code


async def finish_deletions(catalog: Catalog, log: Log) -> None:
    """Finish the deletions that a front-end left. Any front-end may, at any time.

    Continues after a topic that cannot be removed, and after a cluster node that is away.

    :raises StoreUnavailable: at the end, if a server fails, or at once if it is the catalog's.
    :raises StoreError: the catalog cannot be read.
    """
    await catalog.refresh()
    failure: KorvetError | None = None
    for topic in tuple(catalog.deleting()):
        try:
            await _remove(catalog, log, topic)
        except StoreError as error:
            logger.error("a topic's data cannot be removed", topic=topic.name, reason=str(error))
        except KorvetError as error:
            failure = error
    if failure is not None:
        raise failure


async def _remove(catalog: Catalog, log: Log, topic: Topic) -> None:
    await log.delete_partitions(topic)
    await catalog.finish_delete(topic)
