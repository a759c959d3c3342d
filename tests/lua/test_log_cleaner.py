"""The log after compaction: cases of Kafka's LogCleanerTest and LogCleanerManagerTest. Others are in tests/store.

Kafka keeps a batch without records for a producer's last sequence. Here the partition's producers hash keeps that, so
compaction removes a batch without records.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.log_scenes import LAST, NOW_MS, Scene
from tests.lua.partition import LEASE_MS, Loop
from tests.store.keyed import records
from tests.support.ported import kafka

LAG_MS = 3_600_000
RETENTION_MS = 1000


@pytest.fixture
def log(server: redis.Redis, loop: Loop) -> Scene:
    return Scene(server, loop)


# ---------------------------------------------------------------------- the reach of compaction


@kafka("LogCleanerManagerTest.testCleanableOffsetsForNone")
def test_compaction_reaches_all_but_the_last_batch(log: Scene) -> None:
    for _ in range(8):
        log.plain(1)
    assert log.clean(is_ended=False)
    assert log.offsets_left() == [6, 7]
    assert log.meta()["cleaned"] == "7"


@kafka("LogCleanerManagerTest.testCleanableOffsetsForShortTime")
def test_compaction_with_a_short_lag_reaches_all_but_the_last_batch(log: Scene) -> None:
    for _ in range(8):
        log.plain(1, timestamp=NOW_MS)
    assert not log.clean(min_lag_ms=LAG_MS, is_ended=False)
    log.now_ms += LAG_MS + 1
    assert log.clean(min_lag_ms=LAG_MS, is_ended=False)
    assert log.offsets_left() == [6, 7]


@kafka("LogCleanerTest.testCleaningWithUncleanableSection")
def test_compaction_leaves_young_batches_alone(log: Scene) -> None:
    for number in range(40):
        log.plain(number % 10, timestamp=NOW_MS - LAG_MS if number < 25 else NOW_MS)
    assert log.clean(min_lag_ms=LAG_MS)
    assert log.offsets_left() == list(range(15, 40))


@kafka("LogCleanerManagerTest.testUndecidedTransactionalDataNotCleanable")
def test_compaction_leaves_an_open_transaction_of_any_age_alone(log: Scene) -> None:
    log.write(15, 1, 2, timestamp=NOW_MS)
    log.write(15, 3, timestamp=NOW_MS)
    log.now_ms += LAG_MS + 1
    assert not log.clean(min_lag_ms=LAG_MS)
    log.end(15, "abort")
    assert log.clean(min_lag_ms=LAG_MS)
    assert log.keys_left() == []


@kafka("LogCleanerTest.testBuildOffsetMap")
def test_compaction_keeps_different_keys_and_reads_them_once(log: Scene) -> None:
    for key in range(0, 300, 3):
        log.plain(key, key + 1, key + 2)
    assert log.clean()
    assert log.keys_left() == list(range(300))
    assert log.meta()["cleaned"] == "300"
    assert not log.clean(is_ended=False)


@kafka("LogCleanerTest.testCleaningBeyondMissingOffsets")
def test_compaction_goes_on_after_trimmed_offsets(log: Scene) -> None:
    for key in (1, 1, 1, 2, 2, 2):
        log.plain(key)
    assert log.clean()
    log.trim(4)
    for key in (3, 3):
        log.plain(key)
    assert log.clean()
    assert log.offsets_left() == [5, 8]
    assert log.meta()["cleaned"] == "9"


# ---------------------------------------------------------------------- records


@kafka("LogCleanerTest.testLargeMessage")
@kafka("LogCleanerTest.testMessageLargerThanMaxMessageSize")
def test_compaction_treats_large_batches_like_others(log: Scene) -> None:
    large = b"v" * (1 << 20)
    for key in range(10):
        log.pairs((b"%d" % key, large), placed=True)
    log.pairs((b"10", large), (b"1", large), placed=True)
    for key in range(3, 10, 2):
        log.plain(key)
    assert log.clean()
    left = [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9]
    assert log.keys_left() == left
    assert [len(value or b"") for _, key, value in records(log.fetch()) if key != LAST] == [1 << 20] * 7 + [1] * 4
    assert len([name for name in log.key_names() if name.startswith("log:")]) == 6


@kafka("LogCleanerTest.testCleaningWithUnkeyedMessages")
def test_compaction_removes_records_without_keys(log: Scene) -> None:
    """Such records come from a time before the topic's compaction."""
    for number in range(5):
        log.pairs((None, b"%d" % number))
        log.pairs((None, b"more"), (b"%d" % number, b"kept"), (None, None))
    assert log.clean()
    read = records(log.fetch())
    assert [(key, value) for _, key, value in read if key != LAST] == [(b"%d" % key, b"kept") for key in range(5)]


@kafka("LogCleanerTest.testCleanTombstone")
def test_compaction_ignores_the_timestamp_of_a_tombstone(log: Scene) -> None:
    log.pairs((b"0", b"0"), timestamp=NOW_MS + RETENTION_MS + 10_000)
    assert log.clean(retention_ms=RETENTION_MS)
    tombstone = log.pairs((b"0", None), timestamp=NOW_MS - RETENTION_MS - 10_000)
    for _ in range(2):
        assert log.clean(retention_ms=RETENTION_MS)
        assert log.offsets_left() == [tombstone]
    log.now_ms += RETENTION_MS
    assert log.clean(retention_ms=RETENTION_MS)
    assert log.offsets_left() == []


# ---------------------------------------------------------------------- producers and transactions


@kafka("LogCleanerTest.testLogCleanerRetainsProducerLastSequence")
def test_producer_goes_on_with_its_sequence_after_its_records_went(log: Scene) -> None:
    log.plain(0)
    for producer_id in (1, 2, 3):
        log.produce(producer_id, 0)
    log.produce(2, 1)
    assert log.clean()
    assert (log.keys_left(), log.offsets_left()) == ([0, 1], [3, 4])
    assert [log.produce(producer_id, 0, sequence=0) for producer_id in (1, 2, 3)] == [1, 2, 3], "duplicates"
    at = log.end_offset
    assert [log.produce(1, 5), log.produce(2, 5), log.produce(3, 5)] == [at, at + 1, at + 2]


@kafka("LogCleanerTest.testLogCleanerRetainsLastSequenceEvenIfTransactionAborted")
def test_producer_goes_on_after_its_aborted_transaction(log: Scene) -> None:
    log.write(1, 1)
    log.write(1, 2, 3)
    log.end(1, "abort")
    assert log.clean(retention_ms=RETENTION_MS)
    assert (log.keys_left(), log.offsets_left()) == ([], [3])
    log.write(1, 1, 5)
    log.end(1, "commit")
    assert log.clean(retention_ms=RETENTION_MS)
    assert (log.keys_left(), log.offsets_left()) == ([1, 5], [3, 5, 6, 7])


@kafka("LogCleanerTest.testAbortedTransactionSpanningSegments")
def test_marker_of_an_aborted_transaction_outlives_its_records(log: Scene) -> None:
    log.write(1, 1)
    log.end(1, "abort")
    assert log.clean(retention_ms=RETENTION_MS)
    assert (log.offsets_left(), log.aborted()) == ([1], [(0, 1, 1)])
    assert log.clean(retention_ms=RETENTION_MS)
    assert log.offsets_left() == [1]


@kafka("LogCleanerTest.testAbortMarkerRetentionWithEmptyBatch")
def test_readers_learn_of_an_aborted_transaction_until_its_marker_goes(log: Scene) -> None:
    log.write(1, 2, 3)
    log.end(1, "abort")
    for _ in range(2):
        assert log.clean(retention_ms=RETENTION_MS)
        assert (log.keys_left(), log.offsets_left(), log.aborted()) == ([], [2], [(0, 2, 1)])
    log.write(1, 1)
    log.end(1, "commit")
    log.now_ms += RETENTION_MS
    assert log.clean(retention_ms=RETENTION_MS)
    assert (log.keys_left(), log.offsets_left(), log.aborted()) == ([1], [5, 6], [])


@kafka("LogCleanerTest.testCommitMarkerRetentionWithEmptyBatch")
def test_commit_marker_goes_a_while_after_its_records(log: Scene) -> None:
    """Two producers have interleaved transactions; later plain records replace their records."""
    log.write(1, 2, 3)
    log.write(2, 2, 3)
    log.end(2, "commit")
    log.plain(2)
    log.plain(3)
    log.end(1, "commit")
    for _ in range(2):
        assert log.clean(retention_ms=RETENTION_MS)
        assert (log.keys_left(), log.offsets_left()) == ([2, 3], [4, 5, 6, 7])
    log.write(2, 1)
    log.end(2, "commit")
    log.now_ms += RETENTION_MS
    assert log.clean(retention_ms=RETENTION_MS)
    assert (log.keys_left(), log.offsets_left()) == ([2, 3, 1], [5, 6, 10, 11])


@kafka("LogCleanerTest.testCleanEmptyControlBatch")
def test_compaction_removes_the_marker_of_an_empty_transaction(log: Scene) -> None:
    log.end(1, "commit")
    log.plain(2)
    log.plain(3)
    assert log.clean(retention_ms=RETENTION_MS)
    assert (log.keys_left(), log.offsets_left()) == ([2, 3], [0, 1, 2])
    log.now_ms += RETENTION_MS
    assert log.clean(retention_ms=RETENTION_MS)
    assert (log.keys_left(), log.offsets_left()) == ([2, 3], [1, 2])


# ---------------------------------------------------------------------- broken off runs


@kafka("LogCleanerTest.testRecoveryAfterCrash")
@pytest.mark.parametrize("swaps", [False, True], ids=["before the swap", "behind it"])
def test_broken_off_compaction_leaves_only_the_log(log: Scene, set_clock: Callable[[float], None], swaps: bool) -> None:
    for number in range(30):
        log.pairs((b"%d" % (number % 15), b"%d" % number), placed=number % 2 == 0)
    before = records(log.fetch())
    assert log.break_off("broken", 0, swaps=swaps)
    assert records(log.fetch()) == before
    assert not log.clean(), "its lease is not over"
    set_clock((NOW_MS + LEASE_MS) / 1000)
    assert log.clean()
    assert log.offsets_left() == list(range(15, 30))
    assert not {name for name in log.key_names() if "spare" in name}
