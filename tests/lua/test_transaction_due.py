"""Decisions and deadlines: the end of a transaction, its timeout, and the expiration of its id."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.log import TOPIC_ID
from tests.lua.transaction import (
    EXPIRATION_MS,
    INVALID_PRODUCER_ID_MAPPING,
    NONE,
    OUTCOMES,
    PARTITION,
    PRODUCER_FENCED,
    Transactional,
)
from tests.support.ported import kafka


@kafka("TransactionMarkerChannelManagerTest.shouldOnlyWriteTxnCompletionOnce")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_repeated_completion_forgets_the_members_once(app: Transactional, outcome: str) -> None:
    _, decision = app.decided(outcome)
    app.complete(decision.ordinal)
    before = app.describe()
    assert [before[name] for name in ("state", "partitions", "groups")] == [f"Complete{outcome.capitalize()}", [], []]
    app.pass_time(1)
    app.complete(decision.ordinal)
    assert app.describe() == before


def test_late_completion_leaves_the_next_transaction_alone(app: Transactional) -> None:
    producer, decision = app.decided(version=1)
    app.complete(decision.ordinal)
    app.add(producer, {"t:1": TOPIC_ID})
    app.complete(decision.ordinal)
    assert app.state == "Ongoing"
    following = app.end(producer, "abort", version=1).decision
    app.complete(decision.ordinal)
    assert following is not None
    assert (app.state, following.partitions) == ("PrepareAbort", {"t:1": TOPIC_ID})


@kafka("TransactionMarkerChannelManagerTest.shouldNotLoseTxnCompletionAfterLoad")
def test_any_front_end_gets_an_unfinished_decision_after_a_second(app: Transactional) -> None:
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


def test_unfinished_decision_is_due_at_growing_intervals(app: Transactional) -> None:
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
def test_expired_transaction_is_aborted_and_its_producer_fenced(app: Transactional) -> None:
    (producer_id, epoch), ordinal = app.begun()
    app.pass_time(59)
    app.add((producer_id, epoch), {"t:1": TOPIC_ID})
    assert (app.due(), app.expire()) == ([], None)
    app.pass_time(1)
    assert app.due() == ["app"]
    decision = app.expire()
    assert decision is not None
    assert decision[:4] == (ordinal, producer_id, epoch + 1, "abort")
    assert app.add((producer_id, epoch), PARTITION).code == PRODUCER_FENCED
    assert app.end((producer_id, epoch), version=1).code == PRODUCER_FENCED
    app.complete(ordinal)
    assert app.init((producer_id, epoch)) == (NONE, producer_id, epoch + 1, None)


@kafka("TransactionStateManagerTest.shouldNotRemovePrepareCommitTransactionalIds")
@kafka("TransactionCoordinatorTest.shouldNotAbortExpiredTransactionsThatHaveAPendingStateTransition")
def test_timeout_changes_no_decision(app: Transactional) -> None:
    _, decision = app.decided("commit")
    app.pass_time(3600)
    assert app.expire() == decision
    assert app.state == "PrepareCommit"


@kafka("TransactionCoordinatorTest.testDescribeTransactionsWithExpiringTransactionalId")
@kafka("TransactionStateManagerTest.shouldRemoveEmptyExpiredTransactionalIds")
@kafka("TransactionStateManagerTest.shouldRemoveCompleteCommitExpiredTransactionalIds")
@kafka("TransactionMetadataTest.testInvalidTransitionFromCompleteCommitToFence")
@pytest.mark.parametrize("version", [0, 1, 2])
def test_unused_id_is_removed_after_its_expiration(app: Transactional, version: int) -> None:
    producer = app.ended(version=version) if version else app.init().producer
    app.pass_time(61)
    assert app.expire() is None
    app.pass_time(EXPIRATION_MS / 1000 - 62)
    assert (app.due(), app.expire()) == ([], None)
    assert app.describe() != {}
    app.pass_time(1)
    assert (app.due(), app.expire()) == (["app"], None)
    assert (app.describe(), app.due()) == ({}, [])
    assert app.add(producer, PARTITION).code == INVALID_PRODUCER_ID_MAPPING
    assert app.init().code == NONE


@kafka("TransactionStateManagerTest.testTransactionExpirationShouldNotFailWithUninitializedTransactionMetadata")
def test_deadline_of_a_missing_id_is_removed(app: Transactional) -> None:
    app.init()
    app.server.delete(app.keys[0])
    app.pass_time(60)
    assert (app.due(), app.expire(), app.due()) == (["app"], None, [])


@kafka("TransactionStateManagerTest.testTransactionExpirationShouldRespectBatchSize")
def test_caller_gets_at_most_as_many_due_ids_as_it_asks_for(
    server: redis.Redis, set_clock: Callable[[float], None]
) -> None:
    ids = [Transactional(server, set_clock, name) for name in ("a", "b", "c")]
    for one in ids:
        one.init()
    ids[0].pass_time(60)
    assert (ids[0].due(2), ids[0].due(5)) == (["a", "b"], ["a", "b", "c"])


@kafka("TransactionCoordinatorTest.shouldNotBumpEpochWhenAbortingExpiredTransactionIfAppendToLogFails")
@pytest.mark.parametrize("call", ["add", "end", "complete", "expire", "init"])
def test_deadlines_of_the_wrong_type_are_found_before_the_first_write(app: Transactional, call: str) -> None:
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
