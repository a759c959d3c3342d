"""Damage in one partition's keys hurts that partition alone; the log line names the command that repairs it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from korvet.api.shared.data_failures import failure_code
from korvet.errors import DamagedLog, StoreError, forget_frames
from korvet.redis.client import Purpose
from korvet.store.background.compaction.due import Compaction
from korvet.store.background.compaction.run import compact
from korvet.store.background.maintenance import compact_all, enforce_retention
from korvet.store.background.retention import Retention, enforce
from korvet.store.capacity import log_bytes
from korvet.store.log.memory.room import Want
from korvet.store.log.reading.times import MAX_TIMESTAMP
from korvet.store.log.state.partition import Meta, Partition
from tests.store.keyed import keyed
from tests.store.logs import EVERYTHING, LARGE, NAMESPACE, Front, batch, codes, header, offsets
from tests.store.test_record_storage import append, partition_of
from tests.support.memory import MEGABYTE, collector_stopped, traced_memory
from tests.wire.whole import Whole

pytestmark = pytest.mark.anyio

CORRUPT, UNKNOWN_SERVER_ERROR, OUT_OF_RANGE, OUT_OF_ORDER = 2, -1, 1, 45
ALWAYS = Compaction(min_lag_ms=0, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=1000)


async def command(front: Front, *words: str | bytes) -> Any:
    return await front.store.call(Purpose.APPEND, str(words[1]), *words)


async def repair(front: Front, line: Mapping[str, Any]) -> Any:
    """Give Redis the command that a log line names; returns the reply."""
    _, *words = shlex.split(line["repair"])
    keys = words[3] if words[0] == "FCALL" else words[1]
    return await front.store.call(Purpose.APPEND, keys, *words)


async def test_stray_entry_stops_its_partition_alone_after_its_offset(one: Front) -> None:
    topic = await one.topic(2)
    bad, good = (one.log.partition(topic, index) for index in range(2))
    for partition in (bad, good):
        await one.append(partition, batch(3))
    await command(one, "XADD", bad.keys.log, "9-0", "foo", "bar")
    with capture_logs() as lines:
        reads = await one.log.read([Want(bad, 0, EVERYTHING), Want(good, 0, EVERYTHING)], EVERYTHING)
        assert ([offsets(read) for read in reads], codes(reads)) == ([[0], [0]], [0, 0])
        for _ in range(3):
            reads = await one.log.read([Want(bad, 3, EVERYTHING), Want(good, 0, EVERYTHING)], EVERYTHING)
            assert (offsets(reads[1]), codes(reads)) == ([0], [CORRUPT, 0])
    (line,) = lines
    assert (line["topic"], line["partition"], line["entry"]) == (topic.name, 0, "9-0")


async def test_logged_command_lets_appends_go_on_after_a_stray_entry(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(3))
    await command(one, "XADD", partition.keys.log, "9-0", "foo", "bar")
    with capture_logs() as lines:
        for _ in range(2):
            with pytest.raises(DamagedLog):
                await one.append(partition, batch(1))
    (line,) = lines
    assert line["entry"] == "9-0"
    assert await repair(one, line) == [0, 1]
    assert await one.append(partition, batch(1)) == (0, 3)
    assert offsets(await one.read(partition, 0)) == [0, 3]


async def test_logged_command_repairs_a_stray_entry_deleted_by_hand(one: Front) -> None:
    """The stream's last id stays above the log's end."""
    partition = await one.partition()
    await command(one, "XADD", partition.keys.log, "*", "foo", "bar")
    await command(one, "XTRIM", partition.keys.log, "MAXLEN", "0")
    with capture_logs() as lines, pytest.raises(DamagedLog):
        await one.append(partition, batch(1))
    assert await repair(one, lines[0]) == [0, 0]
    assert await one.append(partition, batch(1)) == (0, 0)


async def test_repair_leaves_the_lag_of_redis_groups_known(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(3))
    await command(one, "XGROUP", "CREATE", partition.keys.log, "g", "0", "ENTRIESREAD", "0")
    await command(one, "XADD", partition.keys.log, "9-0", "foo", "bar")
    keys = (partition.keys.log, partition.keys.meta)
    assert await one.store.fcall(Purpose.APPEND, "korvet_log_repair", keys, "9-0") == [0, 1]
    (group,) = await command(one, "XINFO", "GROUPS", partition.keys.log)
    assert group[-1] == 1


async def test_reader_steps_over_a_repaired_stray_entry(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(3))
    await command(one, "XADD", partition.keys.log, "4-0", "foo", "bar")
    assert await one.append(partition, batch(2)) == (0, 3)
    with capture_logs() as lines:
        assert offsets(await one.read(partition, 0)) == [0]
        assert (await one.read(partition, 3)).code == CORRUPT
    await repair(one, lines[0])
    assert offsets(await one.read(partition, 0)) == [0, 3]


@pytest.mark.parametrize(
    "fields",
    [
        ("i", "1 2 3"),
        ("i", "1 70 1 1 70 1 0 x", "b", "x" * 70),
        ("i", "1 70 1 1 70 1 0 5", "b", "short"),
        ("i", "1 70 1 1 70 1 0 5", "b", "x" * 90),
        ("i", "9 70 1 1 70 1 0 5", "b", "x" * 70),
        ("i", "1 70 1 1 70 1 99999999999 5", "b", "x" * 70),
        ("i", "1 70 1 1 70 1 0 5", "q", "x"),
        ("i", "1 70 1 1 70 1 0 5", "r", "x"),
        ("i", "1 70 1 1 70 1 0 5", "r", "99999999 1 1 1"),
        ("i", "1 70 1 1 70 1 0 5", "r", "0 -1 -1 -1 jx"),
        ("i", "1 70 1 1 70 1 0 5", "p", "nowhere"),
        ("i", "1 70 1 1 70 1 0 5", "p", b"\xff"),
    ],
)
async def test_entry_that_looks_like_korvets_breaks_its_partition_alone(
    one: Front, fields: tuple[str | bytes, ...]
) -> None:
    topic = await one.topic(2)
    bad, good = (one.log.partition(topic, index) for index in range(2))
    await one.append(good, batch(1))
    await command(one, "XADD", bad.keys.log, "1-0", *fields)
    await command(one, "HSET", bad.keys.meta, "end", "2")
    await command(one, "XADD", bad.keys.log, "2-0", "i", "1 70 1 1 70 1 0 5")
    reads = await one.log.read([Want(bad, 0, EVERYTHING), Want(good, 0, EVERYTHING)], EVERYTHING)
    assert (offsets(reads[1]), codes(reads)) == ([0], [CORRUPT, 0])


async def test_unreadable_record_does_not_hide_the_records_before_it(one: Front) -> None:
    partition = await partition_of(one, "records-damaged", korvet_storage="record")
    await append(one, partition, Whole(key=b"k", value=b"v"), Whole(key=b"k", value=b"w"), is_record=True)
    await command(one, "XADD", partition.keys.log, "3-0", "i", "1 70 1 1 70 3 0 5", "r", "0 -1 -1 -1 n0,x", "a", "b")
    await command(one, "HSET", partition.keys.meta, "end", "3")
    assert offsets(await one.read(partition, 0)) == [0]
    assert (await one.read(partition, 2)).code == CORRUPT


KEYS: dict[str, Callable[[Partition], str]] = {"log": lambda one: one.keys.log, "meta": lambda one: one.keys.meta}


@pytest.mark.parametrize("which", KEYS)
async def test_key_of_the_wrong_type_fails_its_partition_alone(one: Front, which: str) -> None:
    topic = await one.topic(2)
    bad, good = (one.log.partition(topic, index) for index in range(2))
    await one.append(good, batch(1))
    key = KEYS[which](bad)
    await command(one, "DEL", key)
    await command(one, "SET", key, "x")
    with capture_logs() as lines:
        reads = await one.log.read([Want(bad, 0, EVERYTHING), Want(good, 0, EVERYTHING)], EVERYTHING)
        metas = await one.log.metas([bad, good])
        sizes = await log_bytes(one.store, [bad, good])
    assert (offsets(reads[1]), codes(reads)) == ([0], [UNKNOWN_SERVER_ERROR, 0])
    assert isinstance(metas[1], Meta)
    assert isinstance(metas[0], DamagedLog) == (which == "meta")
    assert (sizes[0], sizes[1] > 0) == (0, True)
    assert [(line["partition"], line["repair"]) for line in lines] == [(0, f"redis-cli DEL '{key}'")]
    await repair(one, lines[0])
    assert (await one.append(bad, batch(1)))[0] == 0


@pytest.mark.parametrize("left", ["all", "end", "nothing"])
async def test_meta_hash_that_somebody_deleted_is_made_from_the_log(one: Front, left: str) -> None:
    """Before, the partition began anew at offset 0."""
    partition = await one.partition()
    for _ in range(3):
        await one.append(partition, batch(2))
    await one.append(partition, batch(1, producer=7, sequence=0))
    if left != "all":
        await one.log.trim(partition, 4 if left == "end" else 7)
    (before,) = await one.log.metas([partition])
    assert isinstance(before, Meta)
    await command(one, "DEL", partition.keys.meta)
    one.log.forget()
    (after,) = await one.log.metas([partition])
    assert isinstance(after, Meta)
    assert (after.start, after.end, after.stable, after.epoch > before.epoch) == (before.start, 7, 7, True)
    read = await one.read(partition, before.start)
    assert (read.code, offsets(read)) == (0, {"all": [0, 2, 4, 6], "end": [4, 6], "nothing": []}[left])
    assert await log_bytes(one.store, [partition]) != [0] or left == "nothing"
    assert (await one.append(partition, batch(1)))[:2] == (0, 7)
    assert (await one.append(partition, batch(1, producer=7, sequence=1)))[:2] == (0, 8)


async def test_logged_command_repairs_a_meta_hash_that_lacks_fields(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(2))
    await command(one, "HDEL", partition.keys.meta, "start")
    one.log.forget()
    with capture_logs() as lines:
        assert (await one.read(partition, 0)).code == UNKNOWN_SERVER_ERROR
    assert lines[0]["repair"] == f"redis-cli DEL '{partition.keys.meta}'"
    await repair(one, lines[0])
    assert offsets(await one.read(partition, 0)) == [0]
    assert (await one.append(partition, batch(1)))[:2] == (0, 2)


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("lost", ["all", "end"])
async def test_reader_of_lost_entries_gets_an_error_until_the_log_is_trimmed(
    one: Front, lost: str, is_committed: bool
) -> None:
    """A deleted stream, or one whose newest entries were deleted."""
    partition = await one.partition()
    for _ in range(2):
        await one.append(partition, batch(1))
    first = Want(partition, 0 if lost == "all" else 1, EVERYTHING, is_committed=is_committed)
    await command(one, *(("DEL", partition.keys.log) if lost == "all" else ("XDEL", partition.keys.log, "2-0")))
    one.log.forget()
    with capture_logs() as lines:
        for _ in range(3):
            (read,) = await one.log.read([first], EVERYTHING)
            assert read.code == UNKNOWN_SERVER_ERROR
    (line,) = lines
    name = partition.topic.name
    assert line["reason"].startswith(f"{partition.keys.log} has lost its entries from offset {first.offset} to 2")
    assert line["repair"] == f"korvet topics trim '{name}' --partition 0 --before 2 --execute"
    assert (await one.log.trim(partition, 2))[0] == 0
    (read,) = await one.log.read([first], EVERYTHING)
    assert read.code == OUT_OF_RANGE
    assert (await one.append(partition, batch(1)))[:2] == (0, 2)
    assert offsets(await one.read(partition, 2)) == [2]


@pytest.mark.parametrize("which", ["producers", "open", "aborted", "transactions"])
async def test_partition_goes_on_without_a_deleted_key(one: Front, which: str) -> None:
    partition = await one.partition()
    await one.append(partition, batch(1, producer=7, sequence=0))
    keys = dict(
        zip(("log", "meta", "producers", "open", "aborted", "transactions"), partition.transaction_keys, strict=True)
    )
    await command(one, "DEL", keys[which])
    assert (await one.append(partition, batch(1, producer=7, sequence=1)))[0] in (0, OUT_OF_ORDER)
    assert (await one.append(partition, batch(1, producer=8, sequence=0)))[0] == 0
    assert offsets(await one.read(partition, 0))[0] == 0


@pytest.mark.parametrize("field", ["end", "epochs", "epoch", "run_id", "first_open"])
async def test_unparsable_meta_field_fails_its_partition_alone(one: Front, field: str) -> None:
    topic = await one.topic(2)
    bad, good = (one.log.partition(topic, index) for index in range(2))
    await one.append(good, batch(1))
    await command(one, "HSET", bad.keys.meta, field, "x:y")
    reads = await one.log.read([Want(bad, 0, EVERYTHING, -1, 0), Want(good, 0, EVERYTHING)], EVERYTHING)
    assert (offsets(reads[1]), reads[1].code) == ([0], 0)
    assert reads[0].code == (0 if field == "run_id" else UNKNOWN_SERVER_ERROR)


async def test_logged_command_repairs_a_producers_unreadable_state(one: Front) -> None:
    partition = await one.partition()
    await command(one, "HSET", partition.keys.producers, "7", "what?")
    with capture_logs() as lines, pytest.raises(DamagedLog):
        await one.append(partition, batch(1, producer=7, sequence=0))
    assert (await one.append(partition, batch(1, producer=8, sequence=0)))[0] == 0
    assert lines[0]["repair"] == f"redis-cli HDEL '{partition.keys.producers}' 7"
    await repair(one, lines[0])
    assert (await one.append(partition, batch(1, producer=7, sequence=0)))[0] == 0


async def test_retention_and_compaction_of_others_go_on_beside_a_stray_entry(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(3))
    await command(one, "XADD", partition.keys.log, "4-0", "foo", "bar")
    await one.append(partition, batch(2))
    with pytest.raises(StoreError):
        await compact(one.log, partition, ALWAYS, 10**12)
    await command(one, "XADD", partition.keys.log, "9-0", "foo", "bar")
    with pytest.raises(StoreError):
        await compact(one.log, partition, ALWAYS, 10**12)
    await enforce(one.log, partition, Retention(ms=-1, bytes=1), 10**12)
    await enforce_retention(NAMESPACE, one.catalog, one.log)


async def test_offsets_by_time_pass_over_an_entry_above_the_end(one: Front) -> None:
    partition = await one.partition()
    for timestamp in (1000, 5000, 2000):
        await one.append(partition, batch(1, timestamp=timestamp))
    await command(one, "XADD", partition.keys.log, "9-0", "foo", "bar")
    await one.log.trim(partition, 2)
    found = await one.log.offset_for_time(partition, 3000)
    newest = await one.log.offset_for_time(partition, MAX_TIMESTAMP)
    assert found is not None and newest is not None
    assert (found.offset, newest.offset) == (-1, 2)


async def test_foreign_message_on_the_channel_is_not_taken_for_the_logs_end(one: Front) -> None:
    partition = await one.partition()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        await one.append(partition, batch(1))
        await command(one, "SPUBLISH", partition.channel, "no end at all")
        await listening.wait(5)
        assert offsets(await one.read(partition, 0)) == [0]


async def test_compaction_logs_a_lost_batch_and_rests(one: Front) -> None:
    partition = await partition_of(one, "missing-compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for key in (b"a", b"a", b"b"):
        await one.append(partition, keyed((key, b"v" * LARGE)))
    assert await one.store.call(Purpose.APPEND, partition.keys.log, "UNLINK", f"{partition.keys.log}:1") == 1
    resting: dict[Partition, float] = {}
    with capture_logs() as lines:
        await compact_all(NAMESPACE, one.catalog, one.log, resting)
    assert [line["entry"] for line in lines if line.get("topic") == "missing-compacted"] == ["1-0"]
    assert partition in resting
    await repair(one, lines[0])
    assert await compact(one.log, partition, ALWAYS, 10**12)
    assert offsets(await one.read(partition, 0)) == [1, 2]


@pytest.mark.parametrize("size", [LARGE - 1, 10])
async def test_placed_batch_that_somebody_cut_is_no_batch(one: Front, size: int) -> None:
    partition = await one.partition()
    await one.append(partition, batch(1, size=LARGE))
    key = f"{partition.keys.log}:1"
    whole = await command(one, "GET", key)
    await command(one, "SET", key, whole[:size])
    one.log.cache.clear()
    assert codes([await one.read(partition, 0)]) == [CORRUPT]


async def test_batch_of_a_failed_append_is_freed_when_the_failure_is_answered(one: Front) -> None:
    """Before, it stayed until a collection of cycles, which seldom comes in a front-end."""
    topic = await one.topic(1)
    partition = one.log.partition(topic, 0)
    await one.append(partition, batch())
    await command(one, "SET", partition.keys.meta, "damaged")
    with collector_stopped(), traced_memory() as held_bytes:
        for _ in range(10):
            data = batch(1, MEGABYTE // 2, producer=5)
            try:
                await one.log.append(partition, header(data), data, None, None)
            except StoreError as error:
                assert failure_code(error, "produce") == UNKNOWN_SERVER_ERROR
        assert held_bytes() < 2 * MEGABYTE


def test_frames_of_an_error_that_is_its_own_cause_are_forgotten_once() -> None:
    """Lookups by time and appends raise a damaged entry's error from itself."""

    class Counted(DamagedLog):
        times = 0

        def __setattr__(self, name: str, value: object) -> None:
            assert name != "__traceback__" or self.times == 0
            super().__setattr__("times", 1)
            super().__setattr__(name, value)

    error = Counted("an entry cannot be read")
    with pytest.raises(Counted):
        raise error from error
    forget_frames(error)
    assert error.__traceback__ is None
