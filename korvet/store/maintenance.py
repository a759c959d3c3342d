"""What some front-end must do now and then. Every one does: each step may be repeated, and the second finds it done."""

from __future__ import annotations

import random

import anyio
import structlog

from korvet.errors import KorvetError, StoreError, StoreFull
from korvet.store.catalog import Catalog
from korvet.store.keys import Namespace
from korvet.store.log import Log, Partition
from korvet.store.log.compaction import clear_leftover, compact, compaction_of
from korvet.store.retention import enforce_settings, time_ms
from korvet.store.silent_producers import expiration_ms_of, forget_silent_producers
from korvet.store.topics import finish_deletions

logger = structlog.get_logger()

_INTERVAL_S = 30.0
_SHORTEST_S = 0.1
_FULL_REST_S = 300.0
"""Before a compaction that found no memory is tried again: until then it has read all of the log for nothing."""


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
            retention_at = max(retention_at, anyio.current_time() + min(_INTERVAL_S, _retention_interval_s(catalog)))
        await anyio.sleep(max(_SHORTEST_S, min(_INTERVAL_S, retention_at - anyio.current_time())))


def _retention_interval_s(catalog: Catalog) -> float:
    return int(catalog.setting(None, "log.retention.check.interval.ms")) / 1000


async def enforce_retention(namespace: Namespace, catalog: Catalog, log: Log) -> None:
    """Remove what is older or more than topics keep, forget producers that were silent for long, and clear away what
    compactions left whose front-ends died.

    A partition that is corrupt is told of in the log, and does not keep the others; nor does one whose server is away.

    :raises StoreUnavailable, StoreFull: at the end, and StoreError where the time cannot be read.
    """
    now_ms = await time_ms(namespace, log)
    expiration_ms = expiration_ms_of(catalog)
    failure: KorvetError | None = None
    for topic in tuple(catalog.topics()):
        for partition in [log.partition(topic, index) for index in range(topic.partitions)]:
            try:
                await enforce_settings(namespace, catalog, log, topic, partition.index, now_ms)
                await forget_silent_producers(log, partition, expiration_ms)
                await clear_leftover(log, partition, now_ms)
            except StoreError as error:
                logger.error("retention failed", topic=topic.name, partition=partition.index, reason=str(error))
            except KorvetError as error:
                failure = error
    if failure is not None:
        raise failure


async def _keep_compacted(namespace: Namespace, catalog: Catalog, log: Log) -> None:
    resting: dict[Partition, float] = {}
    while True:
        await anyio.sleep(max(_SHORTEST_S, int(catalog.setting(None, "log.cleaner.backoff.ms")) / 1000))
        try:
            await compact_all(namespace, catalog, log, resting)
        except KorvetError as error:
            logger.warning("compaction was cut short", reason=str(error))


async def compact_all(namespace: Namespace, catalog: Catalog, log: Log, resting: dict[Partition, float]) -> None:
    """Compact what is due of all topics, in an order of chance, so that front-ends share the work.

    A partition that is corrupt, or that there is no memory for, is told of in the log, and does not keep the others;
    for the latter one it is looked again a while later, at the time by the loop's clock that ``resting`` keeps. Nor
    does one whose server is away.

    :raises StoreUnavailable: at the end, and StoreError where the time cannot be read.
    """
    now = anyio.current_time()
    for partition in [partition for partition, until in resting.items() if until <= now]:
        del resting[partition]
    due = [
        (topic, index, settings)
        for topic in catalog.topics()
        if (settings := compaction_of(catalog, topic)) is not None
        for index in range(topic.partitions)
    ]
    random.shuffle(due)
    failure: KorvetError | None = None
    for topic, index, settings in due:
        partition = log.partition(topic, index)
        if partition in resting:
            continue
        now_ms = await time_ms(namespace, log)
        try:
            await compact(log, partition, settings, now_ms)
        except StoreFull as error:
            resting[partition] = now + _FULL_REST_S
            logger.warning("not compacted", topic=topic.name, partition=index, reason=str(error))
        except StoreError as error:
            logger.error("compaction failed", topic=topic.name, partition=index, reason=str(error))
        except KorvetError as error:
            failure = error
    if failure is not None:
        raise failure
