"""Transactions in a log: questions to the coordinator, and answers to readers of committed records."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest

from korvet.codes import OFFSET_OUT_OF_RANGE, OUT_OF_ORDER_SEQUENCE_NUMBER, TRANSACTION_ABORTABLE
from korvet.errors import StoreError, StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.groups.groups import Groups
from korvet.store.log.appending import markers
from korvet.store.log.appending.markers import Ending
from korvet.store.log.appending.membership import Membership
from korvet.store.log.appending.verification import verify_together
from korvet.store.log.log import Log
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.reading.aborted import aborted_within
from korvet.store.log.state.partition import Partition
from korvet.store.outages import Outages
from korvet.store.transactions.transactions import Member, Transactions
from tests.api.data import records
from tests.store.logs import EVERYTHING, LARGE, NAMESPACE, Front, batch, header, messages_held, offsets, until
from tests.support.redis import Server

pytestmark = pytest.mark.anyio

TRANSACTIONAL = 0x10


@dataclass(eq=False)
class Coordinator:
    """A coordinator that gives set answers and counts the questions."""

    ordinal_: int = 7
    code: int = 0
    failures: int = 0
    transactional_id: str = "id"
    joins: bool = True
    asked: list[str] = field(default_factory=list)

    async def ordinals(self, partitions: Sequence[Partition]) -> Sequence[tuple[int, int]]:
        self.asked.append(",".join(f"{one.topic.name}:{one.index}" for one in partitions))
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away", outcome_unknown=False)
        return [(self.code, self.ordinal_)] * len(partitions)


def transactional(sequence: int, epoch: int = 0, size: int = 10, count: int = 1) -> bytes:
    return records(count, size, producer_id=5, producer_epoch=epoch, sequence=sequence, attributes=TRANSACTIONAL)


async def append(front: Front, partition: Partition, data: bytes, member: Membership) -> tuple[int, int]:
    appended = await front.log.append(partition, header(data), data, member)
    return appended.code, appended.base_offset


async def committed(front: Front, partition: Partition, offset: int) -> PartitionRead:
    (found,) = await front.log.read([Want(partition, offset, EVERYTHING, is_committed=True)], EVERYTHING)
    return found


async def test_log_calls_the_coordinator_once_for_each_transaction(one: Front) -> None:
    partition, coordinator = await one.partition(), Coordinator()
    sizes = [10, LARGE, 10, LARGE, 10]
    sent = [transactional(number, size=size) for number, size in enumerate(sizes)]
    appends = [one.log.append(partition, header(data), data, coordinator) for data in sent]
    assert [(await one).base_offset for one in appends] == [0, 1, 2, 3, 4]
    assert len(coordinator.asked) == 1
    assert await one.log.mark(partition, Ending(7, 5, 1, is_commit=True)) == 0
    assert await one.log.mark(partition, Ending(7, 5, 1, is_commit=True)) == 0
    assert (await committed(one, partition, 0)).high_watermark == 6
    coordinator.ordinal_ = 8
    assert await append(one, partition, transactional(0, epoch=1), coordinator) == (0, 6)
    assert len(coordinator.asked) == 2


async def test_refused_batch_holds_up_the_batches_after_it(one: Front) -> None:
    """Otherwise the log would take the second batch for the producer's first, and the first would come too late."""
    partition, coordinator = await one.partition(), Coordinator(failures=1)
    first, second = transactional(0), transactional(1)
    appends = [one.log.append(partition, header(data), data, coordinator) for data in (first, second)]
    with pytest.raises(StoreUnavailable):
        await appends[0]
    assert (await appends[1]).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await append(one, partition, first, coordinator) == (0, 0)
    assert await append(one, partition, second, coordinator) == (0, 1)


@pytest.mark.parametrize("size", [10, LARGE])
async def test_batch_that_fails_again_when_resent_holds_up_the_batches_after_it(one: Front, size: int) -> None:
    partition, coordinator = await one.partition(), Coordinator(ordinal_=cast(int, "none"))
    first, second = transactional(0, size=size), transactional(1, size=size)
    appends = [one.log.append(partition, header(data), data, coordinator) for data in (first, second)]
    with pytest.raises(StoreError):
        await appends[0]
    coordinator.ordinal_ = 7
    assert (await appends[1]).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await append(one, partition, first, coordinator) == (0, 0)
    assert await append(one, partition, second, coordinator) == (0, 1)


async def test_batches_sent_together_are_verified_together(one: Front) -> None:
    topic, coordinator = await one.topic(4), Coordinator()
    partitions = [one.log.partition(topic, index) for index in range(4)]
    # The first batch opens the transaction.
    assert await append(one, partitions[0], transactional(0), coordinator) == (0, 0)
    coordinator.asked.clear()
    sent = [transactional(int(number == 0), size=LARGE if number == 2 else 10) for number in range(4)]
    calls = zip(partitions, sent, strict=True)
    appends = [one.log.append(partition, header(data), data, coordinator) for partition, data in calls]
    await verify_together(appends)
    assert coordinator.asked == [",".join(f"{topic.name}:{index}" for index in (1, 2, 3))]
    assert [(await each).base_offset for each in appends] == [1, 0, 0, 0]
    assert len(coordinator.asked) == 1


@pytest.mark.parametrize("is_away", [False, True])
async def test_batches_refused_together_hold_up_the_batches_after_them(one: Front, is_away: bool) -> None:
    topic, coordinator = (
        await one.topic(2),
        Coordinator(failures=int(is_away), code=0 if is_away else TRANSACTION_ABORTABLE),
    )
    partitions = [one.log.partition(topic, index) for index in range(2)]
    first, second = transactional(0), transactional(1)
    appends = [one.log.append(partition, header(first), first, coordinator) for partition in partitions]
    later = [one.log.append(partition, header(second), second, coordinator) for partition in partitions]
    await verify_together(appends)
    coordinator.code = 0
    for each in appends:
        if is_away:
            with pytest.raises(StoreUnavailable):
                await each
        else:
            assert (await each).code == TRANSACTION_ABORTABLE
    assert [(await each).code for each in later] == [OUT_OF_ORDER_SEQUENCE_NUMBER] * 2
    for partition in partitions:
        assert await append(one, partition, first, coordinator) == (0, 0)
        assert await append(one, partition, second, coordinator) == (0, 1)


async def test_transactions_of_older_histories_are_aborted_before_verified_batches(one: Front) -> None:
    topic = await one.topic(2)
    partitions = [one.log.partition(topic, index) for index in range(2)]
    for partition in partitions:
        assert await append(one, partition, transactional(0), Coordinator(7)) == (0, 0)
    data, coordinator = transactional(0, epoch=1), Coordinator(9)
    appends = [one.log.append(partition, header(data), data, coordinator) for partition in partitions]
    await verify_together(appends)
    assert [(await each).base_offset for each in appends] == [2, 2]


async def test_failed_abort_holds_up_the_batches_after_it(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await one.partition()
    assert await append(one, partition, transactional(0), Coordinator(7)) == (0, 0)

    abort, failures = markers.abort_older, [StoreUnavailable("away", outcome_unknown=True)]

    async def fail_once(log: Partitions, partition: Partition, than: Ending) -> None:
        if failures:
            raise failures.pop()
        await abort(log, partition, than)

    monkeypatch.setattr("korvet.store.log.appending.append.abort_older", fail_once)
    first, second = transactional(0, epoch=1), transactional(1, epoch=1)
    appends = [one.log.append(partition, header(data), data, Coordinator(9)) for data in (first, second)]
    with pytest.raises(StoreUnavailable):
        await appends[0]
    assert (await appends[1]).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await append(one, partition, first, Coordinator(9)) == (0, 2)
    assert await append(one, partition, second, Coordinator(9)) == (0, 3)


async def test_coordinators_code_is_the_outcome(one: Front) -> None:
    partition, coordinator = await one.partition(), Coordinator(code=TRANSACTION_ABORTABLE)
    assert await append(one, partition, transactional(0), coordinator) == (TRANSACTION_ABORTABLE, -1)
    assert (await one.read(partition, 0)).high_watermark == 0


async def test_transaction_that_an_older_history_left_open_is_aborted_first(one: Front) -> None:
    partition = await one.partition()
    assert await append(one, partition, transactional(0), Coordinator(7)) == (0, 0)
    assert await append(one, partition, transactional(0, epoch=1), Coordinator(9)) == (0, 2)
    assert await one.log.mark(partition, Ending(9, 5, 2, is_commit=True)) == 0
    found = await committed(one, partition, 0)
    assert (offsets(found), found.aborted) == ([0, 1, 2, 3], [(5, 0)])


async def test_committed_readers_of_plain_topics_are_served_without_redis(redis_server: Server, one: Front) -> None:
    partition = await one.partition()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        assert offsets(await committed(one, partition, 0)) == []
        await one.append(partition, batch(2))
        await one.append(partition, batch(1))
        await until(lambda: (one.wakeups.latest(partition.channel) or b"").endswith(b" 3"))
        with redis_server.paused(), anyio.fail_after(5):
            found = await committed(one, partition, 0)
            assert (offsets(found), found.last_stable, found.high_watermark) == ([0, 2], 3, 3)
            assert offsets(await committed(one, partition, 3)) == []


async def test_committed_readers_wait_at_an_open_transaction_without_redis(redis_server: Server, one: Front) -> None:
    partition = await one.partition()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        assert offsets(await committed(one, partition, 0)) == []
        await one.append(partition, batch(2))
        await append(one, partition, transactional(0), Coordinator())
        await one.append(partition, batch(1))
        await until(lambda: (one.wakeups.latest(partition.channel) or b"").endswith(b" 4 2"))
        with redis_server.paused(), anyio.fail_after(5):
            found = await committed(one, partition, 0)
            assert (offsets(found), found.last_stable, found.high_watermark) == ([0], 2, 4)
            assert offsets(await committed(one, partition, 2)) == []
            assert offsets(await one.read(partition, 0)) == [0, 2, 3]
            assert one.log.stands_at_end(Want(partition, 2, 1, is_committed=True))
            assert one.log.stands_at_end(Want(partition, 3, 1, is_committed=True))
            assert not one.log.stands_at_end(Want(partition, 1, 1, is_committed=True))
            assert not one.log.stands_at_end(Want(partition, 2, 1))
        assert await one.log.mark(partition, Ending(7, 5, 0, is_commit=False)) == 0
        await until(lambda: (one.wakeups.latest(partition.channel) or b"").endswith(b" 5"))
    found = await committed(one, partition, 2)
    assert (offsets(found), found.aborted) == ([2, 3, 4], [(5, 2)])


async def test_acknowledged_end_is_read_before_its_message_arrives(one: Front) -> None:
    partition = await one.partition()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        await append(one, partition, transactional(0), Coordinator())
        assert offsets(await committed(one, partition, 0)) == []
        await until(lambda: (one.wakeups.latest(partition.channel) or b"").endswith(b" 1 0"))
        with messages_held(one, partition):
            await one.append(partition, batch(1))
            assert (one.wakeups.latest(partition.channel) or b"").endswith(b" 2 0")
            assert offsets(await committed(one, partition, 0)) == []
            assert await one.log.mark(partition, Ending(7, 5, 0, is_commit=True)) == 0
            assert offsets(await committed(one, partition, 0)) == [0, 1, 2]


async def test_append_of_a_transaction_waits_for_its_message(one: Front) -> None:
    partition = await one.partition()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        await one.append(partition, batch(1))
        assert offsets(await committed(one, partition, 0)) == [0]
        await until(lambda: (one.wakeups.latest(partition.channel) or b"").endswith(b" 1"))
        with messages_held(one, partition):
            await append(one, partition, transactional(0), Coordinator())
            await one.append(partition, batch(1))
            assert (one.wakeups.latest(partition.channel) or b"").endswith(b" 1")
            assert offsets(await committed(one, partition, 1)) == []


async def test_reader_gets_only_the_aborted_transactions_of_its_range(one: Front) -> None:
    partition = await one.partition()
    for number in range(30):
        assert await append(one, partition, transactional(0, epoch=number), Coordinator(number)) == (0, 2 * number)
        assert await one.log.mark(partition, Ending(number, 5, number + 1, is_commit=False)) == 0
    found = await committed(one, partition, 0)
    assert found.aborted == [(5, 2 * number) for number in range(30)]
    (some,) = await one.log.read([Want(partition, 10, 1, is_committed=True)], 1)
    assert (offsets(some), some.aborted) == ([10], [(5, 10)])


async def test_transaction_that_no_coordinator_knows_is_closed(one: Front) -> None:
    partition = await one.partition()
    groups = Groups(NAMESPACE, one.store, one.catalog, one.wakeups, Outages(one.store), one.log)
    transactions = Transactions(NAMESPACE, one.store, one.catalog, one.log, groups)
    assert await append(one, partition, transactional(0), Coordinator()) == (0, 0)
    name = f"known-{partition.topic.name}"
    _, producer_id, epoch = await transactions.init(name, 60_000, -1, -1)
    member = Member(transactions, name, producer_id, epoch, True)
    data = records(1, producer_id=producer_id, producer_epoch=epoch, sequence=0, attributes=TRANSACTIONAL)
    assert await append(one, partition, data, member) == (0, 1)
    await transactions.close_hanging()
    found = await committed(one, partition, 0)
    assert (offsets(found), found.last_stable, found.aborted) == ([0], 1, [(5, 0)])
    assert (await transactions.end(name, producer_id, epoch, is_commit=True, version=2)).code == 0
    found = await committed(one, partition, 0)
    assert (offsets(found), found.last_stable, found.aborted) == ([0, 1, 2, 3], 4, [(5, 0)])


async def test_records_whose_abort_is_trimmed_meanwhile_are_not_given_out(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await one.partition()
    read = importlib.import_module("korvet.store.log.reading.read")
    ask = read.aborted_within
    assert await append(one, partition, transactional(0), Coordinator(7)) == (0, 0)
    assert await one.log.mark(partition, Ending(7, 5, 1, is_commit=False)) == 0
    await one.append(partition, batch(1))

    async def trim_before(log: Log, *args: Any) -> list[tuple[int, int]] | None:
        assert await log.trim(partition, 2) == (0, 2)
        found: list[tuple[int, int]] | None = await ask(log, *args)
        return found

    monkeypatch.setattr(read, "aborted_within", trim_before)
    found = await committed(one, partition, 0)
    assert (found.code, found.records) == (OFFSET_OUT_OF_RANGE, [])
    assert offsets(await committed(one, partition, 2)) == [2]


async def test_last_stable_offset_is_not_below_the_start(one: Front) -> None:
    partition = await one.partition()
    assert await append(one, partition, transactional(0), Coordinator(7)) == (0, 0)
    await one.append(partition, batch(2))
    assert await one.log.trim(partition, 2) == (0, 2)
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        found = await committed(one, partition, 2)
        assert (found.code, offsets(found), found.last_stable, found.high_watermark) == (0, [], 2, 3)
        await one.append(partition, batch(1))
        await until(lambda: (one.wakeups.latest(partition.channel) or b"").endswith(b" 4 0"))
        found = await committed(one, partition, 2)
        assert (found.code, offsets(found), found.last_stable, found.high_watermark) == (0, [], 2, 4)
    meta = await one.log.meta(partition)
    assert meta is not None and meta.stable == 2
    assert await one.log.mark(partition, Ending(7, 5, 1, is_commit=False)) == 0
    await until(lambda: (one.wakeups.latest(partition.channel) or b"").endswith(b" 5"))
    found = await committed(one, partition, 2)
    assert (offsets(found), found.last_stable) == ([1, 3, 4], 5)


@pytest.mark.parametrize(("joins", "code"), [(True, OUT_OF_ORDER_SEQUENCE_NUMBER), (False, 0)])
async def test_transaction_whose_first_batches_are_lost_does_not_go_on(one: Front, joins: bool, code: int) -> None:
    """The sequence is checked only if each transaction has its own epoch; else the partition may have forgotten it."""
    coordinator = Coordinator(joins=joins)
    assert (await append(one, await one.partition(), transactional(3), coordinator))[0] == code


async def test_fetch_reads_aborted_transactions_under_an_open_one_once(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.store.log.reading.aborted.AT_ONCE", 5)
    partition = await one.partition()
    name = partition.transaction_keys.aborted
    await one.append(partition, batch(100))
    # The list as markers write it while a transaction from offset 0 is open: 50 transactions end one after another.
    for number in range(50):
        first, last = 2 * number, 2 * number + 1
        await one.store.call(Purpose.APPEND, name, "ZADD", name, last, f"{first} {last} {number} 0")
    await one.store.call(Purpose.APPEND, partition.keys.meta, "HSET", partition.keys.meta, "last_aborted", "99")

    async def asked(offset: int, until: int) -> tuple[object, int]:
        meta = await one.log.meta(partition)
        assert meta is not None
        before = await calls(one)
        found = await aborted_within(one.log, partition, meta, offset, until)
        return found, await calls(one) - before

    expected = [[(number, 2 * number) for number in range(at // 2, at // 2 + 5)] for at in range(0, 100, 10)]
    assert await asked(0, 10) == (expected[0], 11)
    assert [await asked(at, at + 10) for at in range(10, 90, 10)] == [(one, 2) for one in expected[1:9]]
    # The list stays right after a trim, and with a later transaction.
    assert await one.log.trim(partition, 50) == (0, 50)
    await one.store.call(Purpose.APPEND, name, "ZADD", name, 101, "70 101 99 0")
    assert await asked(70, 80) == ([*expected[7], (99, 70)], 2)


async def calls(one: Front) -> int:
    """The count of ZRANGE calls."""
    stats: bytes = await one.store.call(Purpose.READ, "k", "INFO", "commandstats")
    found = re.search(rb"cmdstat_zrange:calls=(\d+)", stats)
    return int(found[1]) if found else 0
