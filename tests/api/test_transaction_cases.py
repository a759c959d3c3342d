"""Cases of Kafka's TransactionsTest and of its neighbours, by raw requests, and clients of both flows in turn."""

from __future__ import annotations

import pytest

from tests.api.data import batches_of, fetch, wanted
from tests.api.raw import ask, created, unique
from tests.api.transactions import Producer, committed, described, producer
from tests.support.broker import KorvetServer
from tests.support.ported import kafka

FLOWS = pytest.mark.parametrize("flow", [1, 2])


def shape(port: int, topic: str) -> list[tuple[int, int]]:
    """Base offset and attributes of the batches that a committed reader finds in partition 0."""
    (part,) = fetch(port, topic, wanted(0), isolation_level=1)
    return [(batch["base_offset"], batch["attributes"]) for batch in batches_of(part)]


def aborted(port: int, topic: str) -> list[int]:
    """First offsets of the aborted transactions in partition 0."""
    (part,) = fetch(port, topic, wanted(0), isolation_level=1)
    return [one["first_offset"] for one in part["aborted_transactions"]]


# ---------------------------------------------------------------------- epochs


@kafka("TransactionsTest.testFailureToFenceEpoch")
@FLOWS
def test_fencing_of_a_former_producer_is_repeated_until_it_is_done(broker: KorvetServer, flow: int) -> None:
    topic, first = created(broker.port), producer(broker.port, flow)
    first.sent(topic)
    assert first.end() == "NONE"
    first.sent(topic)
    others = [producer(broker.port, flow, first.transactional_id) for _ in range(3)]
    assert len({one.epoch for one in others}) == 3
    assert [one.end() for one in (first, *others[:2])] == ["PRODUCER_FENCED"] * 3
    others[-1].sent(topic)
    assert others[-1].end() == "NONE"
    assert shape(broker.port, topic) == [(0, 0x10), (1, 0x30), (2, 0x10), (3, 0x30), (4, 0x10), (5, 0x30)]
    assert aborted(broker.port, topic) == [2]


# ---------------------------------------------------------------------- transactions of little


# ---------------------------------------------------------------------- requests for several


@kafka("AddPartitionsToTxnRequestServerTest.testOneSuccessOneErrorInBatchedRequest")
def test_each_transaction_of_a_request_has_its_own_outcome(broker: KorvetServer) -> None:
    topic, mine, other = created(broker.port), producer(broker.port), producer(broker.port)
    asked = [
        {
            "transactional_id": one.transactional_id, "producer_id": one.producer_id, "producer_epoch": epoch,
            "topics": [{"name": topic, "partitions": [0]}], "verify_only": False,
        }
        for one, epoch in ((mine, mine.epoch), (other, other.epoch + 1))
    ]  # fmt: skip
    answer = ask(broker.port, "add_partitions_to_txn", 5, transactions=asked)
    codes = {
        result["transactional_id"]: result["topic_results"][0]["results_by_partition"][0]["partition_error_code"]
        for result in answer["results_by_transaction"]
    }
    assert codes == {mine.transactional_id: "NONE", other.transactional_id: "PRODUCER_FENCED"}
    states = [described(broker.port, one.transactional_id)["transaction_state"] for one in (mine, other)]
    assert states == ["Ongoing", "Empty"]


@FLOWS
def test_batches_of_a_request_are_verified_by_one_call(broker: KorvetServer, flow: int) -> None:
    topic, mine = created(broker.port, partitions=6), producer(broker.port, flow)
    if flow == 1:
        assert mine.add(topic, *range(6)) == ["NONE"] * 6
    parts = [{"index": index, "records": mine.batch(topic, index, size=20_000 * (index % 2))} for index in range(6)]
    asked: list[str] = []
    with broker.redis() as client, broker.redis() as other, client.monitor() as monitor:
        answer = ask(
            broker.port, "produce", 10 + flow, acks=-1, timeout=5000, transactional_id=mine.transactional_id,
            topic_data=[{"name": topic, "partition_data": parts}],
        )  # fmt: skip
        other.echo("done")
        for command in monitor.listen():
            asked += [name for name in ("korvet_txn_add", "append_transactional") if name in command["command"]]
            if command["command"] == "ECHO done":
                break
    answers = answer["responses"][0]["partition_responses"]
    assert [(part["error_code"], part["base_offset"]) for part in answers] == [("NONE", 0)] * 6
    assert asked == ["append_transactional"] * 6 + ["korvet_txn_add"] + ["append_transactional"] * 6
    assert mine.end() == "NONE"
    parts = [wanted(0, index) for index in range(6)]
    found = fetch(broker.port, topic, *parts, isolation_level=1)
    assert [[batch["attributes"] for batch in batches_of(part)] for part in found] == [[0x10, 0x30]] * 6


# ---------------------------------------------------------------------- clients of both flows


@pytest.mark.parametrize("left_open", [False, True], ids=["ended", "left open"])
def test_clients_of_both_flows_take_turns_with_a_transactional_id(broker: KorvetServer, left_open: bool) -> None:
    """As when clients are upgraded, and go back."""
    topic, group, name = created(broker.port), unique("g"), unique("txn")
    expected: list[tuple[int, str]] = [(-1, "NONE")]
    before: list[Producer] = []
    for number, flow in enumerate((1, 2, 1, 2, 2, 1)):
        mine = producer(broker.port, flow, name)
        assert all(mine.epoch > one.epoch for one in before)
        for one in before:
            assert one.end() in ("PRODUCER_FENCED", "INVALID_TXN_STATE")
            assert one.send(topic)["error_code"] == "INVALID_PRODUCER_EPOCH"
        mine.sent(topic)
        if flow == 1:
            assert mine.add_offsets(group) == "NONE"
        assert mine.commit_offsets(group, {(topic, 0): number}) == ["NONE"]
        commit = number % 2 == 0
        if not left_open:
            assert mine.end(commit=commit) == "NONE"
            expected = [(number, "NONE")] if commit else expected
            assert committed(broker.port, group, (topic, 0), stable=True) == expected
        before.append(mine)
    producer(broker.port, 2, name)
    assert len(shape(broker.port, topic)) == 12
    assert len(aborted(broker.port, topic)) == (6 if left_open else 3)
    assert committed(broker.port, group, (topic, 0), stable=True) == expected


def test_new_request_ends_a_transaction_that_an_old_one_began(broker: KorvetServer) -> None:
    """As when a client learns of version 2 in the midst of a transaction, and forgets it again."""
    topic, mine = created(broker.port, partitions=2), producer(broker.port, 1)
    mine.sent(topic)
    assert mine.end(version=5) == "NONE"
    assert mine.epoch == 1
    mine.flow = 2
    mine.sent(topic)
    assert mine.send(topic, 1, version=11)["error_code"] == "TRANSACTION_ABORTABLE"
    mine.sequences.pop((topic, 1))
    assert mine.end(version=4) == "NONE"
    assert described(broker.port, mine.transactional_id)["producer_epoch"] == 1
    assert mine.end(version=4) == "NONE"
    assert mine.end(version=5) == "INVALID_TXN_STATE"
    mine.sent(topic, 1)
    assert mine.end() == "NONE"
    assert mine.epoch == 2
    assert (shape(broker.port, topic), aborted(broker.port, topic)) == (
        [(0, 0x10), (1, 0x30), (2, 0x10), (3, 0x30)],
        [],
    )


@kafka("TransactionCoordinatorTest.shouldAcceptInitPidAndReturnNextPidWhenTransactionalIdIsNull")
def test_every_producer_gets_an_id_of_its_own_and_a_transactional_id_keeps_its_own(broker: KorvetServer) -> None:
    names = [unique("txn") for _ in range(3)]
    own = [producer(broker.port, transactional_id=name).producer_id for name in names]
    others = [_idempotent(broker.port) for _ in range(20)]
    assert others == sorted(others) and len({*own, *others}) == 23
    assert [producer(broker.port, transactional_id=name).producer_id for name in names] == own


def _idempotent(port: int) -> int:
    asked = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    return int(ask(port, "init_producer_id", 5, **asked)["producer_id"])


@kafka("ProducerIntegrationTest.testTransactionWithInvalidSendAndEndTxnRequestSent")
def test_transaction_whose_only_batch_was_refused_leaves_no_marker(broker: KorvetServer) -> None:
    """Kafka has added the partition by then, and writes one."""
    topic, mine = created(broker.port), producer(broker.port)
    assert mine.send(topic, size=2_000_000)["error_code"] == "MESSAGE_TOO_LARGE"
    assert mine.end(commit=False) == "NONE"
    mine.sent(topic)
    assert mine.end() == "NONE"
    assert shape(broker.port, topic) == [(0, 0x10), (1, 0x30)]


def test_late_batch_begins_no_transaction_after_the_marker_of_an_administrator(broker: KorvetServer) -> None:
    """Kafka stores it, because the transaction is still open at its coordinator."""
    topic, mine = created(broker.port), producer(broker.port)
    mine.sent(topic)
    marker = {
        "producer_id": mine.producer_id, "producer_epoch": mine.epoch, "transaction_result": False,
        "coordinator_epoch": 0, "topics": [{"name": topic, "partition_indexes": [0]}],
    }  # fmt: skip
    # The second one finds nothing to end; Kafka writes it as well.
    for _ in range(2):
        (written,) = ask(broker.port, "write_txn_markers", 1, markers=[marker])["markers"]
        assert written["topics"][0]["partitions"][0]["error_code"] == "NONE"
    assert mine.send(topic)["error_code"] == "INVALID_TXN_STATE"
    assert mine.end() == "NONE"
    assert mine.sent(topic) == 2
