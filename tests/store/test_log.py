"""The log through the store, on Redis 7.0 and Valkey: appends, reads, memory, and keys that are made or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from korvet.codes import OUT_OF_ORDER_SEQUENCE_NUMBER
from korvet.errors import SlotMoving, StoreUnavailable
from korvet.redis.client import Argument, Buffer, Purpose
from korvet.store.contract import GONE
from korvet.store.log.appending.append import Appending
from korvet.store.log.log import Log
from korvet.store.log.memory.room import Want
from korvet.store.log.reading.times import MAX_TIMESTAMP, NOTHING
from korvet.store.log.state.entries import INLINE_LIMIT_BYTES
from korvet.store.log.state.partition import Partition
from korvet.store.topics import create_topic, delete_topic
from tests.store.logs import (
    EVERYTHING,
    LARGE,
    Front,
    batch,
    codes,
    header,
    messages_held,
    offsets,
    split,
    stored,
    until,
)
from tests.support.redis import Server

pytestmark = pytest.mark.anyio

OUT_OF_RANGE, UNKNOWN_TOPIC, CORRUPT = 1, 3, 2


# ---------------------------------------------------------------------- append and read


async def test_batches_come_back_as_they_were_sent_with_dense_offsets(one: Front) -> None:
    partition = await one.partition()
    batches = [batch(3), batch(2, LARGE), batch(1), batch(50, LARGE), batch(4)]
    appends = [one.log.append(partition, header(data), data) for data in batches]
    assert [(await append).base_offset for append in appends] == [0, 3, 5, 6, 56]
    found = await one.read(partition, 0)
    assert (found.code, found.high_watermark, found.log_start) == (0, 60, 0)
    assert split(found) == stored(*zip([0, 3, 5, 6, 56], batches, strict=True))


@pytest.mark.parametrize("size", [INLINE_LIMIT_BYTES - 1, INLINE_LIMIT_BYTES, INLINE_LIMIT_BYTES + 1])
async def test_batch_is_placed_from_the_inline_limit_on(one: Front, size: int) -> None:
    partition = await one.partition()
    shell = len(batch(1, 8000)) - 8000
    data = batch(1, size - shell)
    assert len(data) == size
    assert await one.append(partition, data) == (0, 0)
    assert split(await one.read(partition, 0)) == stored((0, data))
    placed = await one.store.call(Purpose.READ, partition.keys.log, "EXISTS", f"{partition.keys.log}:1")
    assert placed == (size >= INLINE_LIMIT_BYTES)


async def test_read_begins_with_the_batch_that_holds_the_offset(one: Front) -> None:
    partition = await one.partition()
    for _ in range(3):
        await one.append(partition, batch(5))
    assert offsets(await one.read(partition, 7)) == [5, 10]
    assert offsets(await one.read(partition, 14)) == [10]
    assert offsets(await one.read(partition, 15)) == []


@pytest.mark.parametrize("size", [10, LARGE])
async def test_limits_cut_between_batches_and_the_first_batch_is_always_whole(one: Front, size: int) -> None:
    topic = await one.topic(3)
    partitions = [one.log.partition(topic, index) for index in range(3)]
    data = batch(1, size)
    for partition in partitions:
        for _ in range(3):
            await one.append(partition, data)

    async def read(partition_bytes: int, total_bytes: int) -> list[list[int]]:
        wants = [Want(partition, 0, partition_bytes) for partition in partitions]
        reads = await one.log.read(wants, total_bytes)
        assert [(found.code, found.high_watermark) for found in reads] == [(0, 3)] * 3
        return [offsets(found) for found in reads]

    length = len(data)
    assert await read(1, 1) == [[0], [], []]
    assert await read(0, EVERYTHING) == [[0], [], []]
    assert await read(-5, EVERYTHING) == [[0], [], []]
    assert await read(2 * length, EVERYTHING) == [[0, 1], [0, 1], [0, 1]]
    assert await read(2 * length + 1, 5 * length - 1) == [[0, 1], [0, 1], []]
    assert await read(EVERYTHING, 4 * length) == [[0, 1, 2], [0], []]


async def test_offsets_outside_the_log_are_out_of_range(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(3))
    reads = [await one.read(partition, offset) for offset in (-1, 4, 1000)]
    assert codes(reads) == [OUT_OF_RANGE] * 3
    assert {(found.high_watermark, found.log_start) for found in reads} == {(-1, -1)}


async def test_thousands_of_small_batches_are_read_in_turns(one: Front) -> None:
    partition = await one.partition()
    appends = [one.log.append(partition, header(data), data) for data in [batch(1)] * 2500]
    assert [(await append).base_offset for append in appends] == list(range(2500))
    offset, turns = 0, 0
    while offset < 2500:
        found = offsets(await one.read(partition, offset))
        assert found == list(range(offset, offset + len(found)))
        offset, turns = offset + len(found), turns + 1
    assert turns < 10


async def test_duplicate_gets_its_first_offset_and_a_gap_is_refused(one: Front) -> None:
    partition = await one.partition()
    first, second = batch(3, producer=7, sequence=0), batch(3, LARGE, producer=7, sequence=3)
    assert [await one.append(partition, data) for data in (first, second, second, first)] == [
        (0, 0), (0, 3), (0, 3), (0, 0),
    ]  # fmt: skip
    assert await one.append(partition, batch(3, producer=7, sequence=9)) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert offsets(await one.read(partition, 0)) == [0, 3]


async def test_nothing_is_left_of_a_refused_large_batch(one: Front) -> None:
    partition = await one.partition()
    data = batch(3, LARGE, producer=7, sequence=0)
    await one.append(partition, data)
    await one.append(partition, data)
    await one.append(partition, batch(3, LARGE, producer=7, sequence=90))
    keys = await one.store.call(Purpose.READ, partition.keys.log, "KEYS", f"{partition.keys.log}:*")
    assert keys == [f"{partition.keys.log}:3".encode()]


async def test_reader_gets_an_error_for_a_missing_placed_batch(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(1))
    await one.append(partition, batch(1, LARGE))
    await one.store.call(Purpose.APPEND, partition.keys.log, "UNLINK", f"{partition.keys.log}:2")
    await one.append(partition, batch(1))
    assert offsets(await one.read(partition, 0)) == [0]
    assert (await one.read(partition, 1)).code == CORRUPT
    assert offsets(await one.read(partition, 2)) == [2]


# ---------------------------------------------------------------------- memory


async def test_reader_at_the_end_is_served_without_redis(redis_server: Server, one: Front) -> None:
    partition = await one.partition()
    batches = [batch(2), batch(2, LARGE), batch(1)]
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        assert (await one.read(partition, 0)).high_watermark == 0
        for data in batches:
            await one.append(partition, data)
        await until(lambda: (one.wakeups.latest(partition.channel) or b"").endswith(b" 5"))
        with redis_server.paused(), anyio.fail_after(5):
            found = await one.read(partition, 0)
            assert (found.high_watermark, found.log_start) == (5, 0)
            assert split(found) == stored(*zip([0, 2, 4], batches, strict=True))
            assert offsets(await one.read(partition, 2, max_bytes=1)) == [2]
            assert offsets(await one.read(partition, 5)) == []
            assert one.log.stands_at_end(Want(partition, 5, 1))
            assert not one.log.stands_at_end(Want(partition, 4, 1))
    assert offsets(await one.read(partition, 0)) == [0, 2, 4]


async def test_reader_of_a_silent_log_calls_redis_once(one: Front, other: Front) -> None:
    """A consumer of thousands of idle partitions names them all in each Fetch."""
    partition = await one.partition()
    await one.append(partition, batch(2))
    await other.catalog.refresh()
    theirs = other.known(partition)
    with other.wakeups.listen([theirs.channel]) as listening:
        await listening.ready()
        assert offsets(await other.read(theirs, 0)) == [0]
        asked = other.log.reads.redis
        for _ in range(2):
            assert (await other.read(theirs, 2)).high_watermark == 2
        assert other.log.reads.redis == asked
        assert other.log.stands_at_end(Want(theirs, 2, 1))
        await one.append(partition, batch(1))
        assert await listening.wait(10) == {theirs.channel}
        assert offsets(await other.read(theirs, 2)) == [2]
        # A trim voids what is known, and the first read after it returns the ends again.
        for start in (2, 3):
            await one.log.trim(partition, start)
            await until(lambda: (other.wakeups.latest(theirs.channel) or b"").startswith(b"-1 "))
            asked = other.log.reads.redis
            assert [(await other.read(theirs, 3)).log_start for _ in range(3)] == [start] * 3
            assert other.log.reads.redis == asked + 1


async def test_acknowledged_append_wakes_readers_before_its_message_arrives(one: Front) -> None:
    partition = await one.partition()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        await one.append(partition, batch(2))
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 2")
        assert offsets(await one.read(partition, 0)) == [0]
        await listening.wait(0)
        with messages_held(one, partition):
            asked = one.log.reads.redis
            for offset in (2, 3):
                await one.append(partition, batch(1))
                assert await listening.wait(0) == {partition.channel}
                assert not one.log.stands_at_end(Want(partition, offset, 1))
                assert offsets(await one.read(partition, offset)) == [offset]
            assert one.log.reads.redis == asked
        await one.append(partition, batch(1))
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 5")
        assert offsets(await one.read(partition, 3)) == [3, 4]
        assert offsets(await one.read(partition, 5)) == []


async def test_append_after_one_of_another_front_end_waits_for_its_message(one: Front, other: Front) -> None:
    partition = await one.partition()
    await other.catalog.refresh()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        await one.append(partition, batch(2))
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 2")
        assert offsets(await one.read(partition, 0)) == [0]
        await listening.wait(0)
        with messages_held(one, partition):
            await other.append(other.known(partition), batch(1))
            await one.append(partition, batch(1))
            assert (await listening.wait(0), one.wakeups.latest(partition.channel)) == (set(), b"0 2")
            assert offsets(await one.read(partition, 2)) == [2, 3]
        assert await listening.wait(10) == {partition.channel}
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 4")


async def test_duplicate_of_an_append_announces_no_end(one: Front) -> None:
    partition = await one.partition()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        first = batch(1, producer=7, sequence=0)
        await one.append(partition, first)
        await one.append(partition, batch(1, producer=7, sequence=1))
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 2")
        assert offsets(await one.read(partition, 0)) == [0, 1]
        with messages_held(one, partition):
            assert await one.append(partition, first) == (0, 0)
            assert one.wakeups.latest(partition.channel) == b"0 2"


async def test_first_read_remembers_batches_of_another_front_end(
    redis_server: Server, one: Front, other: Front
) -> None:
    partition = await one.partition()
    await other.catalog.refresh()
    theirs = other.known(partition)
    with other.wakeups.listen([theirs.channel]) as listening:
        await listening.ready()
        await one.append(partition, batch(2))
        await until(lambda: other.wakeups.latest(theirs.channel) == b"0 2")
        assert offsets(await other.read(theirs, 0)) == [0]
        with redis_server.paused(), anyio.fail_after(5):
            assert offsets(await other.read(theirs, 0)) == [0]


async def test_batches_that_are_only_partly_in_memory_are_read_from_redis(one: Front) -> None:
    partition = await one.partition()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        assert (await one.read(partition, 0)).high_watermark == 0
        for _ in range(3):
            await one.append(partition, batch(2))
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 6")
        one.log.cache._drop((partition, 2))
        assert offsets(await one.read(partition, 0)) == [0, 2, 4]


async def test_trim_elsewhere_ends_the_trust_in_memory(one: Front, other: Front) -> None:
    partition = await one.partition()
    await other.catalog.refresh()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        assert (await one.read(partition, 0)).high_watermark == 0
        await one.append(partition, batch(2))
        await one.append(partition, batch(2))
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 4")
        assert offsets(await one.read(partition, 0)) == [0, 2]
        assert await other.log.trim(other.known(partition), 2) == (0, 2)
        await until(lambda: one.wakeups.latest(partition.channel) == b"-1 -1")
        assert (await one.read(partition, 0)).code == OUT_OF_RANGE
        assert (await one.read(partition, 2)).log_start == 2


async def test_deletion_elsewhere_ends_the_trust_in_memory(one: Front, other: Front) -> None:
    partition = await one.partition()
    await other.catalog.refresh()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        assert (await one.read(partition, 0)).high_watermark == 0
        await one.append(partition, batch(2))
        await until(lambda: one.wakeups.latest(partition.channel) == b"0 2")
        await delete_topic(other.catalog, other.log, other.known(partition).topic)
        await until(lambda: one.wakeups.latest(partition.channel) == b"-1 -1")
        assert (await one.read(partition, 0)).code == UNKNOWN_TOPIC


# ---------------------------------------------------------------------- topics come and go


async def test_first_use_makes_missing_keys(one: Front) -> None:
    for use in ("append", "read", "metas", "trim", "time"):
        partition = await one.partition()
        await one.store.call(Purpose.APPEND, partition.keys.log, "DEL", *partition.keys)
        if use == "append":
            assert await one.append(partition, batch(2)) == (0, 0)
        elif use == "read":
            assert (await one.read(partition, 0)).high_watermark == 0
        elif use == "metas":
            meta = await one.log.meta(partition)
            assert meta is not None and meta.end == 0
        elif use == "trim":
            assert await one.log.trim(partition, -1) == (0, 0)
        else:
            assert await one.log.offset_for_time(partition, 0) == NOTHING


async def test_deleted_topic_is_gone_for_every_front_end(one: Front, other: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(2))
    await other.catalog.refresh()
    await delete_topic(other.catalog, other.log, other.known(partition).topic)
    assert (await one.append(partition, batch(2)))[0] == GONE
    assert (await one.append(partition, batch(2, LARGE)))[0] == GONE
    assert (await one.read(partition, 0)).code == UNKNOWN_TOPIC
    assert await one.log.metas([partition]) == [None]
    assert (await one.log.trim(partition, 0))[0] == GONE
    assert await one.log.offset_for_time(partition, 0) is None
    assert await one.store.call(Purpose.READ, partition.keys.log, "KEYS", f"*{partition.topic.name}*") == []


async def test_keys_that_a_former_topic_left_are_cleared(one: Front) -> None:
    partition = await one.partition()
    for _ in range(250):
        await one.append(partition, batch(1))
    name = partition.topic.name
    await one.catalog.begin_delete(partition.topic)
    await one.catalog.finish_delete(partition.topic)
    _, topic = await create_topic(one.catalog, one.log, name, 1, {})
    assert topic is not None and topic.id != partition.topic.id
    assert (await one.read(one.log.partition(topic, 0), 0)).high_watermark == 0
    assert (await one.append(partition, batch(1)))[0] == GONE


async def test_existing_topic_is_not_taken_for_a_former_one(one: Front, other: Front) -> None:
    partition = await one.partition()
    await other.catalog.refresh()
    stale = other.known(partition)
    await delete_topic(one.catalog, one.log, partition.topic)
    _, topic = await create_topic(one.catalog, one.log, partition.topic.name, 1, {})
    assert topic is not None
    await one.append(one.log.partition(topic, 0), batch(2))
    assert (await other.append(stale, batch(2)))[0] == GONE
    await other.log.create_partitions(stale.topic)
    assert offsets(await one.read(one.log.partition(topic, 0), 0)) == [0]


async def test_trimming_takes_as_many_calls_as_it_needs(one: Front) -> None:
    partition = await one.partition()
    appends = [one.log.append(partition, header(data), data) for data in [batch(1), batch(1, LARGE)] * 150]
    for append in appends:
        await append
    assert await one.log.trim(partition, 299) == (0, 299)
    assert offsets(await one.read(partition, 299)) == [299]
    keys = await one.store.call(Purpose.READ, partition.keys.log, "KEYS", f"{partition.keys.log}:*")
    assert keys == [f"{partition.keys.log}:300".encode()]
    assert await one.log.trim(partition, 301) == (OUT_OF_RANGE, 299)
    assert await one.log.trim(partition, -1) == (0, 300)
    assert await one.append(partition, batch(1)) == (0, 300)


# ---------------------------------------------------------------------- repairs


def lose_next_temporary_key(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the next temporary key from the server, as if the key expired before its append runs."""
    fcall_placed = one.store.fcall_placed
    lost: list[str] = []

    def lossy(function: str, keys: Sequence[str], value: Sequence[Buffer], expiry_ms: int, *args: Any) -> Any:
        if lost:
            return fcall_placed(function, keys, value, expiry_ms, *args)
        lost.append(keys[-1])
        return one.store.fcall(Purpose.APPEND, function, keys, *args)

    monkeypatch.setattr(one.store, "fcall_placed", lossy)


async def test_batch_whose_temporary_key_is_lost_is_sent_again(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await one.partition()
    lose_next_temporary_key(one, monkeypatch)
    data = batch(2, LARGE)
    assert await one.append(partition, data) == (0, 0)
    assert split(await one.read(partition, 0)) == stored((0, data))


async def settled(appends: list[Appending]) -> list[tuple[int, int]]:
    outcomes = [await append for append in appends]
    return [(outcome.code, outcome.base_offset) for outcome in outcomes]


async def test_batches_after_a_lost_one_keep_the_producers_order(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await one.partition()
    lose_next_temporary_key(one, monkeypatch)
    sizes = [10, LARGE, 10, LARGE, 10]
    batches = [batch(2, size, producer=9, sequence=2 * number) for number, size in enumerate(sizes)]
    appends = [one.log.append(partition, header(data), data) for data in batches]
    assert await settled(appends) == [(0, 0), (0, 2), (0, 4), (0, 6), (0, 8)]
    assert split(await one.read(partition, 0)) == stored(*zip([0, 2, 4, 6, 8], batches, strict=True))


@pytest.mark.parametrize("is_answered", [False, True])
async def test_batch_does_not_take_the_place_of_its_producers_first_that_was_lost(
    one: Front, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """A client that hears that the second is stored counts the first as stored, too.

    :param is_answered: whether the first one's answer comes before the second is sent, but nobody has seen it yet.
    """
    partition = await one.partition()
    lose_next_temporary_key(one, monkeypatch)
    batches = [batch(2, size, producer=9, sequence=2 * number) for number, size in enumerate([LARGE, 10])]
    appends = []
    for data in batches:
        appends.append(one.log.append(partition, header(data), data))
        if is_answered:
            await asyncio.wait([appends[-1].reply])
    assert await settled(appends) == [(0, 0), (0, 2)]


async def test_batches_that_found_no_keys_are_appended_in_order(one: Front) -> None:
    partition = await one.partition()
    await one.store.call(Purpose.APPEND, partition.keys.log, "DEL", *partition.keys)
    batches = [batch(2, size) for size in (10, LARGE, 10)]
    appends = [one.log.append(partition, header(data), data) for data in batches]
    assert await settled(appends) == [(0, 0), (0, 2), (0, 4)]
    assert [data for _, _, _, data in split(await one.read(partition, 0))] == [data[16:] for data in batches]
    assert partition.repairing == 0


async def test_batch_waits_for_one_before_it_whose_keys_could_not_be_made(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await one.partition()
    await one.store.call(Purpose.APPEND, partition.keys.log, "DEL", *partition.keys)
    restore = one.log.restore

    async def away(_: Partition) -> bool:
        monkeypatch.setattr(one.log, "restore", restore)
        raise StoreUnavailable("away")

    monkeypatch.setattr(one.log, "restore", away)
    first, second = (batch(2, producer=9, sequence=sequence) for sequence in (0, 2))
    appends = [one.log.append(partition, header(data), data) for data in (first, second)]
    with pytest.raises(StoreUnavailable):
        await appends[0]
    assert await settled(appends[1:]) == [(OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    assert [await one.append(partition, data) for data in (first, second)] == [(0, 0), (0, 2)]


async def test_batch_waits_for_a_repaired_one_whose_slot_moves(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await one.partition()
    await one.store.call(Purpose.APPEND, partition.keys.log, "DEL", *partition.keys)
    first, second = (batch(2, producer=9, sequence=sequence) for sequence in (0, 2))
    appends = [one.log.append(partition, header(data), data) for data in (first, second)]
    fcall = one.store.fcall

    def moving(purpose: Purpose, function: str, keys: Sequence[str], *args: Argument) -> asyncio.Future[Any]:
        if function != "korvet_log_append":
            return fcall(purpose, function, keys, *args)
        monkeypatch.setattr(one.store, "fcall", fcall)
        failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        failed.set_exception(SlotMoving("TRYAGAIN"))
        return failed

    monkeypatch.setattr(one.store, "fcall", moving)
    with pytest.raises(SlotMoving):
        await appends[0]
    assert await settled(appends[1:]) == [(OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    assert [await one.append(partition, data) for data in (first, second)] == [(0, 0), (0, 2)]


async def test_gap_that_the_producer_itself_makes_stays_refused(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(2, producer=9, sequence=0))
    assert await one.append(partition, batch(2, producer=9, sequence=6)) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


# ---------------------------------------------------------------------- offsets by time


@pytest.mark.parametrize("size", [10, LARGE])
async def test_offsets_by_time_are_exact_to_the_record(one: Front, size: int) -> None:
    partition = await one.partition()
    log: Log = one.log
    assert await log.offset_for_time(partition, MAX_TIMESTAMP) == NOTHING
    for timestamp in (5000, 1000, 6000):
        await one.append(partition, batch(3, size, timestamp=timestamp))
    asked = {timestamp: await log.offset_for_time(partition, timestamp) for timestamp in (0, 5001, 5021, 6020, 6021)}
    assert asked == {0: (0, 5000, 0), 5001: (1, 5010, 0), 5021: (6, 6000, 0), 6020: (8, 6020, 0), 6021: NOTHING}
    assert await log.offset_for_time(partition, MAX_TIMESTAMP) == (8, 6020, 0)


async def test_offsets_by_time_pass_over_records_below_the_log_start(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(3, timestamp=5000))
    for _ in range(120):
        await one.append(partition, batch(1, timestamp=1000))
    await one.append(partition, batch(1, timestamp=4000))
    await one.log.trim(partition, 2)
    assert await one.log.offset_for_time(partition, 5000) == (2, 5020, 0)
    await one.log.trim(partition, 3)
    assert await one.log.offset_for_time(partition, 5000) == NOTHING
    assert await one.log.offset_for_time(partition, 3000) == (123, 4000, 0)
    assert await one.log.offset_for_time(partition, MAX_TIMESTAMP) == (123, 4000, 0)
