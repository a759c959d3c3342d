"""Tierers over stores in memory, and partitions whose batches they move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from uuid import uuid4

import anyio
import anyio.lowlevel
import pytest

from korvet.redis.client import Purpose
from korvet.store.activity import Activity
from korvet.store.log import tier as calls
from korvet.store.log.memory.room import Want
from korvet.store.log.partitions import replicas
from korvet.store.log.state.partition import Meta, Partition
from korvet.store.memory import Reserve
from korvet.store.topics import create_topic
from korvet.tier import removal, tierer
from korvet.tier.manifest import Manifest
from korvet.tier.objects import Objects
from korvet.tier.publishing import manifest
from korvet.tier.segment import batches
from korvet.tier.tier import Tier
from korvet.tier.tierer import Tierer
from tests.store.logs import EVERYTHING, LARGE, NAMESPACE, Front, batch

TIERED = {"remote.storage.enable": "true", "retention.ms": "-1"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are small, and nothing waits for readers."""
    monkeypatch.setattr(tierer, "SEGMENT_BYTES", 1000)
    monkeypatch.setattr(replicas, "_AGE_S", 0.0)
    monkeypatch.setattr(tierer, "_PUT_PAUSES_S", ())
    monkeypatch.setattr(removal, "LISTED_WITHIN_S", 0.0)
    for module in (tierer, removal):
        monkeypatch.setattr(module, "GRACE_S", 0.0)


@asynccontextmanager
async def tiering(one: Front, objects: Objects) -> AsyncIterator[Tierer]:
    """A front-end's tierer, which owns the namespace's objects, if it may."""
    async with anyio.create_task_group() as tasks:
        tier = Tier(objects, tasks)
        found = Tierer(tier, NAMESPACE, one.catalog, one.log, Activity(), Reserve(one.store))
        one.log.tier = tier.cold.of(NAMESPACE.name, one.catalog, one.log)
        await found.own()
        yield found
        one.log.tier = None
        tasks.cancel_scope.cancel()


async def tiered(one: Front, configs: Mapping[str, str] = TIERED) -> Partition:
    """The partition of a new topic in the tier."""
    _, topic = await create_topic(one.catalog, one.log, f"t-{uuid4().hex[:8]}", 1, configs)
    assert topic is not None
    return one.log.partition(topic, 0)


async def filled(one: Front, count: int = 20, size: int = 100, configs: Mapping[str, str] = TIERED) -> Partition:
    """A partition with so many batches of three records; every fifth one is placed beside its entry."""
    partition = await tiered(one, configs)
    for number in range(count):
        assert (await one.append(partition, batch(3, LARGE if number % 5 == 4 else size)))[0] == 0
    return partition


async def read_all(one: Front, partition: Partition, offset: int = 0, *, is_committed: bool = False) -> bytes:
    """The bytes of all batches from an offset on, as Fetches serve them."""
    found = b""
    with anyio.fail_after(30):
        while True:
            want = Want(partition, offset, EVERYTHING, is_committed=is_committed)
            (read,) = await one.log.read([want], EVERYTHING)
            if read.pending is not None:
                await read.pending
                continue
            assert read.code == 0
            if not (data := b"".join(map(bytes, read.records))):
                return found
            found += data
            offset = max(each.base_offset + each.last_offset_delta + 1 for each, _ in batches(data))


async def listed(one: Front, partition: Partition) -> Manifest:
    found = await manifest(one.log, partition)
    assert found is not None
    return found[1]


async def paths_of(objects: Objects) -> set[str]:
    """The objects below the namespace, but for snapshots and owners."""
    return {path for path in await objects.names(NAMESPACE.name) if path.endswith((".segment", ".shelf"))}


async def meta_of(one: Front, partition: Partition) -> Meta:
    found = await one.log.meta(partition)
    assert found is not None
    return found


async def trim_locally(one: Front, partition: Partition) -> None:
    meta = await one.log.meta(partition)
    assert meta is not None
    assert await calls.trim(one.log, partition, meta.tier_end, meta.epoch) == (0, meta.tier_end)


async def expire_doomed(one: Front) -> None:
    """Let the quarantine of all doomed objects end."""

    key = NAMESPACE.doomed
    for text in await one.store.call(Purpose.COORDINATE, key, "ZRANGE", key, 0, -1):
        await one.store.call(Purpose.COORDINATE, key, "ZADD", key, 1, text)
