"""Batches that are asked for before their reader comes for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from korvet.store.client import Argument, Purpose
from korvet.store.log import ahead
from tests.store.logs import LARGE, Front, batch, offsets, split, stored, until

pytestmark = pytest.mark.anyio


async def test_what_a_reader_will_take_next_is_there_when_it_comes(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await one.partition()
    appended = [batch(1, LARGE + number) for number in range(6)]
    for data in appended:
        await one.append(partition, data)
    asked: list[str] = []
    call = one.store.call

    def noted(purpose: Purpose, key: str, *command: Argument) -> asyncio.Future[Any]:
        asked.extend([key] if command[0] == "GET" else [])
        return call(purpose, key, *command)

    monkeypatch.setattr(one.store, "call", noted)
    places = [f"{partition.keys.log}:{number + 1}" for number in range(6)]
    for number, data in enumerate(appended):
        found = await one.read(partition, number, max_bytes=LARGE)
        assert split(found) == stored((number, data))
        # Each is asked for once, the next one with it.
        assert asked == places[: number + 2]
    assert split(await one.read(partition, 1, max_bytes=LARGE)) == stored((1, appended[1]))


async def test_a_batch_is_only_taken_for_the_entry_it_was_asked_for(one: Front) -> None:
    partition = await one.partition()
    former, later = batch(1, LARGE), batch(1, LARGE, timestamp=2000)
    for _ in range(3):
        await one.append(partition, former)
    assert offsets(await one.read(partition, 0, max_bytes=LARGE)) == [0]
    # The same key and size, in an epoch of another history.
    log = partition.keys.log
    await one.store.call(Purpose.APPEND, log, "DEL", log)
    await one.store.call(Purpose.APPEND, log, "SET", f"{log}:2", later)
    for number in range(2, 4):
        index = f"1 {len(later)} 2000 2000 0 0 7 0"
        await one.store.call(Purpose.APPEND, log, "XADD", log, f"{number}-0", "i", index)
    ((offset, epoch, _, data),) = split(await one.read(partition, 1, max_bytes=LARGE))
    assert (offset, epoch, data) == (1, 7, later[16:])


async def test_a_batch_that_did_not_come_is_asked_for_again(one: Front) -> None:
    partition = await one.partition()
    for _ in range(2):
        await one.append(partition, batch(1, LARGE))
    place = f"{partition.keys.log}:2"
    await one.store.call(Purpose.READ, place, "RENAME", place, f"{place}.away")
    await one.read(partition, 0, max_bytes=LARGE)
    # Answered behind the GET, which found nothing.
    await one.store.call(Purpose.READ, place, "RENAME", f"{place}.away", place)
    assert offsets(await one.read(partition, 1, max_bytes=LARGE)) == [1]


async def test_nothing_is_asked_for_over_the_budget(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one.log.ahead, "_free_bytes", 3 * LARGE)
    partition = await one.partition()
    for _ in range(8):
        await one.append(partition, batch(1, LARGE))
    for number in range(4):
        await one.read(partition, 2 * number, max_bytes=LARGE)
    assert len(one.log.ahead._asked) == 2
    one.log.forget()
    assert one.log.ahead._free_bytes == 3 * LARGE


async def test_what_nobody_comes_for_is_forgotten(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "KEPT_S", 0.01)
    partition = await one.partition()
    for _ in range(3):
        await one.append(partition, batch(1, LARGE))
    await one.read(partition, 0, max_bytes=LARGE)
    await until(lambda: not one.log.ahead._asked)
    assert one.log.ahead._free_bytes == ahead.DEFAULT_BUDGET_BYTES
