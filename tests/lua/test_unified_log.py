"""A log and its readers: cases of Kafka's UnifiedLogTest, by the front-end's own reads."""

from __future__ import annotations

from itertools import pairwise

import pytest
import redis

from korvet.store.background.maintenance import enforce_retention
from korvet.store.log.memory.room import Want
from korvet.store.topics import create_topic
from tests.lua.log_scenes import NOW_MS, Scene, bases
from tests.lua.partition import Loop
from tests.store.keyed import keyed, records
from tests.store.logs import EVERYTHING, NAMESPACE, header
from tests.support.ported import kafka

OUT_OF_RANGE = 1


@pytest.fixture
def log(server: redis.Redis, loop: Loop) -> Scene:
    return Scene(server, loop)


# ---------------------------------------------------------------------- reading


@kafka("UnifiedLogTest.testFetchUpToLogEndOffset")
@kafka("UnifiedLogTest.testFetchUpToHighWatermark")
def test_read_begins_with_the_batch_of_its_offset_and_ends_at_the_end(log: Scene) -> None:
    log.plain(0, 1, 2)
    log.plain(3, 4)
    assert [bases(log.fetch(offset)) for offset in range(6)] == [[0, 3]] * 3 + [[3]] * 2 + [[]]


@kafka("UnifiedLogTest.testFetchUpToLastStableOffset")
def test_readers_of_committed_records_stop_at_the_last_stable_offset(log: Scene) -> None:
    log.write(1, *range(5))
    log.plain(*range(3))
    log.write(2, *range(2))
    log.write(1, *range(4))
    log.plain(*range(2))
    log.write(1, *range(10))
    starts = [0, 5, 8, 10, 14, 16, 26, 27, 28]

    def reads_to(stable: int) -> None:
        for offset in range(log.end_offset + 1):
            found = log.fetch(offset, is_committed=True)
            assert bases(found) == [
                base for base, past in pairwise(starts) if offset < past and base < min(stable, log.end_offset)
            ]
            assert (found.last_stable, found.high_watermark) == (stable, log.end_offset)

    reads_to(0)
    log.end(1, "commit")
    reads_to(8)
    log.end(2, "abort")
    reads_to(28)


@kafka("UnifiedLogTest.testAppendAndReadWithSequentialOffsets")
@kafka("UnifiedLogTest.testLogRolls")
def test_reader_finds_every_batch_by_its_offset(log: Scene) -> None:
    for key in range(50):
        log.plain(key, timestamp=1000 + key)
    for key in range(50):
        found = log.fetch(key, 1)
        assert records(found) == [(key, b"%d" % key, b"%d" % key)]
    assert bases(log.fetch(50)) == []


@kafka("UnifiedLogTest.testAppendAndReadWithNonSequentialOffsets")
@kafka("UnifiedLogTest.testReadAtLogGap")
@kafka("UnifiedLogTest.testReadWithMinMessage")
def test_read_in_a_gap_begins_after_the_gap(log: Scene) -> None:
    """Compaction leaves gaps."""
    for key in [*range(10), *range(8)]:
        log.plain(key)
    assert log.clean()
    left = [8, 9, *range(10, 18)]
    assert log.offsets_left() == left
    for offset in range(18):
        for max_bytes in (1, 100, 100_000):
            found = log.fetch(offset, max_bytes)
            assert bases(found)[0] == min(base for base in left if base >= offset)


@kafka("UnifiedLogTest.testReadWithTooSmallMaxLength")
def test_too_large_batch_is_read_only_as_the_first_of_all(log: Scene, loop: Loop, server: redis.Redis) -> None:
    other = Scene(server, loop)
    for each in (log, other):
        each.plain(1, 2, 3)
    wants = [Want(each.partition, 0, 1) for each in (log, other)]
    found = loop.run(loop.reader.read, wants, EVERYTHING)
    assert [bases(one) for one in found] == [[0], []]


@kafka("UnifiedLogTest.testReadOutOfRange")
def test_read_outside_the_log_is_out_of_range(log: Scene) -> None:
    log.plain(*range(1024))
    log.trim(1024)
    log.plain(42)
    assert (log.fetch(1025).code, bases(log.fetch(1025))) == (0, [])
    assert [log.fetch(offset).code for offset in (-1, 0, 1023, 1026)] == [OUT_OF_RANGE] * 4


@kafka("UnifiedLogTest.testCompressedMessages")
def test_reader_gets_a_whole_compressed_batch_for_each_offset(log: Scene, loop: Loop) -> None:
    for values in ((b"hello", b"there"), (b"alpha", b"beta")):
        data = keyed(*((None, value) for value in values), codec=1)
        assert loop.run(_append, loop, log, data) == (0, 0 if values[0] == b"hello" else 2)
    assert [bases(log.fetch(offset))[0] for offset in range(4)] == [0, 0, 2, 2]


async def _append(loop: Loop, log: Scene, data: bytes) -> tuple[int, int]:
    appended = await loop.reader.append(log.partition, header(data), data)
    return appended.code, appended.base_offset


@kafka("UnifiedLogTest.testAppendMessageWithNullPayload")
def test_record_may_have_a_null_value(log: Scene) -> None:
    log.pairs((None, None))
    assert records(log.fetch()) == [(0, None, None)]


@kafka("UnifiedLogTest.testAppendWithNoTimestamp")
def test_batch_may_have_no_timestamps(log: Scene) -> None:
    log.pairs((b"key", b"value"), timestamp=-1)
    assert records(log.fetch()) == [(0, b"key", b"value")]


@kafka("UnifiedLogTest.shouldApplyEpochToMessageOnAppendIfLeader")
def test_batch_carries_the_leader_epoch_of_its_append(log: Scene) -> None:
    epochs = []
    for run in range(1, 4):
        log.begin_run(run)
        epochs.append(log.take_over())
        log.plain(run)
        log.plain(run)
    given = [int.from_bytes(part[12:16], "big") for part in _whole(log)]
    assert given == [epoch for epoch in epochs for _ in range(2)]
    assert len(set(epochs)) == 3


def _whole(log: Scene) -> list[bytes]:
    data, parts = b"".join(log.fetch().records), []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        parts.append(data[:size])
        data = data[size:]
    return parts


# ---------------------------------------------------------------------- transactions


@kafka("UnifiedLogTest.testReadCommittedWithConcurrentHighWatermarkUpdates")
def test_readers_of_committed_records_get_no_record_before_its_abort(log: Scene) -> None:
    for number in range(20):
        at = log.write(15, number)
        assert log.fetch(at, is_committed=True).size_bytes == 0
        log.end(15, "abort")
        assert log.fetch(at, is_committed=True).aborted == [(15, at)]


@kafka("UnifiedLogTest.testAbortedTransactionSpanningMultipleSegments")
def test_readers_learn_of_an_aborted_transaction_of_several_batches(log: Scene) -> None:
    log.write(137, 1, 2, 3)
    log.write(137, 4, 5, 6)
    assert log.fetch(is_committed=True).last_stable == 0
    log.end(137, "abort")
    for offset in range(7):
        found = log.fetch(offset, is_committed=True)
        assert (found.aborted, found.last_stable) == ([(137, 0)], 7)
    assert log.fetch().aborted is None


@kafka("UnifiedLogTest.testLastStableOffsetDoesNotExceedLogStartOffsetMidSegment")
@kafka("UnifiedLogTest.testLastStableOffsetDoesNotExceedLogStartOffsetAfterSegmentDeletion")
@pytest.mark.parametrize("start", [3, 5, 8])
def test_reader_gets_no_last_stable_offset_below_the_log_start(log: Scene, start: int) -> None:
    log.write(1, *range(5))
    log.plain(*range(3))
    log.write(1, *range(5))
    log.trim(start)
    found = log.fetch(start, is_committed=True)
    assert (found.log_start, found.last_stable, bases(found)) == (start, start, [])


# ---------------------------------------------------------------------- times


@kafka("UnifiedLogTest.testFetchOffsetByTimestampIncludesLeaderEpoch")
def test_search_by_time_returns_an_offset_with_its_leader_epoch(log: Scene, loop: Loop) -> None:
    assert log.first_at(0) == (-1, -1)
    epochs = []
    for run in (1, 2):
        log.begin_run(run)
        epochs.append(log.take_over())
        log.plain(run, timestamp=1000 + run)
    for run in (1, 2):
        found = loop.run(loop.reader.offset_for_time, log.partition, 1000 + run)
        assert found == (run - 1, 1000 + run, epochs[run - 1])


@kafka("UnifiedLogTest.testFetchOffsetByTimestampWithMaxTimestampIncludesTimestamp")
def test_search_finds_the_newest_record_among_older_ones(log: Scene) -> None:
    assert log.first_at(-3) == (-1, -1)
    for timestamp in (1000, 1001, 1000):
        log.plain(1, timestamp=timestamp)
    assert log.first_at(-3) == (1, 1001)


# ---------------------------------------------------------------------- retention


def _fill(log: Scene, timestamp: int = NOW_MS, number: int = 15) -> int:
    """Append batches of one record, all of one size; returns that size."""
    for _ in range(number):
        log.pairs((b"test", b"test"), timestamp=timestamp)
    return log.index()[0].size if number else 0


@kafka("UnifiedLogTest.shouldDeleteSizeBasedSegments")
@kafka("UnifiedLogTest.shouldNotDeleteSizeBasedSegmentsWhenUnderRetentionSize")
@pytest.mark.parametrize(("kept", "start"), [(10, 5), (15, 0), (16, 0), (0, 15)])
def test_retention_removes_the_oldest_batches_down_to_the_bytes(log: Scene, kept: int, start: int) -> None:
    size = _fill(log)
    assert log.retain(size_bytes=kept * size) == start
    assert log.retain(size_bytes=kept * size) == start
    assert len(log.index()) == 15 - start


@kafka("UnifiedLogTest.shouldDeleteTimeBasedSegmentsReadyToBeDeleted")
@kafka("UnifiedLogTest.shouldNotDeleteTimeBasedSegmentsWhenNoneReadyToBeDeleted")
@pytest.mark.parametrize(("timestamp", "start"), [(10, 15), (NOW_MS, 0), (NOW_MS - 10_000, 0), (NOW_MS - 10_001, 15)])
def test_retention_removes_batches_that_are_too_old(log: Scene, timestamp: int, start: int) -> None:
    _fill(log, timestamp)
    assert log.retain(ms=10_000) == start


@kafka("UnifiedLogTest.testRetentionIdempotency")
def test_moved_log_start_lets_retention_remove_old_batches(log: Scene) -> None:
    for late_ms in (100, 0, 100):
        log.plain(1, timestamp=NOW_MS + late_ms)
    log.now_ms = NOW_MS + 901
    assert log.retain(ms=900) == 0
    log.trim(1)
    assert log.retain(ms=900) == 2
    log.now_ms += 100
    assert [log.retain(ms=900) for _ in range(2)] == [3, 3]


@kafka("UnifiedLogTest.testThatGarbageCollectingSegmentsDoesntChangeOffset")
@pytest.mark.parametrize("number", [0, 1, 25])
def test_emptied_log_goes_on_at_its_end(log: Scene, number: int) -> None:
    _fill(log, NOW_MS - 10, number)
    assert [log.retain(ms=0) for _ in range(2)] == [number, number]
    assert (log.end_offset, log.index()) == (number, [])
    assert log.plain(1) == number


@kafka("UnifiedLogTest.testDeleteOldSegments")
@kafka("UnifiedLogTest.shouldTruncateLeaderEpochsWhenDeletingSegments")
@kafka("UnifiedLogTest.shouldUpdateOffsetForLeaderEpochsWhenDeletingSegments")
@pytest.mark.parametrize(("kept", "left"), [(10, [(1, 5), (2, 10)]), (8, [(1, 7), (2, 10)]), (0, [(2, 15)])])
def test_log_forgets_the_epochs_of_removed_batches(log: Scene, kept: int, left: list[tuple[int, int]]) -> None:
    """The epoch of the log start begins there."""
    epochs = {}
    for run in range(3):
        log.begin_run(run + 1)
        epochs[log.take_over()] = run
        size = _fill(log, number=5)
    log.retain(size_bytes=kept * size)
    told = [pair.split(":") for pair in log.meta()["epochs"].split(",")]
    assert [(epochs[int(epoch)], int(start)) for epoch, start in told] == left


@kafka("UnifiedLogTest.shouldNotDeleteSegmentsWhenPolicyDoesNotIncludeDelete")
@kafka("UnifiedLogTest.shouldDeleteSegmentsReadyToBeDeletedWhenCleanupPolicyIsCompactAndDelete")
@kafka("LogCleanerManagerTest.testLogsWithSegmentsToDeleteShouldNotConsiderCleanupPolicyCompactLogs")
@kafka("LogCleanerManagerTest.testLogsWithSegmentsToDeleteShouldConsiderCleanupPolicyCompactDeleteLogs")
@pytest.mark.parametrize(("policy", "start"), [("compact", 0), ("compact,delete", 15), ("delete", 15)])
def test_retention_depends_on_the_cleanup_policy(server: redis.Redis, loop: Loop, policy: str, start: int) -> None:
    assert loop.run(_start_after_retention, loop, policy) == start


async def _start_after_retention(loop: Loop, policy: str) -> int:
    one = loop.front
    await one.catalog.refresh()
    configs = {"cleanup.policy": policy, "retention.ms": "10000"}
    _, topic = await create_topic(one.catalog, one.log, f"retained-{policy.replace(',', '-')}", 1, configs)
    assert topic is not None
    partition = one.log.partition(topic, 0)
    for _ in range(15):
        assert (await one.append(partition, keyed((b"test", b"test"), timestamp=10)))[0] == 0
    await enforce_retention(NAMESPACE, one.catalog, one.log)
    meta = await one.log.meta(partition)
    assert meta is not None
    return meta.start


@kafka("UnifiedLogTest.shouldDeleteStartOffsetBreachedSegmentsWhenPolicyDoesNotIncludeDelete")
def test_batches_below_the_log_start_go_under_any_policy(log: Scene) -> None:
    for _ in range(3):
        log.plain(1, 2, 3, 4, 5)
    log.trim(7)
    assert [(one.next_offset - one.records, one.next_offset) for one in log.index()] == [(5, 10), (10, 15)]
    assert bases(log.fetch(7)) == [5, 10]


# ---------------------------------------------------------------------- producers of compacted batches


@kafka("UnifiedLogTest.testRebuildProducerIdMapWithCompactedData")
@kafka("UnifiedLogTest.testUpdateProducerIdMapWithCompactedData")
@kafka("UnifiedLogTest.testRebuildProducerStateWithEmptyCompactedBatch")
@pytest.mark.parametrize("newer", [(2, 4), (1, 2, 3, 4)], ids=["some", "all"])
def test_producer_goes_on_after_its_records_were_compacted(log: Scene, newer: tuple[int, ...]) -> None:
    log.produce(1, 1, 2, 3, 4)
    log.plain(*newer)
    assert log.clean()
    assert len(log.keys_left()) == 4
    assert log.produce(1, 1, 2, 3, 4, sequence=0) == 0, "a duplicate"
    assert log.produce(1, 5, sequence=4) == log.end_offset - 1
