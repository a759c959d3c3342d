"""Retention of a partition whose oldest batches are in segments: limits of the whole log, and those of Redis's part."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import pytest

from korvet.store.background.retention import Retention, enforce, retention_of
from korvet.store.catalog.topic import Topic
from korvet.store.groups.types import Offset
from korvet.store.log import tier
from korvet.store.log.state.partition import Partition
from korvet.store.log.tier import Upload
from tests.store.logs import Front, batch
from tests.store.sealed import index_at

pytestmark = pytest.mark.anyio

SIZE = len(batch(1))
TIMES = (100, 300, 200, 400, 500, 450, 600, 700)
"""The timestamps of the batches, one record each. The first three segments hold two batches each."""


async def _sealed(one: Front, *, local_start: int = 0, times: Sequence[int] = TIMES) -> Partition:
    partition = await one.partition()
    for time in times:
        await one.append(partition, batch(1, timestamp=time))
    for first in (0, 2, 4):
        indexes = [await index_at(one, partition, at) for at in (first + 1, first + 2)]
        newest = max(int(index.split()[2]) for index in indexes)
        upload = Upload(f"segment-{first}", first, first + 2, 2 * SIZE, 77, 99, newest, *indexes)
        assert (await tier.add(one.log, partition, upload, "token") or ("",))[0] == "added"
    assert await tier.trim(one.log, partition, local_start, 0) == (0, local_start)
    return partition


async def _starts(one: Front, partition: Partition) -> tuple[int, int]:
    """The log start, and the local start."""
    meta = await one.log.meta(partition)
    assert meta is not None
    return meta.start, meta.local_start


@pytest.mark.parametrize(
    ("oldest", "start"),
    # By segment where Redis holds nothing, and by batch from the local start on.
    [(100, 0), (250, 0), (301, 2), (400, 2), (401, 4), (450, 4), (501, 6), (601, 7), (701, 8)],
)
async def test_time_counts_over_segments_and_redis(one: Front, oldest: int, start: int) -> None:
    partition = await _sealed(one, local_start=5)
    await enforce(one.log, partition, Retention(ms=1000, bytes=-1), 1000 + oldest)
    assert await _starts(one, partition) == (start, max(start, 5))


@pytest.mark.parametrize(
    ("batches", "start"), [(0, 8), (1, 7), (2, 6), (3, 4), (4, 4), (5, 2), (6, 2), (7, 0), (8, 0), (20, 0)]
)
async def test_bytes_count_over_segments_and_redis(one: Front, batches: int, start: int) -> None:
    partition = await _sealed(one, local_start=5)
    await enforce(one.log, partition, Retention(ms=-1, bytes=batches * SIZE), 1000)
    # Of the segment from 4 to 6, Redis holds the second half alone, which stays with the first.
    assert await _starts(one, partition) == (start, max(start, 5))


async def test_deleted_record_of_the_future_keeps_no_segment(one: Front) -> None:
    """The running maximum alone is above each time from then on."""
    partition = await _sealed(one, local_start=6, times=(9000, *TIMES[1:]))
    await enforce(one.log, partition, Retention(ms=1000, bytes=-1), 1401)
    assert await _starts(one, partition) == (0, 6)
    await one.log.trim(partition, 1)
    await enforce(one.log, partition, Retention(ms=1000, bytes=-1), 1401)
    assert await _starts(one, partition) == (1, 6)
    await one.log.trim(partition, 2)
    await enforce(one.log, partition, Retention(ms=1000, bytes=-1), 1401)
    assert await _starts(one, partition) == (4, 6)


@pytest.mark.parametrize(
    ("local_ms", "local_bytes", "local_start"),
    [(-1, -1, 0), (599, -1, 3), (200, -1, 6), (0, -1, 6), (-1, 0, 6), (-1, 5 * SIZE, 3), (599, 3 * SIZE, 5)],
)
async def test_local_limits_remove_only_what_segments_hold(
    one: Front, local_ms: int, local_bytes: int, local_start: int
) -> None:
    partition = await _sealed(one)
    limits = Retention(ms=-1, bytes=-1, local_ms=local_ms, local_bytes=local_bytes)
    for _ in range(2):
        await enforce(one.log, partition, limits, 999)
        assert await _starts(one, partition) == (0, local_start)


async def test_local_limits_without_segments_remove_nothing(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch())
    await enforce(one.log, partition, Retention(ms=-1, bytes=-1, local_ms=0, local_bytes=0), 5000)
    assert await _starts(one, partition) == (0, 0)


@pytest.mark.parametrize("archived", [None, 3, 8])
async def test_unarchived_records_stay_in_segments_alone(one: Front, archived: int | None) -> None:
    partition = await _sealed(one, local_start=2)
    committed = None if archived is None else Offset(archived, 0, partition.topic.id, "")
    limits = Retention(ms=0, bytes=-1, keeps_unarchived=True, local_ms=0, local_bytes=0)
    await enforce(one.log, partition, limits, 999, committed)
    start = archived or 0
    assert await _starts(one, partition) == (start, max(start, 6))


async def test_redis_keeps_nothing_that_segments_hold_while_memory_is_short(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await _sealed(one)
    limits = Retention(ms=-1, bytes=-1)
    await enforce(one.log, partition, limits, 999)
    assert await _starts(one, partition) == (0, 0)
    monkeypatch.setattr(one.log.reserve, "is_used_up", lambda key: True)
    await enforce(one.log, partition, limits, 999)
    assert await _starts(one, partition) == (0, 6)


async def test_limits_of_a_topic_in_the_tier_follow_its_configs(one: Front) -> None:
    def limits(**configs: str) -> Retention | None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        return retention_of(one.catalog, Topic(name="t", id=uuid4(), partitions=1, configs=named))

    tiered = {"remote_storage_enable": " True", "retention_ms": "-1"}
    assert limits(retention_ms="-1", local_retention_ms="5") is None
    # The policy of the cluster may be another one by now.
    assert limits(remote_storage_enable="true", cleanup_policy="compact") == Retention(ms=-1, bytes=-1)
    assert limits(**tiered) == Retention(ms=-1, bytes=-1)
    assert limits(**tiered, retention_bytes="9", local_retention_ms="5") == Retention(
        ms=-1, bytes=9, local_ms=5, local_bytes=9
    )
