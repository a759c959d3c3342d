"""Retention after a topic's limits are lowered, which does not wait for the interval."""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio
import pytest

from korvet.redis.client import Purpose
from korvet.store.background import lowered_limits
from korvet.store.background.lowered_limits import is_lower, trim_soon
from korvet.store.background.maintenance import enforce_retention
from korvet.store.background.retention import Retention
from korvet.store.catalog.settings import ConfigChange
from korvet.store.catalog.topic import Topic
from tests.store.logs import NAMESPACE, Front, batch, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("limits", "former", "lower"),
    [
        (None, Retention(ms=1, bytes=1), False),
        (Retention(ms=5, bytes=-1), None, True),
        (Retention(ms=5, bytes=-1), Retention(ms=-1, bytes=9), True),
        (Retention(ms=5, bytes=-1), Retention(ms=5, bytes=9), False),
        (Retention(ms=-1, bytes=8), Retention(ms=5, bytes=9), True),
        (Retention(ms=6, bytes=9), Retention(ms=5, bytes=9), False),
        (Retention(ms=5, bytes=9), Retention(ms=5, bytes=9, keeps_unarchived=True), True),
        (Retention(ms=5, bytes=9, local_ms=4), Retention(ms=5, bytes=9), True),
        (Retention(ms=5, bytes=9, local_bytes=4), Retention(ms=5, bytes=9, local_bytes=4), False),
    ],
)
def test_limits_are_lower_only_if_less_may_stay(
    limits: Retention | None, former: Retention | None, lower: bool
) -> None:
    assert is_lower(limits, former) == lower


async def test_topic_is_trimmed_soon_after_its_limits_are_lowered(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowered_limits, "INTERVAL_S", 0.02)
    partition, untouched = await one.partition(), await one.partition()
    for each in (partition, untouched):
        for _ in range(3):
            await one.append(each, batch(1, timestamp=time.time_ns() // 1_000_000))
    checked: list[Topic] = []

    async def enforce(topics: Sequence[Topic]) -> None:
        checked.extend(topics)
        await enforce_retention(NAMESPACE, one.catalog, one.log, topics)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.catalog.follow)
        tasks.start_soon(trim_soon, one.catalog, one.log, enforce)
        await anyio.sleep(0.05)
        # Another front-end makes both changes; the higher limit of the second topic removes nothing.
        await other.catalog.refresh()
        await other.catalog.configure(other.known(untouched).topic, ConfigChange(set={"retention.bytes": "999999"}))
        await other.catalog.configure(other.known(partition).topic, ConfigChange(set={"retention.bytes": "1"}))
        await until(lambda: partition.start == 2)
        tasks.cancel_scope.cancel()
    assert {topic.id for topic in checked} <= {partition.topic.id, untouched.topic.id}


async def test_all_topics_are_checked_now_and_then_while_memory_is_short(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowered_limits, "INTERVAL_S", 0.01)
    await one.topic()
    checks = []

    async def enforce(topics: Sequence[Topic]) -> None:
        checks.append(len(topics))

    info: bytes = await one.store.call(Purpose.COORDINATE, "k", "INFO", "memory")
    # Less than what Redis uses now: it may use less once clients of earlier tests are gone.
    used = int(info.split(b"used_memory:")[1].split()[0]) // 2
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(trim_soon, one.catalog, one.log, enforce)
        await anyio.sleep(0.05)
        assert checks == []
        await one.store.call(Purpose.COORDINATE, "k", "CONFIG", "SET", "maxmemory", used)
        try:
            await one.log.reserve.ask("k")
            await until(lambda: bool(checks))
            await anyio.sleep(0.1)
        finally:
            await one.store.call(Purpose.COORDINATE, "k", "CONFIG", "SET", "maxmemory", 0)
        tasks.cancel_scope.cancel()
    assert checks == [len(tuple(one.catalog.topics()))]
