"""The pieces of the log that know no Redis: epochs, the reply budget, recent batches, batches under way."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.store.catalog import Topic
from korvet.store.keys import Namespace
from korvet.store.link import fail
from korvet.store.log.budget import ReplyBudget
from korvet.store.log.epochs import check_leader_epoch, end_of_epoch, epoch_of_offset, parse_epochs
from korvet.store.log.in_flight import SEQUENCES, InFlight
from korvet.store.log.partition import Partition, RecentBatch
from korvet.store.log.recent import RecentBatches
from korvet.wire.batch import HEADER, Batch
from tests.oracle.batches import Batch as Script
from tests.oracle.batches import encode

FENCED, UNKNOWN = 74, 75
EPOCHS = parse_epochs(b"0:0,100:10,200:30")


# Ported from LeaderEpochFileCacheTest of Apache Kafka.
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
def test_where_an_epoch_ends(epoch: int, end: tuple[int, int]) -> None:
    assert end_of_epoch(EPOCHS, epoch, 42) == end
    assert end_of_epoch([], epoch, 42) == (-1, -1)


def test_an_epoch_below_the_first_ends_where_that_begins() -> None:
    assert end_of_epoch(parse_epochs(b"7:5"), 3, 9) == (3, 5)


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (9, 0), (10, 100), (29, 100), (30, 200), (99, 200)])
def test_the_epoch_of_an_offset(offset: int, epoch: int) -> None:
    assert epoch_of_offset(EPOCHS, offset) == epoch
    assert epoch_of_offset([], offset) == -1


@pytest.mark.parametrize(("claimed", "code"), [(-1, 0), (5, 0), (4, FENCED), (6, UNKNOWN)])
def test_a_claimed_leader_epoch(claimed: int, code: int) -> None:
    assert check_leader_epoch(claimed, 5) == code


@pytest.mark.anyio
async def test_the_budget_is_shared_in_the_order_of_asking() -> None:
    budget, order = ReplyBudget(10), []

    async def take(name: str, wanted: int, release: anyio.Event) -> None:
        async with budget.taken(wanted):
            order.append(name)
            await release.wait()

    first, others = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, "first", 8, first)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(take, "greedy", 1000, others)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(take, "small", 1, others)
        await anyio.wait_all_tasks_blocked()
        assert order == ["first"]
        first.set()
        await anyio.wait_all_tasks_blocked()
        assert order == ["first", "greedy"]
        others.set()
    assert order == ["first", "greedy", "small"]
    async with budget.taken(10):
        pass


@pytest.mark.anyio
async def test_who_is_cancelled_while_waiting_takes_nothing() -> None:
    budget = ReplyBudget(10)
    async with budget.taken(10):
        with anyio.move_on_after(0):
            async with budget.taken(1):
                raise AssertionError
    with anyio.fail_after(5):
        async with budget.taken(10):
            pass


def partition() -> Partition:
    topic = Topic(name="t", id=uuid4(), partitions=1, configs={})
    return Partition(topic, 0, Namespace().transaction_log("t", 0))


def test_the_oldest_batches_are_dropped_over_the_budget() -> None:
    recent, one, other = RecentBatches(3000), partition(), partition()
    for base in range(10):
        recent.add(one if base % 2 else other, base, RecentBatch(base + 1, 0, bytes(800)))
        assert recent.size_bytes <= 3000
    assert sorted([*one.recent, *other.recent]) == [7, 8, 9]


def test_a_batch_is_kept_once() -> None:
    recent, one = RecentBatches(3000), partition()
    for _ in range(10):
        recent.add(one, 5, RecentBatch(6, 0, bytes(800)))
    assert list(one.recent) == [5]
    recent.clear()
    assert (recent.size_bytes, one.recent) == (0, {})


def test_one_that_is_larger_than_the_budget_is_not_kept() -> None:
    recent, one = RecentBatches(3000), partition()
    recent.add(one, 0, RecentBatch(1, 0, bytes(8000)))
    assert (recent.size_bytes, one.recent) == (0, {})


def test_what_is_heard_of_a_partition_never_goes_back_within_an_epoch() -> None:
    one = partition()
    assert one.note(3, 10, 0)
    assert one.note(3, 8, 2)
    assert (one.epoch, one.end, one.start) == (3, 10, 2)
    assert one.note(4, 5, 2)
    assert not one.note(3, 10, 0)
    assert (one.epoch, one.end, one.start) == (4, 5, 2)


# ---------------------------------------------------------------------- batches under way


@pytest.mark.anyio
async def test_who_is_behind_a_failed_batch_waits_until_that_one_comes_again() -> None:
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
async def test_a_producer_that_begins_anew_does_not_wait() -> None:
    in_flight, loop = InFlight(), asyncio.get_running_loop()
    for epoch in (0, 1):
        reply = loop.create_future()
        assert not in_flight.is_behind_a_failure(sent(30, epoch=epoch))
        in_flight.add(sent(30, epoch=epoch), reply)
        fail(reply, StoreUnavailable("lost"))
    assert in_flight.is_behind_a_failure(sent(33, epoch=1))
    assert not in_flight.is_behind_a_failure(sent(0, epoch=2))


@pytest.mark.anyio
async def test_sequences_wrap_around() -> None:
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
