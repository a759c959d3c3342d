"""What becomes of the work of a sweep where a server is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.store import maintenance
from korvet.store.catalog import Topic
from korvet.store.log import Log, Partition
from korvet.store.maintenance import compact_all, enforce_retention
from korvet.store.topics import create_topic
from tests.api.raw import unique
from tests.store.logs import NAMESPACE, Front

pytestmark = pytest.mark.anyio


async def created(front: Front, **configs: str) -> Topic:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    _, topic = await create_topic(front.catalog, front.log, unique(), 2, settings)
    assert topic is not None
    return topic


async def test_a_server_that_is_away_does_not_keep_others_from_being_swept(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_what_was_cut_short_is_not_tried_again_at_once(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by what is slept."""
    now_s, tries = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        await anyio.lowlevel.checkpoint()

    async def fail(*_: Any) -> None:
        tries.append(now_s)
        if len(tries) == 3:
            raise ZeroDivisionError
        raise StoreUnavailable("away")

    clock = SimpleNamespace(current_time=lambda: now_s, sleep=sleep, create_task_group=anyio.create_task_group)
    monkeypatch.setattr(maintenance, "anyio", clock)
    monkeypatch.setattr(maintenance, "enforce_retention", fail)
    with pytest.raises(ZeroDivisionError):
        await maintenance._keep_trimmed(NAMESPACE, one.catalog, one.log)
    assert tries == [30.0, 60.0, 90.0]
