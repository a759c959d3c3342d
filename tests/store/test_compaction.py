"""Compaction on real servers: the records that stay, their offsets, and the leftovers of an interrupted run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from korvet.redis.client import Purpose
from korvet.store.background.compaction.due import Compaction
from korvet.store.background.compaction.run import compact
from korvet.store.background.retention import Retention, enforce
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import ZSTD
from korvet.wire.compacted import delete_horizon_ms
from korvet.wire.records import first_at_or_after
from tests.store.keyed import Pair, Read, all_values, batches, keyed, records
from tests.store.logs import LARGE, Front, header
from tests.support.ported import kafka

pytestmark = pytest.mark.anyio
NOW_MS = 1_700_000_000_000
ALWAYS = Compaction(min_lag_ms=0, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=1000)


async def fill(front: Front, partition: Partition, *all_pairs: Sequence[Pair], codec: int = 0) -> None:
    for pairs in all_pairs:
        assert (await front.append(partition, keyed(*pairs, codec=codec)))[0] == 0


async def read_all(front: Front, partition: Partition, offset: int = 0) -> list[Read]:
    """All records from an offset on, read from Redis."""
    front.log.cache.clear()
    front.log.forget()
    return [record for record in records(await front.read(partition, offset)) if record[0] >= offset]


async def keys_of(front: Front, partition: Partition) -> set[str]:
    """The names of the partition's keys, from the last colon on."""
    prefix = partition.keys.log.removesuffix("log")
    cursor: Any = b"0"
    names: set[str] = set()
    while True:
        cursor, found = await front.store.call(
            Purpose.READ, prefix, "SCAN", cursor, "MATCH", prefix.replace("[", "\\[") + "*", "COUNT", 1000
        )
        names |= {name.decode().removeprefix(prefix) for name in found}
        if cursor == b"0":
            return names


UNIT = {"log", "meta", "producers", "open", "aborted", "transactions"}


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("size", [1, LARGE])
async def test_last_value_of_each_key_keeps_its_offset(one: Front, codec: int, size: int) -> None:
    partition = await one.partition()
    await fill(
        one, partition,
        [(b"a", b"1" * size), (b"b", b"1" * size), (b"c", b"1" * size)],
        [(b"a", b"2" * size)],
        [(b"b", b"2" * size), (b"d", b"1" * size)],
        [(b"d", b"2" * size)],
        codec=codec,
    )  # fmt: skip
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    # Compaction does not reach the last batch, so its keys do not replace older ones.
    left = [(2, b"c", b"1" * size), (3, b"a", b"2" * size), (4, b"b", b"2" * size), (5, b"d", b"1" * size)]
    last = [(6, b"d", b"2" * size)]
    for offset in range(8):
        assert await read_all(one, partition, offset) == [record for record in left + last if record[0] >= offset]
    read = await one.read(partition, 0)
    assert [(batch.base_offset, batch.last_offset_delta) for batch, _ in batches(read)] == [
        (0, 2),
        (3, 0),
        (4, 1),
        (6, 0),
    ]
    assert not await compact(one.log, partition, ALWAYS, NOW_MS)
    names = await keys_of(one, partition)
    assert {name for name in names if not name.startswith("log:")} == UNIT
    assert "log:spare" not in names


# ---------------------------------------------------------------------- tombstones, lags, shares


def at(delete_retention_ms: int = 1000, **changed: Any) -> Compaction:
    return replace(ALWAYS, delete_retention_ms=delete_retention_ms, **changed)


async def seen(front: Front, partition: Partition) -> list[tuple[int, bytes | None, bytes | None]]:
    """All records except the ones that `end_with` appends."""
    return [record for record in await read_all(front, partition) if record[1] != END]


END = b"end"


async def end_with(front: Front, partition: Partition) -> None:
    """Append one more batch: compaction reaches all batches before it, and they are dirty."""
    await fill(front, partition, [(END, b"")])


@kafka("LogCleanerTest.testCleaningWithDeletes")
@pytest.mark.parametrize("codec", [0, 4])
async def test_tombstone_stays_for_its_time_after_compaction_first_saw_it(one: Front, codec: int) -> None:
    partition = await one.partition()
    await fill(one, partition, [(b"a", b"1"), (b"b", b"1")], [(b"a", None), (b"c", b"1")], codec=codec)
    await end_with(one, partition)
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    kept = [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    assert await seen(one, partition) == kept
    # The tombstone's record keeps its own time; the batch holds the time at which the tombstone may go.
    (_, (batch, data), *_) = batches(await one.read(partition, 0))
    assert delete_horizon_ms(batch) == NOW_MS + 1000
    assert first_at_or_after(batch, data, 1000) == (0, 1000)
    await end_with(one, partition)
    assert await compact(one.log, partition, ALWAYS, NOW_MS + 999)
    assert await seen(one, partition) == kept
    await end_with(one, partition)
    assert await compact(one.log, partition, ALWAYS, NOW_MS + 1000)
    assert await seen(one, partition) == [(1, b"b", b"1"), (3, b"c", b"1")]


@kafka("LogCleanerManagerTest.testCleanableOffsetsForTime")
async def test_young_batches_are_out_of_reach(one: Front) -> None:
    partition = await one.partition()
    for timestamp in (NOW_MS - 5000, NOW_MS - 4000, NOW_MS - 1000, NOW_MS - 3000):
        assert (await one.append(partition, keyed((b"a", b""), timestamp=timestamp)))[0] == 0
    await end_with(one, partition)
    settings = at(min_lag_ms=1000)
    # Compaction stops at the first young batch, even if later batches are old.
    assert await compact(one.log, partition, at(min_lag_ms=1001), NOW_MS)
    assert await seen(one, partition) == [(1, b"a", b""), (2, b"a", b""), (3, b"a", b"")]
    assert await compact(one.log, partition, settings, NOW_MS)
    assert await seen(one, partition) == [(3, b"a", b"")]


async def test_share_of_dirty_bytes_decides_unless_a_batch_is_too_old(one: Front) -> None:
    partition = await one.partition()
    await fill(one, partition, *([(b"%d" % at, b"")] for at in range(6)))
    await end_with(one, partition)
    assert await compact(one.log, partition, at(min_dirty_ratio=0.5), NOW_MS)
    await fill(one, partition, *([(b"%d" % at, b"")] for at in range(3)))
    # Six batches are clean; compaction can clean three: the former last one and two more.
    assert not await compact(one.log, partition, at(min_dirty_ratio=0.5), NOW_MS)
    assert not await compact(one.log, partition, at(min_dirty_ratio=0.5, max_lag_ms=NOW_MS - 1000), NOW_MS)
    assert await compact(one.log, partition, at(min_dirty_ratio=0.5, max_lag_ms=NOW_MS - 1001), NOW_MS)
    # Compaction does not reach the last batch.
    assert [offset for offset, *_ in await seen(one, partition)] == [2, 3, 4, 5, 7, 8, 9]


# ---------------------------------------------------------------------- keys beside the log


async def test_positions_lags_sizes_and_times_stay_right(one: Front) -> None:
    partition = await one.partition()
    for number in range(10):
        data = keyed((b"%d" % (number % 2), b"v" * 10 * number), timestamp=1000 + number)
        assert (await one.append(partition, data))[0] == 0
    keys = (*partition.keys,)
    for group, offset in (("old", 3), ("new", 9), ("end", 10)):
        args = (partition.topic_id, group, offset, "keep")
        assert await one.store.fcall(Purpose.APPEND, "korvet_log_attach", keys, *args) == [0]
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    read = await one.read(partition, 0)
    assert [batch.base_offset for batch, _ in batches(read)] == [7, 8, 9]
    described = await one.store.fcall(Purpose.READ, "korvet_log_describe", keys[:2])
    found = dict(zip(described[1::2], described[2::2], strict=True))
    assert (found[b"batches"], found[b"bytes"]) == (3, sum(len(data) for _, data in batches(read)))
    groups = {group[1]: (group[3], group[5], group[7]) for group in found[b"groups"]}
    assert groups == {b"old": (b"3", 7, 3), b"new": (b"9", 1, 1), b"end": (b"10", 0, 0)}
    shown = await one.store.call(Purpose.READ, keys[0], "XINFO", "GROUPS", keys[0])
    lags = {dict(zip(flat[::2], flat[1::2], strict=True))[b"name"]: flat[-1] for flat in shown}
    assert lags == {b"old": 3, b"new": 1, b"end": 0}
    for timestamp, offset in ((1000, 7), (1007, 7), (1008, 8), (1009, 9), (1010, -1), (-3, 9)):
        timed = await one.log.offset_for_time(partition, timestamp)
        assert timed is not None
        assert timed.offset == offset
    assert (await one.append(partition, keyed((b"x", b""))))[1] == 10


@kafka("LogCleanerTest.testDuplicateCheckAfterCleaning")
async def test_producers_are_still_known(one: Front) -> None:
    partition = await one.partition()
    sent = [
        keyed(*((b"%d" % key, b"") for key in keys), producer=(producer, 0, 0))
        for producer, keys in ((1, (1, 2, 3)), (2, (3, 1, 4)), (3, (1, 4)))
    ]
    for data in sent:
        await one.append(partition, data)
    await end_with(one, partition)
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    assert [(offset, key) for offset, key, _ in await seen(one, partition)] == [
        (1, b"2"), (3, b"3"), (6, b"1"), (7, b"4"),
    ]  # fmt: skip
    assert [await one.append(partition, data) for data in sent] == [(0, 0), (0, 3), (0, 6)]
    await one.append(partition, keyed((b"2", b""), producer=(4, 0, 0)))
    await end_with(one, partition)
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    assert [key for _, key, _ in await seen(one, partition)] == [b"3", b"1", b"4", b"2"]
    assert await one.append(partition, sent[0]) == (0, 0)


async def test_retention_by_size_counts_the_bytes_that_compaction_left(one: Front) -> None:
    partition = await one.partition()
    for number in range(20):
        await fill(one, partition, [(b"%d" % (number % 10), b"v" * 100)])
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    sizes = [len(data) for _, data in batches(await one.read(partition, 0))]
    assert len(sizes) == 11
    await enforce(one.log, partition, Retention(ms=-1, bytes=sum(sizes[4:])), NOW_MS)
    left = batches(await one.read(partition, (await one.log.meta(partition)).start))  # type: ignore[union-attr]
    assert [len(data) for _, data in left] == sizes[4:]
    await enforce(one.log, partition, Retention(ms=NOW_MS, bytes=-1), 2 * NOW_MS)
    assert (await one.log.meta(partition)).start == 20  # type: ignore[union-attr]
    assert await keys_of(one, partition) == UNIT


# ---------------------------------------------------------------------- bounds


@kafka("LogCleanerTest.testBuildPartialOffsetMap", "LogCleanerTest.testPartialSegmentClean")
async def test_more_keys_than_a_run_has_room_for_take_several_runs(one: Front) -> None:
    partition = await one.partition()
    await fill(one, partition, *([(b"%d" % (number % 8), b"%d" % number)] for number in range(16)))
    await end_with(one, partition)
    settings = at(most_keys=3)
    runs = 0
    while await compact(one.log, partition, settings, NOW_MS):
        runs += 1
        assert all_values(await seen(one, partition)) == {b"%d" % key: b"%d" % (key + 8) for key in range(8)}
    assert runs == 6
    assert [offset for offset, *_ in await seen(one, partition)] == list(range(8, 16))


@pytest.mark.parametrize("size", [1, LARGE])
async def test_more_new_batches_than_memory_holds_take_several_runs(one: Front, size: int) -> None:
    partition = await one.partition()
    for number in range(250):
        await fill(one, partition, [(b"kept %d" % number, b""), (b"%d" % (number % 2), b"v" * size)])
    await end_with(one, partition)
    while await compact(one.log, partition, at(most_plan_bytes=1), NOW_MS):
        pass
    read = await seen(one, partition)
    assert [offset for offset, key, _ in read if len(key or b"") == 1] == [497, 499]
    assert len(read) == 252
    names = await keys_of(one, partition)
    assert names >= UNIT
    assert len(names - UNIT) == (2 if size == LARGE else 0)


async def test_log_that_grows_by_its_first_compaction_keeps_its_sums(one: Front) -> None:
    """No record goes here, and the batches of tombstones grow: with a horizon their times take more room."""
    partition = await one.partition()
    await fill(one, partition, *([(b"%d" % number, None)] for number in range(150)))
    await end_with(one, partition)
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    described = await one.store.fcall(Purpose.READ, "korvet_log_describe", partition.keys[:2])
    found = dict(zip(described[1::2], described[2::2], strict=True))
    left = batches(await one.read(partition, 0))
    assert (found[b"batches"], found[b"bytes"]) == (151, sum(len(data) for _, data in left))
    assert (await one.append(partition, keyed((b"x", b""))))[1] == 151


async def test_unreadable_batch_stays(one: Front) -> None:
    partition = await one.partition()
    broken = bytearray(keyed((b"a", b"lost"), (b"b", b"")))
    broken[61] = 0x7E
    await fill(one, partition, [(b"a", b"1")])
    batch = header(bytes(broken))
    assert (await one.log.append(partition, batch, bytes(broken))).code == 0
    await fill(one, partition, [(b"a", b"2")])
    await end_with(one, partition)
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    data = b"".join(bytes(part) for part in (await one.read(partition, 0)).records)
    assert bytes(broken)[16:] in data
    assert b"1" not in data[61:70]


async def test_tombstone_stays_after_an_unreadable_batch(one: Front) -> None:
    """The unreadable batch may hold an older value of the key. Clients read batches over korvet's limit of 64 MiB."""
    partition = await one.partition()
    assert await one.append(partition, keyed((b"a", b"kept"), attributes=ZSTD)) == (0, 0)
    await fill(one, partition, [(b"a", None)])
    for late_ms in (0, 1000, 2000):
        await end_with(one, partition)
        assert await compact(one.log, partition, ALWAYS, NOW_MS + late_ms)
    assert [batch.base_offset for batch, _ in batches(await one.read(partition, 0))][:2] == [0, 1]
