"""Reads out of a front-end's memory, and the bound on the bytes of its answers."""

from __future__ import annotations

import anyio
import pytest

from korvet.store.log.memory.budget import SMALL_BYTES, AnswerBudget
from korvet.store.log.memory.room import FetchRoom
from tests.store.logs import Front, batch

pytestmark = pytest.mark.anyio

MIB = 1 << 20


async def test_readers_of_memory_keep_the_bound_on_answers(one: Front) -> None:
    partition = await one.partition()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        await one.read(partition, 0)
        for _ in range(20):
            await one.append(partition, batch(count=100, size=1000))
        budget = AnswerBudget(2 * MIB)
        sizes = []
        for _ in range(8):
            with anyio.move_on_after(0.2):
                sizes.append((await one.read(partition, 0, share=budget.share())).size_bytes)
        assert budget.free_bytes >= 0
        assert sum(sizes) <= 2 * MIB + len(sizes) * SMALL_BYTES
        assert sizes[0] > SMALL_BYTES


async def test_small_batch_out_of_memory_leaves_other_partitions_their_place_in_the_queue() -> None:
    budget = AnswerBudget(2 * MIB)
    others, mine = budget.share(), budget.share()
    await others.reserve(2 * MIB, is_whole=True)
    room = FetchRoom(MIB, mine)
    room.take(100)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(room.reserve, MIB)
        await anyio.wait_all_tasks_blocked()
        assert room.left_bytes > 0
        others.let_go()
    assert mine.held_bytes > 0
    assert room.left_bytes > 0
