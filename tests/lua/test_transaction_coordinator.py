"""Cases of Kafka's TransactionCoordinatorTest, TransactionMetadataTest and TransactionStateManagerTest: version 2 of
transactions, clocks and time. The others are in the modules test_transaction_*.py beside this one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.group import LATE
from tests.lua.log import TOPIC_ID
from tests.lua.transaction import (
    CONCURRENT_TRANSACTIONS,
    EXPIRATION_MS,
    INVALID_TXN_STATE,
    LAST_EPOCH,
    NONE,
    OUTCOMES,
    PARTITION,
    PRODUCER_FENCED,
    Transactional,
)
from tests.support.ported import kafka

# ---------------------------------------------------------------------- the end by version 2


@kafka("TransactionCoordinatorTest.testEndTxnRequestWhenStatusIsCompleteCommitAndResultIsAbortInV2")
@kafka("TransactionMetadataTest.testTransitFromCompleteCommitToPrepareAbortInV2")
@kafka("TransactionMetadataTest.testTransitFromCompleteAbortToPrepareAbortInV2")
@pytest.mark.parametrize("before", OUTCOMES)
def test_abort_of_an_empty_transaction_after_a_complete_one_is_taken(app: Transactional, before: str) -> None:
    producer_id, epoch = app.ended(before)
    app.pass_time(1)
    decision = app.end((producer_id, epoch + 1), "abort").decision
    assert decision is not None
    assert decision[1:] == (producer_id, epoch + 2, "abort", {}, [])
    described = app.describe()
    assert (described["state"], described["producer_epoch"]) == ("PrepareAbort", epoch + 2)
    assert described["started_ms"] == round(app.now * 1000)


@kafka("TransactionCoordinatorTest.shouldReturnInvalidTxnRequestOnEndTxnV2IfNotEndTxnV2Retry")
@pytest.mark.parametrize("state", OUTCOMES)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_end_with_the_next_transactions_epoch_is_no_repeated_end(app: Transactional, state: str, outcome: str) -> None:
    (producer_id, epoch), decision = app.decided(state)
    assert app.end((producer_id, epoch + 1), outcome).code == PRODUCER_FENCED
    app.complete(decision.ordinal)
    told = app.end((producer_id, epoch + 1), outcome)
    assert told.code == (INVALID_TXN_STATE if outcome == "commit" else NONE)


@kafka("TransactionCoordinatorTest.shouldReturnInvalidTxnRequestOnEndTxnV2IfNotEndTxnV2Retry")
def test_repeated_end_does_not_end_the_next_transaction(app: Transactional) -> None:
    producer_id, epoch = app.ended()
    app.add((producer_id, epoch + 1), PARTITION)
    assert app.end((producer_id, epoch)).code == PRODUCER_FENCED
    assert app.state == "Ongoing"


# ---------------------------------------------------------------------- epochs at their end


@kafka("TransactionCoordinatorTest.shouldHandleTimeoutAtEpochOverflowBoundaryCorrectlyTV2")
@kafka("TransactionMetadataTest.testFenceProducerNotAllowedIfItWouldOverflow")
@kafka("TransactionMetadataTest.testRotateProducerIdInOngoingState")
@kafka("TransactionMetadataTest.testRotateProducerIdInPrepareAbortState")
def test_timeout_does_not_raise_the_last_epoch(app: Transactional) -> None:
    producer = app.init().producer[0], LAST_EPOCH - 1
    app.field("producer_epoch", LAST_EPOCH - 1)
    app.add(producer, PARTITION)
    app.pass_time(60)
    decision = app.expire()
    assert decision is not None
    assert decision[1:4] == (producer[0], LAST_EPOCH, "abort")
    assert app.init().code == app.init(producer).code == CONCURRENT_TRANSACTIONS
    assert app.describe()["producer_id"] == producer[0]
    app.complete(decision.ordinal)
    assert app.end(producer, "abort") == (NONE, producer[0], LAST_EPOCH, None)
    assert app.add((producer[0], LAST_EPOCH), PARTITION).code == NONE
    again = app.init().decision
    assert again is not None
    assert again[1:3] == (producer[0], LAST_EPOCH)


@kafka("TransactionMetadataTest.testRotateProducerIdInPrepareCommitState")
def test_new_producer_id_waits_for_the_commit(app: Transactional) -> None:
    producer = app.init().producer[0], LAST_EPOCH - 1
    app.field("producer_epoch", LAST_EPOCH - 1)
    app.add(producer, PARTITION)
    decision = app.end(producer, "commit", version=1).decision
    assert decision is not None
    assert (decision.marker_epoch, app.init().code) == (LAST_EPOCH - 1, CONCURRENT_TRANSACTIONS)
    assert app.describe()["producer_id"] == producer[0]
    app.complete(decision.ordinal)
    assert app.init().epoch == 0


# ---------------------------------------------------------------------- a clock that goes back


@kafka("TransactionMetadataTest.testTolerateUpdateTimeShiftDuringEpochBump")
@kafka("TransactionMetadataTest.testTolerateTimeShiftDuringAddPartitions")
@kafka("TransactionMetadataTest.testTolerateTimeShiftDuringPrepareCommit")
@kafka("TransactionMetadataTest.testTolerateTimeShiftDuringPrepareAbort")
@kafka("TransactionMetadataTest.testTolerateTimeShiftDuringCompleteCommit")
@kafka("TransactionMetadataTest.testTolerateTimeShiftDuringCompleteAbort")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_step_succeeds_although_the_clock_goes_back(app: Transactional, outcome: str, version: int) -> None:
    producer_id, epoch = app.init().producer
    app.pass_time(-1)
    assert app.init().producer == (producer_id, epoch + 1)
    producer = producer_id, epoch + 1
    assert app.describe()["updated_ms"] == round(app.now * 1000)
    app.pass_time(-1)
    began_ms = round(app.now * 1000)
    first = app.add(producer, PARTITION)
    app.pass_time(-1)
    assert app.add(producer, {"u:0": TOPIC_ID}) == first
    described = app.describe()
    # Kafka leaves the start where it was. Here it moves back with the clock, so the timeout stays as long.
    assert (described["started_ms"], described["updated_ms"]) == (began_ms - 1000, began_ms - 1000)
    app.pass_time(-1)
    decision = app.end(producer, outcome, version).decision
    assert decision is not None
    app.pass_time(-1)
    app.complete(decision.ordinal)
    described = app.describe()
    assert described["state"] == f"Complete{outcome.capitalize()}"
    assert (described["started_ms"], described["updated_ms"]) == (began_ms - 3000, began_ms - 3000)
    assert described["producer_epoch"] == producer[1] + version - 1


@kafka("TransactionMetadataTest.testTolerateUpdateTimeResetDuringProducerIdRotation")
def test_producer_id_changes_although_the_clock_goes_back(app: Transactional) -> None:
    producer_id, _ = app.init().producer
    app.field("producer_epoch", LAST_EPOCH - 1)
    app.pass_time(-1)
    told = app.init()
    assert (told.epoch, told.producer_id > producer_id) == (0, True)
    assert (app.describe()["started_ms"], app.describe()["updated_ms"]) == (-1, round(app.now * 1000))


# ---------------------------------------------------------------------- time


@kafka("TransactionStateManagerTest.shouldNotRemoveOngoingTransactionalIds")
@kafka("TransactionStateManagerTest.shouldNotRemovePrepareAbortTransactionalIds")
@kafka("TransactionStateManagerTest.shouldNotRemovePrepareCommitTransactionalIds")
@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
def test_id_with_a_transaction_does_not_expire(app: Transactional, state: str) -> None:
    if state == "Ongoing":
        app.begun()
    else:
        app.decided(state.removeprefix("Prepare").lower())
    app.pass_time(EXPIRATION_MS / 1000 + 1)
    decision = app.expire()
    assert decision is not None
    assert app.state == ("PrepareAbort" if state == "Ongoing" else state)


@kafka("TransactionStateManagerTest.shouldRemoveCompleteAbortExpiredTransactionalIds")
@kafka("TransactionMetadataTest.testInvalidTransitionFromCompleteAbortToFence")
def test_id_of_an_aborted_transaction_is_not_fenced_and_expires(app: Transactional) -> None:
    producer_id, epoch = app.ended("abort")
    app.pass_time(3600)
    assert (app.due(), app.expire()) == ([], None)
    assert (app.state, app.describe()["producer_epoch"]) == ("CompleteAbort", epoch + 1)
    app.pass_time(EXPIRATION_MS / 1000 - 3600)
    assert (app.due(), app.expire(), app.describe()) == (["app"], None, {})
    assert app.init().producer_id > producer_id


@kafka("TransactionStateManagerTest.shouldNotRemoveExpiredTransactionalIdsIfLogAppendFails")
def test_id_stays_if_its_deadline_cannot_be_written(app: Transactional) -> None:
    app.ended()
    app.pass_time(EXPIRATION_MS / 1000)
    app.server.delete(app.keys[1])
    app.server.set(app.keys[1], "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        app.expire()
    assert app.state == "CompleteCommit"


@kafka("TransactionStateManagerTest.shouldOnlyConsiderTransactionsInTheOngoingStateToAbort")
def test_timeout_aborts_only_open_transactions(server: redis.Redis, set_clock: Callable[[float], None]) -> None:
    ids = {name: Transactional(server, set_clock, name) for name in ("empty", "open", "decided", "complete")}
    ids["empty"].init()
    ids["open"].begun()
    decision = ids["decided"].decided("commit")[1]
    ids["complete"].ended()
    ids["open"].pass_time(61)
    told = {name: ids[name].expire() for name in ids["open"].due()}
    aborted = told.pop("open")
    assert aborted is not None
    assert (aborted.outcome, told) == ("abort", {"decided": decision, "empty": None})
    assert [one.state for one in ids.values()] == ["Empty", "PrepareAbort", "PrepareCommit", "CompleteCommit"]


# ---------------------------------------------------------------------- late calls


@pytest.mark.parametrize("call", ["init", "add", "verify", "end"])
@pytest.mark.parametrize("version", [1, 2])
def test_late_call_of_a_front_end_changes_nothing(app: Transactional, call: str, version: int) -> None:
    """A late end of version 1 would end the next transaction."""
    producer = app.init().producer
    app.add(producer, PARTITION)
    app.outages = f"{round(app.now * 1000)}"
    app.pass_time(2.4)
    assert app.add(producer, PARTITION).code == NONE
    app.pass_time(0.2)
    calls: dict[str, Callable[[], tuple[object, ...]]] = {
        "init": app.init,
        "add": lambda: app.add(producer, {"u:0": TOPIC_ID}),
        "verify": lambda: app.add(producer, PARTITION, mode="verify"),
        "end": lambda: app.end(producer, "commit", version),
    }
    before = app.describe()
    assert calls[call]()[0] == LATE
    assert app.describe() == before
    app.outages = f"{round(app.now * 1000)}"
    assert calls[call]()[0] in (NONE, CONCURRENT_TRANSACTIONS)
