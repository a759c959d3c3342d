"""InitProducerId of transactional ids: Kafka's TransactionCoordinatorTest and TransactionMetadataTest, and more."""

from __future__ import annotations

import pytest

from tests.lua.transaction import (
    CONCURRENT_TRANSACTIONS,
    FRESH_ID,
    INVALID_TXN_STATE,
    LAST_EPOCH,
    NONE,
    PARTITION,
    PRODUCER_FENCED,
    Decision,
    Transactional,
)
from tests.support.ported import kafka


@kafka("TransactionMetadataTest.testInitializeEpoch")
@kafka("TransactionCoordinatorTest.shouldInitPidWithEpochZeroForNewTransactionalId")
def test_first_producer_has_epoch_zero(app: Transactional) -> None:
    assert app.server.fcall("korvet_txn_init", 2, *app.keys, "app", 60_000, -1, -1, -1) == [FRESH_ID, -1, -1]
    assert app.describe() == {}
    assert app.init() == (NONE, 1001, 0, None)
    assert (app.state, app.due()) == ("Empty", [])


@kafka("TransactionMetadataTest.testAttemptedEpochBumpWithNewlyCreatedMetadata")
@kafka("TransactionCoordinatorTest.shouldGenerateNewProducerIdIfNoStateAndProducerIdAndEpochProvided")
def test_producer_of_an_unknown_id_gets_a_new_producer_id(app: Transactional) -> None:
    assert app.init((10, 1)) == (NONE, 1001, 0, None)


@kafka("TransactionMetadataTest.testNormalEpochBump")
@kafka("TransactionCoordinatorTest.shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingEmptyTransaction")
def test_next_producer_has_the_next_epoch(app: Transactional) -> None:
    producer_id, _ = app.init().producer
    assert app.init(timeout_ms=5000) == (NONE, producer_id, 1, None)
    assert app.describe()["timeout_ms"] == 5000


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(
            "abort",
            marks=kafka(
                "TransactionCoordinatorTest.shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingCompleteTransaction"
            ),
        ),
        pytest.param(
            "commit",
            marks=kafka(
                "TransactionCoordinatorTest.shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingCompleteCommitTransaction"
            ),
        ),
    ],
)
def test_next_producer_after_a_complete_transaction_has_the_next_epoch(
    app: Transactional, outcome: str, version: int
) -> None:
    producer_id, epoch = app.ended(outcome, version)
    assert app.init() == (NONE, producer_id, epoch + version, None)
    assert app.state == "Empty"


@kafka("TransactionCoordinatorTest.shouldNotBumpEpochWithPendingTransaction")
@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(
            "commit",
            marks=kafka(
                "TransactionCoordinatorTest.shouldWaitForCommitToCompleteOnHandleInitPidAndExistingTransactionInPrepareCommitState"
            ),
        ),
        pytest.param(
            "abort",
            marks=kafka(
                "TransactionCoordinatorTest.shouldWaitForCommitToCompleteOnHandleInitPidAndExistingTransactionInPrepareAbortState"
            ),
        ),
    ],
)
def test_next_producer_waits_until_the_decision_is_finished(app: Transactional, outcome: str) -> None:
    _, decision = app.decided(outcome)
    before = app.describe()
    assert [app.init(), app.init()] == [(CONCURRENT_TRANSACTIONS, -1, -1, decision)] * 2
    assert app.describe() == before
    app.complete(decision.ordinal)
    assert app.init() == (NONE, decision.producer_id, decision.marker_epoch + 1, None)


@kafka("TransactionCoordinatorTest.shouldAbortTransactionOnHandleInitPidWhenExistingTransactionInOngoingState")
@kafka("TransactionCoordinatorTest.shouldNotRepeatedlyBumpEpochDueToInitPidDuringOngoingTxnIfAppendToLogFails")
def test_next_producer_aborts_the_open_transaction_and_fences_its_writer(app: Transactional) -> None:
    (producer_id, epoch), ordinal = app.begun()
    told = app.init()
    assert told[:3] == (CONCURRENT_TRANSACTIONS, -1, -1)
    assert told.decision == Decision(ordinal, producer_id, epoch + 1, "abort", PARTITION, [])
    assert app.init() == told
    assert app.end((producer_id, epoch), version=1).code == PRODUCER_FENCED
    assert app.end((producer_id, epoch), version=2).code == INVALID_TXN_STATE
    app.complete(ordinal)
    assert app.init() == (NONE, producer_id, epoch + 2, None)
    assert app.init((producer_id, epoch)).code == PRODUCER_FENCED


@kafka("TransactionCoordinatorTest.testFenceProducerWhenMappingExistsWithDifferentProducerId")
def test_producer_of_another_id_is_fenced(app: Transactional) -> None:
    producer_id, _ = app.init().producer
    assert app.init((producer_id - 1, 0)).code == PRODUCER_FENCED
    app.begun()
    assert app.init((producer_id - 1, 0)).code == PRODUCER_FENCED
    assert app.state == "Ongoing"


@kafka("TransactionMetadataTest.testEpochBumpWithCurrentEpochProvided")
@kafka("TransactionMetadataTest.testAttemptedEpochBumpWithLastEpoch")
@kafka("TransactionCoordinatorTest.testInitProducerIdWithCurrentEpochProvided")
def test_producer_that_goes_on_gets_the_next_epoch_once(app: Transactional) -> None:
    producer = app.init().producer
    goes_on = app.init(producer)
    assert goes_on == (NONE, producer[0], 1, None)
    assert [app.init(producer), app.init(producer)] == [goes_on] * 2


@kafka("TransactionMetadataTest.testAttemptedEpochBumpWithFencedEpoch")
@kafka("TransactionCoordinatorTest.testInitProducerIdStaleCurrentEpochProvided")
@kafka("TransactionCoordinatorTest.testInitProducerIdWithNoLastProducerData")
def test_producer_cannot_go_on_after_a_new_one_began(app: Transactional) -> None:
    producer = app.init().producer
    assert app.init().epoch == 1
    assert app.init(producer) == (PRODUCER_FENCED, -1, -1, None)


@kafka("TransactionMetadataTest.testBumpEpochNotAllowedIfEpochsExhausted")
@kafka("TransactionMetadataTest.testRotateProducerId")
@kafka("TransactionCoordinatorTest.shouldGenerateNewProducerIdIfEpochsExhausted")
def test_producer_gets_a_new_id_when_its_epochs_are_used_up(app: Transactional) -> None:
    producer_id, _ = app.init().producer
    app.field("producer_epoch", LAST_EPOCH - 1)
    told = app.init()
    assert (told.code, told.epoch) == (NONE, 0)
    assert told.producer_id != producer_id


@kafka("TransactionCoordinatorTest.testRetryInitProducerIdAfterProducerIdRotation")
@kafka("TransactionCoordinatorTest.testInitProducerIdWithInvalidEpochAfterProducerIdRotation")
def test_repeated_call_gets_the_same_new_producer_id(app: Transactional) -> None:
    producer_id, _ = app.init().producer
    app.field("producer_epoch", LAST_EPOCH - 1)
    told = app.init((producer_id, LAST_EPOCH - 1))
    assert [app.init((producer_id, LAST_EPOCH - 1)), app.init((producer_id, LAST_EPOCH - 1))] == [told] * 2
    assert app.init((producer_id, LAST_EPOCH - 2)).code == PRODUCER_FENCED


@kafka("TransactionCoordinatorTest.shouldGenerateNewProducerIdIfEpochsExhaustedV2")
@kafka("TransactionCoordinatorTest.shouldNotCauseEpochOverflowWhenInitPidDuringOngoingTxnV2")
@kafka("TransactionMetadataTest.testFenceProducerAfterEpochsExhausted")
@kafka("TransactionCoordinatorTest.shouldUseLastEpochToFenceWhenEpochsAreExhausted")
@pytest.mark.parametrize("is_same", [False, True])
def test_last_epoch_fences_and_belongs_to_no_producer(app: Transactional, is_same: bool) -> None:
    producer = app.init().producer[0], LAST_EPOCH - 1
    app.field("producer_epoch", LAST_EPOCH - 1)
    ordinal = app.add(producer, PARTITION).ordinal
    decision = app.init().decision
    assert decision is not None
    assert decision.marker_epoch == LAST_EPOCH
    app.complete(ordinal)
    told = app.init(producer if is_same else (-1, -1))
    assert (told.code, told.epoch) == (NONE, 0)
    assert told.producer_id != producer[0]
    if is_same:
        assert app.init(producer) == told
