"""Entries that the log remembers for a reader that is far behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from korvet.codes import OFFSET_OUT_OF_RANGE
from korvet.redis.client import Argument, Purpose
from korvet.store.log import known_entries
from korvet.store.log.partition import Partition
from korvet.store.log.room import Want
from tests.store.logs import EVERYTHING, LARGE, Front, batch, messages_held, offsets, split, stored, until

pytestmark = pytest.mark.anyio

LIMIT = LARGE + 1000
"""Room for one batch and not for two."""


@pytest.fixture
def ranges(one: Front, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids from which the front-end asks for entries."""
    asked: list[str] = []
    call: Callable[..., asyncio.Future[Any]] = one.store.call

    def noted(purpose: Purpose, key: str, *command: Argument) -> asyncio.Future[Any]:
        asked.extend([str(command[2])] if command[0] == "XRANGE" else [])
        return call(purpose, key, *command)

    monkeypatch.setattr(one.store, "call", noted)
    return asked


async def far_behind(one: Front, count: int) -> tuple[Partition, list[bytes]]:
    """A partition of placed batches whose channel is subscribed; the front-end has no batch in memory."""
    partition = await one.partition()
    appended = [batch(1, LARGE + number) for number in range(count)]
    for data in appended:
        await one.append(partition, data)
    one.log.recent.clear()
    await until(lambda: one.wakeups.keep(partition.channel))
    return partition, appended


async def test_reader_that_is_far_behind_seldom_asks_for_entries(one: Front, ranges: list[str]) -> None:
    partition, appended = await far_behind(one, 60)
    for number, data in enumerate(appended):
        found = await one.read(partition, number, max_bytes=LIMIT)
        assert split(found) == stored((number, data))
        assert (found.high_watermark, found.log_start) == (60, 0)
    # The first read knows no size, and asks for many.
    assert len(ranges) <= 6


async def test_answer_out_of_memory_is_as_long_as_one_out_of_redis(one: Front, ranges: list[str]) -> None:
    partition, _ = await far_behind(one, 12)
    await one.read(partition, 0, max_bytes=LIMIT)
    ranges.clear()
    assert offsets(await one.read(partition, 1, max_bytes=3 * LIMIT)) == [1, 2, 3]
    assert ranges == []
    # Redis may have more behind the last known entry.
    assert offsets(await one.read(partition, 4, max_bytes=EVERYTHING)) == [*range(4, 12)]
    assert len(ranges) == 1


async def test_reader_below_the_start_is_told_after_a_trim(one: Front, other: Front, ranges: list[str]) -> None:
    partition, _ = await far_behind(one, 10)
    await one.read(partition, 0, max_bytes=LIMIT)
    since = one.wakeups.since(partition.channel)
    await other.catalog.refresh()
    await other.log.trim(other.known(partition), 8)
    await until(lambda: one.wakeups.since(partition.channel) != since)
    assert (await one.read(partition, 1, max_bytes=LIMIT)).code == OFFSET_OUT_OF_RANGE
    assert offsets(await one.read(partition, 8, max_bytes=LIMIT)) == [8]


async def test_batch_that_a_trim_removed_meanwhile_is_asked_for_anew(one: Front, other: Front) -> None:
    partition, _ = await far_behind(one, 10)
    await one.read(partition, 0, max_bytes=LIMIT)
    one.log.placed.clear()
    await other.catalog.refresh()
    with messages_held(one, partition):
        await other.log.trim(other.known(partition), 8)
        assert (await one.read(partition, 1, max_bytes=LIMIT)).code == OFFSET_OUT_OF_RANGE


async def test_entries_of_a_former_epoch_are_not_used(one: Front, ranges: list[str]) -> None:
    partition, _ = await far_behind(one, 10)
    await one.read(partition, 0, max_bytes=LIMIT)
    ranges.clear()
    partition.note(partition.epoch + 1, 10, 0)
    assert one.log.known.get(Want(partition, 1, LIMIT), LIMIT) is None
    one.log.forget()
    assert offsets(await one.read(partition, 1, max_bytes=LIMIT)) == [1]
    assert ranges == ["2-0"]


async def test_entries_are_trusted_for_a_time_only(
    one: Front, ranges: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_entries, "TRUSTED_S", -1.0)
    partition, _ = await far_behind(one, 10)
    for number in range(10):
        assert offsets(await one.read(partition, number, max_bytes=LIMIT)) == [number]
    assert len(ranges) == 10


async def test_newest_ends_are_told_with_known_entries(one: Front, ranges: list[str]) -> None:
    partition, _ = await far_behind(one, 10)
    await one.read(partition, 0, max_bytes=LIMIT)
    ranges.clear()
    await one.append(partition, batch(1, LARGE))
    assert (await one.read(partition, 1, max_bytes=LIMIT)).high_watermark == 11
    assert ranges == []


async def test_committed_reader_is_told_of_aborted_transactions_behind_known_entries(one: Front) -> None:
    partition, _ = await far_behind(one, 6)
    await one.read(partition, 0, max_bytes=LIMIT)
    want = Want(partition, 1, LIMIT, is_committed=True)
    known = one.log.known.get(want, LIMIT)
    assert known is not None
    one.log.known._known[partition, 1] = known._replace(meta=known.meta._replace(last_aborted=3))
    assert one.log.known.get(want, LIMIT) is None
    one.log.known._known[partition, 1] = known._replace(meta=known.meta._replace(stable=3))
    assert one.log.known.get(want, LIMIT) is None


async def test_known_entries_have_a_bound(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_entries, "_MOST", 3)
    partition, _ = await far_behind(one, 12)
    for number in range(8):
        await one.read(partition, number, max_bytes=LIMIT)
    assert len(one.log.known._known) == 3


async def test_entries_that_hold_their_batches_are_not_kept(one: Front) -> None:
    partition = await one.partition()
    for _ in range(5):
        await one.append(partition, batch(1, 3000))
    one.log.recent.clear()
    await until(lambda: one.wakeups.keep(partition.channel))
    await one.read(partition, 0, max_bytes=4000)
    assert not one.log.known._known
