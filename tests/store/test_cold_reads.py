"""Reads below a local start: the same bytes as before, from segments, and no wait for their store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import structlog

from korvet.api.shared.data_failures import read_failure_code
from korvet.codes import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_SERVER_ERROR
from korvet.errors import DamagedLog, LostTier
from korvet.redis.client import Purpose
from korvet.store.log.appending.markers import Ending
from korvet.store.log.memory.budget import AnswerBudget
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.store.log.reading.times import MAX_TIMESTAMP, NOTHING
from korvet.store.log.state.partition import Partition
from korvet.store.topics import delete_topic
from korvet.tier import blocks, source
from korvet.tier.blocks import Blocks, Gets
from korvet.tier.segment import BLOCK_BYTES, batches
from korvet.tier.source import ColdReads
from tests.store.logs import EVERYTHING, LARGE, NAMESPACE, Front, batch, codes, offsets
from tests.store.sealed import joined, merge, seal, shelve
from tests.store.test_log_transactions import Coordinator, append, transactional
from tests.tier.test_blocks import Store

pytestmark = pytest.mark.anyio

BUDGET = 64 * BLOCK_BYTES


@asynccontextmanager
async def reader(one: Front, objects: Store, budget: int = BUDGET, deadline_s: float = 20) -> AsyncIterator[ColdReads]:
    """A front-end reads segments; what it knows of its logs is forgotten."""
    async with anyio.create_task_group() as tasks:
        cold = ColdReads(Gets(objects, deadline_s=deadline_s), Blocks(budget), tasks)
        one.log.tier = cold.of(NAMESPACE.name, one.catalog, one.log)
        one.log.forget()
        yield cold
        one.log.tier = None
        tasks.cancel_scope.cancel()


async def ended(one: Front, want: Want, most_bytes: int = EVERYTHING) -> PartitionRead:
    """A read, repeated until nothing is pending."""
    with anyio.fail_after(30):
        while True:
            (found,) = await one.log.read([want], most_bytes)
            if found.pending is None:
                return found
            await asyncio.wait([found.pending])


async def read_all(
    one: Front, partition: Partition, offset: int, most_bytes: int = EVERYTHING, *, is_committed: bool = False
) -> list[PartitionRead]:
    """Reads from an offset to the end, each where the one before it ended."""
    reads: list[PartitionRead] = []
    while True:
        found = await ended(one, Want(partition, offset, most_bytes, is_committed=is_committed), most_bytes)
        assert found.code == 0
        if not found.size_bytes:
            return reads
        reads.append(found)
        last = batches(joined([found]))
        offset = max(one.base_offset + one.last_offset_delta + 1 for one, _ in last)


async def filled(one: Front, count: int = 20, size: int = 10) -> tuple[Partition, bytes]:
    """A log of batches of three records, and its bytes."""
    partition = await one.partition()
    for number in range(count):
        await one.append(partition, batch(3, size, timestamp=1000 * number))
    return partition, joined(await read_all(one, partition, 0))


# ---------------------------------------------------------------------- the same bytes


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("most_bytes", [1, 1000, 3 * LARGE, EVERYTHING])
async def test_log_has_the_same_bytes_with_its_oldest_batches_in_segments(
    one: Front, size: int, most_bytes: int
) -> None:
    (partition, data), store = await filled(one, 20, size), Store()
    await seal(one, store, partition, [0, 15, 18, 42, 48], local_start=45)
    async with reader(one, store):
        assert joined(await read_all(one, partition, 0, most_bytes)) == data
        for offset in (0, 1, 14, 15, 17, 44, 45, 46, 59):
            first = await ended(one, Want(partition, offset, most_bytes), most_bytes)
            assert offsets(first)[0] == offset // 3 * 3
            assert (first.high_watermark, first.log_start, first.last_stable) == (60, 0, 60)


@pytest.mark.parametrize("is_committed", [False, True])
async def test_transactions_read_the_same_from_segments(one: Front, is_committed: bool) -> None:
    partition, store = await one.partition(), Store()
    for number, is_commit in enumerate((True, False, True, False)):
        data = transactional(0, epoch=number)
        assert await append(one, partition, data, Coordinator(7 + number)) == (0, 3 * number)
        await one.append(partition, batch(1))
        assert await one.log.mark(partition, Ending(7 + number, 5, number + 1, is_commit=is_commit)) == 0
    hot = await read_all(one, partition, 0, 100, is_committed=is_committed)
    await seal(one, store, partition, [0, 4, 7])
    async with reader(one, store):
        cold = await read_all(one, partition, 0, 100, is_committed=is_committed)
    assert joined(cold) == joined(hot)
    found = [{pair for read in reads for pair in read.aborted or ()} for reads in (cold, hot)]
    assert found[0] == found[1]
    assert found[1] == ({(5, 3), (5, 9)} if is_committed else set())
    assert all((read.aborted is not None) == is_committed for read in cold)


async def test_offsets_without_batches_lead_to_the_next_segment_and_to_redis(one: Front) -> None:
    """Compaction leaves gaps, and a topic may have been compacted before it had segments."""
    (partition, _), store = await filled(one, 6), Store()
    await one.store.call(Purpose.APPEND, partition.keys.log, "XDEL", partition.keys.log, "9-0", "15-0")
    await seal(one, store, partition, [0, 6, 12])
    async with reader(one, store):
        assert [offsets(await ended(one, Want(partition, at, 1), 1)) for at in (5, 6, 8, 12, 14)] == [
            [3], [9], [9], [15], [15],
        ]  # fmt: skip


async def test_errors_of_offsets_and_epochs_are_those_of_redis(one: Front) -> None:
    (partition, _), store = await filled(one), Store()
    await seal(one, store, partition, [0, 30, 48])
    await one.log.trim(partition, 32)
    async with reader(one, store):
        reads = [await ended(one, Want(partition, offset, 1)) for offset in (0, 31, 61)]
        assert codes(reads) == [OFFSET_OUT_OF_RANGE] * 3
        assert offsets(await ended(one, Want(partition, 32, 1), 1)) == [30]
        assert (await ended(one, Want(partition, 33, 1, leader_epoch=1))).code != 0
        assert offsets(await ended(one, Want(partition, 33, 1, leader_epoch=0, last_fetched_epoch=0), 1)) == [33]


async def test_time_is_found_in_segments_and_then_in_redis(one: Front) -> None:
    (partition, _), store = await filled(one), Store()
    times = [(at, one_time) for at in range(20) for one_time in (1000 * at - 5, 1000 * at, 1000 * at + 11)]
    hot = [await one.log.offset_for_time(partition, at) for _, at in times]
    await seal(one, store, partition, [0, 15, 48])
    async with reader(one, store):
        meta = await one.log.meta(partition)
        cold = [await one.log.offset_for_time(partition, at, meta) for _, at in times]
        assert cold == hot
        assert await one.log.offset_for_time(partition, 99_999, meta) == NOTHING
        newest = await one.log.offset_for_time(partition, MAX_TIMESTAMP, meta)
        assert newest is not None
        assert newest.offset == 59


async def test_time_in_an_early_shelf_costs_no_reads_of_later_ones(one: Front) -> None:
    (partition, _), store = await filled(one), Store()
    await seal(one, store, partition, [0, 6, 12, 18, 24, 30, 36, 48])
    for _ in range(3):
        await shelve(one, store, partition, 2)
    async with reader(one, store):
        found = await one.log.offset_for_time(partition, 1000, await one.log.meta(partition))
        assert found is not None
        assert found.offset == 3
        assert [path.rpartition(".")[2] for path, _, _ in store.reads].count("shelf") == 1


# ---------------------------------------------------------------------- a slow store, and many readers


async def test_read_waits_for_no_store_and_goes_on_after_its_fetch_left(one: Front) -> None:
    (partition, data), store = await filled(one), Store()
    hot = (await filled(one))[0]
    await seal(one, store, partition, [0, 48])
    async with reader(one, store):
        store.wait()
        with anyio.fail_after(5):
            reads = await one.log.read([Want(partition, 0, EVERYTHING), Want(hot, 0, EVERYTHING)], EVERYTHING)
        assert [(read.code, bool(read.size_bytes), read.pending is not None) for read in reads] == [
            (0, False, True), (0, True, False),
        ]  # fmt: skip
        store.open.set()
        assert reads[0].pending is not None
        await asyncio.wait([reads[0].pending])
        (found,) = await one.log.read([Want(partition, 0, EVERYTHING)], EVERYTHING)
        assert data.startswith(joined([found]))
        assert found.size_bytes


async def test_fifty_readers_of_a_cold_block_cost_one_request_for_it(one: Front) -> None:
    (partition, data), store = await filled(one), Store()
    await seal(one, store, partition, [0, 48])
    async with reader(one, store):
        found: list[PartitionRead] = []

        async def read() -> None:
            found.append(await ended(one, Want(partition, 6, EVERYTHING)))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(read)
        assert {joined([one_read]) for one_read in found} == {joined(found[:1])}
        assert joined(found[:1]) in data
        # The footer, and the block.
        assert len(store.reads) == 2


async def test_reader_who_goes_on_finds_the_next_blocks_in_memory(one: Front) -> None:
    (partition, data), store = await filled(one, 40, 100_000), Store()
    await seal(one, store, partition, [0, 60, 120])
    async with reader(one, store):
        waits, offset, found = 0, 0, b""
        while offset < 120:
            (read,) = await one.log.read([Want(partition, offset, BLOCK_BYTES)], BLOCK_BYTES)
            if read.pending is not None:
                waits += 1
                await asyncio.wait([read.pending])
                continue
            found += joined([read])
            offset = offsets(read)[-1] + 3
            await anyio.wait_all_tasks_blocked()
        assert data == found
        assert waits <= 2


async def test_readers_share_a_budget_that_holds_little(one: Front) -> None:
    (partition, data), store = await filled(one, 40, 100_000), Store()
    await seal(one, store, partition, [0, 60, 120])
    async with reader(one, store, budget=3 * BLOCK_BYTES) as cold:
        found: list[bytes] = []

        async def read() -> None:
            found.append(joined(await read_all(one, partition, 0, BLOCK_BYTES)))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(read)
        assert found == [data] * 5
        assert cold.blocks.size_bytes <= 3 * BLOCK_BYTES


async def test_reads_of_clients_that_left_make_room(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_MOST_READS", 4)
    (partition, _), store = await filled(one), Store()
    await seal(one, store, partition, [0, 48])
    async with reader(one, store):
        store.wait()
        reads = [(await one.log.read([Want(partition, at, 1)], 1))[0] for at in range(0, 18, 3)]
        assert [read.pending is not None for read in reads] == [True] * 4 + [False] * 2
        monkeypatch.setattr(source, "_LEFT_S", 0.0)
        await anyio.sleep(0.01)
        (late,) = await one.log.read([Want(partition, 15, 1)], 1)
        assert late.pending is not None
        store.open.set()
        assert offsets(await ended(one, Want(partition, 15, 1), 1)) == [15]


async def test_partition_with_very_many_reads_makes_room_for_another(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_MOST_READS", 4)
    (partition, _), (another, _), store = await filled(one), await filled(one), Store()
    for each in (partition, another):
        await seal(one, store, each, [0, 48])
    async with reader(one, store):
        store.wait()
        reads = [(await one.log.read([Want(partition, at, 1)], 1))[0] for at in range(0, 12, 3)]
        for at in (0, 3, 6):
            (found,) = await one.log.read([Want(another, at, 1)], 1)
            assert (found.pending is not None) == (at < 6)
        await anyio.wait_all_tasks_blocked()
        assert [read.pending is not None and read.pending.done() for read in reads] == [True, True, False, False]
        store.open.set()
        assert offsets(await ended(one, Want(partition, 9, 1), 1)) == [9]
        assert offsets(await ended(one, Want(partition, 0, 1), 1)) == [0]


async def test_records_that_nobody_takes_are_dropped(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_TAKEN_WITHIN_S", 0.05)
    (partition, _), store = await filled(one, 40, 100_000), Store()
    await seal(one, store, partition, [0, 120])
    async with reader(one, store, budget=4 * BLOCK_BYTES) as cold:
        store.wait()
        for at in range(0, 60, 3):
            (found,) = await one.log.read([Want(partition, at, BLOCK_BYTES)], BLOCK_BYTES)
            assert found.pending is not None
        store.open.set()
        with anyio.fail_after(30):
            while cold._reads:
                await anyio.sleep(0.01)


async def test_batch_larger_than_everything_is_read(one: Front) -> None:
    (partition, data), store = await filled(one, 2, 1 << 20), Store()
    assert len(data) > 2 * 3 << 20
    await seal(one, store, partition, [0, 3, 6])
    async with reader(one, store, budget=BLOCK_BYTES):
        assert joined(await read_all(one, partition, 0, 1)) == data


async def test_readers_that_wait_for_room_hold_no_bytes_of_segments(one: Front) -> None:
    (partition, data), store = await filled(one, 40, 100_000), Store()
    await seal(one, store, partition, [0, 120])
    budget = AnswerBudget(2 << 20)
    one.log.answers = budget
    async with reader(one, store):
        found: list[bytes] = []
        share = budget.share()
        held = await share.reserve(2 << 20, is_whole=True)
        assert held == 2 << 20

        async def read() -> None:
            own = budget.share()
            while True:
                (one_read,) = await one.log.read([Want(partition, 0, 4 << 20)], 4 << 20, own)
                if one_read.pending is None:
                    break
                await asyncio.wait([one_read.pending])
            found.append(joined([one_read]))
            own.let_go()

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(read)
            await anyio.sleep(0.1)
            assert found == []
            share.let_go()
        assert len(found) == 10
        assert all(data.startswith(one_found) and len(one_found) >= 300_000 for one_found in found)
        assert budget.free_bytes == 2 << 20


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize("kind", ["flipped", "cut off", "deleted", "away"])
async def test_failure_of_a_segment_concerns_its_range_alone(
    one: Front, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_FIRST_BACKOFF_S", 0.0)
    monkeypatch.setattr(source, "FAILED_S", 0.3)
    (partition, _), store = await filled(one, 60, 100_000), Store()
    (_, path, _) = await seal(one, store, partition, [0, 60, 120, 150])
    whole = bytes(await store.read(path, 0, EVERYTHING))
    async with reader(one, store):
        if kind == "away":
            store.fails = 1000
        else:
            await store.delete(path)
        if kind == "flipped":
            await store.put(path, [whole[: 2 * BLOCK_BYTES], b"\0", whole[2 * BLOCK_BYTES + 1 :]])
        elif kind == "cut off":
            await store.put(path, [whole[: 2 * BLOCK_BYTES]])
        bad = await ended(one, Want(partition, 90, 1))
        assert (bad.code, bad.records) == (
            {"away": KAFKA_STORAGE_ERROR, "deleted": UNKNOWN_SERVER_ERROR}.get(kind, CORRUPT_MESSAGE), [],
        )  # fmt: skip
        meta = await one.log.meta(partition)
        with pytest.raises(LostTier if kind == "away" else DamagedLog) as raised:
            await one.log.offset_for_time(partition, 28_000, meta)
        assert read_failure_code(raised.value, "ListOffsets") == (
            KAFKA_STORAGE_ERROR if kind == "away" else UNKNOWN_SERVER_ERROR
        )
        store.fails = 0
        assert offsets(await ended(one, Want(partition, 57, 1), 1)) == [57]
        assert offsets(await ended(one, Want(partition, 120, 1), 1)) == [120]
        assert offsets(await ended(one, Want(partition, 150, 1), 1)) == [150]
        if kind == "flipped":
            assert offsets(await ended(one, Want(partition, 60, 1), 1)) == [60]
        await store.delete(path)
        await store.put(path, [whole])
        await anyio.sleep(0.4)
        assert offsets(await ended(one, Want(partition, 90, 1), 1)) == [90]


async def test_log_has_one_line_for_a_store_that_is_away_and_one_for_each_damage(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_FIRST_BACKOFF_S", 0.0)
    (partition, _), store = await filled(one, 40, 100_000), Store()
    paths = await seal(one, store, partition, [0, 60, 120])
    async with reader(one, store) as cold:
        with structlog.testing.capture_logs() as lines:
            store.fails = 1000
            for offset in (0, 3, 60):
                assert (await ended(one, Want(partition, offset, 1))).code == KAFKA_STORAGE_ERROR
        assert [line["repair"].split(":")[0] for line in lines] == ["readers try again until the store answers"]
        store.fails = 0
        for path in paths:
            await store.delete(path)
        with structlog.testing.capture_logs() as lines:
            for offset in (6, 9, 63, 66):
                assert (await ended(one, Want(partition, offset, 1))).code == UNKNOWN_SERVER_ERROR
        assert [path in line["reason"] for path, line in zip(paths, lines, strict=True)] == [True, True]
        assert [f"--before {end} " in line["repair"] for end, line in zip((60, 120), lines, strict=True)] == [True] * 2
        assert cold.failures == 7


# ---------------------------------------------------------------------- changes while somebody reads


async def test_segments_that_appear_while_somebody_reads_skip_and_repeat_nothing(one: Front, other: Front) -> None:
    (partition, data), store = await filled(one, 20, 1000), Store()
    await other.catalog.refresh()
    known, found, offset = other.known(partition), b"", 0
    async with reader(other, store):
        for step in range(20):
            if step % 5 == 2:
                end = (await one.log.meta(partition)).tier_end  # type: ignore[union-attr]
                await seal(one, store, partition, [max(end, 0), max(end, 0) + 15])
            read = await ended(other, Want(known, offset, 3000), 3000)
            found += joined([read])
            offset = offsets(read)[-1] + 3
            if offset == 60:
                break
    assert found == data


async def test_list_in_memory_goes_on_behind_a_shelf_that_reaches_beyond_its_end(one: Front) -> None:
    (partition, data), store = await filled(one), Store()
    await seal(one, store, partition, [0, 6, 12])
    async with reader(one, store):
        assert joined(await read_all(one, partition, 0)) == data
        await seal(one, store, partition, [12, 18, 24])
        await shelve(one, store, partition, 3)
        assert joined(await read_all(one, partition, 0)) == data
        assert joined(await read_all(one, partition, 15)) in data


@pytest.mark.parametrize("kind", ["batches", "batches, with a footer in memory", "time"])
async def test_segments_that_were_merged_and_deleted_are_read_by_a_list_from_before(one: Front, kind: str) -> None:
    (partition, data), store = await filled(one), Store()
    paths = await seal(one, store, partition, [0, 15, 30, 48])
    async with reader(one, store) as cold:
        assert joined(await read_all(one, partition, 0)) == data
        await merge(one, store, partition)
        for path in paths:
            await store.delete(path)
        for key in list(cold.blocks._kept):
            if key[2] >= 0 or "footer" not in kind:
                del cold.blocks._kept[key]
        if kind == "time":
            meta = await one.log.meta(partition)
            found = await one.log.offset_for_time(partition, 7000, meta)
            assert found is not None
            assert found.offset == 21
        else:
            assert joined(await read_all(one, partition, 0)) == data


async def test_time_is_found_by_a_list_with_segments_that_retention_deleted_since(one: Front) -> None:
    (partition, _), store = await filled(one), Store()
    paths = await seal(one, store, partition, [0, 15, 30, 48])
    async with reader(one, store) as cold:
        await read_all(one, partition, 0)
        await one.log.trim(partition, 15)
        await store.delete(paths[0])
        cold.blocks._kept.clear()
        found = await one.log.offset_for_time(partition, 1000, await one.log.meta(partition))
        assert found is not None
        assert found.offset == 15


async def test_deletions_while_somebody_reads_are_answered_as_without_segments(one: Front, other: Front) -> None:
    (partition, _), store = await filled(one), Store()
    await seal(one, store, partition, [0, 30, 48])
    await other.catalog.refresh()
    known = other.known(partition)
    async with reader(other, store):
        store.wait()
        (early,) = await other.log.read([Want(known, 3, 1)], 1)
        assert early.pending is not None
        await one.log.trim(partition, 33)
        store.open.set()
        await asyncio.wait([early.pending])
        assert (await ended(other, Want(known, 3, 1))).code == OFFSET_OUT_OF_RANGE
        assert offsets(await ended(other, Want(known, 33, 1), 1)) == [33]
        await delete_topic(one.catalog, one.log, partition.topic)
        assert (await ended(other, Want(known, 36, 1))).code != 0
