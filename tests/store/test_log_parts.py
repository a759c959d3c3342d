"""The parts of the log that do not call Redis: epochs, the reply budget, batches under way."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.redis.resp import fail
from korvet.store.catalog.topic import Topic
from korvet.store.keys import Namespace
from korvet.store.log.memory.budget import AnswerBudget, Share
from korvet.store.log.memory.fair_queue import FairQueue
from korvet.store.log.state.epochs import check_leader_epoch, end_of_epoch, epoch_of_offset, parse_epochs
from korvet.store.log.state.in_flight import SEQUENCES, InFlight
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import HEADER, Batch
from tests.oracle.batches import Batch as Script
from tests.oracle.batches import encode

FENCED, UNKNOWN = 74, 75
EPOCHS = parse_epochs(b"0:0,100:10,200:30")


# Source: LeaderEpochFileCacheTest of Apache Kafka.
@pytest.mark.parametrize(
    ("epoch", "end"),
    [
        (-1, (-1, -1)),  # shouldReturnUnsupportedIfRequestedEpochLessThanEarliestEpoch's undefined epoch
        (0, (0, 10)),
        (50, (0, 10)),  # shouldReturnNextAvailableEpochIfThereIsNoExactEpochForTheOneRequested
        (100, (100, 30)),
        (199, (100, 30)),
        (200, (200, 42)),  # shouldReturnLogEndOffsetIfLatestEpochRequested
        (201, (-1, -1)),  # shouldReturnUndefinedOffsetIfUndefinedEpochRequested
        (-2, (-2, 0)),
    ],
)
def test_epoch_ends_at_the_start_of_the_next(epoch: int, end: tuple[int, int]) -> None:
    assert end_of_epoch(EPOCHS, epoch, 42) == end
    assert end_of_epoch([], epoch, 42) == (-1, -1)


def test_epoch_below_the_first_ends_at_the_start_of_the_first() -> None:
    assert end_of_epoch(parse_epochs(b"7:5"), 3, 9) == (3, 5)


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (9, 0), (10, 100), (29, 100), (30, 200), (99, 200)])
def test_offset_has_the_epoch_that_began_last(offset: int, epoch: int) -> None:
    assert epoch_of_offset(EPOCHS, offset) == epoch
    assert epoch_of_offset([], offset) == -1


@pytest.mark.parametrize(("claimed", "code"), [(-1, 0), (5, 0), (4, FENCED), (6, UNKNOWN)])
def test_claimed_leader_epoch_is_fenced_if_older_and_unknown_if_newer(claimed: int, code: int) -> None:
    assert check_leader_epoch(claimed, 5) == code


MIB = 1 << 20


@pytest.mark.anyio
async def test_readers_get_the_answer_budget_in_the_order_of_asking() -> None:
    budget, order = AnswerBudget(128 * MIB), []
    everything = budget.share()
    assert await everything.reserve(128 * MIB, is_whole=True) == 128 * MIB

    async def take(name: str, wanted: int) -> None:
        await budget.share().reserve(wanted)
        order.append(name)

    async with anyio.create_task_group() as tasks:
        for name, wanted in (("greedy", 1 << 40), ("small", 1)):
            tasks.start_soon(take, name, wanted)
            await anyio.wait_all_tasks_blocked()
        assert order == []
        assert budget.missing_bytes > 0
        everything.let_go()
    assert order == ["greedy", "small"]
    assert budget.missing_bytes == 0


@pytest.mark.anyio
async def test_greedy_readers_leave_some_answer_budget_for_others() -> None:
    budget = AnswerBudget(256 * MIB)
    granted = [await budget.acquire(55 * MIB) for _ in range(200)]
    assert granted[0] == 32 * MIB
    assert granted == sorted(granted, reverse=True)
    assert granted[-1] == MIB // 4
    assert budget.free_bytes > 10 * MIB


@pytest.mark.anyio
async def test_batch_larger_than_the_answer_budget_is_read_alone() -> None:
    budget = AnswerBudget(8 * MIB)
    share = budget.share()
    assert await share.reserve(50 * MIB, is_whole=True) == 8 * MIB
    share.hold(50 * MIB)
    assert budget.missing_bytes == 42 * MIB
    share.leave()
    assert budget.missing_bytes == 42 * MIB
    share.note_unsent(0)
    assert budget.free_bytes == 8 * MIB


@pytest.mark.anyio
async def test_cancelled_reader_takes_nothing_of_the_answer_budget() -> None:
    budget = AnswerBudget(MIB)
    taken = await budget.acquire(MIB, is_whole=True)
    for _ in range(3):
        with anyio.move_on_after(0.001):
            await budget.acquire(1)
            raise AssertionError
    budget.give_back(taken)
    assert (budget.free_bytes, budget.missing_bytes) == (MIB, 0)


@pytest.mark.anyio
async def test_reader_that_received_few_bytes_goes_before_one_that_received_many() -> None:
    budget = AnswerBudget()
    turns, order = FairQueue(MIB), []
    large, other = budget.share(), budget.share()

    async def read(name: str, reader: Share, size_bytes: int, times: int = 1) -> None:
        for _ in range(times):
            await turns.acquire(reader, size_bytes)
            order.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, "large", large, MIB, 4)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(read, "other", other, MIB, 2)
        await anyio.wait_all_tasks_blocked()
        for _ in range(6):
            turns.arrived(MIB)
            await anyio.wait_all_tasks_blocked()
    assert order == ["large", "other", "large", "other", "large", "large"]
    assert turns.under_way_bytes == 0


@pytest.mark.anyio
async def test_cancelled_read_takes_no_turn_and_holds_up_no_other() -> None:
    turns, reader = FairQueue(10), AnswerBudget().share()
    await turns.acquire(reader, 6)

    async def leave(scope: anyio.CancelScope) -> None:
        with scope:
            await turns.acquire(reader, 6)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave, scope := anyio.CancelScope())
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(turns.acquire, reader, 4)
        await anyio.wait_all_tasks_blocked()
        assert turns.under_way_bytes == 6
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert turns.under_way_bytes == 10
    turns.arrived(6)
    turns.arrived(4)
    assert turns.try_acquire(10)


def partition() -> Partition:
    topic = Topic(name="t", id=uuid4(), partitions=1, configs={})
    return Partition(topic, 0, Namespace().transaction_log("t", 0))


def test_known_end_of_a_partition_never_goes_back_within_an_epoch() -> None:
    one = partition()
    assert one.note(3, 10, 0)
    assert one.note(3, 8, 2)
    assert (one.epoch, one.end, one.start) == (3, 10, 2)
    assert one.note(4, 5, 2)
    assert not one.note(3, 10, 0)
    assert (one.epoch, one.end, one.start) == (4, 5, 2)


# ---------------------------------------------------------------------- batches under way


@pytest.mark.anyio
async def test_batch_after_a_failed_one_waits_until_the_failed_one_returns() -> None:
    in_flight, loop = InFlight(), asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    for sequence, reply in ((0, first), (3, second)):
        assert not in_flight.is_behind_a_failure(sent(sequence))
        in_flight.add(sent(sequence), reply)
    assert not in_flight.is_behind_a_failure(sent(6))
    for reply in (first, second):
        fail(reply, StoreUnavailable("lost", outcome_unknown=True))
    assert in_flight.is_behind_a_failure(sent(6))
    assert in_flight.is_behind_a_failure(sent(3))
    assert not in_flight.is_behind_a_failure(sent(6, producer_id=8))
    assert not in_flight.is_behind_a_failure(sent(0))
    assert not in_flight.is_behind_a_failure(sent(3))


@pytest.mark.anyio
async def test_producer_that_begins_anew_does_not_wait() -> None:
    in_flight, loop = InFlight(), asyncio.get_running_loop()
    for epoch in (0, 1):
        reply = loop.create_future()
        assert not in_flight.is_behind_a_failure(sent(30, epoch=epoch))
        in_flight.add(sent(30, epoch=epoch), reply)
        fail(reply, StoreUnavailable("lost"))
    assert in_flight.is_behind_a_failure(sent(33, epoch=1))
    assert not in_flight.is_behind_a_failure(sent(0, epoch=2))


@pytest.mark.anyio
async def test_batch_after_a_failed_one_waits_across_the_wrap_of_sequences() -> None:
    in_flight, reply = InFlight(), asyncio.get_running_loop().create_future()
    in_flight.add(sent(SEQUENCES - 2), reply)
    fail(reply, StoreUnavailable("lost"))
    assert in_flight.is_behind_a_failure(sent(1))
    assert not in_flight.is_behind_a_failure(sent(SEQUENCES - 5))


@pytest.mark.anyio
async def test_producers_that_come_and_go_are_forgotten() -> None:
    in_flight, loop = InFlight(), asyncio.get_running_loop()
    for producer_id in range(5000):
        reply = loop.create_future()
        assert not in_flight.is_behind_a_failure(sent(0, producer_id=producer_id))
        in_flight.add(sent(0, producer_id=producer_id), reply)
        reply.set_result(b"0 0 0 0")
    assert len(in_flight) <= 1000


def sent(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> Batch:
    """The header of a batch of three records."""
    data = encode(Script(count=3, producer_id=producer_id, producer_epoch=epoch, sequence=sequence))
    return Batch._make(HEADER.unpack_from(data))
