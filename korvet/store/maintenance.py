"""What some front-end must do now and then. Every one does: each step may be repeated, and the second finds it done."""

from __future__ import annotations

import random

import anyio
import structlog

from korvet.errors import KorvetError, StoreError
from korvet.store.catalog import Catalog
from korvet.store.client import Purpose
from korvet.store.keys import Namespace
from korvet.store.log import Log
from korvet.store.log.compaction import compact, compaction_of
from korvet.store.retention import enforce, retention_of
from korvet.store.silent_producers import expiration_ms_of, forget_silent_producers
from korvet.store.topics import finish_deletions

logger = structlog.get_logger()

_INTERVAL_S = 30.0
_SHORTEST_S = 0.1


async def maintain(namespace: Namespace, catalog: Catalog, log: Log) -> None:
    """Finish deletions at start and every 30 s, enforce retention as often as log.retention.check.interval.ms says, and
    look for what to compact with log.cleaner.backoff.ms between.

    Retention begins 30 s after the start, as Kafka's, or sooner where the interval is shorter. Runs until cancelled.
    """
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_keep_compacted, namespace, catalog, log)
        await _keep_trimmed(namespace, catalog, log)


async def _keep_trimmed(namespace: Namespace, catalog: Catalog, log: Log) -> None:
    retention_at = anyio.current_time() + min(_INTERVAL_S, _retention_interval_s(catalog))
    while True:
        try:
            await finish_deletions(catalog, log)
            if anyio.current_time() >= retention_at:
                await enforce_retention(namespace, catalog, log)
                retention_at = anyio.current_time() + _retention_interval_s(catalog)
        except KorvetError as error:
            logger.warning("maintenance was cut short", reason=str(error))
        await anyio.sleep(max(_SHORTEST_S, min(_INTERVAL_S, retention_at - anyio.current_time())))


def _retention_interval_s(catalog: Catalog) -> float:
    return int(catalog.setting(None, "log.retention.check.interval.ms")) / 1000


async def enforce_retention(namespace: Namespace, catalog: Catalog, log: Log) -> None:
    """Remove what is older or more than topics keep, and forget producers that were silent for long.

    A partition that is corrupt is told of in the log, and does not keep the others.

    :raises StoreUnavailable, StoreFull: and StoreError where the time cannot be read.
    """
    seconds, _ = await log.store.call(Purpose.COORDINATE, namespace.catalog.meta, "TIME")
    expiration_ms = expiration_ms_of(catalog)
    for topic in tuple(catalog.topics()):
        limits = retention_of(catalog, topic)
        for partition in [log.partition(topic, index) for index in range(topic.partitions)]:
            try:
                if limits is not None:
                    await enforce(log, partition, limits, int(seconds) * 1000)
                await forget_silent_producers(log, partition, expiration_ms)
            except StoreError as error:
                logger.error("retention failed", topic=topic.name, partition=partition.index, reason=str(error))


async def _keep_compacted(namespace: Namespace, catalog: Catalog, log: Log) -> None:
    while True:
        await anyio.sleep(int(catalog.setting(None, "log.cleaner.backoff.ms")) / 1000)
        try:
            await compact_all(namespace, catalog, log)
        except KorvetError as error:
            logger.warning("compaction was cut short", reason=str(error))


async def compact_all(namespace: Namespace, catalog: Catalog, log: Log) -> None:
    """Compact what is due of all topics, in an order of chance, so that front-ends share the work.

    A partition that is corrupt is told of in the log, and does not keep the others.

    :raises StoreUnavailable, StoreFull: and StoreError where the time cannot be read.
    """
    due = [
        (topic, index, settings)
        for topic in catalog.topics()
        if (settings := compaction_of(catalog, topic)) is not None
        for index in range(topic.partitions)
    ]
    random.shuffle(due)
    for topic, index, settings in due:
        seconds, _ = await log.store.call(Purpose.COORDINATE, namespace.catalog.meta, "TIME")
        try:
            await compact(log, log.partition(topic, index), settings, int(seconds) * 1000)
        except StoreError as error:
            logger.error("compaction failed", topic=topic.name, partition=index, reason=str(error))
