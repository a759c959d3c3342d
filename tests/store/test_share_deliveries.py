"""The records of acquired ranges: `korvet.store.shares.delivery`, and reads that end at an offset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.calls import Calls, StateRoom
from korvet.store.log.memory.budget import AnswerBudget
from korvet.store.log.memory.room import Want
from korvet.store.log.state.partition import Partition
from korvet.store.outages import Outages
from korvet.store.shares import delivery, supplies
from korvet.store.shares.delivery import Deliveries, Delivery, Wanted
from korvet.store.shares.shares import Shares
from korvet.store.shares.types import Acquirer, Limits
from korvet.wire.batch import headers_in
from korvet.wire.contents import times_in
from tests.store.logs import EVERYTHING, LARGE, Front, batch
from tests.store.sealed import seal
from tests.store.test_cold_reads import reader
from tests.support.ported import kafka
from tests.tier.test_blocks import Store
from tests.wire.whole import Whole, built

pytestmark = pytest.mark.anyio

WANTED = Wanted(
    group_id="g", acquirer=Acquirer("me", "1"), limits=Limits(lock_ms=30_000, deliveries=5, window=2000),
    mode="batches", isolation="uncommitted", batch_size=1000, reset="earliest",
)  # fmt: skip
RECORDS = replace(WANTED, mode="records")
TIMED = replace(WANTED, time_header="at")
LATER_MS = 3_600_000
GROUP = "g"


class Group:
    """A group's deliveries of a partition."""

    def __init__(self, one: Front, partition: Partition) -> None:
        self.one, self.partition = one, partition
        self.shares = Shares(one.log, Calls(one.store, Outages(one.store), StateRoom()))
        self.deliveries = Deliveries(one.log, self.shares, one.wakeups)

    async def deliver(
        self, max_records: int = 500, max_bytes: int = EVERYTHING, wanted: Wanted = WANTED, wait_s: float = 20
    ) -> Delivery:
        share, until = AnswerBudget().share(), self.one.log.now() + wait_s
        with self.deliveries.supplies.used([self.partition], GROUP) as (supply,):
            return await self.deliveries.deliver(
                supply, None, wanted, max_records, max_bytes, share, until, is_first=True
            )

    async def in_flight(self) -> list[tuple[str, int, int, int]]:
        """The ranges that are not finished."""
        found = await self.shares.describe(self.partition, GROUP)
        assert found is not None
        return [(one.state, one.first, one.last, one.deliveries) for one in found.in_flight]


@pytest.fixture
async def group(one: Front) -> Group:
    group = Group(one, await one.partition())
    assert await group.shares.begin(group.partition, GROUP, "cgp_1") == 0
    return group


def bases(delivery: Delivery) -> list[int]:
    return [header.base_offset for header in headers_in(delivery.records)]


# ---------------------------------------------------------------------- reads that end at an offset


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("is_known", [False, True])
@kafka("ShareFetchUtilsTest.testMaybeSliceFetchRecordsSingleBatch testMaybeSliceFetchRecordsMultipleBatches")
async def test_read_ends_with_the_batch_that_has_the_last_wanted_offset(one: Front, size: int, is_known: bool) -> None:
    partition = await one.partition()
    for _ in range(5):
        await one.append(partition, batch(10, size))
    with one.wakeups.listen([partition.channel]) as listening:
        if is_known:
            await listening.ready()
            await one.read(partition, 0)
        for offset, until, expected in (
            (0, 1, [0]), (3, 10, [0]), (3, 11, [0, 10]), (10, 30, [10, 20]), (19, 21, [10, 20]), (45, 50, [40]),
            (45, 46, [40]),
        ):  # fmt: skip
            (found,) = await one.log.read([Want(partition, offset, EVERYTHING, until=until)], EVERYTHING)
            assert [header.base_offset for header in headers_in(found.records)] == expected, (offset, until)


async def test_read_of_one_record_asks_for_no_more_entries_than_it_may_need(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await one.partition()
    for _ in range(100):
        await one.append(partition, batch(1))
    one.log.forget()
    counts = []
    entries = one.log.source.entries

    def counted(partition: Partition, offset: int, last_id: str, count: int) -> asyncio.Future[Any]:
        counts.append(count)
        return entries(partition, offset, last_id, count)

    monkeypatch.setattr(one.log.source, "entries", counted)
    (found,) = await one.log.read([Want(partition, 50, EVERYTHING, until=51)], EVERYTHING)
    assert [header.base_offset for header in headers_in(found.records)] == [50]
    assert counts == [1, 1]


# ---------------------------------------------------------------------- deliveries


async def test_records_that_do_not_fit_are_given_back_and_count_as_no_delivery(one: Front, group: Group) -> None:
    for _ in range(4):
        await one.append(group.partition, batch(5, LARGE))
    first = await group.deliver()
    assert (first.acquired, bases(first)) == ([(0, 19, 1)], [0, 5, 10, 15])
    await group.shares.release(group.partition, GROUP, WANTED.acquirer, WANTED.limits)
    # Redis does not know the bytes of what was acquired before.
    size_bytes = first.size_bytes // 4
    again = await group.deliver(max_bytes=2 * size_bytes)
    assert (again.acquired, bases(again)) == ([(0, 9, 2)], [0, 5])
    assert await group.in_flight() == [("acquired", 0, 9, 2), ("available", 10, 19, 1)]


async def test_delivery_beside_others_does_not_wait_for_memory(one: Front, group: Group) -> None:
    """Many of one answer would each hold bytes, and all answers wait for each other."""
    for _ in range(4):
        await one.append(group.partition, batch(5, LARGE))
    # The read knows how large the batches are.
    await one.read(group.partition, 0)
    budget = AnswerBudget(1 << 20)
    await budget.acquire(1 << 20, is_whole=True)
    with group.deliveries.supplies.used([group.partition], GROUP) as (supply,), anyio.fail_after(20):
        found = await group.deliveries.deliver(
            supply, None, WANTED, 500, EVERYTHING, budget.share(), 0.0, is_first=False
        )
    assert (found.acquired, found.is_given_back) == ([], True)
    assert {state for state, *_ in await group.in_flight()} == {"available"}


async def test_first_batch_comes_however_large_it_is(one: Front, group: Group) -> None:
    await one.append(group.partition, batch(5, LARGE))
    await one.append(group.partition, batch(5, LARGE))
    assert (await group.deliver(max_bytes=1)).acquired == [(0, 4, 1)]


async def test_records_of_one_batch_are_read_once(one: Front, group: Group) -> None:
    await one.append(group.partition, batch(20))
    with one.wakeups.listen([group.partition.channel]) as listening:
        await listening.ready()
        reads = one.log.reads
        got = []
        for _ in range(20):
            found = await group.deliver(1, wanted=RECORDS)
            got += found.acquired
            assert bases(found) == [0]
        assert got == [(offset, offset, 1) for offset in range(20)]
        assert reads.redis + reads.entries + reads.memory <= 2


@pytest.mark.parametrize("size", [10, LARGE])
async def test_entries_of_a_backlog_of_batches_are_read_once(one: Front, group: Group, size: int) -> None:
    for _ in range(20):
        await one.append(group.partition, batch(2, size))
    one.log.forget()
    with one.wakeups.listen([group.partition.channel]) as listening:
        await listening.ready()
        for first in range(0, 40, 2):
            found = await group.deliver(2)
            assert (bases(found), found.acquired) == ([first], [(first, first + 1, 1)])
    assert one.log.reads.redis == 1


def timed(*ahead_ms: int | None, codec: int = 0) -> bytes:
    """A batch of records with times so far ahead."""
    now_ms = int(time.time()) * 1000
    headers = [() if ms is None else (("at", b"%d" % (now_ms + ms)),) for ms in ahead_ms]
    return built(*(Whole(headers=one) for one in headers), codec=codec)[1]


@pytest.mark.parametrize("codec", [0, 4])
async def test_records_with_a_time_ahead_wait_for_it(one: Front, group: Group, codec: int) -> None:
    await one.append(group.partition, timed(LATER_MS, None, -1, LATER_MS, LATER_MS, codec=codec))
    await one.append(group.partition, timed(*[LATER_MS] * 2, codec=codec))
    await one.append(group.partition, timed(40 * 86_400_000, codec=codec))
    found = await group.deliver(wanted=TIMED)
    assert (found.acquired, found.is_given_back) == ([(1, 2, 1), (7, 7, 1)], False)
    assert await group.in_flight() == [
        ("delayed", 0, 0, 0), ("acquired", 1, 2, 1), ("delayed", 3, 6, 0), ("acquired", 7, 7, 1)
    ]  # fmt: skip
    assert (await group.deliver(wanted=TIMED)).acquired == []


async def test_records_that_nobody_gets_yet_keep_no_memory_from_other_answers(one: Front, group: Group) -> None:
    value = b"v" * 100_000
    now_ms = int(time.time()) * 1000
    for at_ms in (now_ms + LATER_MS, now_ms):
        await one.append(group.partition, built(Whole(value=value, headers=(("at", b"%d" % at_ms),)))[1])
    share = AnswerBudget().share()
    # Of another partition, in the same answer.
    await share.reserve(200_000)
    with group.deliveries.supplies.used([group.partition], GROUP) as (supply,):
        found = await group.deliveries.deliver(supply, None, TIMED, 1, EVERYTHING, share, one.log.now(), is_first=False)
    assert (found.acquired, share.held_bytes) == ([(1, 1, 1)], 200_000 + found.size_bytes)


async def test_group_without_a_header_for_times_gets_all_records(one: Front, group: Group) -> None:
    await one.append(group.partition, timed(LATER_MS, None))
    assert (await group.deliver()).acquired == [(0, 1, 1)]


async def test_records_of_one_batch_are_opened_once_for_their_times(
    one: Front, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def times(*args: Any) -> Mapping[int, int]:
        opened.append(args)
        return times_in(*args)

    monkeypatch.setattr(delivery, "times_in", times)
    await one.append(group.partition, timed(*[LATER_MS, None] * 10))
    with one.wakeups.listen([group.partition.channel]) as listening:
        await listening.ready()
        got = [(await group.deliver(1, wanted=replace(TIMED, mode="records"))).acquired for _ in range(10)]
    assert got == [[(offset, offset, 1)] for offset in range(1, 20, 2)]
    assert len(opened) == 1


# A call takes at most 1000 acknowledgements. More are checked first, and then carried out.
@pytest.mark.parametrize(("max_records", "rounds", "acknowledgements"), [(500, 4, 1), (2000, 1, 4)])
async def test_calls_for_records_with_a_time_ahead_are_few(
    one: Front, group: Group, monkeypatch: pytest.MonkeyPatch, max_records: int, rounds: int, acknowledgements: int
) -> None:
    for first in range(0, 10_000, 500):
        await one.append(group.partition, timed(*(LATER_MS + 100 * (first + index) for index in range(500))))
    calls, call = [], group.shares._call

    async def counted(function: str, *args: Any, **named: Any) -> Any:
        calls.append(function)
        return await call(function, *args, **named)

    monkeypatch.setattr(group.shares, "_call", counted)
    assert (await group.deliver(max_records, wanted=TIMED)).acquired == []
    # The window is full after 2000 records.
    acquire, acknowledge = "korvet_share_acquire", "korvet_share_acknowledge"
    assert calls == [*rounds * [acquire, *acknowledgements * [acknowledge]], acquire]
    assert await group.in_flight() == [("delayed", offset, offset, 0) for offset in range(2000)]


async def test_large_batch_with_times_costs_what_the_window_allows(
    one: Front, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def times(*args: Any) -> Mapping[int, int]:
        found.append(times_in(*args))
        return found[-1]

    monkeypatch.setattr(delivery, "times_in", times)
    await one.append(group.partition, timed(*[LATER_MS, 2 * LATER_MS] * 3000, codec=4))
    with one.wakeups.listen([group.partition.channel]) as listening:
        await listening.ready()
        assert (await group.deliver(1 << 31, wanted=TIMED)).acquired == []
    assert await group.in_flight() == [("delayed", offset, offset, 0) for offset in range(2000)]
    assert list(map(len, found)) == [2000]


async def test_offsets_that_compaction_removed_are_finished(one: Front, group: Group) -> None:
    log = group.partition.keys.log
    for _ in range(6):
        await one.append(group.partition, batch(3))
    assert (await group.deliver(18)).acquired == [(0, 17, 1)]
    await group.shares.release(group.partition, GROUP, WANTED.acquirer, WANTED.limits)
    await one.store.call(Purpose.APPEND, log, "XDEL", log, "3-0", "9-0", "12-0")
    one.log.forget()
    found = await group.deliver(18)
    assert (found.acquired, bases(found)) == ([(3, 5, 2), (12, 17, 2)], [3, 12, 15])
    assert await group.in_flight() == [("acquired", 3, 5, 2), ("acquired", 12, 17, 2)]


async def test_acquisition_of_removed_offsets_alone_goes_on_with_the_next_records(one: Front, group: Group) -> None:
    log = group.partition.keys.log
    for _ in range(4):
        await one.append(group.partition, batch(3))
    assert (await group.deliver(6)).acquired == [(0, 5, 1)]
    await group.shares.release(group.partition, GROUP, WANTED.acquirer, WANTED.limits)
    await one.store.call(Purpose.APPEND, log, "XDEL", log, "3-0", "6-0")
    one.log.forget()
    assert (await group.deliver(6)).acquired == [(6, 11, 1)]
    assert (await group.in_flight())[0][:2] == ("acquired", 6)


@pytest.mark.parametrize("max_records", [4, 500])
@kafka("DelayedShareFetchTest.testRemoteStorageFetchRequestCompletionOnFutureCompletionSuccessfully")
@kafka("DelayedShareFetchTest.testRemoteStorageFetchRequestCompletionAlongWithLocalLogRead")
async def test_records_come_from_segments(one: Front, group: Group, max_records: int) -> None:
    for _ in range(6):
        await one.append(group.partition, batch(3))
    store = Store()
    await seal(one, store, group.partition, [0, 6, 12])
    async with reader(one, store):
        got = []
        while (found := await group.deliver(max_records)).acquired:
            got += [offset for first, last, _ in found.acquired for offset in range(first, last + 1)]
        assert got == list(range(18))


@kafka("DelayedShareFetchTest.testRemoteStorageFetchTryCompleteReturnsFalse")
@kafka("DelayedShareFetchTest.testRemoteStorageFetchCompletionPostRegisteringCallbackByTimerTaskCompletion")
async def test_records_on_their_way_from_segments_are_given_back_at_the_end_of_the_wait(
    one: Front, group: Group
) -> None:
    for _ in range(4):
        await one.append(group.partition, batch(3))
    store = Store()
    await seal(one, store, group.partition, [0, 6])
    store.shut = ""
    store.open = anyio.Event()
    async with reader(one, store):
        assert (await group.deliver(wait_s=0)).acquired == []
        assert {state for state, *_ in await group.in_flight()} == {"available"}
        store.open.set()
        assert (await group.deliver()).acquired[0] == (0, 11, 1)


async def test_records_that_could_not_be_given_back_are_told(
    one: Front, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await one.append(group.partition, batch(5, LARGE))
    assert not (await group.deliver()).has_lost
    await group.shares.release(group.partition, GROUP, WANTED.acquirer, WANTED.limits)

    async def fail(*_: object, **__: object) -> int:
        raise StoreUnavailable("Redis is away", outcome_unknown=True)

    monkeypatch.setattr(group.shares, "acknowledge", fail)
    found = await group.deliver(max_bytes=1)
    assert (found.acquired, found.has_lost) == ([(0, 4, 2)], True)


async def test_supplies_without_a_user_are_dropped_while_others_are_in_use(
    one: Front, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supplies, "_MOST_IDLE", 3)
    every = group.deliveries.supplies
    with every.used([group.partition], "long"), every.used([group.partition], "long"):
        for number in range(20):
            with every.used([group.partition], f"short-{number}"):
                pass
        assert len(every) == 4
    assert len(every) == 3


async def test_releases_that_are_due_are_made(one: Front, group: Group) -> None:
    await one.append(group.partition, batch(3))
    await group.deliver()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(group.deliveries.run)
        group.deliveries.release_later(GROUP, WANTED.acquirer, WANTED.limits, [group.partition])
        with anyio.fail_after(20):
            while await group.in_flight() != [("available", 0, 2, 1)]:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    # The namespace is left, and so are its channels.
    assert len(group.deliveries.supplies) == 0
