"""A partition whose oldest batches are in segments: what a front-end reads of it, and the calls of a tierer."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import pytest

from korvet.codes import FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE
from korvet.errors import LostTier
from korvet.redis.client import Purpose
from korvet.store.background.compaction.due import Compaction, due_of
from korvet.store.background.retention import Retention, enforce
from korvet.store.capacity import log_bytes
from korvet.store.contract import GONE
from korvet.store.log import tier
from korvet.store.log.appending.markers import Ending
from korvet.store.log.log import Log
from korvet.store.log.memory.room import FetchRoom, PartitionRead, Want
from korvet.store.log.partitions.source import Timed
from korvet.store.log.reading.times import MAX_TIMESTAMP, NOTHING
from korvet.store.log.state.partition import Meta, Partition
from korvet.store.log.tier import Upload
from korvet.store.topics import create_topic, delete_topic, grow_topic
from tests.store.logs import EVERYTHING, LARGE, Front, batch, codes, header, messages_held, offsets
from tests.store.test_log_transactions import Coordinator, append, transactional

pytestmark = pytest.mark.anyio


class Segments:
    """A source of segments that has one batch."""

    def __init__(self, data: bytes) -> None:
        self.asked: list[tuple[int, Meta]] = []
        self._data = data

    async def read(self, want: Want, meta: Meta, room: FetchRoom) -> PartitionRead:
        self.asked.append((want.offset, meta))
        room.take(len(self._data))
        found = PartitionRead(want.partition.index, 0, meta.end, meta.start, meta.stable)
        found.records, found.size_bytes = [self._data], len(self._data)
        return found

    async def holds(self, partition: Partition) -> bool:
        return bool(self._data)

    async def offset_for_time(self, partition: Partition, meta: Meta, timestamp: int) -> Timed | None:
        self.asked.append((timestamp, meta))
        return Timed(3, timestamp, 0) if timestamp < 2000 else None


async def _index_at(one: Front, partition: Partition, next_offset: int) -> bytes:
    name = partition.keys.log
    found = await one.store.call(Purpose.READ, name, "XRANGE", name, f"{next_offset}-0", f"{next_offset}-0")
    return bytes(found[0][1][1])


async def _upload(one: Front, partition: Partition, first: int, next_offset: int, records: int = 3) -> Upload:
    indexes = [await _index_at(one, partition, at) for at in (first + records, next_offset)]
    return Upload(f"{first:020d}-x", first, next_offset, 300, 77, 99, 1000, *indexes)


async def _tiered(one: Front, *, size: int = 10, local_start: int = 9) -> Partition:
    """Five batches of three records. Segments hold the first three or more, and Redis those from the local start on."""
    partition = await one.partition()
    for _ in range(5):
        await one.append(partition, batch(3, size))
    added = await tier.add(one.log, partition, await _upload(one, partition, 0, 12), "token")
    assert added == ("added", 12, 1)
    assert await tier.trim(one.log, partition, local_start, 0) == (0, local_start)
    return partition


# ---------------------------------------------------------------------- reading


async def test_read_below_the_local_start_goes_to_the_segments_and_no_other_does(one: Front) -> None:
    partition, data = await _tiered(one), batch()
    one.log.tier = segments = Segments(data)
    assert [offsets(await one.read(partition, offset)) for offset in (9, 12, 15)] == [[9, 12], [12], []]
    assert segments.asked == []
    found = await one.read(partition, 4)
    assert (found.code, found.records, found.log_start, found.high_watermark) == (0, [data], 0, 15)
    ((offset, meta),) = segments.asked
    assert (offset, meta.start, meta.local_start, meta.tier_end, meta.tier) == (4, 0, 9, 12, b"token")


async def test_front_end_without_a_tier_has_the_client_try_again(one: Front) -> None:
    partition, whole = await _tiered(one), await one.partition()
    await one.append(whole, batch())
    reads = await one.log.read([Want(partition, 0, EVERYTHING), Want(whole, 0, EVERYTHING)], EVERYTHING)
    assert codes(reads) == [KAFKA_STORAGE_ERROR, 0]
    assert offsets(reads[1]) == [0]


async def test_errors_of_offsets_and_epochs_come_before_the_segments(one: Front) -> None:
    partition = await _tiered(one)
    one.log.tier = segments = Segments(b"")
    await one.log.trim(partition, 4)
    assert [(await one.read(partition, offset)).code for offset in (-1, 0, 3, 16)] == [OFFSET_OUT_OF_RANGE] * 4
    assert (await one.read(partition, 5, leader_epoch=1)).code != 0
    assert segments.asked == []
    assert (await one.read(partition, 4)).code == 0
    assert len(segments.asked) == 1
    await one.log.trim(partition, 13)
    meta = await one.log.meta(partition)
    assert meta is not None
    assert (meta.start, meta.local_start, meta.tier_end) == (13, 13, 12)


async def test_log_that_redis_holds_nothing_of_is_not_taken_for_lost(one: Front) -> None:
    partition = await one.partition()
    await one.append(partition, batch(3))
    await tier.add(one.log, partition, await _upload(one, partition, 0, 3), "token")
    await tier.trim(one.log, partition, 3, 0)
    one.log.tier = segments = Segments(batch())
    assert [(await one.read(partition, offset)).code for offset in (0, 3)] == [0, 0]
    assert len(segments.asked) == 1
    assert await one.append(partition, batch(3)) == (0, 3)


@pytest.mark.parametrize("size", [10, LARGE])
async def test_local_trim_by_another_front_end_skips_no_record(one: Front, other: Front, size: int) -> None:
    """A batch in memory answers as before. One that is known by its entry alone, and gone, comes from the segments."""
    partition = await one.partition()
    with one.wakeups.listen([partition.channel]) as listening:
        await listening.ready()
        for _ in range(5):
            await one.append(partition, batch(3, size))
        assert offsets(await one.read(partition, 0, 1)) == [0]
        await other.catalog.refresh()
        known = other.known(partition)
        await tier.add(other.log, known, await _upload(other, known, 0, 15), "token")
        await tier.trim(other.log, known, 12, 0)
        one.log.tier = segments = Segments(batch(3))
        with messages_held(one, partition):
            for offset in (0, 3, 6, 9, 12):
                asked = len(segments.asked)
                found = await one.read(partition, offset, 1)
                assert offsets(found) == ([offset] if len(segments.asked) == asked else [0])
    assert all(offset < 12 for offset, _ in segments.asked)


async def test_reader_of_committed_records_below_the_local_start_goes_to_the_segments(one: Front) -> None:
    partition = await _tiered(one)
    one.log.tier = segments = Segments(batch())
    (found,) = await one.log.read([Want(partition, 3, EVERYTHING, is_committed=True)], EVERYTHING)
    assert (found.code, len(segments.asked)) == (0, 1)


async def test_records_whose_abort_leaves_redis_meanwhile_come_from_the_segments(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await one.partition()
    module = importlib.import_module("korvet.store.log.reading.read")
    ask = module.aborted_within
    assert await append(one, partition, transactional(0), Coordinator(7)) == (0, 0)
    assert await one.log.mark(partition, Ending(7, 5, 1, is_commit=False)) == 0
    await one.append(partition, batch(1))
    await tier.add(one.log, partition, await _upload(one, partition, 0, 2, 1), "token")
    one.log.tier = segments = Segments(batch())

    async def trim_before(log: Log, *args: Any) -> list[tuple[int, int]] | None:
        assert await tier.trim(one.log, partition, 2, 0) == (0, 2)
        found: list[tuple[int, int]] | None = await ask(log, *args)
        return found

    monkeypatch.setattr(module, "aborted_within", trim_before)
    (found,) = await one.log.read([Want(partition, 0, EVERYTHING, is_committed=True)], EVERYTHING)
    assert (found.code, len(segments.asked)) == (0, 1)


async def test_time_is_looked_for_in_the_segments_first(one: Front) -> None:
    partition = await _tiered(one)
    meta = await one.log.meta(partition)
    assert meta is not None
    with pytest.raises(LostTier):
        await one.log.offset_for_time(partition, 0, meta)
    one.log.tier = segments = Segments(b"")
    assert await one.log.offset_for_time(partition, 7, meta) == (3, 7, 0)
    assert await one.log.offset_for_time(partition, 5000, meta) == NOTHING
    assert [asked for asked, _ in segments.asked] == [7, 5000]
    # Kafka, too, looks for the newest record in the local log alone.
    newest = await one.log.offset_for_time(partition, MAX_TIMESTAMP, meta)
    assert newest is not None
    assert newest.offset >= 9
    assert len(segments.asked) == 2


async def test_search_by_time_begins_anew_if_the_local_start_moves_meanwhile(one: Front) -> None:
    partition = await _tiered(one, local_start=0)
    before = await one.log.meta(partition)
    await tier.trim(one.log, partition, 9, 0)
    one.log.tier = Segments(b"")
    assert await one.log.offset_for_time(partition, 1000, before) == (3, 1000, 0)


# ---------------------------------------------------------------------- the calls of a tierer


async def test_calls_of_a_tierer_tell_its_outcomes(one: Front, other: Front) -> None:
    partition = await _tiered(one)
    await other.catalog.refresh()
    known = other.known(partition)
    late = await _upload(one, partition, 9, 15)
    assert await tier.add(other.log, known, late, "other") == ("conflict", 12, 1)
    assert await tier.add(one.log, partition, await _upload(one, partition, 12, 15), "token") == ("added", 15, 2)
    listed = await tier.listed(one.log, partition, 0, 100)
    assert listed is not None
    assert listed[:5] == (b"token", 0, 0, 9, 15)
    texts = [text for _, text in listed.segments]
    assert ([past for past, _ in listed.segments], listed.has_more) == ([12, 15], False)
    assert await tier.shelve(one.log, partition, texts, "shelf", 88, 55) is True
    assert await tier.shelve(other.log, known, texts[1:], "other", 88, 55) is False
    assert await one.log.trim(partition, 15) == (0, 15)
    listed = await tier.listed(other.log, known, 0, 1)
    assert listed is not None
    assert await tier.forget(one.log, partition, [text for _, text in listed.segments]) == 1
    assert (await tier.trim(one.log, partition, 16, 0))[0] == OFFSET_OUT_OF_RANGE
    assert (await tier.trim(one.log, partition, 9, 7))[0] == FENCED_LEADER_EPOCH


async def test_calls_of_a_tierer_find_a_deleted_topic_gone(one: Front) -> None:
    partition = await _tiered(one)
    upload = await _upload(one, partition, 12, 15)
    await delete_topic(one.catalog, one.log, partition.topic)
    assert await tier.add(one.log, partition, upload, "token") is None
    assert await tier.listed(one.log, partition, 0, 1) is None
    assert await tier.shelve(one.log, partition, [b"segment 0 1 1 1 1 1 x"], "shelf", 88, 55) is None
    assert await tier.forget(one.log, partition, [b"x"]) == 0
    assert (await tier.trim(one.log, partition, 9, 0))[0] == GONE
    assert await one.store.call(Purpose.READ, partition.keys.log, "EXISTS", one.log.tier_keys(partition).tier) == 0


async def test_partition_of_which_only_the_list_is_left_is_not_made_anew(one: Front) -> None:
    partition = await _tiered(one)
    keys = partition.transaction_keys
    await one.store.call(Purpose.APPEND, keys.log, "DEL", *keys)
    assert (await one.read(partition, 12)).code == KAFKA_STORAGE_ERROR
    with pytest.raises(LostTier):
        data = batch()
        await one.log.append(partition, header(data), data)
    assert await one.store.call(Purpose.READ, keys.log, "EXISTS", *keys) == 0
    await one.store.call(Purpose.APPEND, keys.log, "DEL", one.log.tier_keys(partition).tier)
    assert await one.append(partition, batch()) == (0, 0)


async def test_list_that_was_deleted_by_hand_is_named(one: Front) -> None:
    partition = await _tiered(one)
    await one.store.call(Purpose.APPEND, partition.keys.log, "DEL", one.log.tier_keys(partition).tier)
    with pytest.raises(LostTier, match="list of segments"):
        await tier.listed(one.log, partition, 0, 1)


# ---------------------------------------------------------------------- retention, compaction, size


async def test_retention_by_what_redis_holds_deletes_no_segment(one: Front) -> None:
    """Every batch is young enough; the first one in Redis says nothing of those before it."""
    partition = await _tiered(one)
    for limits in (Retention(ms=10_000, bytes=-1), Retention(ms=-1, bytes=10_000)):
        await enforce(one.log, partition, limits, 5000)
        meta = await one.log.meta(partition)
        assert meta is not None
        assert (meta.start, meta.local_start) == (0, 9)


async def test_retention_that_a_local_trim_overtakes_deletes_nothing(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await _tiered(one, local_start=0)
    metas = Log.metas

    async def trim_after(log: Log, partitions: Sequence[Partition]) -> Any:
        found = await metas(log, partitions)
        await tier.trim(one.log, partition, 9, 0)
        return found

    monkeypatch.setattr(Log, "metas", trim_after)
    await enforce(one.log, partition, Retention(ms=10_000, bytes=-1), 10_500)
    monkeypatch.undo()
    meta = await one.log.meta(partition)
    assert meta is not None
    assert (meta.start, meta.local_start) == (0, 9)


async def test_partition_with_segments_is_not_due_for_compaction(one: Front) -> None:
    settings = Compaction(min_dirty_ratio=0, min_lag_ms=0, max_lag_ms=1 << 60, delete_retention_ms=0)
    whole = await one.partition()
    for _ in range(5):
        await one.append(whole, batch(3))
    assert await due_of(one.log, whole, settings, 1 << 50) is not None
    assert await due_of(one.log, await _tiered(one), settings, 1 << 50) is None


async def test_size_of_a_log_is_that_of_the_batches_in_redis(one: Front) -> None:
    whole, partition = await one.partition(), await _tiered(one)
    for _ in range(5):
        await one.append(whole, batch(3))
    (all_bytes,), (left_bytes,) = await log_bytes(one.store, [whole]), await log_bytes(one.store, [partition])
    assert left_bytes == all_bytes // 5 * 2


# ---------------------------------------------------------------------- a partition that Redis lost


async def _lost(one: Front) -> Partition:
    """A partition of a topic of the tier, without any key."""
    _, topic = await create_topic(one.catalog, one.log, "lost", 1, {"remote.storage.enable": "true"})
    assert topic is not None
    partition = one.log.partition(topic, 0)
    await one.append(partition, batch(3))
    keys = partition.transaction_keys
    await one.store.call(Purpose.APPEND, keys.log, "DEL", *keys)
    return partition


async def test_partition_that_the_tier_may_hold_never_begins_at_0_again(one: Front) -> None:
    partition, data = await _lost(one), batch()
    keys = partition.transaction_keys
    for source in (None, Segments(b"something")):
        one.log.tier = source
        assert (await one.read(partition, 0)).code == KAFKA_STORAGE_ERROR
        with pytest.raises(LostTier, match="run korvet tier recover"):
            await one.log.append(partition, header(data), data)
        assert await one.store.call(Purpose.READ, keys.log, "EXISTS", *keys) == 0


async def test_partition_of_which_the_tier_has_nothing_begins_anew(one: Front) -> None:
    """The front-end that created the topic may have died before it made the keys."""
    partition = await _lost(one)
    one.log.tier = Segments(b"")
    assert await one.append(partition, batch()) == (0, 0)


async def test_meta_hash_of_a_topic_in_the_tier_is_made_from_its_log(one: Front) -> None:
    _, topic = await create_topic(one.catalog, one.log, "kept", 1, {"remote.storage.enable": "true"})
    assert topic is not None
    partition = one.log.partition(topic, 0)
    await one.append(partition, batch(3))
    await one.store.call(Purpose.APPEND, partition.keys.log, "DEL", partition.keys.meta)
    assert await one.append(partition, batch()) == (0, 3)


async def test_topic_that_grows_does_not_begin_its_lost_partitions_anew(one: Front) -> None:
    partition = await _lost(one)
    assert await grow_topic(one.catalog, one.log, partition.topic, 2) == 0
    grown = one.catalog.topic("lost")
    assert grown is not None
    assert (await one.read(one.log.partition(grown, 0), 0)).code == KAFKA_STORAGE_ERROR
    assert await one.append(one.log.partition(grown, 1), batch()) == (0, 0)
