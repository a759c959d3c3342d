"""A transaction over two partitions and a group, with a front-end that stops between any two of its steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.log import TOPIC_ID
from tests.lua.transaction import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    NONE,
    PRODUCER_FENCED,
)
from tests.lua.transaction_scene import Scene
from tests.support.ported import kafka

OUTCOMES = ("commit", "abort")
STEPS = 5
"""The stops in a decision over two partitions and a group: before any step, two markers, the group, complete."""


@pytest.fixture
def scene(server: redis.Redis, set_clock: Callable[[float], None]) -> Scene:
    return Scene(server, set_clock)


@kafka("TransactionStateManagerTest.shouldWriteTxnMarkersForTransactionInPreparedCommitState")
@kafka("TransactionStateManagerTest.shouldWriteTxnMarkersForTransactionInPreparedAbortState")
@kafka("TransactionMarkerChannelManagerTest.shouldRetryAppendToLogOnEndTxnWhenCoordinatorNotAvailableError")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("done", range(STEPS))
def test_another_front_end_finishes_a_decision_from_any_step(
    scene: Scene, outcome: str, version: int, done: int
) -> None:
    producer = scene.app.init().producer
    scene.run(producer, 5)
    told = scene.app.end(producer, outcome, version)
    assert told.decision is not None
    first = scene.steps(told.decision)
    for _ in range(done):
        assert next(first) == NONE
    scene.app.pass_time(1)
    if done < STEPS - 1:
        found = scene.app.expire()
        assert found == told.decision
        scene.finish(found)
    assert scene.app.state == f"Complete{outcome.capitalize()}"
    assert scene.ends() == ["2", "2"]
    assert scene.group.committed() == ({"in:0": "5"} if outcome == "commit" else {})
    before = scene.state()
    assert set(first) <= {NONE}
    scene.finish(told.decision)
    assert scene.state() == before


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("is_decided", [False, True])
def test_late_step_does_not_touch_the_next_transaction(
    scene: Scene, outcome: str, version: int, is_decided: bool
) -> None:
    producer = scene.app.init().producer
    scene.run(producer, 5)
    first = scene.app.end(producer, outcome, version)
    assert first.decision is not None
    scene.finish(first.decision)
    scene.reset(version)
    scene.run(first.producer, 9)
    second = scene.app.end(first.producer, "commit", version) if is_decided else None
    before = scene.state()

    scene.finish(first.decision)
    ordinal = first.decision.ordinal
    refusal = INVALID_PRODUCER_EPOCH if version == 2 else INVALID_TXN_STATE
    for partition, log in scene.logs.items():
        assert log.write(1, (*producer, scene.sequences[partition]), ordinal).code == refusal
        assert log.write(1, (*producer, 77), ordinal).code == refusal
    assert scene.group.hold({"in:0": 1}, ordinal, producer=producer) in (INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH)
    assert scene.state() == before

    decision = (second or scene.app.end(first.producer, "commit", version)).decision
    assert decision is not None
    scene.finish(decision)
    assert scene.group.committed() == {"in:0": "9"}
    assert scene.ends() == ["4", "4"]


@pytest.mark.parametrize("done", range(STEPS))
def test_new_producer_waits_for_the_former_ones_transaction(scene: Scene, done: int) -> None:
    producer = scene.app.init().producer
    scene.run(producer, 5)
    told = scene.app.init()
    assert (told.code, told.decision is not None) == (CONCURRENT_TRANSACTIONS, True)
    assert told.decision is not None
    steps = scene.steps(told.decision)
    for _ in range(done):
        next(steps)
    again = scene.app.init()
    if done < STEPS - 1:
        assert again == told
        scene.finish(told.decision)
        again = scene.app.init()
    assert (again.code, again.producer) == (NONE, (producer[0], producer[1] + 2))
    assert scene.write(producer, "t:0") == INVALID_PRODUCER_EPOCH
    assert scene.hold(producer, 7) == PRODUCER_FENCED
    assert scene.app.end(producer).code == PRODUCER_FENCED
    scene.reset(2)
    scene.run(again.producer, 8)
    decision = scene.app.end(again.producer).decision
    assert decision is not None
    scene.finish(decision)
    assert scene.group.committed() == {"in:0": "8"}
    assert [len(log.aborted_transactions()) for log in scene.logs.values()] == [1, 1]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_batch_verified_before_the_end_is_refused_after_the_end(scene: Scene, outcome: str) -> None:
    producer = scene.app.init().producer
    assert scene.write(producer, "t:0") == NONE
    ordinal = scene.app.add(producer, {"t:1": TOPIC_ID}).ordinal
    decision = scene.app.end(producer, outcome, 1).decision
    assert decision is not None
    scene.finish(decision)
    before = scene.state()
    assert scene.logs["t:1"].write(1, (*producer, 0), ordinal).code == INVALID_TXN_STATE
    assert scene.state() == before
    assert scene.write(producer, "t:1") == NONE
    assert scene.app.describe()["ordinal"] > ordinal


def test_many_transactions_leave_the_state_of_one(scene: Scene) -> None:
    producer = scene.app.init().producer
    for number in range(30):
        scene.run(producer, number)
        told = scene.app.end(producer, OUTCOMES[number % 2])
        assert told.decision is not None
        scene.finish(told.decision)
        producer = told.producer
        scene.reset(2)
    assert producer == (1001, 30)
    assert scene.group.committed() == {"in:0": "28"}
    assert scene.ends() == ["60", "60"]
    assert [len(log.aborted_transactions()) for log in scene.logs.values()] == [15, 15]
