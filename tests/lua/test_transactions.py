"""Transactional ids: Kafka's TransactionCoordinatorTest and TransactionMetadataTest, and what korvet adds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.log import TOPIC_ID
from tests.lua.transaction import (
    CONCURRENT_TRANSACTIONS,
    EXPIRATION_MS,
    FRESH_ID,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    LAST_EPOCH,
    NONE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    Decision,
    Transactional,
)
from tests.support.ported import kafka

OUTCOMES = ("commit", "abort")
PLACE = {"t:0": TOPIC_ID}


@pytest.fixture
def app(server: redis.Redis, set_clock: Callable[[float], None]) -> Transactional:
    return Transactional(server, set_clock)


@kafka("TransactionCoordinatorTest.shouldNotBumpEpochWhenAbortingExpiredTransactionIfAppendToLogFails")
@pytest.mark.parametrize("call", ["add", "end", "complete", "expire", "init"])
def test_deadlines_of_the_wrong_type_are_found_before_anything_is_written(app: Transactional, call: str) -> None:
    (mine, ordinal) = app.begun("t:0")
    if call == "complete":
        app.end(mine)
    app.pass_time(3600)
    app.server.delete(app.keys[1])
    app.server.set(app.keys[1], "text")
    before = app.describe()
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: app.add(mine, {"t:1": TOPIC_ID}), "end": lambda: app.end(mine), "init": app.init,
        "complete": lambda: app.complete(ordinal), "expire": app.expire,
    }  # fmt: skip
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        calls[call]()
    assert app.describe() == before


# ---------------------------------------------------------------------- InitProducerId


@kafka("TransactionMetadataTest.testInitializeEpoch")
@kafka("TransactionCoordinatorTest.shouldInitPidWithEpochZeroForNewTransactionalId")
def test_first_producer_has_epoch_zero(app: Transactional) -> None:
    assert app.server.fcall("korvet_txn_init", 2, *app.keys, "app", 60_000, -1, -1, -1) == [FRESH_ID, -1, -1]
    assert app.describe() == {}
    assert app.init() == (NONE, 1001, 0, None)
    assert (app.state, app.due()) == ("Empty", [])


@kafka("TransactionMetadataTest.testAttemptedEpochBumpWithNewlyCreatedMetadata")
@kafka("TransactionCoordinatorTest.shouldGenerateNewProducerIdIfNoStateAndProducerIdAndEpochProvided")
def test_producer_of_an_unknown_id_gets_a_new_one_whatever_it_names(app: Transactional) -> None:
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
def test_next_producer_behind_a_complete_transaction_has_the_next_epoch(
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
def test_next_producer_waits_for_the_decision_that_it_is_told(app: Transactional, outcome: str) -> None:
    _, decision = app.decided(outcome)
    before = app.describe()
    assert [app.init(), app.init()] == [(CONCURRENT_TRANSACTIONS, -1, -1, decision)] * 2
    assert app.describe() == before
    app.complete(decision.ordinal)
    assert app.init() == (NONE, decision.producer_id, decision.marker_epoch + 1, None)


@kafka("TransactionCoordinatorTest.shouldAbortTransactionOnHandleInitPidWhenExistingTransactionInOngoingState")
@kafka("TransactionCoordinatorTest.shouldNotRepeatedlyBumpEpochDueToInitPidDuringOngoingTxnIfAppendToLogFails")
def test_next_producer_aborts_what_is_open_and_fences_who_wrote_it(app: Transactional) -> None:
    (producer_id, epoch), ordinal = app.begun()
    told = app.init()
    assert told[:3] == (CONCURRENT_TRANSACTIONS, -1, -1)
    assert told.decision == Decision(ordinal, producer_id, epoch + 1, "abort", PLACE, [])
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
def test_producer_that_goes_on_gets_the_next_epoch_and_again_the_same(app: Transactional) -> None:
    producer = app.init().producer
    goes_on = app.init(producer)
    assert goes_on == (NONE, producer[0], 1, None)
    assert [app.init(producer), app.init(producer)] == [goes_on] * 2


@kafka("TransactionMetadataTest.testAttemptedEpochBumpWithFencedEpoch")
@kafka("TransactionCoordinatorTest.testInitProducerIdStaleCurrentEpochProvided")
@kafka("TransactionCoordinatorTest.testInitProducerIdWithNoLastProducerData")
def test_producer_cannot_go_on_behind_a_new_one(app: Transactional) -> None:
    producer = app.init().producer
    assert app.init().epoch == 1
    assert app.init(producer) == (PRODUCER_FENCED, -1, -1, None)


@kafka("TransactionMetadataTest.testBumpEpochNotAllowedIfEpochsExhausted")
@kafka("TransactionMetadataTest.testRotateProducerId")
@kafka("TransactionCoordinatorTest.shouldGenerateNewProducerIdIfEpochsExhausted")
def test_epochs_that_are_used_up_give_a_new_producer_id(app: Transactional) -> None:
    producer_id, _ = app.init().producer
    app.field("producer_epoch", LAST_EPOCH - 1)
    told = app.init()
    assert (told.code, told.epoch) == (NONE, 0)
    assert told.producer_id != producer_id


@kafka("TransactionCoordinatorTest.testRetryInitProducerIdAfterProducerIdRotation")
@kafka("TransactionCoordinatorTest.testInitProducerIdWithInvalidEpochAfterProducerIdRotation")
def test_new_producer_id_is_told_again(app: Transactional) -> None:
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
def test_last_epoch_fences_and_is_nobodys(app: Transactional, is_same: bool) -> None:
    producer = app.init().producer[0], LAST_EPOCH - 1
    app.field("producer_epoch", LAST_EPOCH - 1)
    ordinal = app.add(producer, PLACE).ordinal
    decision = app.init().decision
    assert decision is not None
    assert decision.marker_epoch == LAST_EPOCH
    app.complete(ordinal)
    told = app.init(producer if is_same else (-1, -1))
    assert (told.code, told.epoch) == (NONE, 0)
    assert told.producer_id != producer[0]
    if is_same:
        assert app.init(producer) == told


# ---------------------------------------------------------------------- AddPartitionsToTxn, AddOffsetsToTxn


@kafka(
    "TransactionCoordinatorTest.shouldRespondWithInvalidPidMappingOnAddPartitionsToTransactionWhenTransactionalIdNotPresent"
)
@pytest.mark.parametrize("mode", ["add", "verify"])
def test_nothing_is_added_to_an_unknown_id(app: Transactional, mode: str) -> None:
    assert app.add((10, 1), PLACE, mode=mode) == (INVALID_PRODUCER_ID_MAPPING, -1, [], None)
    assert app.describe() == {}


@pytest.mark.parametrize("mode", ["add", "verify"])
@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(
            "commit",
            marks=kafka(
                "TransactionCoordinatorTest.shouldRespondWithConcurrentTransactionsOnAddPartitionsWhenStateIsPrepareCommit"
            ),
        ),
        pytest.param(
            "abort",
            marks=kafka(
                "TransactionCoordinatorTest.shouldRespondWithConcurrentTransactionOnAddPartitionsWhenStateIsPrepareAbort"
            ),
        ),
    ],
)
def test_nothing_is_added_while_a_decision_is_finished(app: Transactional, outcome: str, mode: str) -> None:
    producer, decision = app.decided(outcome, version=1)
    assert app.add(producer, PLACE, mode=mode) == (CONCURRENT_TRANSACTIONS, -1, [], decision)


@kafka("TransactionCoordinatorTest.shouldRespondWithProducerFencedOnAddPartitionsWhenEpochsAreDifferent")
def test_another_epoch_adds_nothing(app: Transactional) -> None:
    producer_id, epoch = app.init().producer
    assert app.add((producer_id, epoch + 1), PLACE).code == PRODUCER_FENCED
    assert app.add((producer_id + 1, epoch), PLACE).code == INVALID_PRODUCER_ID_MAPPING
    assert app.state == "Empty"


@kafka("TransactionStateManagerTest.testAddGetPids")
@kafka("TransactionStateManagerTest.testCompleteTransitionWhenAppendSucceeded")
@kafka("TransactionCoordinatorTest.shouldAppendNewMetadataToLogOnAddPartitionsWhenPartitionsAdded")
@kafka("TransactionCoordinatorTest.shouldRespondWithSuccessOnAddPartitionsWhenStateIsOngoing")
@kafka("TransactionCoordinatorTest.shouldRespondWithErrorsNoneOnAddPartitionWhenNoErrorsAndPartitionsTheSame")
def test_members_gather_in_one_transaction(app: Transactional) -> None:
    producer = app.init().producer
    first = app.add(producer, PLACE)
    assert first.codes == [NONE]
    started_ms = app.describe()["started_ms"]
    app.pass_time(3)
    assert app.add(producer, PLACE) == first
    assert app.add(producer, {**PLACE, "u:1": "b" * 32}, ["g", "h"]) == (NONE, first.ordinal, [NONE] * 4, None)
    described = app.describe()
    assert described["started_ms"] == started_ms == START_MS
    assert [described[name] for name in ("partitions", "groups")] == [
        [b"t:0", TOPIC_ID.encode(), b"u:1", b"b" * 32],
        [b"g", b"h"],
    ]


START_MS = 4_000_000_000_000


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(
            "commit",
            marks=kafka("TransactionCoordinatorTest.shouldRespondWithSuccessOnAddPartitionsWhenStateIsCompleteCommit"),
        ),
        pytest.param(
            "abort",
            marks=kafka("TransactionCoordinatorTest.shouldRespondWithSuccessOnAddPartitionsWhenStateIsCompleteAbort"),
        ),
    ],
)
def test_next_transaction_begins_with_a_greater_ordinal(app: Transactional, outcome: str, version: int) -> None:
    producer_id, epoch = app.ended(outcome, version)
    before = app.describe()["ordinal"]
    added = app.add((producer_id, epoch + version - 1), PLACE)
    assert added.code == NONE
    assert added.ordinal > before
    assert (app.state, app.describe()["partitions"]) == ("Ongoing", [b"t:0", TOPIC_ID.encode()])


def test_ordinals_grow_over_all_ids_of_a_shard_though_the_clock_goes_back(
    server: redis.Redis, set_clock: Callable[[float], None]
) -> None:
    one, other = Transactional(server, set_clock, "one"), Transactional(server, set_clock, "other")
    ordinals = [one.begun()[1], other.begun()[1]]
    set_clock(1_700_000_000)
    one.init()
    one.complete(ordinals[0])
    ordinals.append(one.begun()[1])
    assert ordinals == sorted(set(ordinals))
    assert all(ordinal < 2**53 for ordinal in ordinals)


@kafka("TransactionCoordinatorTest.shouldRespondWithErrorsNoneOnAddPartitionWhenOngoingVerifyOnlyAndPartitionsTheSame")
@kafka("TransactionCoordinatorTest.shouldRespondWithInvalidTxnStateWhenVerifyOnlyAndPartitionNotPresent")
@kafka("TransactionCoordinatorTest.testVerifyPartitionHandling")
def test_member_is_verified_where_it_is_in_the_open_transaction(app: Transactional) -> None:
    producer, ordinal = app.begun("t:0", groups=["g"])
    verified = app.add(producer, {"t:0": TOPIC_ID, "t:1": TOPIC_ID}, ["g", "h"], mode="verify")
    assert verified == (NONE, ordinal, [NONE, TRANSACTION_ABORTABLE] * 2, None)
    assert app.add(producer, {"t:0": "b" * 32}, mode="verify").codes == [TRANSACTION_ABORTABLE]
    assert app.describe()["partitions"] == [b"t:0", TOPIC_ID.encode()]


def test_nothing_is_verified_where_no_transaction_is_open(app: Transactional) -> None:
    producer = app.ended(version=1)
    assert app.add(producer, PLACE, mode="verify") == (NONE, -1, [TRANSACTION_ABORTABLE], None)
    assert app.state == "CompleteCommit"


# ---------------------------------------------------------------------- EndTxn


@kafka("TransactionCoordinatorTest.shouldReplyWithInvalidPidMappingOnEndTxnWhenTxnIdDoesntExist")
@kafka("TransactionCoordinatorTest.shouldReplyWithInvalidPidMappingOnEndTxnWhenPidDoesntMatchMapped")
@pytest.mark.parametrize("version", [1, 2])
def test_unknown_producer_ends_nothing(app: Transactional, version: int) -> None:
    assert app.end((0, 0), version=version).code == INVALID_PRODUCER_ID_MAPPING
    (producer_id, epoch), _ = app.begun()
    assert app.end((producer_id + 1, epoch), version=version).code == INVALID_PRODUCER_ID_MAPPING


@kafka("TransactionCoordinatorTest.shouldReplyWithProducerFencedOnEndTxnWhenEpochIsNotSameAsTransaction")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("step", [-1, 1])
def test_another_epoch_ends_nothing(app: Transactional, version: int, step: int) -> None:
    app.init()
    (producer_id, epoch), _ = app.begun()
    assert app.end((producer_id, epoch + step), version=version) == (PRODUCER_FENCED, -1, -1, None)
    assert app.state == "Ongoing"


@kafka("TransactionCoordinatorTest.shouldReturnInvalidEpochOnEndTxnWhenEpochIsLarger")
@kafka("TransactionCoordinatorTest.shouldReturnInvalidEpochOnEndTxnWhenEpochIsSmaller")
@pytest.mark.parametrize("step", [-1, 1])
def test_another_epoch_is_told_nothing_of_what_is_complete(app: Transactional, step: int) -> None:
    app.init()
    producer_id, epoch = app.ended(version=1)
    assert app.end((producer_id, epoch + step), version=1).code == PRODUCER_FENCED


@kafka("TransactionMetadataTest.testEpochBumpOnEndTxn")
@kafka("TransactionCoordinatorTest.shouldAppendPrepareCommitToLogOnEndTxnWhenStatusIsOngoingAndResultIsCommit")
@kafka("TransactionCoordinatorTest.shouldAppendPrepareAbortToLogOnEndTxnWhenStatusIsOngoingAndResultIsAbort")
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("version", [1, 2])
def test_decision_names_all_that_it_is_for(app: Transactional, outcome: str, version: int) -> None:
    producer, ordinal = app.begun("t:0", "t:1", groups=["g"])
    after = (producer[0], producer[1] + version - 1)
    told = app.end(producer, outcome, version)
    places = {"t:0": TOPIC_ID, "t:1": TOPIC_ID}
    assert told == (NONE, *after, Decision(ordinal, *after, outcome, places, ["g"]))
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
def test_end_is_told_to_wait_for_itself_and_another_is_refused(app: Transactional, outcome: str, version: int) -> None:
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
def test_end_is_told_again_what_became_of_it(app: Transactional, outcome: str, version: int) -> None:
    producer_id, epoch = app.ended(outcome, version)
    other = OUTCOMES[outcome == "commit"]
    assert app.end((producer_id, epoch), outcome, version) == (NONE, producer_id, epoch + version - 1, None)
    assert app.end((producer_id, epoch), other, version).code == INVALID_TXN_STATE


@kafka("TransactionCoordinatorTest.TestEndTxnRequestWhenEmptyTransactionStateForAbortInV2")
@kafka("TransactionCoordinatorTest.TestEndTxnRequestWhenEmptyTransactionStateForCommitInV2")
@kafka("TransactionMetadataTest.testTransitFromEmptyToPrepareAbortInV2")
@kafka("TransactionMetadataTest.testTransitFromCompleteAbortToPrepareAbortInV2")
def test_transaction_that_touched_nothing_is_aborted_with_the_epoch_raised(app: Transactional) -> None:
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
def test_nothing_is_ended_of_version_1_where_nothing_is_open(app: Transactional) -> None:
    producer = app.init().producer
    assert [app.end(producer, outcome, version=1).code for outcome in OUTCOMES] == [INVALID_TXN_STATE] * 2


@kafka("TransactionCoordinatorTest.shouldReturnConcurrentTxnOnAddPartitionsIfEndTxnV2EpochOverflowAndNotComplete")
@kafka("TransactionCoordinatorTest.shouldReturnOkOnEndTxnV2IfEndTxnV2RetryEpochOverflow")
@kafka("TransactionMetadataTest.testEpochBumpOnEndTxnOverflow")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_end_with_the_last_epoch_goes_on_with_a_new_producer_id(app: Transactional, outcome: str) -> None:
    producer = app.init().producer[0], LAST_EPOCH - 1
    app.field("producer_epoch", LAST_EPOCH - 1)
    app.add(producer, PLACE)
    told = app.end(producer, outcome)
    assert (told.code, told.epoch) == (NONE, 0)
    assert told.producer_id != producer[0]
    assert told.decision is not None
    assert told.decision[1:3] == (producer[0], LAST_EPOCH)
    assert app.end(producer, outcome).code == CONCURRENT_TRANSACTIONS
    assert app.add(told.producer, PLACE).code == CONCURRENT_TRANSACTIONS
    assert app.add((told.producer_id + 1, 0), PLACE).code == INVALID_PRODUCER_ID_MAPPING
    app.complete(told.decision.ordinal)
    assert app.end(producer, outcome) == (NONE, *told.producer, None)
    assert app.end(producer, OUTCOMES[outcome == "commit"]).code == INVALID_TXN_STATE
    assert app.add(told.producer, PLACE).code == NONE
    assert app.end(producer, outcome).code == INVALID_PRODUCER_ID_MAPPING


# ---------------------------------------------------------------------- complete


@kafka("TransactionMarkerChannelManagerTest.shouldOnlyWriteTxnCompletionOnce")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_complete_forgets_the_members_and_may_be_repeated(app: Transactional, outcome: str) -> None:
    _, decision = app.decided(outcome)
    app.complete(decision.ordinal)
    before = app.describe()
    assert [before[name] for name in ("state", "partitions", "groups")] == [f"Complete{outcome.capitalize()}", [], []]
    app.pass_time(1)
    app.complete(decision.ordinal)
    assert app.describe() == before


def test_late_complete_leaves_the_next_transaction_alone(app: Transactional) -> None:
    producer, decision = app.decided(version=1)
    app.complete(decision.ordinal)
    app.add(producer, {"t:1": TOPIC_ID})
    app.complete(decision.ordinal)
    assert app.state == "Ongoing"
    following = app.end(producer, "abort", version=1).decision
    app.complete(decision.ordinal)
    assert following is not None
    assert (app.state, following.places) == ("PrepareAbort", {"t:1": TOPIC_ID})


# ---------------------------------------------------------------------- what is due


@kafka("TransactionMarkerChannelManagerTest.shouldNotLoseTxnCompletionAfterLoad")
def test_decision_is_anybodys_after_a_second(app: Transactional) -> None:
    _, decision = app.decided()
    assert (app.due(), app.expire()) == ([], None)
    app.pass_time(1)
    assert (app.due(), app.expire()) == (["app"], decision)
    assert (app.due(), app.expire()) == ([], None)
    app.pass_time(1)
    assert app.expire() == decision
    app.complete(decision.ordinal)
    app.pass_time(2)
    assert (app.due(), app.expire()) == ([], None)


def test_decision_that_fails_is_told_at_growing_intervals(app: Transactional) -> None:
    _, decision = app.decided()
    app.pass_time(1)
    for pause in (1, 1, 1.5, 2.25):
        assert app.expire() == decision
        app.pass_time(pause - 0.002)
        assert (app.due(), app.expire()) == ([], None)
        app.pass_time(0.002)
    app.pass_time(3600)
    assert app.expire() == decision
    app.pass_time(9.9)
    assert app.due() == []
    app.pass_time(0.1)
    assert (app.due(), app.expire()) == (["app"], decision)


@kafka("TransactionCoordinatorTest.shouldAbortExpiredTransactionsInOngoingStateAndBumpEpoch")
@kafka("TransactionCoordinatorTest.shouldNotAcceptSmallerEpochDuringTransactionExpiration")
def test_transaction_past_its_timeout_is_aborted_and_its_producer_fenced(app: Transactional) -> None:
    (producer_id, epoch), ordinal = app.begun()
    app.pass_time(59)
    app.add((producer_id, epoch), {"t:1": TOPIC_ID})
    assert (app.due(), app.expire()) == ([], None)
    app.pass_time(1)
    assert app.due() == ["app"]
    decision = app.expire()
    assert decision is not None
    assert decision[:4] == (ordinal, producer_id, epoch + 1, "abort")
    assert app.add((producer_id, epoch), PLACE).code == PRODUCER_FENCED
    assert app.end((producer_id, epoch), version=1).code == PRODUCER_FENCED
    app.complete(ordinal)
    assert app.init((producer_id, epoch)) == (NONE, producer_id, epoch + 1, None)


@kafka("TransactionStateManagerTest.shouldNotRemovePrepareCommitTransactionalIds")
@kafka("TransactionCoordinatorTest.shouldNotAbortExpiredTransactionsThatHaveAPendingStateTransition")
def test_decision_is_not_changed_by_the_timeout(app: Transactional) -> None:
    _, decision = app.decided("commit")
    app.pass_time(3600)
    assert app.expire() == decision
    assert app.state == "PrepareCommit"


@kafka("TransactionCoordinatorTest.testDescribeTransactionsWithExpiringTransactionalId")
@kafka("TransactionStateManagerTest.shouldRemoveEmptyExpiredTransactionalIds")
@kafka("TransactionStateManagerTest.shouldRemoveCompleteCommitExpiredTransactionalIds")
@kafka("TransactionMetadataTest.testInvalidTransitionFromCompleteCommitToFence")
@pytest.mark.parametrize("version", [0, 1, 2])
def test_id_that_is_not_used_is_removed(app: Transactional, version: int) -> None:
    producer = app.ended(version=version) if version else app.init().producer
    app.pass_time(61)
    assert app.expire() is None
    app.pass_time(EXPIRATION_MS / 1000 - 62)
    assert (app.due(), app.expire()) == ([], None)
    assert app.describe() != {}
    app.pass_time(1)
    assert (app.due(), app.expire()) == (["app"], None)
    assert (app.describe(), app.due()) == ({}, [])
    assert app.add(producer, PLACE).code == INVALID_PRODUCER_ID_MAPPING
    assert app.init().code == NONE


@kafka("TransactionStateManagerTest.testTransactionExpirationShouldNotFailWithUninitializedTransactionMetadata")
def test_deadline_of_an_id_that_is_gone_goes(app: Transactional) -> None:
    app.init()
    app.server.delete(app.keys[0])
    app.pass_time(60)
    assert (app.due(), app.expire(), app.due()) == (["app"], None, [])


@kafka("TransactionStateManagerTest.testTransactionExpirationShouldRespectBatchSize")
def test_only_as_many_are_told_as_are_asked_for(server: redis.Redis, set_clock: Callable[[float], None]) -> None:
    ids = [Transactional(server, set_clock, name) for name in ("a", "b", "c")]
    for one in ids:
        one.init()
    ids[0].pass_time(60)
    assert (ids[0].due(2), ids[0].due(5)) == (["a", "b"], ["a", "b", "c"])
