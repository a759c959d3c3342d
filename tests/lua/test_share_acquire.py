"""Share partitions: what an acquisition takes (korvet_share_acquire)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.log import listening
from tests.lua.share import (
    ACCEPT,
    GONE,
    GROUP_ID_NOT_FOUND,
    INVALID_RECORD_STATE,
    INVALID_REQUEST,
    LATE,
    NONE,
    REJECT,
    RELEASE,
    RETRY,
    START_S,
    UNDELIVERED,
    Share,
)
from tests.support.ported import kafka


@pytest.fixture
def share(server: redis.Redis, set_clock: Callable[[float], None]) -> Share:
    """Ten batches of ten records, and a group that begins at the first."""
    share = Share(server, set_clock)
    assert share.create() == 0
    for number in range(10):
        share.put(f"b{number}")
    assert share.begin() == [NONE, -1]
    return share


# ---------------------------------------------------------------------- new offsets


@kafka(
    "SharePartitionTest.testAcquireMultipleRecords testAcquireWithMaxFetchRecords "
    "testAcquireWithMultipleBatchesAndMaxFetchRecords testMaybeInitializeAndAcquireWithHigherMaxFetchRecords "
    "testNextFetchOffsetWithCachedStateAcquired testCanAcquireRecordsWithEmptyCache "
    "testNextFetchOffsetWithFindAndCachedStateEmpty"
)
def test_acquisition_takes_whole_batches_beyond_the_number_of_records(share: Share) -> None:
    assert share.acquire(15) == (NONE, 0, 20, [(0, 19, 1)], 0, 0)
    assert share.take(1, "other") == [(20, 29, 1)]
    assert share.take(500) == [(30, 99, 1)]
    assert share.states() == [("acquired", 0, 19, 1), ("acquired", 20, 29, 1), ("acquired", 30, 99, 1)]
    assert share.acquire(500) == (NONE, 0, 100, [], 30_000, 0)


@kafka(
    "SharePartitionTest.testAcquireSingleBatchInRecordLimitMode testAcquireMultipleBatchesInRecordLimitMode "
    "testAcquireWhenInsufficientRecordsInRecordLimitMode testMultipleMemberAcquireInDifferentAcquireModes "
    "testAcquisitionLockSingleRecordBatchInRecordLimitMode"
)
def test_acquisition_by_records_takes_exactly_so_many(share: Share) -> None:
    share.mode = "records"
    assert share.take(15) == [(0, 14, 1)]
    assert share.take(1) == [(15, 15, 1)]
    share.mode = "batches"
    assert share.take(1) == [(16, 19, 1)]
    share.mode = "records"
    assert share.take(500) == [(20, 99, 1)]


@kafka(
    "SharePartitionTest.testAcquireSingleRecord testAcquireSameBatchAgain testAcquireWithEmptyFetchRecords "
    "testAcquisitionLockForAcquiringSameBatchAgain testNextFetchOffsetWithMultipleConsumers"
)
def test_no_offset_is_acquired_twice(share: Share) -> None:
    taken = [share.take(7, f"m{number}") for number in range(12)]
    assert [offset for one in taken for offset in share.offsets(one)] == list(range(100))
    assert taken[10:] == [[], []]
    share.put("more", records=1)
    assert share.take() == [(100, 100, 1)]


def test_acquisition_ends_where_bytes_do_after_the_first_batch(share: Share) -> None:
    assert share.acquire(500, max_bytes=0).ranges == [(0, 9, 1)]
    assert share.acquire(500, max_bytes=19).ranges == [(10, 39, 1)]
    share.mode = "records"
    assert share.acquire(3, max_bytes=5).ranges == [(40, 42, 1)]
    assert share.acquire(500, max_bytes=7).ranges == [(43, 49, 1)]
    assert share.acquire(500, max_bytes=1000).ranges == [(50, 99, 1)]


@kafka(
    "SharePartitionTest.testAcquireWithMaxInFlightRecordsAndTryAcquireNewBatch testCanAcquireRecordsReturnsTrue "
    "testCanAcquireRecordsWithCachedDataAndLimitReached testCanAcquireRecordsWithCachedDataAndLimitNotReached "
    "testCanAcquireRecordsChangeResponsePostAcknowledgement testCanAcquireRecordsAfterAcceptAcknowledgement "
    "testCanAcquireRecordsAfterArchiveAcknowledgement testDynamicPartitionMaxRecordLocksExactBoundary "
    "testMaxInFlightRecordsUsesGroupConfigWhenPresent"
)
def test_window_of_offsets_ends_acquisitions_until_the_start_moves(share: Share) -> None:
    share.window = 25
    assert share.take(20) == [(0, 19, 1)]
    # Five more would fit, and the batch is whole, as Kafka's.
    assert share.take(20) == [(20, 29, 1)]
    assert share.acquire() == (NONE, 0, 30, [], 30_000, 0)
    assert share.settle(ACCEPT, (1, 19)) == NONE
    assert share.take() == []
    assert share.settle(REJECT, 0) == NONE
    acquired = share.acquire(5)
    assert acquired[1:4] == (20, 40, [(30, 39, 1)])


def test_window_counts_what_is_not_finished_if_records_wait_for_times(share: Share) -> None:
    share.window, share.times = 25, 1
    assert share.take(20) == [(0, 19, 1)]
    assert share.settle(round(share.now * 1000) + 60_000, 0, (8, 9)) == NONE
    assert share.settle(ACCEPT, (1, 7), (10, 19)) == NONE
    assert share.take(20) == [(20, 39, 1)]
    assert share.settle(ACCEPT, (20, 24)) == NONE
    assert share.acquire(20) == (NONE, 0, 50, [(40, 49, 1)], 30_000, 0)
    # Another one, who knows of no times, finds the window full, too.
    share.times = 0
    assert share.take() == []
    share.times = 1
    with listening(share.server, share.shares) as next_message:
        assert share.settle(ACCEPT, 30) == NONE
        assert share.settle(ACCEPT, 31) == NONE
        share.server.spublish(share.shares, "end")
        assert [next_message(), next_message()] == [b"g", b"end"]
        assert share.settle(ACCEPT, (32, 49)) == NONE
    assert share.take(10) == [(50, 59, 1)]
    share.times = 0
    assert share.take() == []
    assert share.describe()[2:5] == (0, 60, 58)


@kafka(
    "SharePartitionTest.testDynamicPartitionMaxRecordLocksDecrease testDynamicPartitionMaxRecordLocksIncrease "
    "testDynamicPartitionMaxRecordLocksDecreaseBelowInFlightAffectsMaxRecordsToAcquire"
)
def test_window_may_change_while_offsets_are_in_flight(share: Share) -> None:
    assert share.take(50) == [(0, 49, 1)]
    share.window = 20
    assert share.take() == []
    assert share.settle(RELEASE, (45, 49)) == NONE
    assert share.take() == [(45, 49, 2)]
    share.window = 60
    assert share.take() == [(50, 59, 1)]


@kafka(
    "SharePartitionTest.testMaybeInitializeDefaultStartEpochGroupConfigReturnsEarliest "
    "testMaybeInitializeDefaultStartEpochGroupConfigReturnsLatest testMaybeInitialize "
    "testMaybeInitializeDefaultStartEpochGroupConfigReturnsByDuration testMaybeInitializeSharePartitionAgain "
    "testNextFetchOffsetInitialState"
)
def test_first_acquisition_finds_the_start(share: Share) -> None:
    assert share.describe()[2:5] == (-1, -1, -1)
    share.reset = ""
    assert share.acquire().code == RETRY
    share.reset = "34"
    assert share.acquire(1)[1:4] == (34, 40, [(34, 39, 1)])
    share.reset = "earliest"
    assert share.acquire(1)[1:4] == (34, 50, [(40, 49, 1)])
    assert share.begin("cgp_1") == [NONE, 34]


def test_first_acquisition_from_the_end_takes_what_comes_later(share: Share) -> None:
    share.reset = "latest"
    assert share.acquire() == (NONE, 100, 100, [], -1, 0)
    share.put("later", records=3)
    assert share.take() == [(100, 102, 1)]


def test_offset_to_begin_at_is_within_the_log(share: Share) -> None:
    share.trim(20)
    share.reset = "7"
    assert share.acquire(1).ranges == [(20, 29, 1)]
    other = Share(share.server, lambda _: None, group="other")
    other.begin()
    other.reset = "4000"
    assert other.acquire()[1:4] == (100, 100, [])


def test_reader_of_committed_records_acquires_below_the_last_stable_offset(share: Share) -> None:
    ordinal = 1_700_000_000_000_000
    assert share.write(5, (7, 0, 0), ordinal)[:2] == (NONE, 100)
    share.put("after")
    share.isolation = "committed"
    assert share.take() == [(0, 99, 1)]
    assert share.acquire() == (NONE, 0, 100, [], 30_000, 0)
    share.isolation = "uncommitted"
    assert share.take(1) == [(100, 104, 1)]
    share.mark((7, 0), ordinal)
    share.isolation = "committed"
    assert share.take() == [(105, 115, 1)]


# ---------------------------------------------------------------------- available offsets


@kafka(
    "SharePartitionTest.testAcquireReleasedRecord testAcquireReleasedRecordMultipleBatches "
    "testAcquireMultipleRecordsWithOverlapAndNewBatch testNextFetchOffsetPostAcquireAndAcknowledgeFunctionality "
    "testNextFetchOffsetWithFindAndCachedState testReacquireSubsetWithAnotherMember "
    "testCanAcquireRecordsAfterReleaseAcknowledgement"
)
def test_released_offsets_come_before_new_ones(share: Share) -> None:
    assert share.take(30) == [(0, 29, 1)]
    assert share.settle(RELEASE, (25, 27), (3, 4)) == 42  # backwards
    assert share.settle(RELEASE, (3, 4), (25, 27)) == NONE
    assert share.take(4, "you") == [(3, 4, 2), (25, 27, 2)]
    assert share.take(4, "you") == [(30, 39, 1)]


def test_acquisition_goes_on_with_new_offsets_after_the_released_ones(share: Share) -> None:
    share.take(10)
    share.settle(RELEASE, 3)
    assert share.take(5) == [(3, 3, 2), (10, 19, 1)]
    assert share.offsets([one[1:] for one in share.states()]) == list(range(20))


@kafka(
    "SharePartitionTest.testAcquireMultipleRecordsWithOverlapAndNewBatchInRecordLimitMode "
    "testAcquireAndAcknowledgeMultipleSubsetRecordInRecordLimitMode"
)
def test_acquisition_by_records_takes_a_part_of_what_was_released(share: Share) -> None:
    share.mode = "records"
    share.take(30)
    share.settle(RELEASE, (0, 9))
    assert share.take(4) == [(0, 3, 2)]
    assert share.take(8) == [(4, 9, 2), (30, 31, 1)]


@kafka(
    "SharePartitionTest.testAcquireWithMaxInFlightRecordsAndReleaseLastOffset "
    "testAcquireWithMaxInFlightRecordsReleaseBatchAndAcquireSubsetRecords "
    "testAcquireWithMaxInFlightRecordsReleaseBatchAndAcquireSubsetRecordsOverlap"
)
def test_released_offsets_in_a_full_window_are_acquired(share: Share) -> None:
    share.window = 20
    assert share.take() == [(0, 19, 1)]
    assert share.settle(RELEASE, (5, 6), 19) == NONE
    assert share.take() == [(5, 6, 2), (19, 19, 2)]
    assert share.take() == []


def test_pieces_of_one_acquisition_become_one_range_again(share: Share) -> None:
    share.take(10)
    assert [share.settle(RELEASE, offset) for offset in (4, 3, 6, 5)] == [NONE] * 4
    assert len(share.states()) == 6
    assert share.take() == [(3, 6, 2), (10, 99, 1)]


def test_undelivered_records_come_again_with_the_count_they_had(share: Share) -> None:
    share.limit = 2
    for _ in range(3):
        assert share.take(5) == [(0, 9, 1)]
        assert share.settle(UNDELIVERED, (0, 9)) == NONE
    assert share.take(5) == [(0, 9, 1)]
    assert share.settle(RELEASE, (0, 9)) == NONE
    assert share.states() == [("available", 0, 9, 1)]


# ---------------------------------------------------------------------- records that are delivered again and again


@kafka("SharePartitionTest.testAcquireRecordsHalvesBatchSizeOnEachFailureUntilSingleRecordOnLastAttempt")
def test_each_further_delivery_halves_what_comes_with_a_record_and_the_last_one_is_alone(share: Share) -> None:
    share.limit = 7
    for count in range(1, 5):
        assert share.take(20) == [(0, 19, count)]
        assert share.settle(RELEASE, (0, 19)) == NONE
    assert share.take() == [(0, 9, 5)]
    share.settle(RELEASE, (0, 9))
    assert share.take() == [(0, 4, 6)]
    share.settle(RELEASE, (0, 4))
    assert [share.take() for _ in range(5)] == [[(offset, offset, 7)] for offset in range(5)]
    assert share.take() == [(5, 9, 6)]
    assert share.take() == [(10, 19, 5)]
    assert share.take(1) == [(20, 29, 1)]


@kafka("SharePartitionTest.testThrottleRecordsWhenPendingDeliveriesExist")
def test_suspect_records_come_in_an_acquisition_of_their_own(share: Share) -> None:
    assert share.take(20) == [(0, 19, 1)]
    for count in (2, 3):
        assert share.settle(RELEASE, (5, 9)) == NONE
        assert share.take(1) == [(5, 9, count)]
    assert share.settle(RELEASE, (0, 19)) == NONE
    assert share.take() == [(0, 4, 2)]
    assert share.take() == [(5, 9, 4)]
    assert share.take(10) == [(10, 19, 2)]


@kafka(
    "SharePartitionTest.testLastAttemptRecordIsolationWithMixedDeliveryCount "
    "testAcquisitionNotThrottledIfHighDeliveryCountRecordNotAcquired"
)
def test_record_before_its_last_delivery_comes_alone(share: Share) -> None:
    for _ in range(2):
        share.take(20)
        share.settle(RELEASE, (0, 19))
    assert share.take(20) == [(0, 19, 3)]
    share.settle(RELEASE, 2, 5)
    assert share.take() == [(2, 2, 4)]
    assert share.take() == [(5, 5, 4)]
    share.settle(RELEASE, (0, 19))
    assert share.take() == [(0, 1, 4)]
    assert share.take() == [(2, 2, 5)]


@kafka(
    "SharePartitionTest.testMaxDeliveryCountLimitExceededForRecordBatch testDynamicDeliveryCountDecreaseCausesArchival "
    "testMaxDeliveryCountLimitExceededForRecordsSubset testDynamicDeliveryCountIncreaseAllowsMoreDeliveries "
    "testMaxDeliveryCountUsesGroupConfigWhenPresent "
    "testMaxDeliveryCountLimitExceededForRecordsSubsetAndCachedStateNotCleared"
)
def test_record_at_the_limit_of_deliveries_is_archived_when_it_is_released(share: Share) -> None:
    share.limit = 2
    share.take(10)
    share.settle(RELEASE, (0, 9))
    assert share.take(10) == [(0, 9, 2)]
    share.limit = 3
    share.settle(RELEASE, (8, 9))
    share.limit = 2
    share.settle(RELEASE, (0, 7))
    assert share.describe()[2:] == (8, 10, 92, [("available", 8, 9, 2)])


# ---------------------------------------------------------------------- refusals


def test_call_for_another_topic_or_an_unknown_group_changes_nothing(share: Share) -> None:
    before = share.dump()
    share.topic_id = "b" * 32
    assert share.acquire() == (GONE, -1, -1, [], -1, 0)
    share.topic_id, share.group = "a" * 32, "unknown"
    assert share.acquire() == (GROUP_ID_NOT_FOUND, -1, -1, [], -1, 0)
    assert share.dump() == before


def test_call_that_waited_while_redis_stood_still_acquires_nothing(share: Share) -> None:
    before = share.dump()
    share.outages = f"{(START_S - 3) * 1000}"
    assert share.acquire() == (LATE, -1, -1, [], -1, 0)
    assert share.dump() == before


def test_acquisition_that_finds_nothing_writes_nothing(share: Share) -> None:
    share.take()
    before = share.dump()
    assert share.take() == []
    assert share.dump() == before


def test_acquisition_reads_as_few_entries_of_a_long_log_as_of_a_short_one(share: Share) -> None:
    for _ in range(500):
        share.put()
    share.server.config_resetstat()
    assert share.take(2000) == [(0, 1999, 1)]
    stats = share.server.info("commandstats")
    assert stats["cmdstat_xrange"]["calls"] == 2


@kafka("ShareFetchAcknowledgeRequestTest.testShareFetchRequestPiggybackedRelease")
def test_acquisition_first_acknowledges(share: Share) -> None:
    assert share.take(5) == [(0, 9, 1)]
    assert share.acquire(5, "m", "n", (0, 3, ACCEPT), (4, 9, RELEASE)).ranges == [(4, 9, 2)]
    assert (share.acknowledged, share.describe()[2:5]) == (NONE, (4, 10, 96))
    assert share.acquire(5, "m", "n", (4, 9, ACCEPT)).ranges == [(10, 19, 1)]
    assert (share.acknowledged, share.describe()[2:5]) == (NONE, (10, 20, 90))


def test_acquisition_gets_records_whatever_becomes_of_its_acknowledgements(share: Share) -> None:
    assert share.take(5, "other") == [(0, 9, 1)]
    assert share.acquire(5, "m", "n", (0, 9, ACCEPT)).ranges == [(10, 19, 1)]
    assert share.acknowledged == INVALID_RECORD_STATE
    assert share.acquire(5, "m", "n", (5, 4, ACCEPT)).code == NONE
    assert share.acknowledged == INVALID_REQUEST
    assert share.settle(ACCEPT, (0, 9), member="other") == share.settle(ACCEPT, (10, 19)) == NONE


def test_others_hear_of_room_that_an_acquisition_made_and_left(share: Share) -> None:
    share.window = 20
    assert share.take(20) == [(0, 19, 1)]
    with listening(share.server, share.shares) as next_message:
        assert share.acquire(5, "m", "n", (0, 9, ACCEPT)).ranges == [(20, 29, 1)]
        share.server.spublish(share.shares, "it took all")
        assert share.acquire(5, "m", "n", (10, 29, ACCEPT)).ranges == [(30, 39, 1)]
        share.server.spublish(share.shares, "end")
        assert [next_message() for _ in range(3)] == [b"it took all", b"g", b"end"]
