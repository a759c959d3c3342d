"""Transactions by raw requests, in both flows: version 1 names its partitions first, version 2 (KIP-890) just sends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from korvet.api.shared.produced import _code_for_version
from korvet.codes import CONCURRENT_TRANSACTIONS, NOT_ENOUGH_REPLICAS
from tests.api.data import (
    batches_of,
    connected,
    fetch,
    fetch_request,
    partitions_of,
    produce,
    produced,
    records,
    wanted,
)
from tests.api.raw import ask, created, unique
from tests.api.transactions import Producer, committed, described, producer
from tests.support.broker import KorvetServer
from tests.support.ported import kafka
from tests.support.times import MIDNIGHT_MS

READ_COMMITTED = 1
CONTROL = 0x20
FLOWS = pytest.mark.parametrize("flow", [1, 2])


def read(port: int, topic: str, offset: int = 0, *, isolation_level: int = READ_COMMITTED, **values: Any) -> Any:
    """A Fetch of partition 0."""
    (part,) = fetch(port, topic, wanted(offset), isolation_level=isolation_level, **values)
    return part


def shape(part: Any) -> list[tuple[int, int]]:
    """Base offset and attributes of each batch."""
    return [(batch["base_offset"], batch["attributes"]) for batch in batches_of(part)]


def ends(port: int, topic: str) -> tuple[int, int]:
    """The latest offset for committed and for uncommitted readers."""
    found = []
    for level in (1, 0):
        parts = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
        answer = ask(
            port, "list_offsets", 7, isolation_level=level, topics=[{"name": topic, "partitions": parts}]
        )  # fmt: skip
        found.append(answer["topics"][0]["partitions"][0]["offset"])
    return found[0], found[1]


# ---------------------------------------------------------------------- commit and abort


@kafka("TransactionsTest.testReadCommittedConsumerShouldNotSeeUndecidedData")
@FLOWS
def test_committed_records_are_read_when_they_are_committed(broker: KorvetServer, flow: int) -> None:
    topic, mine = created(broker.port), producer(broker.port, flow)
    assert mine.sent(topic, count=3) == 0
    before = read(broker.port, topic)
    assert (shape(before), before["last_stable_offset"], before["high_watermark"]) == ([], 0, 3)
    assert before["aborted_transactions"] == []
    assert shape(read(broker.port, topic, isolation_level=0)) == [(0, 0x10)]
    assert ends(broker.port, topic) == (0, 3)
    assert mine.end() == "NONE"
    after = read(broker.port, topic)
    assert shape(after) == [(0, 0x10), (3, 0x30)]
    assert (after["last_stable_offset"], after["aborted_transactions"]) == (4, [])
    assert ends(broker.port, topic) == (4, 4)


@kafka("TransactionsTest.testBasicTransactions")
@FLOWS
def test_aborted_records_are_named(broker: KorvetServer, flow: int) -> None:
    topic, mine = created(broker.port), producer(broker.port, flow)
    produced(broker.port, topic, records(2))
    mine.sent(topic)
    aborted = {"producer_id": mine.producer_id, "first_offset": 2}
    assert mine.end(commit=False) == "NONE"
    mine.sent(topic)
    assert mine.end() == "NONE"
    part = read(broker.port, topic)
    assert shape(part) == [(0, 0), (2, 0x10), (3, 0x30), (4, 0x10), (5, 0x30)]
    assert part["aborted_transactions"] == [aborted]
    assert read(broker.port, topic, isolation_level=0)["aborted_transactions"] is None
    assert read(broker.port, topic, 3)["aborted_transactions"] == [aborted]
    assert read(broker.port, topic, 4)["aborted_transactions"] == []


@FLOWS
def test_committed_reader_gets_later_records_after_the_open_transaction(broker: KorvetServer, flow: int) -> None:
    topic = created(broker.port)
    produced(broker.port, topic, records(1))
    slow, fast = producer(broker.port, flow), producer(broker.port, flow)
    slow.sent(topic)
    fast.sent(topic)
    produced(broker.port, topic, records(1))
    assert fast.end() == "NONE"
    part = read(broker.port, topic)
    assert (shape(part), part["last_stable_offset"]) == ([(0, 0)], 1)
    assert read(broker.port, topic, 3)["error_code"] == "NONE"
    assert slow.end(commit=False) == "NONE"
    part = read(broker.port, topic)
    assert part["last_stable_offset"] == 6
    assert [offset for offset, _ in shape(part)] == [0, 1, 2, 3, 4, 5]
    assert [one["producer_id"] for one in part["aborted_transactions"]] == [slow.producer_id]


@FLOWS
def test_a_committed_reader_is_woken_by_the_marker(broker: KorvetServer, flow: int) -> None:
    topic, mine = created(broker.port), producer(broker.port, flow)
    mine.sent(topic)
    with connected(broker.port) as connection:
        # The second Fetch waits with the facts that its front-end has learnt.
        for offset in (0, 3):
            connection.send("fetch", 12, **fetch_request(topic, wanted(offset), max_wait=20_000, isolation_level=1))
            produced(broker.port, topic, records(1))
            ending = threading.Timer(0.1, mine.end)
            ending.start()
            (part,) = partitions_of(connection.receive())
            ending.join()
            assert shape(part)[-1][1] & CONTROL
            assert part["last_stable_offset"] == part["high_watermark"]
            if offset == 0:
                assert mine.sent(topic) == 3


@kafka("TransactionsTest.testMultipleMarkersOneLeader")
@FLOWS
def test_several_partitions_end_together(broker: KorvetServer, flow: int) -> None:
    topic, mine = created(broker.port, partitions=3), producer(broker.port, flow)
    for partition in range(3):
        mine.sent(topic, partition)
    assert mine.end() == "NONE"
    parts = fetch(broker.port, topic, *(wanted(0, partition) for partition in range(3)), isolation_level=1)
    assert [shape(part) for part in parts] == [[(0, 0x10), (1, 0x30)]] * 3


def test_pipelined_batches_of_a_new_transaction_keep_their_order(broker: KorvetServer) -> None:
    topic, mine = created(broker.port), producer(broker.port)
    with connected(broker.port) as connection:
        for number in range(20):
            data = mine.batch(topic, size=20_000 if number % 3 == 0 else 10)
            connection.send("produce", 12, **produce_request_of(mine, topic, data))
        answers = [connection.receive()["responses"][0]["partition_responses"][0] for _ in range(20)]
    assert [(one["error_code"], one["base_offset"]) for one in answers] == [("NONE", number) for number in range(20)]
    assert mine.end() == "NONE"


def produce_request_of(mine: Producer, topic: str, data: bytes) -> dict[str, Any]:
    part = {"index": 0, "records": data}
    return {
        "acks": -1, "timeout": 5000, "transactional_id": mine.transactional_id,
        "topic_data": [{"name": topic, "partition_data": [part]}],
    }  # fmt: skip


@kafka("TransactionMarkerChannelManagerTest.shouldSkipSendMarkersWhenLeaderNotFound")
def test_a_deleted_topic_does_not_hold_up_the_end(broker: KorvetServer) -> None:
    kept, gone, mine = created(broker.port), created(broker.port), producer(broker.port)
    mine.sent(kept)
    mine.sent(gone)
    ask(broker.port, "delete_topics", 5, topic_names=[gone], timeout=10_000)
    assert mine.end() == "NONE"
    assert shape(read(broker.port, kept)) == [(0, 0x10), (1, 0x30)]
    assert described(broker.port, mine.transactional_id)["transaction_state"] == "CompleteCommit"


# ---------------------------------------------------------------------- fencing


@kafka("TransactionsTest.testFencingOnCommit")
@kafka("TransactionsTest.testFencingOnSend")
@kafka("TransactionsTest.testFencingOnSendOffsets")
@kafka("TransactionsTest.testFencingOnAddPartitions")
@FLOWS
def test_a_second_producer_fences_the_first_and_aborts_its_transaction(broker: KorvetServer, flow: int) -> None:
    topic, first = created(broker.port), producer(broker.port, flow)
    first.sent(topic)
    second = producer(broker.port, flow, first.transactional_id)
    assert (second.producer_id, second.epoch > first.epoch) == (first.producer_id, True)
    part = read(broker.port, topic)
    assert (shape(part), len(part["aborted_transactions"])) == ([(0, 0x10), (1, 0x30)], 1)
    assert first.send(topic)["error_code"] == "INVALID_PRODUCER_EPOCH"
    assert first.end() == "PRODUCER_FENCED"
    assert first.end(version=1) == "INVALID_PRODUCER_EPOCH"
    assert first.add(topic) == ["PRODUCER_FENCED"]
    assert first.add(topic, version=1) == ["INVALID_PRODUCER_EPOCH"]
    assert first.add_offsets(unique("g")) == "PRODUCER_FENCED"
    assert first.commit_offsets(unique("g"), {(topic, 0): 5}) == ["INVALID_PRODUCER_EPOCH"]
    assert first.init(keep=True) == "PRODUCER_FENCED"
    assert first.init(keep=True, version=3) == "INVALID_PRODUCER_EPOCH"
    second.sent(topic)
    assert second.end() == "NONE"


def test_repeated_end_is_answered_again(broker: KorvetServer) -> None:
    topic, mine = created(broker.port), producer(broker.port)
    mine.sent(topic)
    again = Producer(broker.port, mine.transactional_id, 2, mine.producer_id, mine.epoch)
    assert mine.end() == "NONE"
    assert again.end() == "NONE"
    assert (again.producer_id, again.epoch) == (mine.producer_id, mine.epoch)
    assert mine.end() == "INVALID_TXN_STATE"


def test_producer_of_the_old_flow_keeps_its_epoch(broker: KorvetServer) -> None:
    topic, mine = created(broker.port), producer(broker.port, 1)
    for commit in (True, False, True):
        before = mine.epoch
        assert mine.add(topic) == ["NONE"]
        assert mine.send(topic)["error_code"] == "NONE"
        assert (mine.end(commit=commit), mine.end(commit=commit), mine.epoch) == ("NONE", "NONE", before)
        assert mine.end(commit=not commit) == "INVALID_TXN_STATE"


def test_producer_gets_a_new_id_when_its_epochs_run_out(broker: KorvetServer) -> None:
    """As TransactionCoordinatorTest.shouldAllocateNewProducerIdIfEpochsExhausted."""
    topic, mine = created(broker.port), producer(broker.port)
    with broker.redis() as client:
        (key,) = client.keys(f"korvet:*:id:{mine.transactional_id}")
        client.hset(key, "producer_epoch", 32766)
    mine.epoch, before = 32766, mine.producer_id
    mine.sent(topic)
    assert mine.end() == "NONE"
    assert (mine.producer_id > before, mine.epoch) == (True, 0)
    mine.sent(topic)
    assert mine.end() == "NONE"


# ---------------------------------------------------------------------- refusals


@kafka("AddPartitionsToTxnManagerTest.testAddPartitionsToTxnHandlerErrorHandling")
def test_batches_outside_of_a_transaction_are_refused(broker: KorvetServer) -> None:
    topic, mine = created(broker.port), producer(broker.port, 1)
    assert mine.send(topic, version=11)["error_code"] == "TRANSACTION_ABORTABLE"
    mine.sequences.clear()
    assert mine.send(topic, version=10)["error_code"] == "INVALID_TXN_STATE"
    answer = produce(broker.port, topic, mine.batch(topic), transactional_id=None)
    assert answer["error_code"] == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    unknown = produce(broker.port, topic, mine.batch(topic), transactional_id=unique("nobody"))
    assert unknown["error_code"] == "INVALID_PRODUCER_ID_MAPPING"


@kafka("TransactionCoordinatorTest.shouldRespondWithInvalidRequestAddPartitionsToTransactionWhenTransactionalIdIsEmpty")
@kafka("TransactionCoordinatorTest.shouldRespondWithInvalidRequestOnEndTxnWhenTransactionalIdIsEmpty")
def test_unknown_producers_and_transactional_ids_are_refused(broker: KorvetServer) -> None:
    topic, mine = created(broker.port), producer(broker.port)
    nobody = Producer(broker.port, unique("nobody"), 2, mine.producer_id, 0)
    other = Producer(broker.port, mine.transactional_id, 2, mine.producer_id + 1, 0)
    for one in (nobody, other):
        assert one.add(topic) == ["INVALID_PRODUCER_ID_MAPPING"]
        assert one.add_offsets(unique("g")) == "INVALID_PRODUCER_ID_MAPPING"
        assert one.end() == "INVALID_PRODUCER_ID_MAPPING"
        assert one.end(version=4) == "INVALID_PRODUCER_ID_MAPPING"
    empty = Producer(broker.port, "", 2, mine.producer_id, 0)
    assert (empty.add(topic), empty.add_offsets("g"), empty.end()) == (["INVALID_REQUEST"], *["INVALID_REQUEST"] * 2)


@kafka("AddPartitionsToTxnRequestServerTest.shouldReceiveOperationNotAttemptedWhenOtherPartitionHasError")
def test_missing_partition_fails_the_whole_request(broker: KorvetServer) -> None:
    topic, mine = created(broker.port), producer(broker.port)
    assert mine.add(topic, 0, 1) == ["OPERATION_NOT_ATTEMPTED", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert mine.add(unique()) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert described(broker.port, mine.transactional_id)["transaction_state"] == "Empty"


@kafka("TransactionStateManagerTest.testValidateTransactionTimeout")
def test_impossible_transaction_timeout_is_refused(broker: KorvetServer) -> None:
    mine = Producer(broker.port, unique("txn"))
    for timeout_ms in (0, -1, 900_001):
        assert mine.init(timeout_ms) == "INVALID_TRANSACTION_TIMEOUT"
    assert mine.init(900_000) == "NONE"


# ---------------------------------------------------------------------- offsets


@FLOWS
def test_offsets_are_committed_with_the_transaction(broker: KorvetServer, flow: int) -> None:
    topic, group, mine = created(broker.port), unique("g"), producer(broker.port, flow)
    partition = topic, 0
    for outcome, offset in ((True, 5), (False, 7), (True, 9)):
        before = committed(broker.port, group, partition)
        if flow == 1:
            assert mine.add_offsets(group) == "NONE"
        assert mine.commit_offsets(group, {partition: offset}) == ["NONE"]
        assert committed(broker.port, group, partition) == before
        assert committed(broker.port, group, partition, stable=True) == [(-1, "UNSTABLE_OFFSET_COMMIT")]
        assert mine.end(commit=outcome) == "NONE"
        expected = [(offset, "NONE")] if outcome else before
        assert committed(broker.port, group, partition, stable=True) == expected
        assert committed(broker.port, group, partition) == expected


def test_offsets_of_an_unknown_member_are_refused(broker: KorvetServer) -> None:
    topic, group, mine = created(broker.port), unique("g"), producer(broker.port)
    assert mine.commit_offsets(group, {(topic, 0): 5}, generation_id=3, member_id="m") == ["ILLEGAL_GENERATION"]
    assert mine.commit_offsets(group, {(unique(), 0): 5}) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert mine.commit_offsets("", {(topic, 0): 5}) == ["INVALID_GROUP_ID"]
    old = producer(broker.port, 1)
    assert old.commit_offsets(group, {(topic, 0): 5}, version=4) == ["TRANSACTION_ABORTABLE"]
    assert old.commit_offsets(group, {(topic, 0): 5}, version=3) == ["INVALID_TXN_STATE"]


# ---------------------------------------------------------------------- time


@kafka("TransactionsTest.testFencingOnTransactionExpiration")
@kafka("TransactionsTest.testDelayedFetchIncludesAbortedTransaction")
def test_a_transaction_that_lasts_too_long_is_aborted(broker: KorvetServer) -> None:
    topic, mine = created(broker.port), Producer(broker.port, unique("txn"))
    assert mine.init(1000) == "NONE"
    mine.sent(topic)
    part = read(broker.port, topic, max_wait=20_000)
    assert (shape(part), len(part["aborted_transactions"])) == ([(0, 0x10), (1, 0x30)], 1)
    assert mine.send(topic)["error_code"] == "INVALID_PRODUCER_EPOCH"
    assert mine.end() == "INVALID_TXN_STATE"


# ---------------------------------------------------------------------- operators


@kafka("TransactionCoordinatorTest.testDescribeTransactions")
@kafka("TransactionCoordinatorTest.testDescribeTransactionsWithEmptyTransactionalId")
@kafka("TransactionStateManagerTest.testListTransactionsFiltering")
@kafka("TransactionStateManagerTest.testListTransactionsFilteringWithInvalidPattern")
def test_transactions_are_described_and_listed(broker: KorvetServer) -> None:
    topic, mine = created(broker.port, partitions=2), producer(broker.port)
    empty = described(broker.port, mine.transactional_id)
    assert (empty["transaction_state"], empty["transaction_start_time"], empty["topics"]) == ("Empty", 0, [])
    mine.sent(topic, 1)
    found = described(broker.port, mine.transactional_id)
    assert (found["error_code"], found["transaction_state"]) == ("NONE", "Ongoing")
    assert (found["producer_id"], found["producer_epoch"]) == (mine.producer_id, mine.epoch)
    assert (found["transaction_timeout"], found["transaction_start_time"] > 0) == (60_000, True)
    assert found["topics"] == [{"topic": topic, "partitions": [1]}]
    assert listed(broker, mine) == "Ongoing"
    assert listed(broker, mine, state_filters=["Empty"]) is None
    assert listed(broker, mine, producer_id_filters=[mine.producer_id]) == "Ongoing"
    assert listed(broker, mine, producer_id_filters=[1]) is None
    assert listed(broker, mine, duration_filter=3_600_000) is None
    assert listed(broker, mine, transactional_id_pattern="txn-.*") == "Ongoing"
    assert listed(broker, mine, transactional_id_pattern="txn") is None
    # A backtracking engine would not end on this expression.
    assert listed(broker, mine, transactional_id_pattern="(.+)+#") is None
    for pattern in ("(", "a{2000}", "[", r"(?=a)", r"[\pL\pN\pS]{300}"):
        answer = ask(broker.port, "list_transactions", 2, **FILTERS | {"transactional_id_pattern": pattern})
        assert answer["error_code"] == "INVALID_REGULAR_EXPRESSION"
    assert ask(broker.port, "list_transactions", 2, **FILTERS | {"state_filters": ["Odd"]})[
        "unknown_state_filters"
    ] == ["Odd"]
    assert described(broker.port, unique("nobody"))["error_code"] == "TRANSACTIONAL_ID_NOT_FOUND"
    assert described(broker.port, "")["error_code"] == "INVALID_REQUEST"
    mine.end()
    assert listed(broker, mine) == "CompleteCommit"


FILTERS: dict[str, Any] = {
    "state_filters": [], "producer_id_filters": [], "duration_filter": -1, "transactional_id_pattern": None,
}  # fmt: skip


def listed(broker: KorvetServer, mine: Producer, **filters: Any) -> str | None:
    answer = ask(broker.port, "list_transactions", 2, **FILTERS | filters)
    states = {one["transactional_id"]: one["transaction_state"] for one in answer["transaction_states"]}
    return states.get(mine.transactional_id)


def test_producers_of_a_partition_are_described(broker: KorvetServer) -> None:
    topic, mine = created(broker.port), producer(broker.port)
    produced(broker.port, topic, records(1, producer_id=4, producer_epoch=2, sequence=0, timestamp=MIDNIGHT_MS))
    mine.sent(topic, count=2)
    answer = ask(broker.port, "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0, 1]}])
    first, second = answer["topics"][0]["partitions"]
    found = {one["producer_id"]: one for one in first["active_producers"]}
    idempotent, transactional = found[4], found[mine.producer_id]
    assert (idempotent["producer_epoch"], idempotent["last_sequence"]) == (2, 0)
    assert (idempotent["last_timestamp"], idempotent["current_txn_start_offset"]) == (MIDNIGHT_MS, -1)
    assert (transactional["last_sequence"], transactional["current_txn_start_offset"]) == (1, 1)
    assert second["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.parametrize(("version", "code"), [(11, NOT_ENOUGH_REPLICAS), (12, CONCURRENT_TRANSACTIONS)])
def test_batch_after_an_unfinished_transaction_gets_a_code_that_its_clients_try_again_on(
    version: int, code: int
) -> None:
    # ReplicaManager.handleProduceAppend. Front-ends finish the transaction and try again, so they rarely answer this.
    assert _code_for_version(version, CONCURRENT_TRANSACTIONS)[0] == code


@kafka("AddPartitionsToTxnRequestServerTest.testVerifyOnly")
def test_partitions_are_verified_for_other_brokers(broker: KorvetServer) -> None:
    topic, mine = created(broker.port, partitions=2), producer(broker.port)
    mine.sent(topic)
    asked = {
        "transactional_id": mine.transactional_id, "producer_id": mine.producer_id, "producer_epoch": mine.epoch,
        "topics": [{"name": topic, "partitions": [0, 1]}], "verify_only": True,
    }  # fmt: skip
    (result,) = ask(broker.port, "add_partitions_to_txn", 5, transactions=[asked])["results_by_transaction"]
    (parts,) = (topic["results_by_partition"] for topic in result["topic_results"])
    assert [part["partition_error_code"] for part in parts] == ["NONE", "TRANSACTION_ABORTABLE"]


def test_coordinators_of_transactions_are_found(broker: KorvetServer) -> None:
    answer = ask(broker.port, "find_coordinator", 4, key_type=1, coordinator_keys=["t"])
    (found,) = answer["coordinators"]
    assert (found["error_code"], found["port"]) == ("NONE", broker.port)
