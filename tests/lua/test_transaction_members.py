"""Partitions and groups that join a transaction: Kafka's TransactionCoordinatorTest, and more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.log import TOPIC_ID
from tests.lua.transaction import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    NONE,
    PARTITION,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    Transactional,
)
from tests.support.ported import kafka


@kafka(
    "TransactionCoordinatorTest.shouldRespondWithInvalidPidMappingOnAddPartitionsToTransactionWhenTransactionalIdNotPresent"
)
@pytest.mark.parametrize("mode", ["add", "verify"])
def test_unknown_id_takes_no_members(app: Transactional, mode: str) -> None:
    assert app.add((10, 1), PARTITION, mode=mode) == (INVALID_PRODUCER_ID_MAPPING, -1, [], None)
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
def test_transaction_takes_no_members_until_its_decision_is_finished(
    app: Transactional, outcome: str, mode: str
) -> None:
    producer, decision = app.decided(outcome, version=1)
    assert app.add(producer, PARTITION, mode=mode) == (CONCURRENT_TRANSACTIONS, -1, [], decision)


@kafka("TransactionCoordinatorTest.shouldRespondWithProducerFencedOnAddPartitionsWhenEpochsAreDifferent")
def test_producer_with_another_epoch_adds_no_members(app: Transactional) -> None:
    producer_id, epoch = app.init().producer
    assert app.add((producer_id, epoch + 1), PARTITION).code == PRODUCER_FENCED
    assert app.add((producer_id + 1, epoch), PARTITION).code == INVALID_PRODUCER_ID_MAPPING
    assert app.state == "Empty"


@kafka("TransactionStateManagerTest.testAddGetPids")
@kafka("TransactionStateManagerTest.testCompleteTransitionWhenAppendSucceeded")
@kafka("TransactionCoordinatorTest.shouldAppendNewMetadataToLogOnAddPartitionsWhenPartitionsAdded")
@kafka("TransactionCoordinatorTest.shouldRespondWithSuccessOnAddPartitionsWhenStateIsOngoing")
@kafka("TransactionCoordinatorTest.shouldRespondWithErrorsNoneOnAddPartitionWhenNoErrorsAndPartitionsTheSame")
def test_one_transaction_takes_several_members(app: Transactional) -> None:
    producer = app.init().producer
    first = app.add(producer, PARTITION)
    assert first.codes == [NONE]
    started_ms = app.describe()["started_ms"]
    app.pass_time(3)
    assert app.add(producer, PARTITION) == first
    assert app.add(producer, {**PARTITION, "u:1": "b" * 32}, ["g", "h"]) == (NONE, first.ordinal, [NONE] * 4, None)
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
    added = app.add((producer_id, epoch + version - 1), PARTITION)
    assert added.code == NONE
    assert added.ordinal > before
    assert (app.state, app.describe()["partitions"]) == ("Ongoing", [b"t:0", TOPIC_ID.encode()])


def test_ordinals_grow_over_all_ids_of_a_shard_if_the_clock_goes_back(
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
def test_member_is_verified_if_it_is_in_the_open_transaction(app: Transactional) -> None:
    producer, ordinal = app.begun("t:0", groups=["g"])
    verified = app.add(producer, {"t:0": TOPIC_ID, "t:1": TOPIC_ID}, ["g", "h"], mode="verify")
    assert verified == (NONE, ordinal, [NONE, TRANSACTION_ABORTABLE] * 2, None)
    assert app.describe()["partitions"] == [b"t:0", TOPIC_ID.encode()]


@pytest.mark.parametrize("mode", ["add", "verify"])
def test_partition_of_a_topic_made_again_is_in_the_transaction_by_its_name(app: Transactional, mode: str) -> None:
    producer, ordinal = app.begun("t:0")
    made_again = {"t:0": "b" * 32 + " " + "c" * 40}
    assert app.add(producer, made_again, mode=mode) == (NONE, ordinal, [NONE], None)
    assert app.describe()["partitions"] == [b"t:0", b"b" * 32]
    # From then on the history of the new partition's server counts.
    moved = {"t:0": "b" * 32 + " " + "d" * 40}
    assert app.add(producer, moved, mode=mode).codes == [TRANSACTION_ABORTABLE]


def test_no_member_is_verified_if_no_transaction_is_open(app: Transactional) -> None:
    producer = app.ended(version=1)
    assert app.add(producer, PARTITION, mode="verify") == (NONE, -1, [TRANSACTION_ABORTABLE], None)
    assert app.state == "CompleteCommit"


@pytest.mark.parametrize(("groups", "state"), [([], "CompleteCommit"), (["g"], "PrepareCommit")])
def test_front_end_that_names_no_members_finishes_a_decision_whose_reply_named_all(
    app: Transactional, groups: list[str], state: str
) -> None:
    most = 500
    producer, _ = app.begun(*(f"t:{number}" for number in range(most)))
    app.add(producer, groups=groups)
    decision = app.end(producer).decision
    assert decision is not None
    app.complete(decision.ordinal)
    assert app.state == state
