"""Transactions by raw requests, in both flows: version 1 names its partitions first, version 2 (KIP-890) just sends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from korvet.api.shared.produced import _code_for_version
from korvet.codes import CONCURRENT_TRANSACTIONS, NOT_ENOUGH_REPLICAS
from tests.api.data import batches_of, connected, fetch, fetch_request, partitions_of, produced, records, wanted
from tests.api.raw import ask, created, unique
from tests.api.transactions import Producer, described, producer
from tests.support.broker import KorvetServer
from tests.support.ported import kafka

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


# ---------------------------------------------------------------------- commit and abort


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


# ---------------------------------------------------------------------- offsets


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


@pytest.mark.parametrize(("version", "code"), [(11, NOT_ENOUGH_REPLICAS), (12, CONCURRENT_TRANSACTIONS)])
def test_batch_after_an_unfinished_transaction_gets_a_code_that_its_clients_try_again_on(
    version: int, code: int
) -> None:
    # ReplicaManager.handleProduceAppend. Front-ends finish the transaction and try again, so they rarely answer this.
    assert _code_for_version(version, CONCURRENT_TRANSACTIONS)[0] == code
