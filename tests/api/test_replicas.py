"""acks=all with min.insync.replicas above one: Redis's replicas have a batch before it is acknowledged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import confluent_kafka
import pytest

from korvet.cli import run
from korvet.store.keys import Namespace
from tests.api.data import Connection, connected, fetch, offsets, produce, produce_request, produced, records, wanted
from tests.api.raw import ask, created
from tests.api.rdkafka import WITHIN_S
from tests.cluster.test_failover import name_on_first_node
from tests.kafka.builds import driver_command
from tests.kafka.options import ProduceOptions, failures
from tests.kafka.process import ProcessClient
from tests.kafka.records import numbered
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import KINDS, Server, ServerUnavailable, unavailable
from tests.support.topologies import Replicated, running_cluster, running_replicas, running_sentinel
from tests.support.waiting import until

TOO_FEW, TOO_FEW_HAVE_IT = "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"


class Served(NamedTuple):
    """Redis with a replica, and a front-end of it."""

    redis: Replicated
    broker: KorvetServer

    @property
    def port(self) -> int:
        return self.broker.port

    @property
    def replica(self) -> Server:
        return self.redis.replicas[0]


@pytest.fixture(params=KINDS, scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    try:
        with running_replicas(request.param) as replicated, running_broker(redis_url=replicated.primary.url) as broker:
            yield Served(replicated, broker)
    except ServerUnavailable as error:
        unavailable(error)


def kept(server: Server, topic: str) -> int:
    """Batches of a topic that a server has."""
    with server.client() as client:
        return int(client.xlen(Namespace().partition(topic, 0).log))


def code(port: int, topic: str, timeout: int = 10_000, **values: Any) -> str:
    """The code for a batch of one record."""
    return str(produce(port, topic, records(1), timeout=timeout, **values)["error_code"])


def restored(served: Served, topic: str) -> None:
    """Wait until front-ends know that the replica is back."""
    until(lambda: code(served.port, topic, 200) == "NONE")


def test_replica_has_every_acknowledged_batch(served: Served) -> None:
    topic = created(served.port, min_insync_replicas="2")
    with connected(served.port) as connection:
        for count in range(1, 50):
            answer = connection.ask("produce", 12, **produce_request(topic, records(1)))
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == "NONE"
            assert kept(served.replica, topic) == count


def test_batch_is_stored_but_not_acknowledged_while_no_replica_has_it(served: Served) -> None:
    topic = created(served.port, min_insync_replicas="2")
    data = records(1, producer_id=5001, producer_epoch=0, sequence=0)
    later = records(1, producer_id=5001, producer_epoch=0, sequence=1)
    produced(served.port, topic, records(1))
    with served.replica.paused():
        first = produce(served.port, topic, data, timeout=300)
        again = produce(served.port, topic, data, timeout=300)
        assert [(one["error_code"], one["base_offset"]) for one in (first, again)] == [(TOO_FEW_HAVE_IT, 1)] * 2
        assert code(served.port, topic, acks=1) == "NONE"
        (read,) = fetch(served.port, topic, wanted(0))
        assert offsets(read) == [0, 1, 2]
    answers = [produce(served.port, topic, one) for one in (data, later)]
    assert [(one["error_code"], one["base_offset"]) for one in answers] == [("NONE", 1), ("NONE", 3)]
    assert kept(served.replica, topic) == 4


def test_waiting_produce_is_answered_when_the_replica_goes_on(served: Served) -> None:
    """Requests wait together, on one connection and on several, and others join later."""
    topic = created(served.port, min_insync_replicas="2")
    with several(served.port, 3) as connections:
        with served.replica.paused():
            for connection in connections * 4:
                connection.send("produce", 12, **produce_request(topic, records(1), timeout=30_000))
            until(lambda: kept(served.redis.primary, topic) == 12)
        for connection in connections * 4:
            answer = connection.receive()
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == "NONE"
    assert kept(served.replica, topic) == 12


@contextmanager
def several(port: int, count: int) -> Iterator[list[Connection]]:
    opened = [Connection(port) for _ in range(count)]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.socket.close()


def test_waiting_batches_share_one_wait_command(served: Served) -> None:
    """Pipelined requests of several connections take a fraction of a WAIT each."""
    topic = created(served.port, min_insync_replicas="2")
    produced(served.port, topic, records(1))
    count = 25
    with served.redis.primary.client() as client, several(served.port, 4) as connections:
        before = waits(client)
        for connection in connections * count:
            connection.send("produce", 12, **produce_request(topic, records(1)))
        for connection in connections * count:
            assert connection.receive()["responses"][0]["partition_responses"][0]["error_code"] == "NONE"
        assert waits(client) - before < len(connections) * count


def waits(client: Any) -> int:
    return int(client.info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"])


def test_nothing_is_stored_if_too_few_replicas_are_connected(served: Served) -> None:
    topic, plain = created(served.port, min_insync_replicas="2"), created(served.port)
    three = created(served.port, min_insync_replicas="3")
    produced(served.port, topic, records(1))
    assert code(served.port, three) == TOO_FEW
    assert kept(served.redis.primary, three) == 0
    assert "too few replicas are in sync" in served.broker.log
    served.replica.kill()
    try:
        until(lambda: code(served.port, topic, 100) == TOO_FEW)
        stored = kept(served.redis.primary, topic)
        batches = [records(1, producer_id=5002, producer_epoch=0, sequence=sequence) for sequence in range(3)]
        assert [produce(served.port, topic, one)["error_code"] for one in batches] == [TOO_FEW] * 3
        assert kept(served.redis.primary, topic) == stored
        assert [code(served.port, topic, acks=1), code(served.port, plain)] == ["NONE"] * 2
    finally:
        served.replica.start()
    restored(served, topic)
    # The batch after a refused one is not taken for the producer's first.
    assert produce(served.port, topic, batches[1])["error_code"] == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert [produce(served.port, topic, one)["error_code"] for one in batches] == ["NONE"] * 3


def test_cluster_wide_setting_counts_for_a_topic_without_its_own(served: Served) -> None:
    topic, own = created(served.port), created(served.port, min_insync_replicas="1")
    produced(served.port, topic, records(1))
    set_for_all(served.port, "min.insync.replicas", "3")
    try:
        until(lambda: code(served.port, topic) == TOO_FEW)
        assert code(served.port, own) == "NONE"
    finally:
        set_for_all(served.port, "min.insync.replicas", "1")
    until(lambda: code(served.port, topic) == "NONE")


def test_the_doctor_says_whether_there_are_enough_replicas(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    def finding() -> tuple[str, str]:
        url = served.redis.primary.url
        run(["doctor", "--redis", url, "--namespace", "doctor", "--json"])
        (found,) = (one for one in json.loads(capsys.readouterr().out) if one["subject"] == "replicas")
        return found["verdict"], found["text"]

    with running_broker(redis_url=served.redis.primary.url, namespace="doctor") as broker:
        created(broker.port, "plain")
        created(broker.port, "orders", min_insync_replicas="2")
        verdict, text = finding()
        assert (verdict, text.partition(" counts")[0]) == ("ok", "1 in sync, and min.insync.replicas=2 of topic orders")
        set_for_all(broker.port, "min.insync.replicas", "3")
        verdict, text = finding()
        assert (verdict, text.partition(":")[0]) == (
            "mend",
            "1 in sync, and min.insync.replicas=3 of all topics asks for 2",
        )


def set_for_all(port: int, name: str, value: str) -> None:
    configs = [{"name": name, "config_operation": 0, "value": value}]
    resources = [{"resource_type": 4, "resource_name": "", "configs": configs}]
    (answer,) = ask(port, "incremental_alter_configs", 1, resources=resources, validate_only=False)["responses"]
    assert answer["error_code"] == "NONE", answer


def test_client_that_leaves_while_it_waits_holds_up_no_other(served: Served) -> None:
    topic = created(served.port, min_insync_replicas="2")
    produced(served.port, topic, records(1))
    with served.replica.paused():
        with connected(served.port) as connection:
            connection.send("produce", 12, **produce_request(topic, records(1), timeout=60_000))
            until(lambda: kept(served.redis.primary, topic) == 2)
        assert code(served.port, topic, 300) == TOO_FEW_HAVE_IT
    assert code(served.port, topic) == "NONE"
    assert "Traceback" not in served.broker.log


def test_librdkafka_writes_each_record_once_while_the_replica_stands_still(served: Served) -> None:
    topic = created(served.port, min_insync_replicas="2")
    settings = {"bootstrap.servers": served.broker.bootstrap, "enable.idempotence": True, "request.timeout.ms": 1000}
    producer = confluent_kafka.Producer({**settings, "retry.backoff.ms": 50, "linger.ms": 0})
    delivered: list[tuple[Any, int]] = []

    def note(error: Any, message: Any) -> None:
        delivered.append((error, message.offset()))

    with served.replica.paused(), served.redis.primary.client() as client:
        before = waits(client)
        for number in range(20):
            producer.produce(topic, b"%d" % number, on_delivery=note)
        # These rounds of a fifth of a second take longer than the client's timeout.
        until(lambda: producer.poll(0) == 0 and waits(client) - before > 7)
        assert delivered == []
    assert producer.flush(WITHIN_S) == 0
    assert delivered == [(None, number) for number in range(20)]
    (read,) = fetch(served.port, topic, wanted(0))
    assert read["high_watermark"] == 20


def test_java_waits_for_a_replica_to_come_back(served: Served) -> None:
    topic = created(served.port, min_insync_replicas="2")
    produced(served.port, topic, records(1))
    java = ProcessClient("java", driver_command("java", served.broker.bootstrap))
    served.replica.kill()
    try:
        until(lambda: code(served.port, topic, 100) == TOO_FEW)
        stored = kept(served.redis.primary, topic)
        with ThreadPoolExecutor(1) as thread:
            producing = thread.submit(java.produce, topic, numbered(20), ProduceOptions(acks=-1))
            served.replica.start()
            outcomes = producing.result()
        assert failures(outcomes) == []
        assert [outcome.offset for outcome in outcomes] == list(range(stored, stored + 20))
    finally:
        java.stop()
        if not served.replica.is_running:
            served.replica.start()
    restored(served, topic)


@pytest.mark.parametrize("kind", KINDS)
def test_wait_for_replicas_ends_with_its_server(kind: Any) -> None:
    """A primary that dies, and one that is made a replica, leave the outcome open."""
    with running_replicas(kind) as replicated, running_broker(redis_url=replicated.primary.url) as broker:
        topic = created(broker.port, min_insync_replicas="2")
        produced(broker.port, topic, records(1))
        primary, replica = replicated.primary, replicated.replicas[0]
        with replica.paused(), connected(broker.port) as connection, primary.client() as client:
            connection.send("produce", 12, **produce_request(topic, records(1), timeout=60_000))
            until(lambda: kept(primary, topic) == 2)
            client.execute_command("REPLICAOF", "127.0.0.1", replica.port)
            answer = connection.receive()["responses"][0]["partition_responses"][0]
            assert answer["error_code"] == "REQUEST_TIMED_OUT"
            client.execute_command("REPLICAOF", "NO", "ONE")
            until(lambda: code(broker.port, topic, acks=1) == "NONE")
        until(lambda: replicated.in_sync() == 1)
        until(lambda: code(broker.port, topic, 200) == "NONE")
        with replica.paused(), connected(broker.port) as connection:
            stored = kept(primary, topic)
            connection.send("produce", 12, **produce_request(topic, records(1), timeout=60_000))
            until(lambda: kept(primary, topic) == stored + 1)
            primary.kill()
            answer = connection.receive()["responses"][0]["partition_responses"][0]
            assert answer["error_code"] == "REQUEST_TIMED_OUT"
        assert "Traceback" not in broker.log


def test_new_primary_of_sentinel_must_have_replicas_too() -> None:
    with running_sentinel("valkey") as sentinel, running_broker(redis_url=sentinel.url) as broker:
        topic = created(broker.port, min_insync_replicas="2")
        for _ in range(20):
            assert code(broker.port, topic) == "NONE"
        sentinel.fail_over()
        until(lambda: code(broker.port, topic, 100) == TOO_FEW)
        # The connection that reads may come back later than the one that writes.
        until(lambda: fetch(broker.port, topic, wanted(0))[0]["error_code"] == "NONE")
        (read,) = fetch(broker.port, topic, wanted(0))
        assert read["high_watermark"] == 20
        assert "Traceback" not in broker.log


def test_each_node_of_a_cluster_counts_its_own_replicas() -> None:
    with running_cluster("valkey", has_replica=True) as cluster, running_broker(redis_url=cluster.url) as broker:
        there = created(broker.port, f"{name_on_first_node()}-topic", min_insync_replicas="2")
        elsewhere = created(broker.port, partitions=12, min_insync_replicas="2")
        assert [code(broker.port, there) for _ in range(5)] == ["NONE"] * 5
        found = {code(broker.port, elsewhere, partition=partition) for partition in range(12)}
        assert found == {"NONE", TOO_FEW}
