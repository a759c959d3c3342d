"""Retention, deletions and compaction, which any front-end may do periodically.

Each step is repeatable: a second one finds nothing to do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from itertools import islice

import anyio
import structlog

from korvet.errors import KorvetError, StoreError, StoreFull
from korvet.redis.client import Purpose
from korvet.store.activity import IDLE_S, Activity
from korvet.store.background.compaction.due import compaction_of
from korvet.store.background.compaction.run import clear_leftover, compact
from korvet.store.background.lowered_limits import trim_soon
from korvet.store.background.retention import enforce_settings, time_ms
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.every import Steps, Sweeps, every
from korvet.store.keys import Namespace
from korvet.store.log.log import Log
from korvet.store.log.state.partition import Partition
from korvet.store.outcomes import settled
from korvet.store.registry import SweepTurn, taking
from korvet.store.topics import finish_deletions

_MAX_CALLS = 10_000


logger = structlog.get_logger()

_INTERVAL_S = 30.0
_SHORTEST_S = 0.1
_IDLE_COMPACTION_S = 60.0
"""Seconds between two rounds in an idle namespace: Redis users may still add records."""
_TRIMMED_AT_ONCE = 8
"""The partitions that retention handles together. They share round trips, which are most of the cost if nothing is due.
They are few, because their trims are long calls."""
_FULL_REST_S = 300.0
"""Seconds before the next try after a compaction without enough memory, or with an unreadable entry: a run would read
all of the log in vain."""


async def maintain(
    namespace: Namespace, catalog: Catalog, log: Log, turn: SweepTurn, activity: Activity, sweeps: Sweeps | None = None
) -> None:
    """Finish deletions at start and every 30 s, enforce retention every log.retention.check.interval.ms, and look for
    due compactions every log.cleaner.backoff.ms.

    Retention begins 30 s after the start, as in Kafka, or sooner if the interval is shorter. Topics with lowered limits
    are handled soon, and all topics while memory is short. One front-end of a namespace has the turn for deletions and
    retention. In an idle namespace, deletions wait for retention. Runs until cancelled.
    """
    sweeps = Sweeps() if sweeps is None else sweeps
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_keep_compacted, namespace, catalog, log, activity, sweeps["compaction"])
        tasks.start_soon(trim_soon, catalog, log, partial(enforce_retention, namespace, catalog, log))
        await _keep_trimmed(namespace, catalog, log, turn, activity, sweeps["retention"])


async def _keep_trimmed(
    namespace: Namespace, catalog: Catalog, log: Log, turn: SweepTurn, activity: Activity, steps: Steps
) -> None:
    retention_at = anyio.current_time() + min(_INTERVAL_S, _retention_interval_s(catalog))

    async def retain() -> None:
        nonlocal retention_at
        # A failure is retried then.
        retention_at = anyio.current_time() + min(_INTERVAL_S, _retention_interval_s(catalog))
        await enforce_retention(namespace, catalog, log)
        retention_at = anyio.current_time() + _retention_interval_s(catalog)

    async def step() -> None:
        async with taking(turn):
            work = [finish_deletions(catalog, log)]
            if anyio.current_time() >= retention_at:
                work.append(retain())
            for outcome in await settled(work):
                if isinstance(outcome, KorvetError):
                    raise outcome

    def pause_s() -> float:
        return max(_SHORTEST_S, min(_INTERVAL_S, retention_at - anyio.current_time()))

    async def sleep(seconds: float) -> None:
        await activity.sleep(seconds, retention_at - anyio.current_time())

    complaint = "maintenance was cut short"
    await every(pause_s, step, complaint, at_once=True, sleep=sleep, has_reported=log.store.has_reported, steps=steps)


def _retention_interval_s(catalog: Catalog) -> float:
    return catalog.integer(None, "log.retention.check.interval.ms") / 1000


async def enforce_retention(
    namespace: Namespace, catalog: Catalog, log: Log, topics: Sequence[Topic] | None = None
) -> None:
    """Trim partitions to their topics' limits, forget silent producers, and remove leftovers of compactions whose
    front-ends died.

    Skips and logs a corrupt partition; skips a partition whose server is away.

    :raises StoreUnavailable, StoreFull: at the end.
    :raises StoreError: the time cannot be read.
    """
    now_ms = await time_ms(namespace, log)
    expiration_ms = expiration_ms_of(catalog)
    failure: KorvetError | None = None
    looked_at = tuple(catalog.topics()) if topics is None else topics
    left = ((topic, index) for topic in looked_at for index in range(topic.partitions))

    async def look_after(topic: Topic, index: int) -> None:
        partition = log.partition(topic, index)
        try:
            await enforce_settings(namespace, catalog, log, topic, index, now_ms)
            await forget_silent_producers(log, partition, expiration_ms)
            await clear_leftover(log, partition, now_ms)
        except StoreError as error:
            await log.damage.report(partition, error)

    while some := list(islice(left, _TRIMMED_AT_ONCE)):
        for outcome in await settled(look_after(*one) for one in some):
            if isinstance(outcome, KorvetError):
                failure = outcome
    if failure is not None:
        raise failure


async def _keep_compacted(namespace: Namespace, catalog: Catalog, log: Log, activity: Activity, steps: Steps) -> None:
    def pause_s() -> float:
        return max(_SHORTEST_S, catalog.integer(None, "log.cleaner.backoff.ms") / 1000)

    step = partial(compact_all, namespace, catalog, log, {})

    async def sleep(seconds: float) -> None:
        rests = activity.is_idle and all(compaction_of(catalog, topic) is None for topic in catalog.topics())
        await activity.sleep(seconds, IDLE_S if rests else _IDLE_COMPACTION_S)

    await every(
        pause_s, step, "compaction was cut short", sleep=sleep, has_reported=log.store.has_reported, steps=steps
    )


async def compact_all(namespace: Namespace, catalog: Catalog, log: Log, resting: dict[Partition, float]) -> None:
    """Compact all due partitions, in random order, so that front-ends share the work.

    Skips and logs a partition that is corrupt or lacks memory; ``resting`` holds the loop's time of its next try. Skips
    a partition whose server is away.

    :raises StoreUnavailable: at the end.
    :raises StoreError: the time cannot be read.
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
            logger.warning("a partition is not compacted", topic=topic.name, partition=index, reason=str(error))
        except StoreError as error:
            resting[partition] = now + _FULL_REST_S
            await log.damage.report(partition, error)
        except KorvetError as error:
            failure = error
    if failure is not None:
        raise failure


def expiration_ms_of(catalog: Catalog) -> int:
    """Milliseconds for which partitions remember a silent producer: at least the longest transaction's, because the
    producer may be silent during it."""
    names = ("producer.id.expiration.ms", "transaction.max.timeout.ms")
    return max(catalog.integer(None, name) for name in names)


async def forget_silent_producers(log: Log, partition: Partition, expiration_ms: int) -> None:
    """Forget the producers of one partition that were silent for so long, except those with an open transaction.

    A producer was silent since a noted log end if its last batch lies below it. Any front-end may forget producers at
    any time. Source: UnifiedLog.removeExpiredProducers, ProducerStateManagerConfig

    :raises StoreUnavailable, StoreError:
    """
    is_first: int | str = 1
    for _ in range(_MAX_CALLS):
        _, more = await log.store.call_function(
            Purpose.APPEND,
            "korvet_log_forget_producers",
            partition.transaction_keys,
            topic_id=partition.topic_id,
            expiration_ms=expiration_ms,
            is_first=is_first,
        )
        if not more:
            return
        is_first = ""
