"""Retention on real servers."""

from __future__ import annotations

import time

import pytest

from korvet.redis.client import Purpose
from korvet.store.background import retention
from korvet.store.background.maintenance import enforce_retention
from korvet.store.background.retention import Retention, enforce
from korvet.store.catalog.topic import Topic
from tests.store.logs import NAMESPACE, Front, created
from tests.support.redis import Server

pytestmark = pytest.mark.anyio


async def appended(front: Front, topic: Topic, timestamps_ms: list[int], size_bytes: int = 100) -> None:
    """Append one batch of two records for each timestamp, as the append function takes them."""
    keys = front.log.partition(topic, 0).keys
    for timestamp in timestamps_ms:
        reply = await front.store.fcall(
            Purpose.APPEND,
            "korvet_log_append",
            keys,
            topic.id.hex,
            front.store.run_id(keys.log),
            2,
            size_bytes,
            timestamp,
            1,
            -1,
            -1,
            -1,
            b"x" * size_bytes,
        )
        assert reply.split()[0] == b"0"


async def start_of(front: Front, topic: Topic) -> int:
    meta = await front.log.meta(front.log.partition(topic, 0))
    assert meta is not None
    return meta.start


async def test_batches_older_than_retention_ms_are_removed(one: Front) -> None:
    topic = await created(one, "t")
    await appended(one, topic, [100, 300, 200, 400, 500])
    partition = one.log.partition(topic, 0)
    await enforce(one.log, partition, Retention(ms=600, bytes=-1), 700)
    assert await start_of(one, topic) == 0
    await enforce(one.log, partition, Retention(ms=600, bytes=-1), 901)
    # The batch with 200 is older, but a batch before it is not.
    assert await start_of(one, topic) == 6
    await enforce(one.log, partition, Retention(ms=600, bytes=-1), 5000)
    assert await start_of(one, topic) == 10


@pytest.mark.parametrize("keep_bytes, start", [(0, 20), (1, 18), (100, 18), (101, 16), (901, 0), (1000, 0), (5000, 0)])
async def test_at_least_retention_bytes_are_left(one: Front, keep_bytes: int, start: int) -> None:
    """Ten batches of 100 bytes and two records each."""
    topic = await created(one, "t")
    await appended(one, topic, [1] * 10)
    await enforce(one.log, one.log.partition(topic, 0), Retention(ms=-1, bytes=keep_bytes), 1000)
    assert await start_of(one, topic) == start


async def test_retention_follows_the_configs(one: Front) -> None:
    kept = await created(one, "kept", retention_ms="-1")
    policy = await created(one, "policy", cleanup_policy="")
    aged, sized = await created(one, "aged"), await created(one, "sized", retention_ms="-1", retention_bytes="100")
    for topic in (kept, policy, aged, sized):
        await appended(one, topic, [1000, 1000])
    await enforce_retention(NAMESPACE, one.catalog, one.log)
    assert [await start_of(one, topic) for topic in (kept, policy, aged, sized)] == [0, 0, 4, 2]


async def test_batches_without_a_timestamp_have_the_age_of_their_append(one: Front) -> None:
    """Kafka also takes the time of the segment's file for such batches (LogSegment.largestTimestamp)."""
    topic = await created(one, "t")
    partition = one.log.partition(topic, 0)
    await appended(one, topic, [1000, -1, -1])
    now_ms = time.time_ns() // 1_000_000
    await enforce(one.log, partition, Retention(ms=600_000, bytes=-1), now_ms)
    assert await start_of(one, topic) == 2
    await enforce(one.log, partition, Retention(ms=600_000, bytes=-1), now_ms + 700_000)
    assert await start_of(one, topic) == 6


async def test_search_that_is_cut_short_removes_the_batches_it_saw(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await created(one, "t")
    partition = one.log.partition(topic, 0)
    # The batch that raised the running maximum is trimmed, so retention must check the later batches one by one.
    await appended(one, topic, [10_000, *[100] * 250])
    await one.log.trim(partition, 2)
    monkeypatch.setattr(retention, "_MAX_CALLS", 2)
    await enforce(one.log, partition, Retention(ms=600, bytes=-1), 5000)
    assert 2 < await start_of(one, topic) < 502
    for _ in range(3):
        await enforce(one.log, partition, Retention(ms=600, bytes=-1), 5000)
    assert await start_of(one, topic) == 502


async def test_corrupt_partition_holds_up_no_retention_of_others(server: Server, one: Front) -> None:
    topics = [await created(one, name) for name in ("a", "b", "c")]
    for topic in topics:
        await appended(one, topic, [1000])
    with server.client() as client:
        meta = one.log.partition(topics[1], 0).keys.meta
        client.delete(meta)
        client.set(meta, "not a hash")
    await enforce_retention(NAMESPACE, one.catalog, one.log)
    assert [await start_of(one, topics[0]), await start_of(one, topics[2])] == [2, 2]
