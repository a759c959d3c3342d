"""Transactions in a partition: cases of Kafka's ProducerStateManagerTest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.transaction import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    OUTCOMES,
    TransactionLog,
)
from tests.support.ported import kafka

FIRST = 1_700_000_000_000_000


@pytest.fixture
def log(server: redis.Redis) -> TransactionLog:
    log = TransactionLog(server)
    assert log.create() == NONE
    return log


@kafka("ProducerStateManagerTest.testNonTransactionalAppendWithOngoingTransaction")
def test_plain_batch_is_refused_while_a_transaction_is_open(log: TransactionLog) -> None:
    log.write(1, (7, 0, 0), FIRST)
    before = log.dump()
    assert log.plain(1, (7, 0, 1)) == (INVALID_TXN_STATE, -1, 0, 0)
    assert log.plain(1, (7, 1, 0)) == (INVALID_TXN_STATE, -1, 0, 0)
    assert log.dump() == before
    assert log.plain(1, (8, 0, 0)).code == NONE
    log.mark((7, 0), FIRST)
    assert log.plain(1, (7, 0, 1)).code == NONE


@kafka("ProducerStateManagerTest.testLastStableOffsetCompletedTxn")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_marker_ends_the_transaction_once(log: TransactionLog, outcome: str) -> None:
    log.write(3, (7, 0, 0), FIRST)
    assert log.mark((7, 1), FIRST, outcome) == (NONE, 3, 0, 0)
    assert log.entries()[-1].batch == b"marker"
    before = log.dump()
    assert [log.mark((7, 1), FIRST, again) for again in (outcome, *OUTCOMES)] == [(NONE, -1, 0, 0)] * 3
    assert log.dump() == before
    assert (log.first_open(), log.meta_fields()["end"]) == (None, "4")


@kafka("ProducerStateManagerTest.testAppendTxnMarkerWithNoProducerState")
@kafka("ProducerStateManagerTest.testSkipEmptyTransactions")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_marker_of_an_unknown_producer_fences_its_older_epochs(log: TransactionLog, outcome: str) -> None:
    assert log.mark((7, 5), FIRST, outcome) == (NONE, 0, 0, 0)
    assert log.aborted_transactions() == []
    assert log.described() == {7: [5, -1, 1000, -1, -1, ""]}
    assert log.write(1, (7, 4, 0), FIRST).code == INVALID_PRODUCER_EPOCH
    assert log.write(1, (7, 4, 0)).code == INVALID_PRODUCER_EPOCH
    assert log.plain(1, (7, 4, 0)).code == INVALID_PRODUCER_EPOCH
    assert log.write(1, (7, 5, 3), FIRST + 1).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.write(1, (7, 5, 0), FIRST + 1).code == NONE


@kafka("ProducerStateManagerTest.testControlRecordBumpsProducerEpoch")
@kafka("ProducerStateManagerTest.testOutOfSequenceAfterControlRecordEpochBump")
def test_marker_of_a_newer_epoch_begins_its_sequence(log: TransactionLog) -> None:
    log.write(3, (7, 0, 0), FIRST)
    log.mark((7, 1), FIRST)
    assert log.state_of(7) == "1 0|-1,-1,3"
    assert log.write(1, (7, 0, 3), FIRST + 1).code == INVALID_PRODUCER_EPOCH
    assert log.plain(1, (7, 1, 3)).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    for number in range(6):
        assert log.write(1, (7, 1, number), FIRST + 1).code == NONE
    assert log.state_of(7) == "1 0*|5,5,9|4,4,8|3,3,7|2,2,6|1,1,5"
    assert log.write(1, (7, 1, 1)).base_offset == 5


@kafka("ProducerStateManagerTest.testOldEpochForControlRecord")
def test_marker_of_an_older_epoch_is_refused_if_nothing_is_open(log: TransactionLog) -> None:
    log.plain(1, (7, 5, 0))
    before = log.dump()
    assert log.mark((7, 4), FIRST) == (INVALID_PRODUCER_EPOCH, -1, 0, 0)
    assert log.dump() == before
    log.write(1, (7, 5, 1), FIRST + 1)
    assert log.mark((7, 4), FIRST + 1, "abort").code == NONE
    assert (log.first_open(), log.plain(1, (7, 4, 0)).code) == (None, INVALID_PRODUCER_EPOCH)


@kafka("ProducerStateManagerTest.testProducersWithOngoingTransactionsDontExpire")
def test_partition_forgets_producers_without_an_open_transaction(
    server: redis.Redis, set_clock: Callable[[float], None]
) -> None:
    start_s = 2_000_000_000.0
    set_clock(start_s)
    log = TransactionLog(server)
    log.create()
    log.write(1, (1, 0, 0), FIRST)
    log.write(1, (2, 0, 0), FIRST + 1)
    log.mark((2, 0), FIRST + 1)
    for day in range(1, 4):
        set_clock(start_s + day * 86_401)
        for number in range(100):
            producer_id = day * 1000 + number
            log.write(1, (producer_id, 0, 0), FIRST + producer_id)
            log.mark((producer_id, 0), FIRST + producer_id)
    assert 1 in log.producer_ids()
    assert 2 not in log.producer_ids()
    fields: Any = log.server.hlen(log.transactions)
    assert fields <= len(log.producer_ids()) + 100
