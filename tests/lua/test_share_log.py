"""Share partitions of a log that changes, and of groups that begin, are moved and deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.log import GONE
from tests.lua.share import (
    ACCEPT,
    GAP,
    GROUP_ID_NOT_FOUND,
    INVALID_RECORD_STATE,
    NONE,
    RELEASE,
    RENEW,
    Share,
)
from tests.support.ported import kafka


@pytest.fixture
def share(server: redis.Redis, set_clock: Callable[[float], None]) -> Share:
    """Ten batches of ten records; a member has acquired the first three and released the second."""
    share = Share(server, set_clock)
    assert share.create() == 0
    for number in range(10):
        share.put(f"b{number}")
    share.begin()
    assert share.take(30) == [(0, 29, 1)]
    assert share.settle(RELEASE, (10, 19)) == NONE
    return share


def _forget(share: Share, *next_offsets: int) -> None:
    """Remove batches, as a compaction does."""
    for offset in next_offsets:
        assert share.server.xdel(share.log, f"{offset}-0") == 1


# ---------------------------------------------------------------------- a log that loses its begin


@kafka(
    "SharePartitionTest.testLsoMovementForArchivingBatches testLsoMovementForArchivingAllAvailableBatches "
    "testLsoMovementForArchivingAllAvailableOffsets testLsoMovementForArchivingOffsets "
    "testLsoMovementPostArchivedBatches "
    "testLsoMovementForArchivingOffsetsWithStartAndEndBatchesNotFullMatches testLsoMovementPostArchivedRecords "
    "testLsoMovementForArchivingOffsetsWithStartOffsetNotFullMatches testAcquireBatchPriorToStartOffset "
    "testAcquireBatchWithMovedStartOffsetAndNoOverlapWithCachedBatch "
    "testAcquireBatchInRecordLimitModeWithMovedStartOffset"
)
def test_available_offsets_below_the_log_start_are_gone(share: Share) -> None:
    share.trim(15)
    acquired = share.acquire(1)
    assert acquired[1:4] == (15, 30, [(15, 19, 2)])
    assert share.states() == [("acquired", 15, 19, 2), ("acquired", 20, 29, 1)]


@kafka(
    "SharePartitionTest.testLsoMovementAheadOfEndOffset testLsoMovementToEndOffset "
    "testLsoMovementToEndOffsetWhereEndOffsetIsAvailable testLsoMovementAheadOfEndOffsetPostAcknowledgement "
    "testLsoMovementOnInitializationSharePartition testLsoMovementWithGapsInCachedStateMap"
)
def test_log_start_above_all_that_was_acquired_is_the_start(share: Share) -> None:
    share.trim(45)
    assert share.acquire(1)[1:4] == (45, 50, [(45, 49, 1)])
    share.trim(100)
    assert share.acquire(1)[1:5] == (100, 100, [], -1)


@kafka(
    "SharePartitionTest.testAcknowledgeBatchPostLsoMovement testAcknowledgeBatchAndOffsetPostLsoMovement "
    "testLsoMovementForArchivingOffsetsWithStartOffsetNotFullMatchesPostAcceptAcknowledgement "
    "testLsoMovementForArchivingOffsetsWithStartOffsetNotFullMatchesPostReleaseAcknowledgement "
    "testLsoMovementWithGapsInCachedStateMapAndAcknowledgedBatch testLsoMovementWithBatchRenewal "
    "testLsoMovementWithPerOffsetRenewal testLsoMovementWithPendingAcknowledgements "
    "testLsoMovementWithPendingAcknowledgementsForBatches"
)
@pytest.mark.parametrize("kind", [ACCEPT, RELEASE, RENEW])
def test_acquired_offsets_below_the_log_start_are_acknowledged_without_effect(share: Share, kind: int) -> None:
    share.trim(25)
    assert share.settle(kind, (0, 9), (20, 24)) == NONE
    assert share.settle(kind, (20, 29)) == NONE
    share.take(1)
    described = share.describe()
    assert described.start == (30 if kind == ACCEPT else 25)
    assert described.ranges[0][1] == described.start
    assert described.lag == 100 - described.start


@kafka(
    "SharePartitionTest.testAcquisitionLockTimeoutForBatchesPostStartOffsetMovement "
    "testAcquisitionLockTimeoutForBatchesPostStartOffsetMovementToStartOfBatch "
    "testAcquisitionLockTimeoutForBatchesPostStartOffsetMovementToMiddleOfBatch "
    "testReleaseAcquiredRecordsBatchesPostStartOffsetMovement "
    "testReleaseAcquiredRecordsBatchesPostStartOffsetMovementToStartOfBatch "
    "testReleaseAcquiredRecordsBatchesPostStartOffsetMovementToMiddleOfBatch "
    "testTerminalRecordsNotUpdatedWhenBatchesBeforeStartOffsetAreExpired "
    "testTerminalRecordsNotUpdatedWhenOffsetsBeforeStartOffsetAreExpired "
    "testTerminalRecordsNotUpdatedWhenOffsetsBeforeStartOffsetAreExpiredAfterAcknowledgements "
    "testLsoMovementThenAcquisitionLockTimeoutThenAcknowledge "
    "testLsoMovementThenAcquisitionLockTimeoutThenAcknowledgeBatchLastOffsetAheadOfStartOffsetBatch"
)
@pytest.mark.parametrize("ends_by", ["time", "release"])
def test_offsets_that_come_back_below_the_log_start_are_not_acquired_again(share: Share, ends_by: str) -> None:
    share.trim(25)
    if ends_by == "time":
        share.pass_time(30)
    else:
        share.release()
    assert share.take(1) == [(25, 29, 2)]
    assert share.describe()[2:5] == (25, 30, 75)


def test_thousands_of_ranges_below_the_log_start_go_in_several_calls(share: Share) -> None:
    share.mode, share.window = "records", 10_000
    share.put(records=3000)
    share.take(80)
    for _ in range(2500):
        share.take(1, "you")
    share.trim(2590)
    starts = [share.acquire(1).start for _ in range(4)]
    assert starts == sorted(starts)
    assert (starts[0] < 2590, starts[-1]) == (True, 2590)
    assert share.states()[0] == ("acquired", 2590, 2590, 1)


# ---------------------------------------------------------------------- a log with gaps


@kafka(
    "SharePartitionTest.testAcquireWhenBatchesRemovedForFetchOffset "
    "testAcquireWhenBatchesAreRemovedFromBetweenInSubsequentFetchData "
    "testAcquireAndAcknowledgeWithRecordsAheadOfRecordBatchStartOffset testLsoMovementPostGapsInAcknowledgements "
    "testMaybeUpdateCachedStateGapAfterLastOffsetAcknowledged testDeliveryCompleteCountWhenStaleBatchesAreArchived"
)
def test_offsets_that_no_batch_holds_are_skipped_before_the_next_batch(share: Share) -> None:
    _forget(share, 40, 50)
    assert share.take(1) == [(10, 19, 2)]
    assert share.take(1) == [(50, 59, 1)]
    assert share.settle(ACCEPT, (0, 29)) == NONE
    assert share.describe()[2:] == (50, 60, 50, [("acquired", 50, 59, 1)])
    assert share.settle(ACCEPT, 35) == NONE


def test_acquisition_does_not_reach_over_a_gap_to_the_end_of_the_batch_after_it(share: Share) -> None:
    _forget(share, 50)
    share.take(1)
    assert share.take(15) == [(30, 44, 1)]
    assert share.take(1) == [(50, 59, 1)]
    assert share.take(30) == [(60, 89, 1)]
    assert share.settle(GAP, (40, 44)) == NONE


def test_log_without_any_batch_left_is_finished(share: Share) -> None:
    _forget(share, *range(40, 101, 10))
    share.take(1)
    assert share.acquire() == (NONE, 0, 100, [], 30_000, 0)
    assert share.settle(ACCEPT, (0, 29)) == NONE
    assert share.describe()[2:] == (100, 100, 0, [])


def test_offsets_below_the_local_start_are_acquired_by_their_number(share: Share) -> None:
    share.seal(0, 70)
    share.drop(60)
    assert share.take(7) == [(10, 19, 2)]
    assert share.take(7) == [(30, 36, 1)]
    assert share.take(7, "you") == [(37, 43, 1)]
    assert share.take(17) == [(44, 60, 1)]
    assert share.take(1) == [(61, 69, 1)]


# ---------------------------------------------------------------------- keys that are gone


def test_group_whose_ranges_were_removed_goes_on_at_its_start(share: Share) -> None:
    share.settle(ACCEPT, (0, 9))
    share.server.delete(share.share_keys[3])
    assert share.settle(ACCEPT, 20) == INVALID_RECORD_STATE
    assert share.acquire(1)[1:4] == (10, 20, [(10, 19, 1)])
    assert share.describe().lag == 90
    share.server.zremrangebyscore(share.share_keys[3], 0, "+inf")
    assert share.acquire(1)[1:4] == (10, 20, [(10, 19, 1)])


def test_group_of_a_log_that_somebody_removed_begins_anew(share: Share) -> None:
    share.take()
    share.server.delete(share.log, share.meta, *share.keys)
    assert share.create() == 0
    for _ in range(20):
        share.put()
    assert share.acquire().code == GROUP_ID_NOT_FOUND
    assert share.begin() == [NONE, -1]
    assert share.acquire(500).start == 0


def test_group_goes_on_at_the_end_of_a_log_that_ends_before_it(share: Share) -> None:
    share.server.hset(share.meta, "end", 20)
    assert share.acquire(1)[1:4] == (0, 10, [(0, 9, 1)])
    share.server.hset(share.meta, mapping={"end": 5, "start": 5})
    assert share.acquire(1)[1:4] == (5, 5, [])


def test_unreadable_header_or_range_is_named_and_changes_nothing(share: Share) -> None:
    share.server.hset(share.shares, "h", "nonsense")
    share.group = "h"
    with pytest.raises(redis.ResponseError, match=r"field h of .*:shares cannot be read"):
        share.acquire()
    share.group = "g"
    share.server.zadd(share.share_keys[3], {"nonsense": 3})
    share.pass_time(30)
    with pytest.raises(redis.ResponseError, match=r"a member of .*:share:g is no range: nonsense"):
        share.acquire()


def test_deleted_partition_takes_its_share_partitions_along(share: Share) -> None:
    for number in range(250):
        other = Share(share.server, lambda _: None, group=f"g{number} {{x}}")
        assert other.begin() == [NONE, -1]
    calls = 0
    while share.delete()[1] == 1:
        calls += 1
    assert share.server.keys("korvet:*") == []
    assert 2 <= calls <= 4


# ---------------------------------------------------------------------- groups


def test_share_partition_begins_once_for_a_group(share: Share) -> None:
    before = share.dump()
    assert share.begin() == [NONE, 0]
    assert share.begin("cgp_0") == [GROUP_ID_NOT_FOUND, 0]
    assert share.dump() == before
    assert share.begin("cgp_2") == [NONE, -1]
    assert share.states() == []
    share.topic_id = "b" * 32
    assert share.begin("cgp_3") == [GONE, -1]


def test_start_that_is_moved_forgets_locks_and_counts(share: Share) -> None:
    assert share.begin(start=25, mode="move") == [NONE, 25]
    assert share.describe()[2:] == (25, 25, 75, [])
    assert share.take(1) == [(25, 29, 1)]
    assert share.begin(start=4000, mode="move") == [NONE, 100]
    assert share.begin(start=-1, mode="move") == [NONE, -1]
    share.reset = "latest"
    assert share.acquire()[1:4] == (100, 100, [])


def test_deleted_share_partition_stays_deleted(share: Share) -> None:
    assert share.remove("cgp_0") == 0
    assert share.remove("cgp_1") == 1
    assert share.remove() == 0
    assert share.acquire().code == GROUP_ID_NOT_FOUND
    assert share.describe().code == GROUP_ID_NOT_FOUND
    assert share.server.keys("*share*") == []


def test_groups_of_one_partition_do_not_know_each_other(share: Share) -> None:
    other = Share(share.server, lambda _: None, group="other")
    other.begin()
    assert other.take(10) == [(0, 9, 1)]
    assert other.settle(ACCEPT, (0, 9)) == NONE
    assert other.remove() == 1
    assert share.settle(ACCEPT, (0, 9)) == NONE
