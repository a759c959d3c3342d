"""Two front-ends that work on one log at the same time, step by step, on Redis 7.0 and Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from korvet.api.delete_records import _trim_as_seen
from korvet.codes import OUT_OF_ORDER_SEQUENCE_NUMBER
from korvet.errors import StoreUnavailable
from korvet.redis.address import Address
from korvet.redis.client import Purpose
from korvet.store import library
from korvet.store.catalog.topic import Topic
from korvet.store.contract import GONE
from korvet.store.log.state.partition import Partition
from korvet.store.topics import create_topic, delete_topic, grow_topic
from tests.store.logs import LARGE, Front, batch, front, header, offsets, until
from tests.support.redis import Server

pytestmark = pytest.mark.anyio

OUT_OF_RANGE, NOT_LEADER, FENCED = 1, 6, 74


Step = Callable[[], Awaitable[object]]


def once_before(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, step: Step) -> None:
    """Run a step right before the next call of a coroutine method."""
    method = getattr(owner, name)

    async def delayed(*args: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        await step()
        return await method(*args)

    monkeypatch.setattr(owner, name, delayed)


def once_after(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, step: Step) -> None:
    """Run a step right after the next call of a coroutine method."""
    method = getattr(owner, name)

    async def delayed(*args: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        result = await method(*args)
        await step()
        return result

    monkeypatch.setattr(owner, name, delayed)


async def keys_of(one: Front, topic: Topic) -> list[bytes]:
    found: list[bytes] = await one.store.call(Purpose.READ, "k", "KEYS", f"*:{topic.name}:*")
    return sorted(found)


async def test_records_appended_after_a_deletion_request_stay(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await one.partition()
    await one.append(partition, batch(3))

    async def append() -> None:
        await one.append(partition, batch(2))

    once_before(monkeypatch, one.log, "trim", append)
    ctx: Any = SimpleNamespace(frontend=one)
    assert await _trim_as_seen(ctx, partition, -1) == (0, 3)
    assert offsets(await one.read(partition, 3)) == [3]


async def test_deletion_of_records_spares_records_of_a_later_history(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await one.partition()
    await one.append(partition, batch(3))

    async def begin_history() -> None:
        await one.store.call(Purpose.APPEND, partition.keys.meta, "HSET", partition.keys.meta, "run_id", "another")
        await one.log.take_over(partition)

    once_before(monkeypatch, one.log, "trim", begin_history)
    ctx: Any = SimpleNamespace(frontend=one)
    assert await _trim_as_seen(ctx, partition, 2) == (NOT_LEADER, 0)
    assert offsets(await one.read(partition, 0)) == [0]


# ---------------------------------------------------------------------- topics come and go


async def succeeded(one: Front) -> tuple[Partition, Topic]:
    """The keys of a deleted topic, with data, and its successor of the same name, without keys."""
    former = await one.partition()
    await one.append(former, batch(2))
    await one.catalog.begin_delete(former.topic)
    await one.catalog.finish_delete(former.topic)
    name = former.topic.name
    topic = (await one.catalog.create(name, (await one.topic()).id, 1, {}))[1]
    assert topic is not None
    return former, topic


async def test_keys_that_another_front_end_just_made_are_not_a_former_topics(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, topic = await succeeded(one)

    async def make_and_append() -> None:
        await one.log.create_partitions(topic)
        assert await one.append(one.log.partition(topic, 0), batch(2)) == (0, 0)

    once_before(monkeypatch, other.log, "_clear_former", make_and_append)
    await other.log.create_partitions(topic)
    assert offsets(await one.read(one.log.partition(topic, 0), 0)) == [0]


async def test_keys_of_a_front_end_that_cleared_a_former_topics_keys_stay(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, topic = await succeeded(one)

    async def clear() -> None:
        await one.store.fcall(Purpose.APPEND, "korvet_log_delete", former.keys, former.topic_id)

    async def make_and_append() -> None:
        await one.log.create_partitions(topic)
        assert await one.append(one.log.partition(topic, 0), batch(2)) == (0, 0)

    once_before(monkeypatch, other.log, "_clear_former", clear)
    once_after(monkeypatch, other.catalog, "refresh", make_and_append)
    await other.log.create_partitions(topic)
    assert offsets(await one.read(one.log.partition(topic, 0), 0)) == [0]


async def test_lost_keys_come_back_in_a_later_epoch(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(5))
    assert (await one.read(partition, 0, leader_epoch=0)).code == 0
    await one.store.call(Purpose.APPEND, partition.keys.log, "DEL", *partition.keys)
    await one.append(partition, batch(7))
    assert (await one.read(partition, 5, leader_epoch=0)).code == FENCED
    meta = await one.log.meta(partition)
    assert meta is not None and meta.epoch > 0


async def test_lost_keys_come_back_in_a_later_epoch_for_readers_too(one: Front, other: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(5))
    await one.store.call(Purpose.APPEND, partition.keys.log, "DEL", *partition.keys)
    await other.catalog.refresh()
    theirs = other.known(partition)
    assert (await other.read(theirs, 0, leader_epoch=0)).code == FENCED
    meta = await other.log.meta(theirs)
    assert meta is not None and meta.epoch > 0


async def test_topic_deleted_while_its_keys_are_restored_leaves_nothing(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await one.partition()
    await one.store.call(Purpose.APPEND, partition.keys.log, "DEL", *partition.keys)
    await other.catalog.refresh()

    async def delete() -> None:
        await delete_topic(other.catalog, other.log, partition.topic)

    once_after(monkeypatch, one.catalog, "refresh", delete)
    assert (await one.append(partition, batch(2)))[0] == GONE
    assert await keys_of(one, partition.topic) == []


async def test_topic_deleted_while_it_is_created_leaves_nothing(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def delete() -> None:
        await other.catalog.refresh()
        topic = other.catalog.topic("brief")
        assert topic is not None
        await delete_topic(other.catalog, other.log, topic)

    once_before(monkeypatch, one.log, "create_partitions", delete)
    _, topic = await create_topic(one.catalog, one.log, "brief", 3, {})
    assert topic is not None
    assert await keys_of(one, topic) == []


async def test_topic_that_another_front_end_grew_is_deleted_as_a_whole(one: Front, other: Front) -> None:
    topic = await one.topic()
    await other.catalog.refresh()
    await grow_topic(other.catalog, other.log, topic, 4)
    await delete_topic(one.catalog, one.log, topic)
    assert await keys_of(one, topic) == []


# ---------------------------------------------------------------------- memory


async def test_batches_trimmed_elsewhere_are_not_read_from_memory(one: Front, other: Front) -> None:
    partition = await one.partition()
    await other.catalog.refresh()
    theirs = other.known(partition)
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        await one.read(partition, 0)
        await one.append(partition, batch(2))
        await one.append(partition, batch(2))
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 4")
        assert offsets(await one.read(partition, 0)) == [0, 2]
        assert await other.log.trim(theirs, 2) == (0, 2)
        assert await other.append(theirs, batch(2)) == (0, 4)
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 6")
        assert (await one.read(partition, 0)).code == OUT_OF_RANGE
        assert offsets(await one.read(partition, 2))[0] == 2


async def test_former_topics_batches_are_not_read_from_memory(one: Front, other: Front) -> None:
    partition = await one.partition()
    await other.catalog.refresh()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        await one.read(partition, 0)
        await one.append(partition, batch(4))
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 4")
        assert offsets(await one.read(partition, 0)) == [0]
        await delete_topic(other.catalog, other.log, partition.topic)
        _, topic = await create_topic(other.catalog, other.log, partition.topic.name, 1, {})
        assert topic is not None
        assert await other.append(other.log.partition(topic, 0), batch(4)) == (0, 0)
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 4")
        assert (await one.read(partition, 0)).records == []


# ---------------------------------------------------------------------- producers


async def lost_on_the_way(one: Front, partition: Partition, data: bytes, redis_server: Server) -> None:
    """Append a batch for a client that leaves before the answer."""
    with redis_server.paused(), anyio.CancelScope() as scope:
        scope.cancel()
        await one.log.append(partition, header(data), data)


@pytest.mark.parametrize("size", [10, LARGE])
async def test_producer_that_went_on_elsewhere_may_come_back(
    redis_server: Server, one: Front, other: Front, size: int
) -> None:
    batches = [batch(2, size, producer=9, sequence=2 * number) for number in range(5)]
    partition = await one.partition()
    await other.catalog.refresh()
    theirs = other.known(partition)
    assert await one.append(partition, batches[0]) == (0, 0)
    await lost_on_the_way(one, partition, batches[1], redis_server)
    assert await other.append(theirs, batches[1]) == (0, 2)
    assert await other.append(theirs, batches[2]) == (0, 4)
    assert await one.append(partition, batches[3]) == (0, 6)
    assert await one.append(partition, batches[4]) == (0, 8)


async def test_batch_after_a_failed_one_stays_refused_after_another_repair(one: Front) -> None:
    partition = await one.partition()
    first, second = (batch(2, producer=9, sequence=sequence) for sequence in (0, 2))
    partition.in_flight.add(header(first), failed())
    behind = one.log.append(partition, header(second), second)
    partition.repairs += 1
    assert (await behind).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await one.append(partition, first) == (0, 0)
    assert await one.append(partition, second) == (0, 2)


def failed() -> asyncio.Future[Any]:
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    reply.cancel()
    return reply


# ---------------------------------------------------------------------- functions come and go


async def test_batch_that_passes_one_refused_without_functions_is_not_refused(one: Front) -> None:
    """Another front-end's link loads the functions between the two; librdkafka takes the refusal for fatal."""
    partition = await one.partition()
    assert await one.append(partition, batch(1, producer=7, sequence=0)) == (0, 0)
    flushed = one.store.call(Purpose.APPEND, partition.keys.log, "FUNCTION", "FLUSH")
    first = one.log.append(partition, header(data := batch(1, producer=7, sequence=1)), data)
    loaded = one.store.call(Purpose.APPEND, partition.keys.log, "FUNCTION", "LOAD", library.library_source())
    second = one.log.append(partition, header(data := batch(1, producer=7, sequence=2)), data)
    await flushed
    await loaded
    assert [(await appending)[:2] for appending in (first, second)] == [(0, 1), (0, 2)]


async def test_reader_that_is_back_first_takes_no_former_epoch_for_the_present_one(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server loses records in a restart, and the connection for reads meets it before the connection for appends."""

    async def away() -> Address:
        raise OSError("away")

    async with front(own_server.url) as one:
        partition = await one.partition()
        await one.append(partition, batch(1))
        with own_server.client() as client:
            client.save()
        await one.append(partition, batch(1))
        appends, reads = (one.store.link(purpose, partition.keys.log) for purpose in (Purpose.APPEND, Purpose.READ))
        assert appends is not None and reads is not None
        former = reads.run_id
        monkeypatch.setattr(appends, "_locate", away)
        own_server.kill()
        own_server.start()
        await until(lambda: reads.is_up and reads.run_id != former)
        with pytest.raises(StoreUnavailable):
            await one.append(partition, batch(1))
        with pytest.raises(StoreUnavailable, match="not up yet"):
            await one.log.meta(partition)
        monkeypatch.undo()
        await until(one.store.is_connected)
        found = await one.log.meta(partition)
        assert found is not None
        assert (found.end, found.epoch > 0) == (1, True)
