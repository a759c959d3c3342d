"""The comparison of Redis with the tier, before a log goes on or a topic begins: `korvet.tier.guard`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from korvet.errors import LostTier, StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.log import tier as calls
from korvet.store.log.state.partition import Partition
from korvet.store.topics import create_topic
from korvet.tier import guard, tier
from korvet.tier.objects import Directory, TierAway
from korvet.tier.series import Series
from korvet.tier.snapshot import Topics, topics_folder
from korvet.tier.tier import Tier
from tests.store.logs import NAMESPACE, Front, batch
from tests.store.published import publish, tiered
from tests.store.sealed import seal

pytestmark = pytest.mark.anyio


class Counted(Directory):
    """A directory that may be away, and counts reads."""

    reads = running = most = 0
    is_away = False

    async def read(self, path: str, start: int, end: int) -> memoryview:
        self.reads += 1
        if self.is_away:
            raise TierAway("no answer")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await super().read(path, start, end)
        finally:
            self.running -= 1


@pytest.fixture
def objects(tmp_path: Path) -> Counted:
    return Counted(tmp_path / "tier")


@asynccontextmanager
async def guarded(one: Front, objects: Counted) -> AsyncIterator[None]:
    """Let the front-end compare its Redis with a directory, as if it had just started."""
    async with anyio.create_task_group() as tasks:
        Tier(objects, tasks).serve(NAMESPACE, one.catalog, one.log)
        one.log.forget()
        yield
        tasks.cancel_scope.cancel()


async def begin_history(one: Front, partition: Partition) -> None:
    """As if the server had been another one when the partition's leader epoch began."""
    meta = partition.keys.meta
    await one.store.call(Purpose.APPEND, meta, "HSET", meta, "run_id", "0" * 40)


async def append(one: Front, partition: Partition) -> tuple[int, int]:
    """Append three records as soon as that is allowed."""
    while True:
        try:
            return await one.append(partition, batch(3))
        except StoreUnavailable:
            await anyio.sleep(0.01)


async def test_log_that_the_tier_does_not_exceed_goes_on_in_a_new_history(one: Front, objects: Counted) -> None:
    (partition,) = await tiered(one)
    await seal(one, objects, partition, [0, 6])
    await publish(one, objects, partition)
    await begin_history(one, partition)
    async with guarded(one, objects):
        before = objects.reads
        assert await append(one, partition) == (0, 15)
        assert objects.reads > before
        read, before = await one.read(partition, 6), objects.reads
        assert read.code == 0
        assert await append(one, partition) == (0, 18)
        assert objects.reads == before


async def test_damaged_keys_of_a_partition_end_no_other_comparison(one: Front, objects: Counted) -> None:
    damaged, other = await tiered(one, 2)
    await seal(one, objects, damaged, [0, 6])
    await publish(one, objects, damaged)
    for partition in (damaged, other):
        await begin_history(one, partition)
    meta = damaged.keys.meta
    async with guarded(one, objects):
        await one.store.call(Purpose.APPEND, meta, "HSET", meta, "end", "x")
        with pytest.raises(LostTier, match="unknown: ValueError"):
            await append(one, damaged)
        assert await append(one, other) == (0, 15)


async def test_partitions_are_compared_a_few_at_a_time(
    one: Front, objects: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of Redis all are due at once."""
    monkeypatch.setattr(tier, "MOST_COMPARED", 6)
    partitions = await tiered(one, 12)
    for partition in partitions:
        await begin_history(one, partition)
    async with guarded(one, objects):
        async with anyio.create_task_group() as tasks:
            for partition in partitions:
                tasks.start_soon(append, one, partition)
        assert objects.most == 3


async def test_tier_is_not_asked_in_the_same_history_or_for_other_topics(one: Front, objects: Counted) -> None:
    (partition,), other = await tiered(one), await one.partition()
    await begin_history(one, other)
    async with guarded(one, objects):
        assert await append(one, partition) == (0, 15)
        assert await one.append(other, batch(3)) == (0, 0)
        assert objects.reads == 0


async def test_log_behind_the_tier_refuses_readers_and_producers(one: Front, objects: Counted) -> None:
    (partition,) = await tiered(one)
    meta = partition.keys.meta
    saved = await one.store.call(Purpose.APPEND, meta, "DUMP", meta)
    await seal(one, objects, partition, [0, 15])
    await publish(one, objects, partition)
    await one.store.call(Purpose.APPEND, meta, "RESTORE", meta, 0, saved, "REPLACE")
    await one.store.call(Purpose.APPEND, meta, "HSET", meta, "end", 9)
    await begin_history(one, partition)
    async with guarded(one, objects):
        with pytest.raises(LostTier, match="offsets 0 to 9, and the tier has 0 to 15"):
            await append(one, partition)
        with pytest.raises(LostTier):
            await one.log.meta(partition)


async def test_first_use_of_a_log_after_a_start_is_no_failure_of_maintenance(one: Front, objects: Counted) -> None:
    (partition,) = await tiered(one)
    await begin_history(one, partition)
    async with guarded(one, objects):
        with pytest.raises(StoreUnavailable) as refused:
            await one.append(partition, batch(3))
        assert one.store.has_reported(refused.value)


async def test_topic_may_have_the_tier_as_soon_as_that_is_named(
    one: Front, objects: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(one, objects), anyio.create_task_group() as tasks:
        assert one.log.guard is not None
        tasks.start_soon(one.catalog.name_tier, "", "id")
        assert await one.log.guard.tier() == "id"
    await one.store.call(Purpose.COORDINATE, NAMESPACE.catalog.meta, "HDEL", NAMESPACE.catalog.meta, "tier")
    monkeypatch.setattr(guard, "_NAMED_WITHIN_S", 0.0)
    async with guarded(one, objects):
        assert one.log.guard is not None
        with pytest.raises(LostTier, match="cannot be used yet"):
            await one.log.guard.tier()


async def test_list_from_before_a_merge_refuses_clients(one: Front, objects: Counted) -> None:
    (partition,) = await tiered(one)
    await seal(one, objects, partition, [0, 6, 9, 15])
    key = one.log.tier_keys(partition).tier
    saved = await one.store.call(Purpose.APPEND, key, "DUMP", key)
    await publish(one, objects, partition)
    found = await calls.listed(one.log, partition, 0, 2)
    assert found is not None
    assert await calls.shelve(one.log, partition, [text for _, text in found.segments], "merged", 9, 9, "segment")
    await begin_history(one, partition)
    async with guarded(one, objects):
        # The merge is not published yet.
        assert await append(one, partition) == (0, 15)
    await publish(one, objects, partition)
    await one.store.call(Purpose.APPEND, key, "RESTORE", key, 0, saved, "REPLACE")
    await begin_history(one, partition)
    async with guarded(one, objects):
        with pytest.raises(LostTier, match="its list of segments is older"):
            await append(one, partition)


async def test_store_that_is_away_is_asked_again(one: Front, objects: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_AGAIN_S", 0.5)
    monkeypatch.setattr(guard, "_NAMED_WITHIN_S", 0.0)
    (partition,) = await tiered(one)
    await begin_history(one, partition)
    objects.is_away = True
    async with guarded(one, objects):
        with pytest.raises(LostTier, match="no answer"):
            await append(one, partition)
        with pytest.raises(LostTier, match="no answer"):
            await create_topic(one.catalog, one.log, "new", 1, {})
        assert one.catalog.topic("new") is None
        objects.is_away = False
        with anyio.fail_after(10):
            while True:
                with suppress(LostTier):
                    assert await append(one, partition) == (0, 15)
                    break
                await anyio.sleep(0.01)
        _, topic = await create_topic(one.catalog, one.log, "new", 1, {})
        assert topic is not None


async def test_name_of_a_lost_topic_is_not_given_away(one: Front, objects: Counted) -> None:
    (partition,) = await tiered(one)
    await seal(one, objects, partition, [0, 6])
    await publish(one, objects, partition)
    await one.store.call(Purpose.APPEND, partition.keys.meta, "FLUSHALL")
    await one.catalog.refresh()
    async with guarded(one, objects):
        with pytest.raises(LostTier, match="does not know: korvet tier recover"):
            await create_topic(one.catalog, one.log, "orders", 1, {})
        _, topic = await create_topic(one.catalog, one.log, "other", 1, {})
        assert topic is not None


async def test_next_name_is_compared_by_fewer_reads(one: Front, objects: Counted) -> None:
    series = Series(objects, topics_folder(NAMESPACE.name), Topics.decoded)
    for number in range(31):
        now = Topics(cluster_id=one.catalog.cluster_id, namespace=NAMESPACE.name, version=number, topics=[])
        await series.add(number, now.encoded())
    reads = []
    async with guarded(one, objects):
        for name in ("first", "second"):
            before = objects.reads
            await create_topic(one.catalog, one.log, name, 1, {})
            reads.append(objects.reads - before)
    assert reads[1] == 2 < reads[0]
