"""Share partitions: acknowledgements, locks and releases (korvet_share_acknowledge, korvet_share_release)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.log import listening
from tests.lua.share import (
    ACCEPT,
    GAP,
    GONE,
    GROUP_ID_NOT_FOUND,
    INVALID_RECORD_STATE,
    INVALID_REQUEST,
    LATE,
    NONE,
    REJECT,
    RELEASE,
    RENEW,
    RETRY,
    START_S,
    Share,
)
from tests.support.ported import kafka


@pytest.fixture
def share(server: redis.Redis, set_clock: Callable[[float], None]) -> Share:
    """Ten batches of ten records; a member ``m`` has acquired the first three, and ``you`` the next."""
    share = Share(server, set_clock)
    assert share.create() == 0
    for number in range(10):
        share.put(f"b{number}")
    share.begin()
    assert share.take(30) == [(0, 29, 1)]
    assert share.take(10, "you") == [(30, 39, 1)]
    return share


# ---------------------------------------------------------------------- what is finished


@kafka(
    "SharePartitionTest.testAcknowledgeSingleRecordBatch testAcknowledgeMultipleRecordBatch "
    "testMaybeUpdateCachedStateWhenAcknowledgeTypeAccept testMaybeUpdateCachedStateWhenAcknowledgeTypeReject "
    "testMaybeUpdateCachedStateWhenAcknowledgementsFromBeginningForBatchSubset "
    "testMaybeUpdateCachedStateWhenAcknowledgementsFromBeginningForEntireBatch"
)
@pytest.mark.parametrize("kind", [ACCEPT, REJECT, GAP])
def test_start_moves_over_what_is_finished(share: Share, kind: int) -> None:
    assert share.acknowledge((0, 4, kind)) == [NONE, 5, -1]
    assert share.describe()[2:] == (5, 40, 95, [("acquired", 5, 29, 1), ("acquired", 30, 39, 1)])
    assert share.settle(kind, (5, 29)) == NONE
    assert share.describe()[2:] == (30, 40, 70, [("acquired", 30, 39, 1)])


@kafka(
    "SharePartitionTest.testMaybeUpdateCachedStateWhenAcknowledgementsInBetween "
    "testAcknowledgeMultipleRecordBatchWithGapOffsets testAcknowledgeMultipleSubsetRecordBatchWithGapOffsets "
    "testMaybeUpdateCachedStateWhenAllRecordsInCachedStateAreAcknowledged "
    "testMaybeUpdateCachedStateMultipleAcquisitionsAndAcknowledgements testAcknowledgeInRecordLimitMode"
)
def test_finished_offsets_above_the_start_lower_the_lag_alone(share: Share) -> None:
    assert share.acknowledge((3, 5, ACCEPT), (7, 7, GAP), (9, 9, REJECT)) == [NONE, 0, -1]
    assert share.describe()[2:5] == (0, 40, 95)
    assert share.states()[:4] == [
        ("acquired", 0, 2, 1), ("acquired", 6, 6, 1), ("acquired", 8, 8, 1), ("acquired", 10, 29, 1)
    ]  # fmt: skip
    assert share.settle(ACCEPT, (0, 2)) == NONE
    assert share.describe().start == 6
    assert share.settle(ACCEPT, 6, 8, (10, 29)) == NONE
    assert share.settle(ACCEPT, (30, 39), member="you") == NONE
    assert share.describe()[2:] == (40, 40, 60, [])


@kafka("SharePartitionTest.testMaybeUpdateCachedStateWhenAcknowledgeTypeRelease")
def test_released_offsets_hold_the_start(share: Share) -> None:
    assert share.acknowledge((0, 0, RELEASE), (1, 29, ACCEPT)) == [NONE, 0, -1]
    assert share.describe()[2:] == (0, 40, 71, [("available", 0, 0, 1), ("acquired", 30, 39, 1)])


def test_acknowledgement_of_several_acquisitions_reaches_over_all_of_them(share: Share) -> None:
    assert share.take(20) == [(40, 59, 1)]
    assert share.settle(RELEASE, 45, 50) == NONE
    assert share.take(2) == [(45, 45, 2), (50, 50, 2)]
    assert share.settle(ACCEPT, (40, 59)) == NONE
    assert share.settle(ACCEPT, (0, 29)) == NONE
    assert share.describe()[2:] == (30, 60, 50, [("acquired", 30, 39, 1)])


# ---------------------------------------------------------------------- all or nothing


@kafka(
    "SharePartitionTest.testAcknowledgeOutOfRangeCachedData testAcknowledgeOutOfRangeCachedDataFirstBatch "
    "testAcknowledgeWithAnotherMember testAcknowledgeWhenOffsetNotAcquired testAcknowledgeSubsetWithAnotherMember "
    "testAcknowledgeRollbackWithFullBatchError testAcknowledgeRollbackWithSubsetError "
    "testAcknowledgeWithAnotherMemberRollbackBatchError testAcknowledgeWithAnotherMemberRollbackSubsetError "
    "testInvalidAcknowledgeTypeInBatchAcknowledgement testInvalidAcknowledgeTypeInSubsetAcknowledgement"
)
@pytest.mark.parametrize(
    ("acknowledgements", "code"),
    [
        ([(0, 9, ACCEPT), (30, 39, ACCEPT)], INVALID_RECORD_STATE),
        ([(0, 29, ACCEPT), (39, 39, RELEASE)], INVALID_RECORD_STATE),
        ([(0, 30, ACCEPT)], INVALID_RECORD_STATE),
        ([(0, 40, ACCEPT)], INVALID_REQUEST),
        ([(0, 9, ACCEPT), (40, 40, ACCEPT)], INVALID_REQUEST),
        ([(0, 9, ACCEPT), (9, 10, ACCEPT)], INVALID_REQUEST),
        ([(10, 19, ACCEPT), (0, 9, ACCEPT)], INVALID_REQUEST),
        ([(5, 4, ACCEPT)], INVALID_REQUEST),
        ([(-1, 4, ACCEPT)], INVALID_REQUEST),
        ([(0, 9, ACCEPT), (10, 19, -1)], INVALID_REQUEST),
        ([(0, 9, -1)], INVALID_REQUEST),
    ],
)
def test_one_refused_acknowledgement_refuses_all(
    share: Share, acknowledgements: list[tuple[int, int, int]], code: int
) -> None:
    before = share.dump()
    assert share.acknowledge(*acknowledgements)[0] == code
    assert share.dump() == before


def test_offset_is_acknowledged_once_and_by_the_connection_that_acquired_it(share: Share) -> None:
    assert share.settle(ACCEPT, 5, nonce="other") == INVALID_RECORD_STATE
    assert share.settle(ACCEPT, 5, member="you") == INVALID_RECORD_STATE
    assert share.settle(ACCEPT, 5) == NONE
    assert share.settle(ACCEPT, 5) == INVALID_RECORD_STATE
    assert share.settle(RELEASE, 6) == NONE
    assert share.settle(RELEASE, 6) == INVALID_RECORD_STATE


def test_member_of_any_name_acquires_and_acknowledges(share: Share) -> None:
    for member in ("a b", "", "ü\0x", "acquired 1 2"):
        taken = share.take(1, member, "")
        assert share.settle(ACCEPT, taken[0][:2], member=member, nonce="") == NONE


@kafka("SharePartitionTest.testLsoMovementPostGapsInAcknowledgements testMaybeInitializeWithInvalidOffsetInBatch")
def test_offsets_below_the_start_are_acknowledged_without_effect(share: Share) -> None:
    assert share.settle(ACCEPT, (0, 9)) == NONE
    before = share.dump()
    assert share.settle(RELEASE, (0, 9)) == NONE
    assert share.dump() == before
    assert share.settle(ACCEPT, (5, 12)) == NONE
    assert share.describe().start == 13


def test_nothing_can_be_acknowledged_when_all_is_finished(share: Share) -> None:
    share.settle(ACCEPT, (0, 29))
    share.settle(ACCEPT, (30, 39), member="you")
    assert share.settle(ACCEPT, 40) == INVALID_RECORD_STATE
    assert share.settle(ACCEPT, 39) == NONE


def test_calls_for_another_topic_an_unknown_group_or_too_late_change_nothing(share: Share) -> None:
    before = share.dump()
    share.outages = f"{(START_S - 3) * 1000}"
    assert share.settle(ACCEPT, 0) == LATE
    share.outages, share.topic_id = "", "b" * 32
    assert share.settle(ACCEPT, 0) == GONE
    share.topic_id, share.group = "a" * 32, "unknown"
    assert share.settle(ACCEPT, 0) == GROUP_ID_NOT_FOUND
    assert share.dump() == before


def test_more_ranges_than_one_call_takes_are_checked_and_then_acknowledged(share: Share) -> None:
    share.mode, share.window = "records", 10_000
    share.put(records=2000)
    share.take(60)
    for _ in range(1500):
        share.take(1)
    assert share.describe().next == 1600
    before = share.dump()
    assert share.acknowledge((40, 1599, ACCEPT)) == [RETRY, 0, 1099]
    assert share.acknowledge((40, 1600, ACCEPT), part="check")[0] == INVALID_REQUEST
    assert share.acknowledge((40, 1599, ACCEPT), part="check") == [NONE, 0, 1099]
    assert share.acknowledge((1099, 1599, ACCEPT), part="check") == [NONE, 0, -1]
    assert share.dump() == before
    assert share.acknowledge((40, 1599, ACCEPT), part="apply") == [NONE, 0, 1099]
    assert share.acknowledge((1099, 1599, ACCEPT), part="apply") == [NONE, 0, -1]
    assert share.states() == [("acquired", 0, 29, 1), ("acquired", 30, 39, 1)]


# ---------------------------------------------------------------------- locks


@kafka(
    "SharePartitionTest.testAcquisitionLockForAcquiringSingleRecord testAcquisitionLockForAcquiringMultipleRecords "
    "testAcquisitionLockOnAcknowledgingSingleRecordBatch testAcquisitionLockOnAcknowledgingMultipleRecordBatch "
    "testAcquisitionLockForAcquiringMultipleRecordsWithOverlapAndNewBatch testAcknowledgeAfterAcquisitionLockTimeout "
    "testAcquisitionLockForAcquiringSubsetBatchAgain testAcquisitionLockAfterDifferentAcknowledges "
    "testAcquisitionLockOnAcknowledgingMultipleRecordBatchWithGapOffsets "
    "testAcquisitionLockOnAcknowledgingMultipleSubsetRecordBatchWithGapOffsets "
    "testAcquisitionLockTimeoutMultipleRecordBatchInRecordLimitMode"
)
def test_locks_end_without_anybody_who_ends_them(share: Share) -> None:
    share.settle(ACCEPT, (10, 19))
    share.pass_time(29.999)
    assert share.take(1, "you") == [(40, 49, 1)]
    assert share.settle(ACCEPT, 0) == NONE
    share.pass_time(0.001)
    assert share.settle(ACCEPT, 1) == INVALID_RECORD_STATE
    acquired = share.acquire(500, "you")
    assert acquired.expired == 29
    assert acquired.ranges == [(1, 9, 2), (20, 29, 2), (30, 39, 2), (50, 99, 1)]
    assert share.settle(ACCEPT, 1) == INVALID_RECORD_STATE
    assert share.settle(ACCEPT, (1, 9), member="you") == NONE


@kafka(
    "SharePartitionTest.testAcquisitionLockTimeoutCauseMaxDeliveryCountExceed "
    "testAcquisitionLockTimeoutCauseSPSOMoveForward testAcquisitionLockTimeoutCauseSPSOMoveForwardAndClearCachedState"
)
def test_lock_that_ends_at_the_limit_of_deliveries_archives(share: Share) -> None:
    share.limit = 2
    share.pass_time(30)
    assert share.take(10) == [(0, 29, 2)]
    share.settle(ACCEPT, (20, 29))
    share.pass_time(30)
    acquired = share.acquire(1)
    assert acquired == (NONE, 30, 40, [(30, 39, 2)], 0, 20)


def test_wait_is_as_long_as_the_next_lock(share: Share) -> None:
    share.settle(ACCEPT, (30, 39), member="you")
    share.pass_time(10)
    assert share.take() == [(40, 99, 1)]
    assert share.acquire().wait_ms == 20_000
    share.pass_time(19.99)
    assert share.acquire().wait_ms == 10
    share.pass_time(0.01)
    assert share.take(1) == [(0, 29, 2)]
    assert share.acquire().wait_ms == 10_000


def test_locks_of_thousands_of_ranges_end_in_several_calls(share: Share) -> None:
    share.mode, share.window = "records", 10_000
    share.put(records=3000)
    share.take(60)
    for _ in range(2500):
        share.take(1)
    share.pass_time(30)
    ended = []
    for _ in range(4):
        ended.append(share.acquire(1, "you").expired)
        share.release("you")
    assert (sum(ended), max(ended) <= 1100, ended[3]) == (2600, True, 0)
    assert {state for state, *_ in share.states()} == {"available"}


@kafka(
    "SharePartitionTest.testRenewAcknowledgeWithCompleteBatchAck testRenewAcknowledgeWithPerOffsetAck "
    "testRenewAcknowledgeWithPerOffsetAndBatchMix testRenewAcknowledgeOnExpiredBatch"
)
def test_renewal_begins_a_lock_anew_and_counts_no_delivery(share: Share) -> None:
    share.pass_time(20)
    assert share.acknowledge((0, 4, RENEW), (5, 9, ACCEPT), (10, 10, RENEW)) == [NONE, 0, -1]
    share.pass_time(10)
    assert share.settle(RENEW, 11) == INVALID_RECORD_STATE
    assert share.take(1, "you") == [(11, 29, 2)]
    assert share.settle(ACCEPT, (0, 4), 10) == NONE
    assert share.describe().start == 11


@kafka(
    "SharePartitionTest.testScheduleAcquisitionLockTimeoutValueFromGroupConfig "
    "testScheduleAcquisitionLockTimeoutValueUpdatesSuccessfully"
)
def test_lock_is_as_long_as_the_setting_was_when_it_began(share: Share) -> None:
    share.lock_ms = 15_000
    assert share.take(10) == [(40, 49, 1)]
    share.lock_ms = 60_000
    share.pass_time(15)
    assert share.take(1, "you") == [(40, 49, 2)]
    share.pass_time(15)
    assert share.acquire(1, "you").expired == 40
    share.pass_time(44.999)
    assert share.acquire(1, "other").expired == 0


def test_outage_prolongs_locks_that_had_not_ended(share: Share) -> None:
    share.pass_time(20)
    gone = round(share.now * 1000)
    share.pass_time(60)
    back = round(share.now * 1000)
    share.outages = f"{back} {gone}-{back}"
    assert share.acquire(500, "you").expired == 0
    assert share.settle(ACCEPT, (0, 4)) == NONE
    share.pass_time(29.999)
    share.outages = f"{round(share.now * 1000)} {gone}-{back}"
    assert share.acquire(500, "you").expired == 0
    share.pass_time(0.2)
    share.outages = f"{round(share.now * 1000)} {gone}-{back}"
    assert share.acquire(500, "you").expired == 95


def test_locks_of_a_clock_that_was_set_back_end(share: Share) -> None:
    share.pass_time(-3600)
    assert share.acquire(500, "you").expired == 40


# ---------------------------------------------------------------------- backoff


def test_record_comes_again_after_a_backoff_that_doubles(share: Share) -> None:
    share.backoff, share.limit = (2000, 5000), 9
    share.window = 40
    assert share.settle(RELEASE, (0, 4)) == NONE
    assert share.states()[0] == ("delayed", 0, 4, 1)
    assert share.acquire() == (NONE, 0, 40, [], 2000, 0)
    share.pass_time(1.999)
    assert share.take() == []
    share.pass_time(0.001)
    assert share.take() == [(0, 4, 2)]
    assert share.settle(RELEASE, (0, 4)) == NONE
    assert share.acquire().wait_ms == 4000
    share.pass_time(4)
    assert share.take() == [(0, 4, 3)]
    assert share.settle(RELEASE, (0, 4)) == NONE
    assert share.acquire().wait_ms == 5000


def test_delayed_offsets_hold_the_start_and_belong_to_nobody(share: Share) -> None:
    share.backoff = (2000, 5000)
    assert share.acknowledge((0, 0, RELEASE), (1, 29, ACCEPT)) == [NONE, 0, -1]
    assert share.settle(ACCEPT, 0, member="", nonce="") == INVALID_RECORD_STATE
    assert share.release("", "", "any") == 10
    assert share.describe()[2:5] == (0, 40, 71)
    share.pass_time(2)
    assert share.take(1) == [(0, 0, 2)]


def test_records_before_their_time_wait_for_it_and_were_not_delivered(share: Share) -> None:
    now, day_ms = round(share.now * 1000), 86_400_000
    share.window = 40
    times = ((0, 4, now + 2000), (5, 5, now), (6, 6, now - 1), (7, 9, now + 40 * day_ms))
    assert share.acknowledge(*times)[0] == NONE
    assert share.states()[:4] == [
        ("delayed", 0, 4, 0), ("available", 5, 5, 0), ("available", 6, 6, 0), ("delayed", 7, 9, 0),
    ]  # fmt: skip
    assert share.acquire() == (NONE, 0, 40, [(5, 6, 1)], 2000, 0)
    share.pass_time(2)
    assert share.take() == [(0, 4, 1)]
    assert share.settle(ACCEPT, (0, 6), (10, 29)) == NONE
    assert share.settle(ACCEPT, (30, 39), member="you") == NONE
    share.window = 33
    share.pass_time(30)
    assert share.acquire().wait_ms == 30 * day_ms - 32_000
    share.pass_time(30 * 86_400 - 32)
    assert share.take() == [(7, 9, 1)]


def test_ranges_that_wait_are_swept_the_more_seldom_the_more_they_are(share: Share) -> None:
    share.mode = "records"
    share.put(records=500)
    assert share.take(560) == [(40, 599, 1)]
    due_ms = round(share.now * 1000) + 1000
    assert share.acknowledge(*((offset, offset, due_ms + 20 * offset) for offset in range(100, 600)))[0] == NONE
    began_s, calls, got = share.now, 0, 0
    while share.now < began_s + 8:
        acquired = share.acquire(100)
        got += sum(last - first + 1 for first, last, _ in acquired.ranges)
        share.pass_time(acquired.wait_ms / 1000)
        calls += 1
    # In steps of half a second; those of 100 ms would be 50.
    assert (calls < 15, got > 200) == (True, True), (calls, got)


def test_waiters_are_woken_for_a_time_that_is_earlier_than_the_one_they_wait_for(share: Share) -> None:
    now = round(share.now * 1000)
    with listening(share.server, share.shares) as next_message:
        # The locks end before.
        assert share.settle(now + 40_000, (0, 4)) == NONE
        assert share.settle(now + 2000, 5) == NONE
        assert next_message() == b"g"
        assert share.settle(now + 3000, *range(6, 30)) == NONE
        share.server.spublish(share.shares, "end")
        assert next_message() == b"end"


def test_lock_that_ends_is_followed_by_a_backoff(share: Share) -> None:
    share.backoff, share.window = (2000, 5000), 40
    share.pass_time(30)
    assert share.acquire() == (NONE, 0, 40, [], 2000, 40)
    share.pass_time(2)
    assert share.acquire() == (NONE, 0, 40, [(0, 29, 2), (30, 39, 2)], 30_000, 0)


# ---------------------------------------------------------------------- dead letters


def test_dead_letters_hold_the_start_until_they_are_copied(share: Share) -> None:
    share.dead_letters, share.limit = 1, 2
    assert share.acknowledge((0, 4, REJECT), (5, 9, GAP), (10, 29, RELEASE)) == [NONE, 0, -1]
    assert share.archiving == 1
    share.pass_time(30)
    assert share.take(1, "you") == [(10, 29, 2)]
    assert share.release("you") == 20
    assert share.archiving == 2
    assert share.describe()[2:5] == (0, 40, 95)
    assert share.take(10) == [(30, 39, 2)]
    assert share.settle(ACCEPT, (30, 39)) == NONE
    assert share.lease() == [(0, 4, 1, "rejected"), (10, 29, 2, "limit")]
    assert share.settle(ACCEPT, 3) == INVALID_RECORD_STATE
    assert share.finish_copied((0, 4), (10, 19)) == 15
    assert share.describe()[2:] == (20, 40, 70, [("archiving", 20, 29, 2)])
    assert share.finish_copied((20, 29), (20, 29)) == 10
    assert share.describe()[2:] == (40, 40, 60, [])


def test_dead_letters_are_copied_by_one_until_its_lease_ends(share: Share) -> None:
    share.dead_letters = 1
    assert share.settle(REJECT, (0, 9)) == NONE
    assert share.lease("a", 4) == [(0, 3, 1, "rejected")]
    assert share.lease("b", 4) == [(4, 7, 1, "rejected")]
    assert share.lease("a", 5) == [(0, 3, 1, "rejected"), (8, 8, 1, "rejected")]
    assert share.finish_copied((0, 1), (4, 5), owner="a") == 2
    share.pass_time(30)
    assert share.lease("b") == [
        (2, 3, 1, "rejected"),
        (4, 7, 1, "rejected"),
        (8, 8, 1, "rejected"),
        (9, 9, 1, "rejected"),
    ]
    assert share.finish_copied((2, 3), owner="a") == 0
    assert share.finish_copied((4, 7), (2, 3), (8, 9), owner="b") == 6
    assert share.finish_copied((8, 8), (9, 9), owner="b") == 2
    assert share.describe().start == 10


def test_dead_letters_below_the_log_start_are_gone(share: Share) -> None:
    share.dead_letters = 1
    share.settle(REJECT, (0, 9))
    share.trim(5)
    share.take(1)
    assert share.lease() == [(5, 9, 1, "rejected")]
    share.trim(20)
    share.take(1)
    assert (share.archiving, share.describe().start) == (0, 20)


def test_acquirers_look_again_while_there_are_dead_letters(share: Share) -> None:
    share.dead_letters = 1
    share.settle(REJECT, 0)
    share.take()
    assert share.acquire().wait_ms == 5000
    assert share.lease() == [(0, 0, 1, "rejected")]
    assert share.acquire().wait_ms == 5000
    assert share.finish_copied((0, 0)) == 1
    assert share.acquire().wait_ms == 30_000


def test_copied_dead_letters_with_a_word_among_their_offsets_change_nothing(share: Share) -> None:
    share.dead_letters = 1
    share.settle(REJECT, 0, 2)
    share.lease()
    before = share.dump()
    with pytest.raises(redis.ResponseError, match="offset is not an integer: x"):
        share.call("korvet_share_copied", share.topic_id, "g", "o", 0, 0, 2, "x", keys=share.share_keys)
    assert share.dump() == before


# ---------------------------------------------------------------------- releases


@kafka(
    "SharePartitionTest.testReleaseSingleRecordBatch testReleaseMultipleRecordBatch "
    "testReleaseMultipleAcknowledgedRecordBatch testReleaseAcquiredRecordsWithAnotherMember "
    "testReleaseAcknowledgedMultipleSubsetRecordBatch testReleaseAcquiredRecordsForEmptyCachedData "
    "testReleaseAcquiredRecordsWithAnotherMemberAndSubsetAcknowledged "
    "testReleaseAcquiredRecordsAfterDifferentAcknowledges testReleaseAcquiredRecordsSubsetWithAnotherMember "
    "testAcquisitionLockOnReleasingMultipleRecordBatch testReleaseAcquiredRecordsPerOffsetWithDifferentMemberId "
    "testAcquisitionLockOnReleasingAcknowledgedMultipleSubsetRecordBatchWithGapOffsets "
    "testAcquisitionLockOnReleasingAcknowledgedMultipleSubsetRecordBatchWithGapOffsetsInRecordLimitMode"
)
def test_end_of_a_session_releases_what_its_member_holds(share: Share) -> None:
    share.settle(ACCEPT, (5, 9))
    assert share.release("nobody") == 0
    assert share.release() == 25
    assert share.states() == [("available", 0, 4, 1), ("available", 10, 29, 1), ("acquired", 30, 39, 1)]
    assert share.release() == 0
    assert share.take(500, "you")[:2] == [(0, 4, 2), (10, 29, 2)]


@kafka(
    "SharePartitionTest.testReleaseAcquiredRecordsDoNotDecreaseDeliveryCount "
    "testMaxDeliveryCountLimitNotExceededForRecordsSubsetAfterReleaseAcquiredRecords "
    "testMaxDeliveryCountLimitNotExceededForRecordsSubsetAfterReleaseAcquiredRecordsSubset "
    "testMaxDeliveryCountLimitExceededForRecordsSubsetCacheCleared"
)
def test_release_at_the_limit_of_deliveries_archives(share: Share) -> None:
    share.limit = 2
    assert share.release() == 30
    assert share.take(1) == [(0, 29, 2)]
    assert share.release() == 30
    assert share.describe().start == 30


def test_member_that_comes_back_releases_what_its_former_connection_acquired(share: Share) -> None:
    assert share.take(10, "m", "new") == [(40, 49, 1)]
    assert share.release("m", "new", "others") == 30
    assert share.states() == [("available", 0, 29, 1), ("acquired", 30, 39, 1), ("acquired", 40, 49, 1)]
    assert share.release("", "", "any") == 20


def test_late_release_of_other_connections_does_nothing(share: Share) -> None:
    share.outages = f"{(START_S - 3) * 1000}"
    args = (share.outages, share.topic_id, "g", "m", "new", 5, 0, 0, 0, "others", 0)
    assert share.call("korvet_share_release", *args, keys=share.share_keys) == [LATE, 0, -1, 0]
    assert share.states()[0][0] == "acquired"


# ---------------------------------------------------------------------- messages


def test_waiters_are_woken_by_what_becomes_available_and_by_a_window_that_moves(share: Share) -> None:
    with listening(share.server, share.shares) as next_message:
        share.settle(ACCEPT, 5)
        share.settle(RELEASE, 0)
        share.group, mine = "h", share.group
        share.begin()
        share.group = mine
        assert [next_message(), next_message()] == [b"g", b"h"]
        share.take(1)
        share.window = 40
        share.take()
        share.take()
        share.settle(ACCEPT, 1)
        share.settle(ACCEPT, 0)
        share.settle(ACCEPT, 2)
        share.group = "h"
        share.remove()
        assert [next_message(), next_message()] == [b"g", b"h"]


def test_acquirers_are_woken_although_nobody_met_the_full_window(share: Share) -> None:
    share.window = 50
    assert share.take() == [(40, 49, 1)]
    with listening(share.server, share.shares) as next_message:
        assert share.settle(ACCEPT, (0, 9)) == NONE
        assert next_message() == b"g"
        assert share.take() == [(50, 59, 1)]
        share.server.hset(share.meta, "start", 25)
        assert share.take(1) == [(60, 69, 1)]
        assert next_message() == b"g"
