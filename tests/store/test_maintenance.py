"""Retention, deletions and compaction while a server is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.activity import Activity
from korvet.store.background import maintenance
from korvet.store.background.maintenance import compact_all, enforce_retention, maintain
from korvet.store.catalog.settings import ConfigChange
from korvet.store.catalog.topic import Topic
from korvet.store.every import Steps
from korvet.store.log.log import Log
from korvet.store.log.state.partition import Partition
from korvet.store.outcomes import settled
from korvet.store.topics import create_topic
from tests.api.raw import unique
from tests.store.logs import NAMESPACE, Front, batch, until
from tests.store.turns import Always
from tests.support.topologies import Cluster

pytestmark = pytest.mark.anyio


async def created(front: Front, **configs: str) -> Topic:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    _, topic = await create_topic(front.catalog, front.log, unique(), 2, settings)
    assert topic is not None
    return topic


async def test_server_that_is_away_holds_up_no_upkeep_of_others(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [await created(one, cleanup_policy="compact,delete") for _ in range(3)]
    seen: list[Partition] = []

    async def away(_: Log, partition: Partition, *__: Any) -> None:
        seen.append(partition)
        if partition.topic.id == topics[1].id:
            raise StoreUnavailable("away")

    async def untrimmed(_: Any, __: Any, log: Log, topic: Topic, index: int, ___: int) -> None:
        await away(log, log.partition(topic, index))

    monkeypatch.setattr(maintenance, "enforce_settings", untrimmed)
    monkeypatch.setattr(maintenance, "compact", away)
    every = {(topic.name, index) for topic in topics for index in range(2)}
    with pytest.raises(StoreUnavailable):
        await enforce_retention(NAMESPACE, one.catalog, one.log)
    assert {(each.topic.name, each.index) for each in seen} >= every
    seen.clear()
    with pytest.raises(StoreUnavailable):
        await compact_all(NAMESPACE, one.catalog, one.log, {})
    assert {(each.topic.name, each.index) for each in seen} >= every


async def test_node_that_is_away_holds_up_no_upkeep_of_other_nodes(
    cluster: Cluster, one_of_cluster: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = one_of_cluster
    monkeypatch.setattr(maintenance, "_INTERVAL_S", 0.2)
    catalog_port = one.port_of(NAMESPACE.catalog.meta)
    away = next(node for node in cluster.nodes if node.port != catalog_port)
    doomed = [await one.topic(12), await one.topic(12)]
    kept = await one.topic(12)
    served = [
        one.log.partition(topic, index)
        for topic in (*doomed, kept)
        for index in range(12)
        if one.port_of(one.log.partition(topic, index).keys.meta) != away.port
    ]
    trimmed = [partition for partition in served if partition.topic.id == kept.id]
    assert len({partition.topic.id for partition in served}) == 3
    assert len(served) < 36
    for partition in trimmed:
        assert (await one.append(partition, batch())) == (0, 0)
    await one.catalog.configure(kept, ConfigChange(set={"retention.ms": "1000"}))
    for topic in doomed:
        await one.catalog.begin_delete(topic)
    away.kill()
    await until(lambda: not one.store.is_connected())

    async def is_done() -> bool:
        metas = await settled(
            one.store.call(Purpose.READ, key, "HMGET", key, "topic_id", "start")
            for key in (partition.keys.meta for partition in served)
        )
        expected = [(kept.id.hex.encode(), b"3") if one in trimmed else (None, None) for one in served]
        return [tuple(meta) for meta in metas] == expected

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(maintain, NAMESPACE, one.catalog, one.log, Always(), Activity())
        with anyio.fail_after(30):
            while not await is_done():
                await anyio.sleep(0.02)
        assert [topic.name for topic in one.catalog.deleting()] == [topic.name for topic in doomed]
        away.start()
        with anyio.fail_after(30):
            while one.catalog.deleting():
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()


async def test_failed_retention_is_not_repeated_at_once(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's clock advances with each sleep."""
    now_s, tries = 0.0, []

    class Asleep(Activity):
        async def sleep(self, seconds: float, idle_s: float = 0) -> None:
            nonlocal now_s
            now_s += seconds
            await anyio.lowlevel.checkpoint()

    async def fail(*_: Any) -> None:
        tries.append(now_s)
        if len(tries) == 3:
            raise ZeroDivisionError
        raise StoreUnavailable("away")

    clock = SimpleNamespace(current_time=lambda: now_s, create_task_group=anyio.create_task_group)
    monkeypatch.setattr(maintenance, "anyio", clock)
    monkeypatch.setattr(maintenance, "enforce_retention", fail)
    with pytest.raises(ZeroDivisionError):
        await maintenance._keep_trimmed(NAMESPACE, one.catalog, one.log, Always(), Asleep(), Steps())
    assert tries == [30.0, 60.0, 90.0]
