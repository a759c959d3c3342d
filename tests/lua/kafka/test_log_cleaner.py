"""What compaction leaves: cases of Kafka's LogCleanerTest and LogCleanerManagerTest, on top of those in tests/store.

Kafka keeps a batch without records for a producer's last sequence. Here the partition's state of its producers does
that, and a batch without records is none.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.kafka.log_scenes import LAST, NOW_MS, Scene
from tests.lua.partition import LEASE_MS, Loop
from tests.store.keyed import records
from tests.support.ported import kafka

LAG_MS = 3_600_000
RETENTION_MS = 1000


@pytest.fixture
def log(server: redis.Redis, loop: Loop) -> Scene:
    return Scene(server, loop)


# ---------------------------------------------------------------------- what is within reach


@kafka("LogCleanerManagerTest.testCleanableOffsetsForNone")
def test_all_but_the_last_batch_is_within_reach(log: Scene) -> None:
    for _ in range(8):
        log.plain(1)
    assert log.clean(is_ended=False)
    assert log.offsets_left() == [6, 7]
    assert log.meta()["cleaned"] == "7"


@kafka("LogCleanerManagerTest.testCleanableOffsetsForShortTime")
def test_short_lag_leaves_all_but_the_last_batch_within_reach(log: Scene) -> None:
    for _ in range(8):
        log.plain(1, timestamp=NOW_MS)
    assert not log.clean(min_lag_ms=LAG_MS, is_ended=False)
    log.now_ms += LAG_MS + 1
    assert log.clean(min_lag_ms=LAG_MS, is_ended=False)
    assert log.offsets_left() == [6, 7]


@kafka("LogCleanerTest.testCleaningWithUncleanableSection")
def test_what_is_too_young_stays_as_it_is(log: Scene) -> None:
    for number in range(40):
        log.plain(number % 10, timestamp=NOW_MS - LAG_MS if number < 25 else NOW_MS)
    assert log.clean(min_lag_ms=LAG_MS)
    assert log.offsets_left() == list(range(15, 40))


@kafka("LogCleanerManagerTest.testUndecidedTransactionalDataNotCleanable")
def test_open_transaction_is_out_of_reach_however_old_it_is(log: Scene) -> None:
    log.write(15, 1, 2, timestamp=NOW_MS)
    log.write(15, 3, timestamp=NOW_MS)
    log.now_ms += LAG_MS + 1
    assert not log.clean(min_lag_ms=LAG_MS)
    log.end(15, "abort")
    assert log.clean(min_lag_ms=LAG_MS)
    assert log.keys_left() == []


@kafka("LogCleanerTest.testBuildOffsetMap")
def test_different_keys_all_stay_and_are_looked_at_once(log: Scene) -> None:
    for key in range(0, 300, 3):
        log.plain(key, key + 1, key + 2)
    assert log.clean()
    assert log.keys_left() == list(range(300))
    assert log.meta()["cleaned"] == "300"
    assert not log.clean(is_ended=False)


@kafka("LogCleanerTest.testCleaningBeyondMissingOffsets")
def test_compaction_goes_on_behind_offsets_that_are_gone(log: Scene) -> None:
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
def test_large_batches_are_compacted_like_others(log: Scene) -> None:
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
def test_records_without_keys_go(log: Scene) -> None:
    """They came before the topic was compacted."""
    for number in range(5):
        log.pairs((None, b"%d" % number))
        log.pairs((None, b"more"), (b"%d" % number, b"kept"), (None, None))
    assert log.clean()
    read = records(log.fetch())
    assert [(key, value) for _, key, value in read if key != LAST] == [(b"%d" % key, b"kept") for key in range(5)]


@kafka("LogCleanerTest.testCleanTombstone")
def test_tombstones_own_time_does_not_matter(log: Scene) -> None:
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
def test_producers_whose_records_are_gone_go_on_with_their_sequences(log: Scene) -> None:
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
def test_producer_goes_on_behind_what_it_aborted(log: Scene) -> None:
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
def test_readers_are_told_of_an_aborted_transaction_until_its_marker_goes(log: Scene) -> None:
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
def test_commit_markers_go_a_while_after_their_records(log: Scene) -> None:
    """Interleaved transactions of two producers, whose records plain ones replace."""
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
def test_marker_of_a_transaction_without_records_goes_too(log: Scene) -> None:
    log.end(1, "commit")
    log.plain(2)
    log.plain(3)
    assert log.clean(retention_ms=RETENTION_MS)
    assert (log.keys_left(), log.offsets_left()) == ([2, 3], [0, 1, 2])
    log.now_ms += RETENTION_MS
    assert log.clean(retention_ms=RETENTION_MS)
    assert (log.keys_left(), log.offsets_left()) == ([2, 3], [1, 2])


# ---------------------------------------------------------------------- runs that are broken off


@kafka("LogCleanerTest.testRecoveryAfterCrash")
@pytest.mark.parametrize("swaps", [False, True], ids=["before the swap", "behind it"])
def test_compaction_that_was_broken_off_leaves_the_log_and_nothing_else(
    log: Scene, set_clock: Callable[[float], None], swaps: bool
) -> None:
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
