"""EndTxn: Kafka's TransactionCoordinatorTest and TransactionMetadataTest, and more."""

from __future__ import annotations

import pytest

from tests.lua.log import TOPIC_ID
from tests.lua.transaction import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    LAST_EPOCH,
    NONE,
    OUTCOMES,
    PARTITION,
    PRODUCER_FENCED,
    Decision,
    Transactional,
)
from tests.support.ported import kafka


@kafka("TransactionCoordinatorTest.shouldReplyWithInvalidPidMappingOnEndTxnWhenTxnIdDoesntExist")
@kafka("TransactionCoordinatorTest.shouldReplyWithInvalidPidMappingOnEndTxnWhenPidDoesntMatchMapped")
@pytest.mark.parametrize("version", [1, 2])
def test_unknown_producer_ends_no_transaction(app: Transactional, version: int) -> None:
    assert app.end((0, 0), version=version).code == INVALID_PRODUCER_ID_MAPPING
    (producer_id, epoch), _ = app.begun()
    assert app.end((producer_id + 1, epoch), version=version).code == INVALID_PRODUCER_ID_MAPPING


@kafka("TransactionCoordinatorTest.shouldReplyWithProducerFencedOnEndTxnWhenEpochIsNotSameAsTransaction")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("step", [-1, 1])
def test_producer_with_another_epoch_ends_no_transaction(app: Transactional, version: int, step: int) -> None:
    app.init()
    (producer_id, epoch), _ = app.begun()
    assert app.end((producer_id, epoch + step), version=version) == (PRODUCER_FENCED, -1, -1, None)
    assert app.state == "Ongoing"


@kafka("TransactionCoordinatorTest.shouldReturnInvalidEpochOnEndTxnWhenEpochIsLarger")
@kafka("TransactionCoordinatorTest.shouldReturnInvalidEpochOnEndTxnWhenEpochIsSmaller")
@pytest.mark.parametrize("step", [-1, 1])
def test_end_with_another_epoch_is_fenced_after_the_completion(app: Transactional, step: int) -> None:
    app.init()
    producer_id, epoch = app.ended(version=1)
    assert app.end((producer_id, epoch + step), version=1).code == PRODUCER_FENCED


@kafka("TransactionMetadataTest.testEpochBumpOnEndTxn")
@kafka("TransactionCoordinatorTest.shouldAppendPrepareCommitToLogOnEndTxnWhenStatusIsOngoingAndResultIsCommit")
@kafka("TransactionCoordinatorTest.shouldAppendPrepareAbortToLogOnEndTxnWhenStatusIsOngoingAndResultIsAbort")
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("version", [1, 2])
def test_decision_names_all_members_of_the_transaction(app: Transactional, outcome: str, version: int) -> None:
    producer, ordinal = app.begun("t:0", "t:1", groups=["g"])
    after = (producer[0], producer[1] + version - 1)
    told = app.end(producer, outcome, version)
    partitions = {"t:0": TOPIC_ID, "t:1": TOPIC_ID}
    assert told == (NONE, *after, Decision(ordinal, *after, outcome, partitions, ["g"]))
    assert app.state == f"Prepare{outcome.capitalize()}"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(
            "commit",
            marks=kafka(
                "TransactionCoordinatorTest.shouldReturnConcurrentTransactionsOnEndTxnRequestWhenStatusIsPrepareCommit"
            ),
        ),
        pytest.param(
            "abort",
            marks=kafka(
                "TransactionCoordinatorTest.shouldReturnInvalidTxnRequestOnEndTxnRequestWhenStatusIsPrepareAbort"
            ),
        ),
    ],
)
def test_repeated_end_waits_and_the_opposite_end_is_refused(app: Transactional, outcome: str, version: int) -> None:
    producer, decision = app.decided(outcome, version)
    other = OUTCOMES[outcome == "commit"]
    assert app.end(producer, outcome, version) == (CONCURRENT_TRANSACTIONS, -1, -1, decision)
    assert app.end(producer, other, version) == (INVALID_TXN_STATE, -1, -1, None)


@kafka("TransactionCoordinatorTest.testEndTxnWhenStatusIsCompleteAbortAndResultIsAbortInV1")
@kafka("TransactionCoordinatorTest.testEndTxnWhenStatusIsCompleteCommitAndResultIsCommitInV1")
@kafka("TransactionCoordinatorTest.testEndTxnWhenStatusIsCompleteCommitAndResultIsCommitInV2")
@kafka("TransactionCoordinatorTest.shouldReturnOkOnEndTxnWhenStatusIsCompleteAbortAndResultIsAbortInV2")
@kafka("TransactionCoordinatorTest.testEndTxnRequestWhenStatusIsCompleteCommitAndResultIsAbortInV1")
@kafka("TransactionCoordinatorTest.testEndTxnRequestWhenStatusIsCompleteCommitAndResultIsAbortInV2")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(
            "commit",
            marks=[
                kafka("TransactionCoordinatorTest.shouldReturnOkOnEndTxnWhenStatusIsCompleteCommitAndResultIsCommit"),
                kafka(
                    "TransactionCoordinatorTest.shouldReturnInvalidTxnRequestOnEndTxnRequestWhenStatusIsCompleteCommitAndResultIsNotCommit"
                ),
            ],
        ),
        pytest.param(
            "abort",
            marks=[
                kafka("TransactionCoordinatorTest.shouldReturnOkOnEndTxnWhenStatusIsCompleteAbortAndResultIsAbort"),
                kafka(
                    "TransactionCoordinatorTest.shouldReturnInvalidTxnRequestOnEndTxnRequestWhenStatusIsCompleteAbortAndResultIsNotAbort"
                ),
            ],
        ),
    ],
)
def test_repeated_end_gets_the_first_answer(app: Transactional, outcome: str, version: int) -> None:
    producer_id, epoch = app.ended(outcome, version)
    other = OUTCOMES[outcome == "commit"]
    assert app.end((producer_id, epoch), outcome, version) == (NONE, producer_id, epoch + version - 1, None)
    assert app.end((producer_id, epoch), other, version).code == INVALID_TXN_STATE


@kafka("TransactionCoordinatorTest.TestEndTxnRequestWhenEmptyTransactionStateForAbortInV2")
@kafka("TransactionCoordinatorTest.TestEndTxnRequestWhenEmptyTransactionStateForCommitInV2")
@kafka("TransactionMetadataTest.testTransitFromEmptyToPrepareAbortInV2")
@kafka("TransactionMetadataTest.testTransitFromCompleteAbortToPrepareAbortInV2")
def test_transaction_without_members_is_aborted_with_a_raised_epoch(app: Transactional) -> None:
    producer = app.init().producer
    assert app.end(producer).code == INVALID_TXN_STATE
    told = app.end(producer, "abort")
    assert told.decision is not None
    assert told.decision[2:] == (1, "abort", {}, [])
    app.complete(told.decision.ordinal)
    assert app.end(producer, "abort") == (NONE, producer[0], 1, None)
    assert app.end((producer[0], 1)).code == INVALID_TXN_STATE
    again = app.end((producer[0], 1), "abort").decision
    assert again is not None
    assert again.ordinal > told.decision.ordinal


@kafka("TransactionCoordinatorTest.TestEndTxnRequestWhenEmptyTransactionStateForAbortInV1")
def test_end_of_version_1_is_refused_if_no_transaction_is_open(app: Transactional) -> None:
    producer = app.init().producer
    assert [app.end(producer, outcome, version=1).code for outcome in OUTCOMES] == [INVALID_TXN_STATE] * 2


@kafka("TransactionCoordinatorTest.shouldReturnConcurrentTxnOnAddPartitionsIfEndTxnV2EpochOverflowAndNotComplete")
@kafka("TransactionCoordinatorTest.shouldReturnOkOnEndTxnV2IfEndTxnV2RetryEpochOverflow")
@kafka("TransactionMetadataTest.testEpochBumpOnEndTxnOverflow")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_end_with_the_last_epoch_goes_on_with_a_new_producer_id(app: Transactional, outcome: str) -> None:
    producer = app.init().producer[0], LAST_EPOCH - 1
    app.field("producer_epoch", LAST_EPOCH - 1)
    app.add(producer, PARTITION)
    told = app.end(producer, outcome)
    assert (told.code, told.epoch) == (NONE, 0)
    assert told.producer_id != producer[0]
    assert told.decision is not None
    assert told.decision[1:3] == (producer[0], LAST_EPOCH)
    assert app.end(producer, outcome).code == CONCURRENT_TRANSACTIONS
    assert app.add(told.producer, PARTITION).code == CONCURRENT_TRANSACTIONS
    assert app.add((told.producer_id + 1, 0), PARTITION).code == INVALID_PRODUCER_ID_MAPPING
    app.complete(told.decision.ordinal)
    assert app.end(producer, outcome) == (NONE, *told.producer, None)
    assert app.end(producer, OUTCOMES[outcome == "commit"]).code == INVALID_TXN_STATE
    assert app.add(told.producer, PARTITION).code == NONE
    assert app.end(producer, outcome).code == INVALID_PRODUCER_ID_MAPPING
