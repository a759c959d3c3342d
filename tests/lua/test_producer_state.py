"""A partition's state of its producers: cases of Kafka's ProducerStateManagerTest and UnifiedLogTest.

A state shows as `epoch leader_epoch|first,last,base|…`, newest first, with a `*` while a transaction is open.
"""

from __future__ import annotations

import pytest
import redis

from tests.lua.log import RESEND, TOPIC_ID
from tests.lua.transaction import INVALID_TXN_STATE, NONE, OUT_OF_ORDER_SEQUENCE_NUMBER, VERIFY, TransactionLog
from tests.support.ported import kafka

LAST = 2**31 - 1
"""The last sequence."""
FIRST = 1_700_000_000_000_000
OUTCOMES = ("commit", "abort")


@pytest.fixture
def log(server: redis.Redis) -> TransactionLog:
    log = TransactionLog(server)
    assert log.create() == NONE
    return log


def codes(log: TransactionLog, *producers: tuple[int, int, int]) -> list[int]:
    """The codes of batches of one record, outside of transactions."""
    return [log.plain(1, producer).code for producer in producers]


# ---------------------------------------------------------------------- sequences and epochs


@kafka("ProducerStateManagerTest.testProducerSequenceInvalidWrapAround")
def test_gap_across_the_last_sequence_is_out_of_order(log: TransactionLog) -> None:
    assert codes(log, (1, 15, LAST), (1, 15, 1)) == [NONE, OUT_OF_ORDER_SEQUENCE_NUMBER]


@kafka("ProducerStateManagerTest.testPrepareUpdateDoesNotMutate")
def test_refused_batch_does_not_change_its_producer(log: TransactionLog) -> None:
    args = (TOPIC_ID, log.run_id, 6, 6, 1000, 1, 1, 0, 0, b"")
    before = log.dump()
    assert log.call("korvet_log_append", *args, keys=(*log.keys[:3], log.temporary())) == b"%d -1 0 0" % RESEND
    assert log.dump() == before
    log.plain(6, (1, 0, 0))
    args = (TOPIC_ID, log.run_id, 5, 6, 1000, 1, 1, 0, 6, b"")
    before = log.dump()
    assert log.call("korvet_log_append", *args, keys=(*log.keys[:3], log.temporary())) == b"%d -1 0 0" % RESEND
    assert log.dump() == before
    log.plain(5, (1, 0, 6))
    assert log.state_of(1) == "0 0|6,10,6|0,5,0"


# ---------------------------------------------------------------------- transactions


@kafka("ProducerStateManagerTest.testTxnFirstOffsetMetadataCached")
def test_transaction_begins_with_its_first_batch(log: TransactionLog) -> None:
    log.plain(5, (-1, -1, -1))
    log.write(1, (1, 0, 0), FIRST)
    assert (log.first_open(), log.described()[1][3]) == (5, 5)


@kafka("ProducerStateManagerTest.updateProducerTransactionState")
def test_transactions_batches_move_the_sequence_and_its_marker_does_not(log: TransactionLog) -> None:
    log.plain(1, (1, 0, 0))
    log.plain(15, (-1, -1, -1))
    assert log.write(5, (1, 0, 1), FIRST).base_offset == 16
    assert log.described()[1] == [0, 5, 1000, 16, FIRST, "app"]
    assert log.write(5, (1, 0, 6)).base_offset == 21
    assert log.described()[1] == [0, 10, 1000, 16, FIRST, "app"]
    batches = "|6,10,21|1,5,16|0,0,0"
    assert log.state_of(1) == f"0 0*{batches}"
    log.mark((1, 0), FIRST)
    assert log.described()[1] == [0, 10, 1000, -1, -1, "app"]
    assert (log.state_of(1), log.aborted_transactions()) == (f"0 0{batches}", [])


@kafka("UnifiedLogTest.testFirstUnstableOffsetNoTransactionalData")
def test_last_stable_offset_is_the_end_without_transactions(log: TransactionLog) -> None:
    log.plain(3, (-1, -1, -1))
    log.plain(3, (1, 0, 0))
    assert log.first_open() is None


@kafka("UnifiedLogTest.testFirstUnstableOffsetWithTransactionalData")
def test_further_batches_of_a_transaction_leave_the_last_stable_offset(log: TransactionLog) -> None:
    log.write(3, (137, 5, 0), FIRST)
    assert log.first_open() == 0
    log.write(1, (137, 5, 3))
    assert log.first_open() == 0
    log.mark((137, 5), FIRST)
    assert log.first_open() is None


@kafka("UnifiedLogTest.testTransactionIndexUpdated")
def test_index_has_each_aborted_transaction_with_its_stable_offset(log: TransactionLog) -> None:
    sequences = dict.fromkeys(range(1, 5), 0)

    def write(producer_id: int, records: int) -> None:
        assert log.write(records, (producer_id, 0, sequences[producer_id]), FIRST + producer_id).code == NONE
        sequences[producer_id] += records

    def others(records: int) -> None:
        log.plain(records, (-1, -1, -1))

    write(1, 5)
    others(3)
    write(2, 2)
    write(1, 4)
    write(3, 3)
    others(2)
    write(1, 10)
    assert log.mark((1, 0), FIRST + 1, "abort").base_offset == 29
    write(2, 6)
    write(4, 3)
    others(10)
    write(3, 9)
    assert log.mark((3, 0), FIRST + 3, "commit").base_offset == 58
    write(4, 8)
    write(2, 7)
    assert log.mark((2, 0), FIRST + 2, "abort").base_offset == 74
    others(10)
    write(4, 4)
    assert log.mark((4, 0), FIRST + 4, "commit").base_offset == 89
    assert log.aborted_transactions() == [(0, 29, 1, 8), (8, 74, 2, 36)]
    assert log.first_open() is None


@kafka("UnifiedLogTest.testRebuildTransactionalState")
def test_server_that_takes_over_finds_an_ended_transaction_ended(log: TransactionLog) -> None:
    log.write(3, (137, 5, 0), FIRST)
    log.mark((137, 5), FIRST, "abort")
    log.run_id = "2" * 40
    log.take_over()
    assert (log.first_open(), log.aborted_transactions()) == (None, [(0, 3, 137, 4)])


@kafka("ProducerStateManagerTest.testRecoverFromSnapshotUnfinishedTransaction")
def test_server_that_takes_over_goes_on_with_an_open_transaction(log: TransactionLog) -> None:
    log.write(1, (1, 0, 0), FIRST)
    log.write(1, (1, 0, 1))
    log.run_id = "2" * 40
    log.take_over()
    assert log.described()[1] == [0, 1, 1000, 0, FIRST, "app"]
    assert log.write(1, (1, 0, 2)).code == NONE


@kafka("ProducerStateManagerTest.testRecoverFromSnapshotFinishedTransaction")
@kafka("ProducerStateManagerTest.testRecoverFromSnapshotEmptyTransaction")
def test_server_that_takes_over_knows_producers_of_ended_transactions(log: TransactionLog) -> None:
    log.write(1, (1, 0, 0), FIRST)
    log.write(1, (1, 0, 1))
    log.mark((1, 0), FIRST, "abort")
    log.mark((2, 0), FIRST + 1, "abort")
    log.run_id = "2" * 40
    log.take_over()
    assert log.described() == {1: [0, 1, 1000, -1, -1, "app"], 2: [0, -1, 1000, -1, -1, ""]}


@kafka("ProducerStateManagerTest.testRejectNonZeroSequenceForTransactionsV2WithEmptyState")
def test_unknown_producer_of_version_2_begins_with_sequence_zero(log: TransactionLog) -> None:
    """Each of its transactions has its own epoch. Missing batches are lost, and a commit must not leave them out."""
    before = log.dump()
    assert log.write(1, (1, 0, 5), joins=True).code == VERIFY
    assert log.write(1, (1, 0, 5), FIRST, joins=True).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.write(1, (1, 0, 5), FIRST, placed=b"placed", joins=True).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.dump() == before
    assert log.write(1, (1, 0, 0), FIRST, joins=True).code == NONE
    assert log.write(1, (1, 0, 1), joins=True).code == NONE


@kafka("ProducerStateManagerTest.testAllowNonZeroSequenceForTransactionsV1WithEmptyState")
@kafka("UnifiedLogTest.testAllowNonZeroSequenceOnFirstAppendNonZeroEpoch")
def test_unknown_producer_of_version_1_begins_with_any_sequence(log: TransactionLog) -> None:
    assert log.write(2, (2, 0, 5), FIRST).code == NONE
    assert log.write(2, (23, 1, 3), FIRST).code == NONE


# ---------------------------------------------------------------------- verification, late coordinators


@kafka("ProducerStateManagerTest.testEntryForVerification")
@kafka("UnifiedLogTest.testTransactionIsOngoingAndVerificationGuardTV2")
def test_each_transaction_is_verified_once(log: TransactionLog) -> None:
    log.plain(2, (23, 1, 3))
    assert [log.write(2, (23, 1, 5)).code for _ in range(2)] == [VERIFY, VERIFY]
    assert log.write(2, (23, 1, 5), FIRST).code == NONE
    assert log.write(2, (23, 1, 7)).code == NONE
    log.mark((23, 1), FIRST)
    # The earlier verification counts for this transaction only.
    assert log.write(2, (23, 1, 9)).code == VERIFY
    assert log.write(2, (23, 1, 9), FIRST).code == INVALID_TXN_STATE
    assert log.write(2, (23, 1, 9), FIRST + 1).code == NONE


@kafka("UnifiedLogTest.testEmptyTransactionStillClearsVerificationGuard")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_end_of_an_empty_transaction_voids_its_verification(log: TransactionLog, outcome: str) -> None:
    assert log.write(2, (23, 1, 0)).code == VERIFY
    log.mark((23, 1), FIRST, outcome)
    before = log.dump()
    assert log.write(2, (23, 1, 0), FIRST).code == INVALID_TXN_STATE
    assert log.dump() == before
    assert (log.first_open(), log.open_transactions()) == (None, {})


@kafka("UnifiedLogTest.testEnablingVerificationWhenRequestIsAtLogLayer")
def test_unverified_batch_is_not_stored(log: TransactionLog) -> None:
    before = log.dump()
    assert log.write(2, (23, 1, 4)).code == VERIFY
    assert log.dump() == before
    assert log.write(2, (23, 1, 4), FIRST).code == NONE


@kafka("ProducerStateManagerTest.testThrowOutOfOrderSequenceWithVerificationSequenceCheck")
@kafka("ProducerStateManagerTest.testSequenceAndEpochInVerificationEntry")
def test_batch_after_a_failed_verification_is_not_the_first(log: TransactionLog) -> None:
    """The front-end that knows of the failed batch says so."""
    before = log.dump()
    assert log.write(1, (1, 0, 4), FIRST, is_next=True).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.dump() == before
    assert log.write(1, (1, 0, 0), FIRST).code == NONE


@kafka("ProducerStateManagerTest.testCoordinatorFencing")
@kafka("ProducerStateManagerTest.testCoordinatorFencedAfterReload")
@kafka("UnifiedLogTest.testZombieCoordinatorFenced")
@kafka("UnifiedLogTest.testZombieCoordinatorFencedEmptyTransaction")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_late_coordinator_writes_nothing(log: TransactionLog, outcome: str) -> None:
    """The ordinal decides, also after a marker that ended no transaction, and after a failover."""
    log.write(1, (1, 5, 0), FIRST)
    log.mark((1, 5), FIRST, "commit")
    log.mark((1, 5), FIRST + 1, "abort")
    log.write(5, (1, 5, 1), FIRST + 2)
    log.run_id = "2" * 40
    log.take_over()
    before = log.dump()
    for late in (FIRST, FIRST + 1):
        assert log.mark((1, 5), late, outcome)[:2] == (NONE, -1)
    assert log.dump() == before
    log.mark((1, 5), FIRST + 2, "commit")
    before = log.dump()
    assert log.mark((1, 5), FIRST + 2, outcome)[:2] == (NONE, -1)
    assert log.dump() == before


# ---------------------------------------------------------------------- the log start


@kafka("ProducerStateManagerTest.testLoadFromSnapshotRetainsNonExpiredProducers")
@kafka("UnifiedLogTest.testDeleteSnapshotsOnIncrementLogStartOffset")
@kafka("UnifiedLogTest.testProducerIdExpirationOnSegmentDeletion")
def test_producers_outlive_their_batches(log: TransactionLog) -> None:
    assert codes(log, (1, 0, 0), (2, 0, 0), (2, 0, 1)) == [NONE] * 3
    assert log.trim(-1) == [NONE, 3, 0]
    assert log.producer_ids() == {1, 2}
    assert [log.plain(1, (1, 0, 0))[:3], log.plain(1, (2, 0, 1))[:3]] == [(NONE, 0, 3), (NONE, 2, 3)]
    assert codes(log, (1, 0, 2), (1, 0, 1), (2, 0, 2)) == [OUT_OF_ORDER_SEQUENCE_NUMBER, NONE, NONE]


@kafka("UnifiedLogTest.testLastStableOffsetDoesNotExceedLogStartOffsetMidSegment")
@kafka("UnifiedLogTest.testLastStableOffsetDoesNotExceedLogStartOffsetAfterSegmentDeletion")
@pytest.mark.parametrize("start", [5, 8])
def test_transaction_stays_open_if_the_log_start_passes_its_beginning(log: TransactionLog, start: int) -> None:
    """Readers get no last stable offset below the log start: see tests/lua/test_unified_log.py."""
    log.write(5, (1, 0, 0), FIRST)
    log.plain(3, (-1, -1, -1))
    log.write(5, (1, 0, 5))
    assert log.trim(start) == [NONE, start, 0]
    assert (log.first_open(), log.described()[1][3]) == (0, 0)
    log.mark((1, 0), FIRST, "abort")
    assert (log.first_open(), log.aborted_transactions()) == (None, [(0, 13, 1, 14)])


@kafka("UnifiedLogTest.testLogDeletionAfterDeleteRecords")
def test_trim_removes_batches_wholly_below_the_log_start(log: TransactionLog) -> None:
    for _ in range(3):
        log.plain(5, (-1, -1, -1))
    left = []
    for start in (1, 6, 15):
        assert log.trim(start) == [NONE, start, 0]
        left.append(len(log.entries()))
    assert left == [3, 2, 0]


@kafka("UnifiedLogTest.testCannotIncrementLogStartOffsetPastHighWatermark")
def test_log_start_does_not_pass_the_end(log: TransactionLog) -> None:
    log.plain(25, (-1, -1, -1))
    before = log.dump()
    assert log.trim(26) == [1, 0, 0]
    assert log.dump() == before
