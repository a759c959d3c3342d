"""Large reads take turns on the way from Redis, and reserve their bytes before."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from korvet.redis.client import Argument, Purpose
from korvet.store.log.memory.budget import AnswerBudget
from korvet.store.log.memory.fair_queue import WINDOW_BYTES
from korvet.store.log.memory.room import Want
from tests.store.logs import EVERYTHING, Front, batch, offsets, until

pytestmark = pytest.mark.anyio

MIB = 1 << 20
PLACED = 500_000


class Noted:
    """The questions to Redis on the link of reads, in order, and the bytes under way."""

    def __init__(self, one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str]] = []
        self.under_way_bytes = 0
        self.most_bytes = 0
        self.came = 0
        self._call = one.store.call
        monkeypatch.setattr(one.store, "call", self)

    def __call__(self, purpose: Purpose, key: str, *command: Argument) -> asyncio.Future[Any]:
        self.asked.append((str(command[0]), key))
        reply = self._call(purpose, key, *command)
        if command[0] == "GET":
            self.under_way_bytes += PLACED
            self.most_bytes = max(self.most_bytes, self.under_way_bytes)
            reply.add_done_callback(self._came)
        return reply

    def _came(self, _reply: object) -> None:
        self.under_way_bytes -= PLACED
        self.came += 1


async def test_small_read_waits_only_for_large_ones_under_way(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = await one.partition(), await one.partition()
    data = batch(1, PLACED - 100)
    for _ in range(12):
        await one.append(large, data)
    await one.append(small, batch(1))
    await one.read(large, 0)
    await one.read(small, 0)
    one.log.cache.clear()
    one.log.cache.clear()
    noted = Noted(one, monkeypatch)

    async def catch_up() -> None:
        found = await one.read(large, 0)
        assert offsets(found) == list(range(12))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(catch_up)
        while not noted.came:
            await asyncio.sleep(0)
        before = noted.came
        assert offsets(await one.read(small, 0)) == [0]
        assert (noted.came - before) * PLACED <= 2 * WINDOW_BYTES
        assert noted.came < 120
    assert 0 < noted.most_bytes <= WINDOW_BYTES
    assert one.log.fair_queues.under_way_bytes == 0


async def test_readers_that_catch_up_get_their_batches_by_turns(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = [await one.partition() for _ in range(3)]
    data = batch(1, PLACED - 100)
    for partition in partitions:
        for _ in range(8):
            await one.append(partition, data)
        await one.read(partition, 0)
        one.log.cache.clear()
    noted = Noted(one, monkeypatch)
    async with anyio.create_task_group() as tasks:
        for partition in partitions:
            tasks.start_soon(one.read, partition, 0)
    order = [key.split(":log")[0] for command, key in noted.asked if command == "GET"]
    assert len(order) == 24
    # After the first readers, which asked alone, no reader is ahead of another by more than a turn or two.
    for at in range(6, 18):
        shares = [order[:at].count(name) for name in set(order)]
        assert max(shares) - min(shares) <= 5
    assert len(set(order[:9])) == 3


async def test_inline_batches_are_read_in_slices(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await one.partition()
    data = batch(1, 7000)
    for _ in range(400):
        await one.append(partition, data)
    await one.read(partition, 0)
    one.log.cache.clear()
    found = await one.read(partition, 0)
    assert MIB <= found.size_bytes < 2 * MIB
    assert found.is_cut


async def test_read_reserves_before_it_calls_and_is_cut_short_if_little_is_free(one: Front) -> None:
    budget = AnswerBudget(16 * MIB)
    share, other = budget.share(), budget.share()
    partition = await one.partition()
    for _ in range(12):
        await one.append(partition, batch(1, PLACED - 100))
    await other.reserve(14 * MIB, is_whole=True)
    (found,) = await one.log.read([Want(partition, 0, EVERYTHING)], EVERYTHING, share)
    assert offsets(found) == [0]
    assert found.is_cut
    assert share.held_bytes == found.size_bytes
    other.let_go()
    share.let_go()
    (found,) = await one.log.read([Want(partition, 1, EVERYTHING)], EVERYTHING, share)
    assert len(offsets(found)) > 3
    assert share.held_bytes == found.size_bytes
    share.let_go()
    assert budget.taken_bytes == 0


async def test_read_waits_until_others_free_memory_and_holds_none_if_cancelled(one: Front) -> None:
    budget = AnswerBudget(2 * MIB)
    share, other = budget.share(), budget.share()
    partition = await one.partition()
    for _ in range(3):
        await one.append(partition, batch(1, PLACED - 100))
    await other.reserve(2 * MIB, is_whole=True)
    with anyio.move_on_after(0.05) as waiting:
        await one.log.read([Want(partition, 0, EVERYTHING)], EVERYTHING, share)
    assert waiting.cancelled_caught
    assert share.held_bytes == 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.log.read, [Want(partition, 0, EVERYTHING)], EVERYTHING, share)
        await until(lambda: budget.missing_bytes > 0)
        other.let_go()
    assert share.held_bytes > 0
