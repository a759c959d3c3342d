"""Transactions in a partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.log import GONE, RESEND, TOPIC_ID, listening
from tests.lua.transaction import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    OUTCOMES,
    VERIFY,
    TransactionLog,
)
from tests.support.ported import kafka

FIRST = 1_700_000_000_000_000
"""An ordinal as they are."""


@pytest.fixture
def log(server: redis.Redis) -> TransactionLog:
    log = TransactionLog(server)
    assert log.create() == 0
    return log


# ---------------------------------------------------------------------- append


def test_producer_without_an_open_transaction_must_be_verified(log: TransactionLog) -> None:
    before = log.dump()
    assert log.write(3, (7, 0, 0)) == (VERIFY, -1, 0, 0)
    assert log.write(3, (7, 0, 3)) == (VERIFY, -1, 0, 0)
    assert log.write(3, (7, 0, 0), placed=b"placed") == (VERIFY, -1, 0, 0)
    assert log.dump() == before


def test_verified_batch_opens_a_transaction_for_later_ones(log: TransactionLog) -> None:
    assert log.write(3, (7, 0, 0), FIRST) == (NONE, 0, 0, 0)
    assert log.write(2, (7, 0, 3)) == (NONE, 3, 0, 0)
    assert log.write(2, (7, 0, 5), FIRST) == (NONE, 5, 0, 0)
    assert (log.first_open(), log.open_transactions()) == (0, {7: 0})
    assert log.described() == {7: [0, 6, 1000, 0, FIRST, "app"]}


def test_partition_keeps_a_transactional_id_with_a_nul_whole(log: TransactionLog) -> None:
    assert log.write(3, (7, 0, 0), FIRST, transactional_id="app\0other").code == NONE
    assert log.described()[7][-1] == "app\0other"
    log.mark((7, 1), FIRST)
    assert log.write(3, (7, 1, 0), FIRST + 1, transactional_id="app\0other").code == NONE
    assert log.described()[7][-2:] == [FIRST + 1, "app\0other"]


def test_transactional_batch_without_a_producer_id_is_refused(log: TransactionLog) -> None:
    before = log.dump()
    assert log.write(1, (-1, -1, -1)).code == log.write(1, (-1, -1, -1), FIRST).code == INVALID_PRODUCER_ID_MAPPING
    assert log.write(1, (-1, -1, -1), placed=b"placed").code == INVALID_PRODUCER_ID_MAPPING
    assert log.dump() == before


def test_partition_checks_the_sequence_after_the_verification(log: TransactionLog) -> None:
    log.write(1, (7, 0, 0), FIRST)
    log.mark((7, 1), FIRST)
    assert log.write(1, (7, 1, 5)).code == VERIFY
    assert log.write(1, (7, 1, 5), FIRST + 1).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.open_transactions() == {}
    assert log.write(1, (7, 1, 0), FIRST + 1).code == NONE


def test_gap_in_an_open_transaction_is_refused_in_any_history(log: TransactionLog) -> None:
    log.write(3, (7, 0, 0), FIRST)
    log.run_id = "2" * 40
    assert log.write(3, (7, 0, 6)).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.write(3, (7, 0, 6), FIRST).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.write(3, (7, 0, 3)).base_offset == 3
    log.mark((7, 0), FIRST)
    log.run_id = "3" * 40
    assert log.write(3, (7, 0, 60), FIRST + 1).code == NONE, "what was lost is of transactions that were ended"


def test_duplicate_gets_its_first_offset_with_and_without_the_transaction(log: TransactionLog) -> None:
    log.write(3, (7, 0, 0), FIRST)
    before = log.dump()
    assert [log.write(3, (7, 0, 0), ordinal) for ordinal in ("", FIRST)] == [(NONE, 0, 0, 0)] * 2
    assert log.dump() == before
    log.mark((7, 0), FIRST)
    before = log.dump()
    assert [log.write(3, (7, 0, 0), ordinal) for ordinal in ("", FIRST, FIRST + 1)] == [(NONE, 0, 0, 0)] * 3
    assert log.dump() == before


def test_batch_after_a_failed_one_must_be_the_next(log: TransactionLog) -> None:
    assert log.write(1, (7, 0, 3), FIRST, is_next=True).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    log.write(1, (7, 0, 0), FIRST)
    assert log.write(1, (7, 0, 2), is_next=True).code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.write(1, (7, 0, 1), is_next=True).code == NONE


def test_placed_batch_opens_a_transaction_only_with_its_bytes(log: TransactionLog) -> None:
    args = (TOPIC_ID, log.run_id, 3, 6, 1000, 1, 7, 0, 0, b"", "", FIRST, "app")
    before = log.dump()
    reply = log.call("korvet_log_append_transactional", *args, keys=(*log.keys, log.temporary()))
    assert reply == b"%d -1 0 0" % RESEND
    assert log.dump() == before
    assert log.write(3, (7, 0, 0), FIRST, placed=b"placed") == (NONE, 0, 0, 0)
    assert log.server.get(f"{log.log}:3") == b"placed"
    assert log.first_open() == 0


def test_call_leaves_the_partition_of_another_topic_alone(log: TransactionLog) -> None:
    log.topic_id = "b" * 32
    before = log.dump()
    assert log.write(1, (7, 0, 0), FIRST) == (GONE, -1, -1, -1)
    assert log.mark((7, 0), FIRST) == (GONE, -1, -1, -1)
    assert log.dump() == before


@kafka("ProducerStateManagerTest.testFirstUnstableOffset")
@kafka("UnifiedLogTest.testLastStableOffsetWithMixedProducerData")
def test_first_open_offset_is_of_the_oldest_transaction(log: TransactionLog) -> None:
    for offset, producer_id in enumerate((7, 8, 9)):
        log.write(1, (producer_id, 0, 0), FIRST + offset)
    assert (log.first_open(), log.open_transactions()) == (0, {7: 0, 8: 1, 9: 2})
    log.mark((8, 0), FIRST + 1)
    assert log.first_open() == 0
    log.mark((7, 0), FIRST)
    assert log.first_open() == 2
    log.mark((9, 0), FIRST + 2)
    assert (log.first_open(), log.open_transactions()) == (None, {})


def test_channel_announces_a_last_stable_offset_below_the_end(log: TransactionLog) -> None:
    with listening(log.server, log.log) as next_message:
        log.plain(2, (-1, -1, -1))
        log.write(1, (7, 0, 0), FIRST)
        log.plain(1, (-1, -1, -1))
        log.write(1, (8, 0, 0), FIRST + 1)
        log.mark((7, 0), FIRST)
        log.mark((8, 0), FIRST + 1)
        told = [next_message() for _ in range(6)]
        log.write(1, (7, 0, 1), FIRST + 2)
        next_message()
        log.run_id = "2" * 40
        _, epoch = log.take_over()
        assert next_message() == b"%d 8 7" % epoch
    assert told == [b"0 2", b"0 3 2", b"0 4 2", b"0 5 2", b"0 6 4", b"0 7"]


# ---------------------------------------------------------------------- markers


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_index_has_only_aborted_transactions(log: TransactionLog, outcome: str) -> None:
    log.write(2, (7, 0, 0), FIRST)
    log.write(2, (8, 0, 0), FIRST + 1)
    log.mark((8, 0), FIRST + 1, outcome)
    log.mark((7, 0), FIRST, outcome)
    aborted = [(2, 4, 8, 0), (0, 5, 7, 6)] if outcome == "abort" else []
    assert log.aborted_transactions() == aborted
    assert log.aborted_transactions(5) == aborted[1:]
    assert log.meta_fields().get("last_aborted") == ("5" if aborted else None)


def test_marker_of_the_same_epoch_goes_on_with_its_sequence(log: TransactionLog) -> None:
    log.write(3, (7, 0, 0), FIRST)
    log.mark((7, 0), FIRST)
    assert log.state_of(7) == "0 0|0,2,0"
    assert log.write(1, (7, 0, 3)).code == VERIFY
    assert log.write(1, (7, 0, 3), FIRST + 1) == (NONE, 4, 0, 0)


def test_marker_is_written_at_maxmemory_and_a_batch_is_not(log: TransactionLog) -> None:
    log.write(1, (7, 0, 0), FIRST)
    log.server.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        log.write(1, (7, 0, 1))
    assert log.mark((7, 0), FIRST).code == NONE
    log.server.config_set("maxmemory", 0)


def test_marker_with_an_unknown_decision_raises_an_error(log: TransactionLog) -> None:
    before = log.dump()
    with pytest.raises(redis.ResponseError, match=r"decision must be one of commit\|abort, not maybe"):
        log.mark((7, 0), FIRST, "maybe")
    assert log.dump() == before


@pytest.mark.parametrize("wrong", [3, 4, 5])
def test_key_of_another_type_prevents_every_write(log: TransactionLog, wrong: int) -> None:
    log.server.delete(log.keys[wrong])
    log.server.set(log.keys[wrong], "text")
    before = log.dump()
    with pytest.raises(redis.ResponseError):
        log.write(1, (7, 0, 0), FIRST)
    with pytest.raises(redis.ResponseError):
        log.mark((7, 0), FIRST)
    assert log.dump() == before


def test_marker_begins_the_epoch_of_a_new_history(log: TransactionLog) -> None:
    log.write(1, (7, 0, 0), FIRST)
    log.run_id = "2" * 40
    marked = log.mark((7, 0), FIRST)
    assert (marked.code, marked.base_offset) == (NONE, 1)
    assert log.entries()[-1].leader_epoch == marked.leader_epoch > 0


# ---------------------------------------------------------------------- late steps


@pytest.mark.parametrize("marker_epoch", [0, 1])
@pytest.mark.parametrize("is_open", [False, True])
def test_late_batch_is_not_taken_into_the_next_transaction(
    log: TransactionLog, marker_epoch: int, is_open: bool
) -> None:
    log.mark((7, marker_epoch), FIRST)
    if is_open:
        log.write(1, (7, marker_epoch, 0), FIRST + 1)
    before = log.dump()
    late = log.write(1, (7, 0, 1 if is_open else 0), FIRST)
    assert late.code == (INVALID_PRODUCER_EPOCH if marker_epoch else INVALID_TXN_STATE)
    assert log.dump() == before


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_late_marker_does_not_end_the_next_transaction(log: TransactionLog, outcome: str) -> None:
    log.write(1, (7, 0, 0), FIRST)
    log.mark((7, 0), FIRST)
    log.write(1, (7, 0, 1), FIRST + 1)
    before = log.dump()
    assert log.mark((7, 0), FIRST, outcome) == (NONE, -1, 0, 0)
    assert log.dump() == before


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_marker_of_a_lost_history_does_not_end_an_open_transaction(log: TransactionLog, outcome: str) -> None:
    log.write(1, (7, 0, 0), FIRST + 1)
    before = log.dump()
    assert log.mark((7, 0), FIRST, outcome) == (NONE, -1, 0, 0)
    assert log.dump() == before


def test_transaction_unknown_to_its_coordinator_must_be_aborted_first(log: TransactionLog) -> None:
    log.write(2, (7, 0, 0), FIRST)
    before = log.dump()
    assert log.write(1, (7, 1, 0)).code == VERIFY
    assert log.write(1, (7, 1, 0), FIRST + 9).code == CONCURRENT_TRANSACTIONS
    assert log.mark((7, 1), FIRST + 9, "commit").code == CONCURRENT_TRANSACTIONS
    assert log.dump() == before
    assert log.mark((7, 1), FIRST + 8, "abort").code == NONE
    assert log.mark((7, 1), FIRST + 9, "commit").code == NONE
    assert (log.first_open(), log.aborted_transactions()) == (None, [(0, 2, 7, 3)])


def test_abort_also_ends_a_transaction_unknown_to_its_coordinator(log: TransactionLog) -> None:
    log.write(2, (7, 0, 0), FIRST)
    assert log.mark((7, 1), FIRST + 9, "abort").code == NONE
    assert log.aborted_transactions() == [(0, 2, 7, 3)]
    assert log.write(1, (7, 1, 0), FIRST + 9).code == INVALID_TXN_STATE


# ---------------------------------------------------------------------- trim, delete, create, expiry


def test_trim_forgets_aborted_transactions_below_the_start(log: TransactionLog) -> None:
    for number in range(3):
        log.write(1, (7, 0, number), FIRST + number)
        log.mark((7, 0), FIRST + number, "abort")
    assert log.trim(3) == [NONE, 3, 0]
    assert [ends for _, ends, *_ in log.aborted_transactions()] == [3, 5]
    assert log.trim(-1) == [NONE, 6, 0]
    assert log.aborted_transactions() == []


def test_open_transaction_survives_the_trim_of_its_batches(log: TransactionLog) -> None:
    log.write(1, (7, 0, 0), FIRST)
    log.trim(-1)
    assert log.first_open() == 0
    assert log.write(1, (7, 0, 1)).code == NONE
    log.mark((7, 0), FIRST, "abort")
    assert log.aborted_transactions() == [(0, 2, 7, 3)]


def test_delete_leaves_no_key(log: TransactionLog) -> None:
    log.write(1, (7, 0, 0), FIRST)
    log.mark((7, 0), FIRST, "abort")
    log.write(1, (8, 0, 0), FIRST + 1)
    assert log.delete() == [NONE, 0]
    assert log.server.keys() == []
    assert log.delete() == [NONE, 0]


def test_create_makes_all_keys_together(log: TransactionLog) -> None:
    assert log.server.exists(*log.keys) == len(log.keys)
    assert (log.open_transactions(), log.aborted_transactions(), log.described()) == ({}, [], {})
    assert log.create() == NONE
    log.server.delete(*log.keys[:3])
    assert log.create() == GONE


def test_older_partition_gets_the_keys_with_its_first_transaction(log: TransactionLog) -> None:
    log.server.delete(*log.keys[3:])
    log.write(1, (7, 0, 0), FIRST)
    assert log.server.exists(*log.keys) == len(log.keys)
    log.server.delete(*log.keys[3:])
    log.mark((8, 0), FIRST)
    assert log.server.exists(*log.keys) == len(log.keys)


def test_listing_may_have_only_producers_with_an_open_transaction(log: TransactionLog) -> None:
    log.plain(2, (5, 1, 8))
    log.write(3, (6, 2, 0), FIRST)
    log.write(1, (7, 0, 0), FIRST + 1)
    log.mark((7, 0), FIRST + 1)
    assert log.described(only_open=True) == {6: [2, 2, 1000, 2, FIRST, "app"]}
    log.mark((6, 2), FIRST)
    assert log.described(only_open=True) == {}
    for producer in range(200):
        log.write(1, (producer, 9, 0), FIRST + 2 + producer)
    assert log.described(only_open=True).keys() == set(range(200))


@kafka("UnifiedLogTest.testActiveProducers")
def test_listing_has_the_state_of_producers(log: TransactionLog) -> None:
    log.plain(2, (5, 1, 8))
    log.write(3, (6, 2, 0), FIRST)
    log.mark((7, 3), FIRST + 1)
    assert log.described() == {
        5: [1, 9, 1000, -1, -1, ""],
        6: [2, 2, 1000, 2, FIRST, "app"],
        7: [3, -1, 1000, -1, -1, ""],
    }
    log.trim(-1)
    assert log.described()[5] == [1, 9, -1, -1, -1, ""]
    log.topic_id = "b" * 32
    reply = log.server.fcall_ro("korvet_log_producers", 6, *log.keys, log.topic_id, 0)
    assert reply == [GONE, b"0", []]


def test_trim_finds_a_wrong_type_before_the_first_write(log: TransactionLog) -> None:
    log.write(3, (7, 0, 0), FIRST)
    log.mark((7, 0), FIRST, "abort")
    log.server.delete(log.keys[4])
    log.server.set(log.keys[4], "text")
    before = log.dump()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        log.trim(4)
    assert log.dump() == before


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
@kafka("UnifiedLogTest.testEndTxnWithFencedProducerEpoch")
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
