"""Entries and batches that the log keeps for readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from korvet.codes import OFFSET_OUT_OF_RANGE
from korvet.redis.client import Argument, Purpose
from korvet.store.catalog.topic import Topic
from korvet.store.keys import Namespace
from korvet.store.log.memory import cache
from korvet.store.log.memory.cache import BatchCache
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.store.log.reading import read
from korvet.store.log.state.entries import Entry
from korvet.store.log.state.partition import Meta, Partition
from tests.store.logs import EVERYTHING, LARGE, Front, batch, header, messages_held, offsets, split, stored, until

pytestmark = pytest.mark.anyio

LIMIT = LARGE + 1000
"""Room for one batch and not for two."""


def noted(one: Front, monkeypatch: pytest.MonkeyPatch, name: str, at: int) -> list[str]:
    """An argument of each command of a name that the front-end sends from now on."""
    asked: list[str] = []
    call: Callable[..., asyncio.Future[Any]] = one.store.call

    def noting(purpose: Purpose, key: str, *command: Argument) -> asyncio.Future[Any]:
        asked.extend([str(command[at])] if command[0] == name else [])
        return call(purpose, key, *command)

    monkeypatch.setattr(one.store, "call", noting)
    return asked


@pytest.fixture
def ranges(one: Front, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids from which the front-end reads entries."""
    return noted(one, monkeypatch, "XRANGE", 2)


@pytest.fixture
def gets(one: Front, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of placed batches that the front-end reads."""
    return noted(one, monkeypatch, "GET", 1)


async def lagging(one: Front, count: int, size: int = LARGE) -> tuple[Partition, list[bytes]]:
    """A partition of placed batches whose channel is subscribed; the front-end has no batch in memory."""
    partition = await one.partition()
    appended = [batch(1, size + number) for number in range(count)]
    for data in appended:
        await one.append(partition, data)
    one.log.cache.clear()
    await until(lambda: one.wakeups.keep(partition.channel))
    return partition, appended


# ---------------------------------------------------------------------- the bound


def unread() -> Partition:
    topic = Topic(name="t", id=uuid4(), partitions=1, configs={})
    return Partition(topic, 0, Namespace().transaction_log("t", 0))


def add(kept: BatchCache, partition: Partition, base: int, size: int = 800) -> None:
    entry = Entry(base + 1, 1, size, 0, None, base + 1)
    kept.add(partition, base, entry, bytes(size), since=partition.since, epoch=partition.epoch, is_settled=True)


def run(kept: BatchCache, partition: Partition, until: int, *, is_committed: bool = False) -> cache.Run | None:
    return kept.run(partition, 0, until, EVERYTHING, must=True, is_committed=is_committed)


async def test_oldest_batches_are_dropped_over_the_budget() -> None:
    budget = 3 * (800 + cache.ENTRY_BYTES)
    kept, one, other = BatchCache(budget), unread(), unread()
    for base in range(10):
        add(kept, one if base % 2 else other, base)
        assert kept.size_bytes <= budget
    assert [base for base in range(10) if kept.next(one if base % 2 else other, base)] == [7, 8, 9]


@pytest.mark.parametrize("is_read", [True, False])
async def test_batch_that_was_used_last_is_dropped_last(is_read: bool) -> None:
    kept, one = BatchCache(3 * (800 + cache.ENTRY_BYTES)), unread()
    for base in range(3):
        add(kept, one, base)
    if is_read:
        assert run(kept, one, 1) is not None
    else:
        assert kept.get(one, 0, Entry(1, 1, 800, 0, None, 1), is_shared=False) is not None
    add(kept, one, 3)
    assert [base for base in range(4) if kept.next(one, base)] == [0, 2, 3]


@pytest.mark.parametrize("attribute", ["since", "epoch"])
async def test_entry_is_as_current_as_the_ends(attribute: str) -> None:
    kept, one = BatchCache(10_000), unread()
    add(kept, one, 0)
    assert run(kept, one, 1) is not None
    setattr(one, attribute, getattr(one, attribute) + 1)
    assert (run(kept, one, 1), kept.next(one, 0)) == (None, None)


@pytest.mark.parametrize(("stable", "last_aborted", "settled"), [(2, -1, 2), (1, -1, 1), (2, 0, 0), (2, 1, 0)])
async def test_entry_is_settled_between_aborted_and_open_transactions(
    stable: int, last_aborted: int, settled: int
) -> None:
    kept, one = BatchCache(10_000), unread()
    one.epoch, entries = 3, [Entry(base + 1, 1, 800, 0, None, base + 1) for base in range(2)]
    kept.learn(one, 0, entries, Meta(0, 2, 3, b"", stable, last_aborted, -1), one.since)
    assert [run(kept, one, until, is_committed=True) is not None for until in (1, 2)] == [settled > 0, settled > 1]
    # A later read that knows less takes nothing back, unless in another history.
    kept.learn(one, 0, entries, Meta(0, 2, 3, b"", stable, 2, -1), one.since)
    assert (run(kept, one, 1, is_committed=True) is not None) == (settled > 0)
    one.epoch = 4
    kept.learn(one, 0, entries, Meta(0, 2, 4, b"", stable, 2, -1), one.since)
    assert run(kept, one, 1, is_committed=True) is None


async def test_batch_that_was_read_ahead_stays_once_followers_may_come() -> None:
    kept, one, entry = BatchCache(10_000), unread(), Entry(1, 1, 800, 0, None, 1)
    kept.learn(one, 0, [entry], Meta(0, 1, -1, b"", 1, -1, -1), one.since)
    learned = kept.next(one, 0)
    assert learned is not None
    kept.read_ahead(learned, asyncio.get_running_loop().create_future())
    assert kept.ahead_bytes == 800
    add(kept, one, 0)
    assert kept.ahead_bytes == 0
    assert kept.get(one, 0, entry, is_shared=False) is not None
    assert kept.next(one, 0) is not None


async def test_another_entry_takes_the_place_of_the_former() -> None:
    kept, one = BatchCache(10_000), unread()
    for size in (800, 900):
        add(kept, one, 0, size)
        found = kept.next(one, 0)
        assert found is not None
        assert found.batch == bytes(size)
        assert kept.size_bytes == size + cache.ENTRY_BYTES


async def test_batch_that_is_added_twice_counts_once() -> None:
    kept, one = BatchCache(10_000), unread()
    for _ in range(10):
        add(kept, one, 5)
    assert kept.size_bytes == 800 + cache.ENTRY_BYTES
    kept.clear()
    assert (kept.size_bytes, kept.next(one, 5)) == (0, None)


@pytest.mark.parametrize("budget", [0, 3000])
async def test_batch_larger_than_the_budget_is_not_kept(budget: int) -> None:
    kept, one = BatchCache(budget), unread()
    add(kept, one, 0, 8000)
    assert (kept.size_bytes, kept.next(one, 0)) == (0, None)


async def test_read_ahead_stays_within_the_budget(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one.log.cache, "_budget_bytes", cache.AHEAD_SHARE * 3 * LARGE)
    partition, share = await one.partition(), one.log.answers.share()
    for _ in range(8):
        await one.append(partition, batch(1, LARGE))
    for number in range(4):
        await one.read(partition, 2 * number, max_bytes=LARGE, share=share)
        share.let_go()
    assert one.log.cache.ahead_bytes // LARGE == 2
    one.log.forget()
    assert (one.log.cache.size_bytes, one.log.cache.ahead_bytes) == (0, 0)


async def test_what_no_reader_comes_for_is_forgotten(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEPT_S", 0.01)
    monkeypatch.setattr(cache, "MOST_ENTRIES", 1)
    partition, _ = await lagging(one, 3)
    await one.read(partition, 0, max_bytes=LARGE)
    await until(lambda: not one.log.cache.size_bytes)


# ---------------------------------------------------------------------- entries


async def test_lagging_reader_seldom_reads_entries_in_redis(one: Front, ranges: list[str]) -> None:
    partition, appended = await lagging(one, 60)
    for number, data in enumerate(appended):
        found = await one.read(partition, number, max_bytes=LIMIT)
        assert split(found) == stored((number, data))
        assert (found.high_watermark, found.log_start) == (60, 0)
    # The first read knows no size, and asks for many.
    assert len(ranges) <= 6


async def test_answer_out_of_memory_is_as_long_as_one_out_of_redis(one: Front, ranges: list[str]) -> None:
    partition, _ = await lagging(one, 40)
    await one.read(partition, 0, max_bytes=LIMIT)
    ranges.clear()
    assert offsets(await one.read(partition, 1, max_bytes=3 * LIMIT)) == [1, 2, 3]
    assert ranges == []
    # Redis has more behind the last known entry.
    assert offsets(await one.read(partition, 4, max_bytes=EVERYTHING)) == [*range(4, 40)]
    assert len(ranges) == 1


async def test_answer_out_of_memory_has_a_bounded_number_of_batches(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small they are. A reader that waits for more bytes gets them at once, as out of Redis."""
    for module in (cache, read):
        monkeypatch.setattr(module, "MOST_ENTRIES", 3)
    partition = await one.partition()
    await until(lambda: one.wakeups.keep(partition.channel))
    await one.read(partition, 0)
    for _ in range(5):
        await one.append(partition, batch(1, 100))
    before = one.log.reads.memory
    for offset, expected in ((0, [0, 1, 2]), (2, [2, 3, 4]), (3, [3, 4])):
        found = await one.read(partition, offset)
        assert offsets(found) == expected
        assert found.is_cut == (expected[-1] < 4)
    assert one.log.reads.memory == before + 3


async def test_lagging_reader_gets_to_the_end_out_of_memory(one: Front, ranges: list[str]) -> None:
    partition, _ = await lagging(one, 12)
    await one.read(partition, 0, max_bytes=LIMIT)
    ranges.clear()
    assert offsets(await one.read(partition, 1, max_bytes=EVERYTHING)) == [*range(1, 12)]
    assert ranges == []


async def test_reader_below_the_start_is_refused_after_a_trim(one: Front, other: Front, ranges: list[str]) -> None:
    partition, _ = await lagging(one, 10)
    await one.read(partition, 0, max_bytes=LIMIT)
    since = one.wakeups.since(partition.channel)
    await other.catalog.refresh()
    await other.log.trim(other.known(partition), 8)
    await until(lambda: one.wakeups.since(partition.channel) != since)
    assert (await one.read(partition, 1, max_bytes=LIMIT)).code == OFFSET_OUT_OF_RANGE
    assert offsets(await one.read(partition, 8, max_bytes=LIMIT)) == [8]


async def test_batch_that_a_trim_removed_meanwhile_is_read_anew(one: Front, other: Front) -> None:
    partition, _ = await lagging(one, 10)
    await one.read(partition, 0, max_bytes=LIMIT)
    kept = one.log.cache.next(partition, 1)
    assert kept is not None
    kept.batch = None
    await other.catalog.refresh()
    with messages_held(one, partition):
        await other.log.trim(other.known(partition), 8)
        assert (await one.read(partition, 1, max_bytes=LIMIT)).code == OFFSET_OUT_OF_RANGE


async def test_entries_of_a_former_epoch_are_not_used(one: Front, ranges: list[str]) -> None:
    partition, _ = await lagging(one, 10)
    await one.read(partition, 0, max_bytes=LIMIT)
    assert one.log.cache.next(partition, 1) is not None
    ranges.clear()
    partition.note(partition.epoch + 1, 10, 0)
    assert one.log.cache.next(partition, 1) is None
    one.log.forget()
    assert offsets(await one.read(partition, 1, max_bytes=LIMIT)) == [1]
    assert ranges == ["2-0"]


async def test_append_of_a_lost_history_says_nothing_about_the_end(one: Front) -> None:
    """Its reply has come, and its request's turn comes after the server was found to write another history."""
    partition = await one.partition()
    await until(lambda: one.wakeups.keep(partition.channel))
    await one.read(partition, 0)
    data = batch(1, 100)
    appending = one.log.append(partition, header(data), data)
    await until(lambda: appending.reply.done() and one.wakeups.latest(partition.channel) == b"0 1")
    one.log.forget()
    await appending
    assert not one.log.stands_at_end(Want(partition, 1, LIMIT))


async def test_newest_ends_are_answered_with_known_entries(one: Front, ranges: list[str]) -> None:
    partition, _ = await lagging(one, 10)
    await one.read(partition, 0, max_bytes=LIMIT)
    ranges.clear()
    await one.append(partition, batch(1, LARGE))
    await until(lambda: one.wakeups.latest(partition.channel) == b"0 11")
    assert (await one.read(partition, 1, max_bytes=LIMIT)).high_watermark == 11
    assert ranges == []


async def test_committed_reader_calls_redis_if_an_aborted_transaction_may_be_there(
    one: Front, ranges: list[str]
) -> None:
    partition, _ = await lagging(one, 6)
    await one.read(partition, 0, max_bytes=LIMIT)
    ranges.clear()
    for is_settled in (True, False):
        kept = one.log.cache.next(partition, 1)
        assert kept is not None
        kept.is_settled = is_settled
        want = Want(partition, 1, LIMIT, is_committed=True)
        (found,) = await one.log.read([want], EVERYTHING)
        assert offsets(found) == [1]
        assert len(ranges) == (not is_settled)
        await one.read(partition, 0, max_bytes=LIMIT)
        ranges.clear()


async def test_uncommitted_reader_takes_no_entry_for_settled(one: Front) -> None:
    partition, _ = await lagging(one, 6)
    await one.read(partition, 0, max_bytes=LIMIT)
    kept = one.log.cache.next(partition, 2)
    assert kept is not None
    kept.is_settled = False
    assert offsets(await one.read(partition, 1, max_bytes=LIMIT)) == [1]
    assert one.log.reads.entries == 1
    assert one.log.cache.next(partition, 2) is kept
    assert not kept.is_settled


async def test_reader_passes_a_gap_out_of_memory(one: Front, ranges: list[str], gets: list[str]) -> None:
    """Compaction leaves gaps between the offsets of batches."""
    partition, _ = await lagging(one, 4)
    await one.store.call(Purpose.APPEND, partition.keys.log, "XDEL", partition.keys.log, "3-0")
    share = one.log.answers.share()
    await one.read(partition, 0, max_bytes=LIMIT, share=share)
    ranges.clear()
    for number, base in ((1, 1), (2, 3), (2, 3)):
        assert offsets(await one.read(partition, number, max_bytes=LIMIT, share=share)) == [base]
    assert ranges == []
    assert len(gets) == len(set(gets)) == 3


async def test_partitions_fill_the_answer_in_the_order_of_the_request(one: Front) -> None:
    """A partition with news in memory keeps no batch back that is larger than its partition's limit (KIP-74)."""
    first, (large, *_) = await lagging(one, 2)
    second = await one.partition()
    await until(lambda: one.wakeups.keep(second.channel))
    await one.read(second, 0)
    small = batch(1, 100)
    await one.append(second, small)
    assert split(await one.read(second, 0)) == stored((0, small))
    assert one.log.reads.memory > 0
    reads = await one.log.read([Want(first, 0, 1), Want(second, 0, 1000)], EVERYTHING)
    assert [split(found) for found in reads] == [stored((0, large)), stored((0, small))]


async def test_entries_that_hold_their_batches_are_not_kept(one: Front) -> None:
    partition = await one.partition()
    for _ in range(5):
        await one.append(partition, batch(1, 3000))
    one.log.cache.clear()
    await until(lambda: one.wakeups.keep(partition.channel))
    await one.read(partition, 0, max_bytes=4000)
    assert one.log.cache.size_bytes == 0


# ---------------------------------------------------------------------- batches


async def test_batches_that_stay_after_a_trim_are_not_read_again(
    one: Front, other: Front, ranges: list[str], gets: list[str]
) -> None:
    partition, _ = await lagging(one, 4)
    assert offsets(await one.read(partition, 0)) == [0, 1, 2, 3]
    since = one.wakeups.since(partition.channel)
    await other.catalog.refresh()
    await other.log.trim(other.known(partition), 2)
    await until(lambda: one.wakeups.since(partition.channel) != since)
    ranges.clear()
    gets.clear()
    assert offsets(await one.read(partition, 2)) == [2, 3]
    assert (ranges, gets) == (["3-0"], [])


async def test_batch_is_read_ahead_before_its_reader_comes(one: Front, gets: list[str]) -> None:
    partition = await one.partition()
    appended = [batch(1, LARGE + number) for number in range(6)]
    for data in appended:
        await one.append(partition, data)
    keys = [f"{partition.keys.log}:{number + 1}" for number in range(6)]
    for number, data in enumerate(appended):
        found = await one.read(partition, number, max_bytes=LARGE)
        assert split(found) == stored((number, data))
        # The log asks for each batch once, together with the batch before it.
        assert gets == keys[: number + 2]
    assert split(await one.read(partition, 1, max_bytes=LARGE)) == stored((1, appended[1]))


async def test_batch_read_ahead_serves_only_its_own_entry(one: Front) -> None:
    partition = await one.partition()
    former, later = batch(1, LARGE), batch(1, LARGE, timestamp=2000)
    for _ in range(3):
        await one.append(partition, former)
    assert offsets(await one.read(partition, 0, max_bytes=LARGE)) == [0]
    # The key and size are the same, in an epoch of another history.
    log = partition.keys.log
    await one.store.call(Purpose.APPEND, log, "DEL", log)
    await one.store.call(Purpose.APPEND, log, "SET", f"{log}:2", later)
    for number in range(2, 4):
        index = f"1 {len(later)} 2000 2000 0 0 7 0"
        await one.store.call(Purpose.APPEND, log, "XADD", log, f"{number}-0", "i", index)
    ((offset, epoch, _, data),) = split(await one.read(partition, 1, max_bytes=LARGE))
    assert (offset, epoch, data) == (1, 7, later[16:])


async def test_batch_missing_from_a_read_ahead_is_read_again(one: Front) -> None:
    partition = await one.partition()
    for _ in range(2):
        await one.append(partition, batch(1, LARGE))
    key = f"{partition.keys.log}:2"
    await one.store.call(Purpose.READ, key, "RENAME", key, f"{key}.away")
    await one.read(partition, 0, max_bytes=LARGE)
    # The key comes back after Redis answered the GET, which found nothing.
    await one.store.call(Purpose.READ, key, "RENAME", f"{key}.away", key)
    assert offsets(await one.read(partition, 1, max_bytes=LARGE)) == [1]


@pytest.mark.parametrize("size", [LARGE, 300_000])
async def test_readers_of_one_partition_call_redis_once(one: Front, gets: list[str], size: int) -> None:
    partition, appended = await lagging(one, 6, size)

    async def read_all() -> None:
        share = one.log.answers.share()
        for number, data in enumerate(appended):
            found = await one.read(partition, number, max_bytes=size, share=share)
            assert split(found) == stored((number, data))
            share.let_go()

    await asyncio.gather(*(read_all() for _ in range(8)))
    # The first reader asks alone: the front-end does not know yet of the other readers.
    assert len(gets) <= len(appended) + 1
    assert one.log.cache.size_bytes > 0


async def test_batches_of_one_reader_are_not_kept(one: Front) -> None:
    partition, appended = await lagging(one, 6)
    share = one.log.answers.share()
    for number in range(len(appended)):
        await one.read(partition, number, max_bytes=LARGE, share=share)
        share.let_go()
    # The last one is at the end, where followers may come for it.
    assert one.log.cache.size_bytes == len(appended[-1]) + cache.ENTRY_BYTES


async def followers(one: Front, other: Front, count: int) -> tuple[Partition, list[asyncio.Task[PartitionRead]]]:
    """Readers that have just begun to read what another front-end appended, and wait for Redis."""
    partition = await one.partition()
    await other.catalog.refresh()
    await until(lambda: one.wakeups.keep(partition.channel))
    await one.read(partition, 0)
    await other.append(other.known(partition), batch(1, 100))
    await until(lambda: one.wakeups.latest(partition.channel) == b"0 1")
    readers = [asyncio.ensure_future(one.read(partition, 0, max_bytes=1)) for _ in range(count)]
    await asyncio.sleep(0)
    assert one.log.reads_in_flight
    return partition, readers


async def test_followers_of_another_front_end_call_redis_once(one: Front, other: Front, ranges: list[str]) -> None:
    partition, readers = await followers(one, other, 20)
    assert [offsets(found) for found in await asyncio.gather(*readers)] == [[0]] * 20
    assert ranges == ["1-0", "1-0"]
    assert offsets(await one.read(partition, 0)) == [0]
    assert len(ranges) == 2
    assert not one.log.reads_in_flight


async def test_follower_reads_anew_after_a_message(one: Front, other: Front) -> None:
    partition, readers = await followers(one, other, 2)
    subscriber = one.store.subscriber(partition.channel)
    assert subscriber is not None
    subscriber.on_push([b"smessage", partition.channel.encode(), b"0 2"])
    readers.append(asyncio.ensure_future(one.read(partition, 0, max_bytes=1)))
    await asyncio.sleep(0)
    assert len(one.log.reads_in_flight) == 2
    await asyncio.gather(*readers)


@pytest.mark.parametrize("attribute", ["start", "end", "marked_end", "epoch"])
async def test_reader_takes_no_reply_older_than_one_to_this_front_end(one: Front, other: Front, attribute: str) -> None:
    """A trim, an append or a marker here was answered; its message has not arrived."""
    partition, readers = await followers(one, other, 2)
    setattr(partition, attribute, getattr(partition, attribute) + 1)
    readers.append(asyncio.ensure_future(one.read(partition, 0)))
    await asyncio.sleep(0)
    assert len(one.log.reads_in_flight) == 2
    await asyncio.gather(*readers)


async def test_readers_that_hear_no_messages_call_one_by_one(one: Front, ranges: list[str]) -> None:
    partition = await one.partition()
    await asyncio.gather(one.read(partition, 0), one.read(partition, 0))
    assert len(ranges) == 2


async def test_follower_that_goes_away_takes_nothing_from_the_others(one: Front, other: Front) -> None:
    _, readers = await followers(one, other, 3)
    readers[0].cancel()
    assert [offsets(found) for found in await asyncio.gather(*readers[1:])] == [[0], [0]]
    assert readers[0].cancelled()


async def test_reader_that_goes_away_takes_nothing_from_the_others(one: Front) -> None:
    partition, appended = await lagging(one, 2, 300_000)
    await one.read(partition, 0, max_bytes=LARGE)
    readers = [asyncio.ensure_future(one.read(partition, 0)) for _ in range(3)]
    await until(lambda: one.log.fair_queues.under_way_bytes > 0)
    readers[0].cancel()
    for reader in readers[1:]:
        assert split(await reader) == stored(*enumerate(appended))
    assert readers[0].cancelled()


async def test_shared_batches_stay_within_the_budget(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one.log.cache, "_budget_bytes", 3 * (LARGE + 100))
    partition, appended = await lagging(one, 8)
    for _ in range(2):
        for number, data in enumerate(appended):
            assert split(await one.read(partition, number, max_bytes=LARGE)) == stored((number, data))
            assert one.log.cache.size_bytes <= 3 * (LARGE + 100)


async def test_shared_batch_that_was_trimmed_is_not_given(one: Front) -> None:
    partition, appended = await lagging(one, 3)
    for _ in range(2):
        await one.read(partition, 0)
    assert one.log.cache.size_bytes > 0
    await one.log.trim(partition, 2)
    assert (await one.read(partition, 0)).code == OFFSET_OUT_OF_RANGE
    assert split(await one.read(partition, 2)) == stored((2, appended[2]))


async def test_last_reader_that_goes_away_takes_nothing_from_the_others() -> None:
    kept, partition, coming = BatchCache(10_000), unread(), asyncio.get_running_loop().create_future()
    entry = Entry(1, 1, 100, 0, None, 1)
    kept.share(partition, 0, entry, coming)
    sharing, leaving = (kept.get(partition, 0, entry, is_shared=is_shared) for is_shared in (True, False))
    assert isinstance(sharing, asyncio.Future)
    assert isinstance(leaving, asyncio.Future)
    leaving.cancel()
    coming.set_result(b"batch")
    assert await sharing == b"batch"
