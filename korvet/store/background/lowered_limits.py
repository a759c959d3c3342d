"""Retention ahead of its interval: for topics with lowered limits, and for all while memory is short."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from uuid import UUID

import anyio
import anyio.lowlevel

from korvet.store.background.retention import Retention, retention_of
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.every import every
from korvet.store.log.log import Log

INTERVAL_S: Final = 1.0
SHORT_REST_S: Final = 30.0
"""Seconds between two rounds over all topics while memory is short: an earlier round would find nothing new."""
_COMPLAINT: Final = "retention was cut short"
_AT_ONCE: Final = 200
"""The number of topics to check in one turn of the loop."""

Retentions = dict[UUID, Retention | None]
Enforce = Callable[[Sequence[Topic]], Awaitable[None]]
"""Trim topics to their limits."""


def is_lower(limits: Retention | None, former: Retention | None) -> bool:
    """True if the new limits may remove records that the former ones kept."""
    if limits is None or former is None:
        return limits is not None
    names = ("ms", "bytes", "local_ms", "local_bytes")
    is_less = any(0 <= getattr(limits, name) < _or_infinite(getattr(former, name)) for name in names)
    return is_less or (former.keeps_unarchived and not limits.keeps_unarchived)


def _or_infinite(limit: int) -> float:
    return limit if limit >= 0 else float("inf")


async def trim_soon(catalog: Catalog, log: Log, enforce: Enforce) -> None:
    """Trim such topics soon, until cancelled; several front-ends do no harm.

    After a failure, the next regular retention makes up for it.
    """
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_trim_while_short, catalog, log, enforce)
        await _trim_lowered(catalog, log, enforce)


async def _trim_lowered(catalog: Catalog, log: Log, enforce: Enforce) -> None:
    generation, known = catalog.generation, await _limits(catalog)

    async def look() -> None:
        nonlocal generation, known
        await catalog.changed(generation)
        generation, former = catalog.generation, known
        known = await _limits(catalog)
        due = [topic for topic in catalog.topics() if topic.id in former and _is_lowered(topic, known, former)]
        if due:
            await enforce(due)

    await every(INTERVAL_S, look, _COMPLAINT, has_reported=log.store.has_reported)


async def _trim_while_short(catalog: Catalog, log: Log, enforce: Enforce) -> None:
    async def look() -> None:
        await log.reserve.shortage()
        await enforce(tuple(catalog.topics()))

    await every(SHORT_REST_S, look, _COMPLAINT, at_once=True, has_reported=log.store.has_reported)


def _is_lowered(topic: Topic, known: Retentions, former: Retentions) -> bool:
    return is_lower(known.get(topic.id), former[topic.id])


async def _limits(catalog: Catalog) -> Retentions:
    limits: Retentions = {}
    for number, topic in enumerate(tuple(catalog.topics())):
        limits[topic.id] = retention_of(catalog, topic)
        if number % _AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
    return limits
