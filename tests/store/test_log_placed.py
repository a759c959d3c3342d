"""Placed batches that the log reads ahead for a reader, or keeps for other readers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from korvet.codes import OFFSET_OUT_OF_RANGE
from korvet.redis.client import Argument, Purpose
from korvet.store.log import placed
from korvet.store.log.entries import parsed_entries
from korvet.store.log.partition import Partition
from tests.store.logs import LARGE, Front, batch, offsets, split, stored, until

pytestmark = pytest.mark.anyio


def noted_gets(one: Front, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of placed batches that the front-end asks Redis for from now on."""
    asked: list[str] = []
    call = one.store.call

    def noted(purpose: Purpose, key: str, *command: Argument) -> asyncio.Future[Any]:
        asked.extend([key] if command[0] == "GET" else [])
        return call(purpose, key, *command)

    monkeypatch.setattr(one.store, "call", noted)
    return asked


async def placed_partition(one: Front, count: int, size: int = LARGE) -> tuple[Partition, list[bytes]]:
    """A partition of placed batches, none of which the front-end has in memory."""
    partition = await one.partition()
    appended = [batch(1, size + number) for number in range(count)]
    for data in appended:
        await one.append(partition, data)
    one.log.recent.clear()
    return partition, appended


async def test_batch_is_read_ahead_before_its_reader_comes(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await one.partition()
    appended = [batch(1, LARGE + number) for number in range(6)]
    for data in appended:
        await one.append(partition, data)
    asked = noted_gets(one, monkeypatch)
    keys = [f"{partition.keys.log}:{number + 1}" for number in range(6)]
    for number, data in enumerate(appended):
        found = await one.read(partition, number, max_bytes=LARGE)
        assert split(found) == stored((number, data))
        # The log asks for each batch once, together with the batch before it.
        assert asked == keys[: number + 2]
    assert split(await one.read(partition, 1, max_bytes=LARGE)) == stored((1, appended[1]))


async def test_batch_read_ahead_serves_only_its_own_entry(one: Front) -> None:
    partition = await one.partition()
    former, later = batch(1, LARGE), batch(1, LARGE, timestamp=2000)
    for _ in range(3):
        await one.append(partition, former)
    assert offsets(await one.read(partition, 0, max_bytes=LARGE)) == [0]
    # The key and size are the same, in an epoch of another history.
    log = partition.keys.log
    await one.store.call(Purpose.APPEND, log, "DEL", log)
    await one.store.call(Purpose.APPEND, log, "SET", f"{log}:2", later)
    for number in range(2, 4):
        index = f"1 {len(later)} 2000 2000 0 0 7 0"
        await one.store.call(Purpose.APPEND, log, "XADD", log, f"{number}-0", "i", index)
    ((offset, epoch, _, data),) = split(await one.read(partition, 1, max_bytes=LARGE))
    assert (offset, epoch, data) == (1, 7, later[16:])


async def test_batch_missing_from_a_read_ahead_is_asked_for_again(one: Front) -> None:
    partition = await one.partition()
    for _ in range(2):
        await one.append(partition, batch(1, LARGE))
    key = f"{partition.keys.log}:2"
    await one.store.call(Purpose.READ, key, "RENAME", key, f"{key}.away")
    await one.read(partition, 0, max_bytes=LARGE)
    # The key comes back after Redis answered the GET, which found nothing.
    await one.store.call(Purpose.READ, key, "RENAME", f"{key}.away", key)
    assert offsets(await one.read(partition, 1, max_bytes=LARGE)) == [1]


async def test_read_ahead_stays_within_the_budget(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one.log.placed, "_budget_bytes", placed.AHEAD_SHARE * 3 * LARGE)
    partition, share = await one.partition(), one.log.answers.share()
    for _ in range(8):
        await one.append(partition, batch(1, LARGE))
    for number in range(4):
        await one.read(partition, 2 * number, max_bytes=LARGE, share=share)
        share.let_go()
    assert one.log.placed.size_bytes // LARGE == 2
    one.log.forget()
    assert one.log.placed.size_bytes == 0


async def test_batch_whose_reader_stays_away_is_forgotten(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed, "KEPT_S", 0.01)
    partition = await one.partition()
    for _ in range(3):
        await one.append(partition, batch(1, LARGE))
    await one.read(partition, 0, max_bytes=LARGE)
    await until(lambda: not one.log.placed.size_bytes)


@pytest.mark.parametrize("size", [LARGE, 300_000])
async def test_readers_of_one_partition_ask_redis_once(one: Front, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    partition, appended = await placed_partition(one, 6, size)
    asked = noted_gets(one, monkeypatch)

    async def read_all() -> None:
        share = one.log.answers.share()
        for number, data in enumerate(appended):
            found = await one.read(partition, number, max_bytes=size, share=share)
            assert split(found) == stored((number, data))
            share.let_go()

    await asyncio.gather(*(read_all() for _ in range(8)))
    # The first reader asks alone: the front-end does not know yet of the other readers.
    assert len(asked) <= len(appended) + 1
    assert one.log.placed.size_bytes > 0


async def test_batches_of_one_reader_are_not_kept(one: Front) -> None:
    partition, appended = await placed_partition(one, 6)
    share = one.log.answers.share()
    for number in range(len(appended)):
        await one.read(partition, number, max_bytes=LARGE, share=share)
        share.let_go()
    assert one.log.placed.size_bytes == 0


async def test_reader_that_goes_away_takes_nothing_from_the_others(one: Front) -> None:
    partition, appended = await placed_partition(one, 2, 300_000)
    await one.read(partition, 0, max_bytes=LARGE)
    readers = [asyncio.ensure_future(one.read(partition, 0)) for _ in range(3)]
    await until(lambda: one.log.fair_queues.under_way_bytes > 0)
    readers[0].cancel()
    for reader in readers[1:]:
        assert split(await reader) == stored(*enumerate(appended))
    assert readers[0].cancelled()


async def test_shared_batches_stay_within_the_budget(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one.log.placed, "_budget_bytes", 3 * (LARGE + 100))
    partition, appended = await placed_partition(one, 8)
    for _ in range(2):
        for number, data in enumerate(appended):
            assert split(await one.read(partition, number, max_bytes=LARGE)) == stored((number, data))
            assert one.log.placed.size_bytes <= 3 * (LARGE + 100)


async def test_shared_batch_that_was_trimmed_is_not_given(one: Front) -> None:
    partition, appended = await placed_partition(one, 3)
    for _ in range(2):
        await one.read(partition, 0)
    assert one.log.placed.size_bytes > 0
    await one.log.trim(partition, 2)
    assert (await one.read(partition, 0)).code == OFFSET_OUT_OF_RANGE
    assert split(await one.read(partition, 2)) == stored((2, appended[2]))


async def test_last_reader_that_goes_away_takes_nothing_from_the_others(one: Front) -> None:
    partition, _ = await placed_partition(one, 1)
    (entry,), _ = parsed_entries(
        partition.keys.log,
        await one.store.call(Purpose.READ, partition.keys.log, "XRANGE", partition.keys.log, "-", "+"),
    )
    batches, coming = one.log.placed, asyncio.get_running_loop().create_future()
    batches.add(partition, entry, coming, is_ahead=False)
    sharing, leaving = (batches.get(partition, entry, is_shared=is_shared) for is_shared in (True, False))
    assert sharing is not None
    assert leaving is not None
    leaving.cancel()
    coming.set_result(b"batch")
    assert await sharing == b"batch"
