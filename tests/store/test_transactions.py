"""Transactional ids that several front-ends are asked about at once: Kafka's TransactionCoordinatorConcurrencyTest and
its neighbours.
"""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from korvet.redis.client import Purpose
from korvet.store.background.transaction_sweep import sweep
from korvet.store.groups.groups import Groups
from korvet.store.keys import TRANSACTION_SHARDS
from korvet.store.log.appending.markers import Ending
from korvet.store.log.state.partition import Meta
from korvet.store.outages import Outages
from korvet.store.topics import create_topic, delete_topic
from korvet.store.transactions.transactions import Transactions
from korvet.store.transactions.types import ProducerId
from tests.store.logs import NAMESPACE, Front, batch, header
from tests.support.ported import kafka

pytestmark = pytest.mark.anyio

FENCED = 90
LAST_EPOCH = 2**15 - 1
AT_ONCE = 12
NOBODY = (-1, -1)


def transactions_of(front: Front) -> Transactions:
    groups = Groups(NAMESPACE, front.store, front.catalog, front.wakeups, Outages(front.store), front.log)
    return Transactions(NAMESPACE, front.store, front.catalog, front.log, groups)


@pytest.fixture
async def both(one: Front, other: Front) -> list[Transactions]:
    return [transactions_of(one), transactions_of(other)]


def new_name() -> str:
    return f"txn-{uuid4().hex[:8]}"


async def inits(both: list[Transactions], name: str, *producers: tuple[int, int]) -> list[ProducerId]:
    """InitProducerId calls, all at once, alternately at the two front-ends."""
    calls = (both[at % 2].init(name, 60_000, *producer) for at, producer in enumerate(producers))
    return list(await asyncio.gather(*calls))


async def set_epoch(both: list[Transactions], name: str, epoch: int) -> None:
    key = NAMESPACE.transaction(name).id
    await both[0]._store.call(Purpose.COORDINATE, key, "HSET", key, "producer_epoch", epoch)


# ---------------------------------------------------------------------- InitProducerId


@kafka("TransactionCoordinatorConcurrencyTest.testConcurrentNewInitProducerIdRequests")
async def test_concurrent_new_producers_get_epochs_of_their_own(both: list[Transactions]) -> None:
    told = await inits(both, new_name(), *[NOBODY] * AT_ONCE)
    assert {one.code for one in told} == {0}
    assert len({one.producer_id for one in told}) == 1
    assert sorted(one.producer_epoch for one in told) == list(range(AT_ONCE))


@kafka("TransactionCoordinatorConcurrencyTest.testConcurrentContinuingInitProducerIdRequests")
@kafka("TransactionCoordinatorConcurrencyTest.testConcurrentInitProducerIdRequestsWithRetry")
async def test_concurrent_requests_of_a_continuing_producer_get_one_answer(both: list[Transactions]) -> None:
    name = new_name()
    _, producer_id, epoch = await both[0].init(name, 60_000, *NOBODY)
    told = await inits(both, name, *[(producer_id, epoch)] * AT_ONCE)
    assert set(told) == {ProducerId(0, producer_id, epoch + 1)}


@kafka("TransactionCoordinatorConcurrencyTest.testConcurrentInitProducerIdRequestsOneNewOneContinuing")
async def test_last_of_a_new_and_a_continuing_producer_has_the_id(both: list[Transactions]) -> None:
    for producers in ((NOBODY, None), (None, NOBODY)):
        name = new_name()
        _, producer_id, epoch = await both[0].init(name, 60_000, *NOBODY)
        known = (producer_id, epoch)
        told = await inits(both, name, *(producer or known for producer in producers))
        new, goes_on = told if producers[0] == NOBODY else reversed(told)
        assert new.code == 0
        assert goes_on.code in (0, FENCED)
        # If the continuing producer has an epoch, it came last.
        described = await both[0].describe(name)
        assert described is not None
        assert described.producer_epoch == max(one.producer_epoch for one in told)
        assert new.producer_epoch == (epoch + 2 if goes_on.code == 0 else epoch + 1)


@kafka("TransactionCoordinatorConcurrencyTest.testConcurrentInitProducerRequestsAtPidBoundary")
@kafka("TransactionCoordinatorConcurrencyTest.testConcurrentInitProducerRequestsWithRetryAtPidBoundary")
async def test_producer_that_continues_at_the_last_epoch_gets_one_new_id(both: list[Transactions]) -> None:
    name = new_name()
    _, producer_id, _ = await both[0].init(name, 60_000, *NOBODY)
    await set_epoch(both, name, LAST_EPOCH - 1)
    told = await inits(both, name, *[(producer_id, LAST_EPOCH - 1)] * AT_ONCE)
    assert len(set(told)) == 1
    assert (told[0].code, told[0].producer_epoch) == (0, 0)
    assert told[0].producer_id > producer_id


@kafka("ProducerIdManagerTest.testConcurrentGeneratePidRequests")
@kafka("ProducerIntegrationTest.testUniqueProducerIds")
async def test_producer_ids_are_given_out_once(both: list[Transactions]) -> None:
    ids = await asyncio.gather(*(both[at % 2].fresh_id() for at in range(400)))
    assert len(set(ids)) == 400


# ---------------------------------------------------------------------- whole transactions


@kafka("TransactionCoordinatorConcurrencyTest.testConcurrentGoodPathSequence")
async def test_many_ids_run_their_transactions_at_once(both: list[Transactions], one: Front) -> None:
    topic = await one.topic(4)
    members = [one.log.partition(topic, index) for index in range(4)]

    async def sequence(at: int) -> tuple[str, int]:
        name, mine = new_name(), both[at % 2]
        _, producer_id, epoch = await mine.init(name, 60_000, *NOBODY)
        for number in range(3):
            assert (await mine.add(name, producer_id, epoch, members)).codes == [0] * 4
            told = await mine.end(name, producer_id, epoch, is_commit=number % 2 == 0, version=2)
            assert told == (0, producer_id, epoch + 1)
            epoch += 1
        described = await mine.describe(name)
        assert described is not None
        return described.state, described.producer_epoch

    assert set(await asyncio.gather(*(sequence(at) for at in range(AT_ONCE)))) == {("CompleteCommit", 3)}
    metas = await one.log.metas([one.log.partition(topic, index) for index in range(4)])
    assert [meta.stable if isinstance(meta, Meta) else None for meta in metas] == [3 * AT_ONCE] * 4


@kafka("TransactionCoordinatorConcurrencyTest.testConcurrentTransactionExpiration")
async def test_several_sweeps_abort_an_overdue_transaction_once(both: list[Transactions], one: Front) -> None:
    topic = await one.topic(1)
    opened = []
    for _ in range(AT_ONCE):
        name = new_name()
        _, producer_id, epoch = await both[0].init(name, 60_000, *NOBODY)
        await both[0].add(name, producer_id, epoch, [one.log.partition(topic, 0)])
        key = NAMESPACE.transaction(name).id
        await one.store.call(Purpose.COORDINATE, key, "HSET", key, "timeout_ms", 0)
        opened.append((name, producer_id, epoch))
    for shard in range(TRANSACTION_SHARDS):
        key = NAMESPACE.transaction_deadlines(shard)
        for name, *_ in opened:
            if NAMESPACE.transaction(name).deadlines == key:
                await one.store.call(Purpose.COORDINATE, key, "ZADD", key, 0, name)
    await asyncio.gather(*(sweep(each) for each in (*both, *both)))
    found = [await both[0].describe(name) for name, *_ in opened]
    assert {(each.state, each.producer_epoch) for each in found if each} == {("CompleteAbort", 1)}
    meta = await one.log.meta(one.log.partition(topic, 0))
    assert meta is not None
    assert (meta.end, meta.stable) == (AT_ONCE, AT_ONCE)


# ---------------------------------------------------------------------- markers


@kafka("TransactionMarkerRequestCompletionHandlerTest.shouldCompleteDelayedOperationWhenInvalidProducerEpoch")
async def test_transaction_completes_past_a_partition_with_a_newer_epoch(both: list[Transactions], one: Front) -> None:
    topic, name = await one.topic(1), new_name()
    partition = one.log.partition(topic, 0)
    _, producer_id, epoch = await both[0].init(name, 60_000, *NOBODY)
    await both[0].add(name, producer_id, epoch, [one.log.partition(topic, 0)])
    data = batch(1, producer=producer_id, sequence=0)
    newer = header(data)._replace(producer_epoch=9)
    assert (await one.log.append(partition, newer, data)).code == 0
    assert await one.log.mark(partition, Ending(1, producer_id, epoch + 1, is_commit=False)) == 47
    told = await both[0].end(name, producer_id, epoch, is_commit=False, version=2)
    assert told == (0, producer_id, epoch + 1)
    described = await both[0].describe(name)
    assert described is not None
    assert described.state == "CompleteAbort"


@kafka("TransactionMarkerRequestCompletionHandlerTest.shouldCompleteDelayedOperationWhenNoErrors")
@kafka("TransactionMarkerChannelManagerTest.shouldCompleteAppendToLogOnEndTxnWhenSendMarkersSucceed")
async def test_transaction_is_complete_when_its_markers_are_written(both: list[Transactions], one: Front) -> None:
    topic, name = await one.topic(2), new_name()
    _, producer_id, epoch = await both[0].init(name, 60_000, *NOBODY)
    await both[0].add(name, producer_id, epoch, [one.log.partition(topic, index) for index in range(2)])
    await both[1].end(name, producer_id, epoch, is_commit=True, version=1)
    described = await both[0].describe(name)
    assert described is not None
    assert (described.state, described.partitions) == ("CompleteCommit", [])
    metas = await one.log.metas([one.log.partition(topic, index) for index in range(2)])
    assert [meta.end if isinstance(meta, Meta) else -1 for meta in metas] == [1, 1]


async def test_front_end_that_missed_a_topics_new_life_marks_the_new_topic(
    both: list[Transactions], one: Front, other: Front
) -> None:
    """A marker that went to the former topic would leave the new one's records uncommitted for ever."""
    topic, name = await one.topic(1), new_name()
    _, producer_id, epoch = await both[0].init(name, 60_000, *NOBODY)
    await both[0].add(name, producer_id, epoch, [one.log.partition(topic, 0)])
    await other.catalog.refresh()
    await delete_topic(one.catalog, one.log, topic)
    _, again = await create_topic(one.catalog, one.log, topic.name, 1, {})
    assert again is not None
    known = other.catalog.topic(topic.name)
    assert known is not None
    assert known.id == topic.id
    assert (await both[1].end(name, producer_id, epoch, is_commit=True, version=1)).code == 0
    (meta,) = await one.log.metas([one.log.partition(again, 0)])
    assert isinstance(meta, Meta)
    assert (meta.end, meta.stable) == (1, 1)
