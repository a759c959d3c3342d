"""The admin APIs while Redis is away or full: they answer with errors to try again on, never with a wrong fact."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.api.data import produce, produced, records
from tests.api.raw import ask, create_topics, created, exchange
from tests.oracle.frames import requests
from tests.oracle.messages import parse_answer
from tests.oracle.script import error_codes
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server, running_server
from tests.support.waiting import until


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[KorvetServer, Server]]:
    """A broker and the server behind it, to be stopped at will; it keeps its data."""
    with ExitStack() as stack:
        server = stack.enter_context(running_server("valkey", options={"appendonly": "yes", "appendfsync": "always"}))
        yield stack.enter_context(running_broker(redis_url=server.url)), server


def metadata(broker: KorvetServer, *names: str) -> Any:
    topics = [{"name": name, "topic_id": None} for name in names]
    return ask(broker.port, "metadata", 12, topics=topics, allow_auto_topic_creation=False)


def led_by(broker: KorvetServer, name: str) -> Any:
    """The leader epoch of a topic's only partition."""
    (partition,) = metadata(broker, name)["topics"][0]["partitions"]
    return partition["leader_epoch"] if partition["error_code"] == "NONE" else None


def outcomes(broker: KorvetServer, name: str) -> set[str]:
    """The codes of requests about elections, reassignments, the quorum and log directories."""
    moved = [{"name": name, "partitions": [{"partition_index": 0, "replicas": None}]}]
    quorum = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    dirs = [{"path": "/redis/default", "topics": [{"name": name, "partitions": [0]}]}]
    elected = [{"topic": name, "partitions": [0]}]
    return set().union(
        error_codes(ask(broker.port, "elect_leaders", 2, topic_partitions=elected)),
        error_codes(ask(broker.port, "alter_partition_reassignments", 1, topics=moved)),
        error_codes(ask(broker.port, "describe_quorum", 2, topics=quorum)),
        error_codes(ask(broker.port, "alter_replica_log_dirs", 2, dirs=dirs)),
    )


def test_answers_without_redis_are_retriable_and_nothing_is_forgotten(pair: tuple[KorvetServer, Server]) -> None:
    broker, server = pair
    name = created(broker.port)
    epoch = led_by(broker, name)
    with broker.redis_outage():
        server.stop()
        answer = metadata(broker, name, "nope")
        assert [topic["error_code"] for topic in answer["topics"]] == ["NONE", "LEADER_NOT_AVAILABLE"]
        (partition,) = answer["topics"][0]["partitions"]
        assert (partition["error_code"], partition["leader_id"]) == ("LEADER_NOT_AVAILABLE", -1)
        assert partition["leader_epoch"] == epoch
        assert (len(answer["brokers"]), len(answer["cluster_id"])) == (1, 22)
        assert create_topics(broker.port, {"name": "new"})[0]["error_code"] == "NOT_CONTROLLER"
        deleted = ask(broker.port, "delete_topics", 6, topics=[{"name": name, "topic_id": None}], timeout=1000)
        assert deleted["responses"][0]["error_code"] == "NOT_CONTROLLER"
        asked = [{"resource_type": 2, "resource_name": name, "configuration_keys": None}]
        described = ask(broker.port, "describe_configs", 4, resources=asked)
        assert described["results"][0]["error_code"] == "REQUEST_TIMED_OUT"
        listed = ask(broker.port, "list_config_resources", 1, resource_types=[])
        assert (listed["error_code"], listed["config_resources"]) == ("REQUEST_TIMED_OUT", [])
        change = {"name": "retention.ms", "config_operation": 0, "value": "5"}
        altered = ask(
            broker.port,
            "incremental_alter_configs",
            1,
            resources=[{"resource_type": 2, "resource_name": name, "configs": [change]}],
            validate_only=False,
        )
        assert altered["responses"][0]["error_code"] == "NOT_CONTROLLER"
        assert outcomes(broker, name) == {"REQUEST_TIMED_OUT", "KAFKA_STORAGE_ERROR"}
        server.start()
    until(lambda: led_by(broker, name) is not None)
    assert metadata(broker, "new")["topics"][0]["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_every_request_is_answered_without_redis(pair: tuple[KorvetServer, Server]) -> None:
    broker, server = pair
    closed = []
    with broker.redis_outage():
        server.stop()
        for request in requests(True):
            try:
                parse_answer(request.api, request.version, exchange(broker.port, request.frame), 0)
            except ConnectionError:
                closed.append((request.api, request.version))
        server.start()
    # Without a login these two are out of place.
    assert {api for api, _ in closed} <= {"sasl_handshake", "sasl_authenticate"}


def test_leader_epoch_never_goes_back_to_none_while_redis_restarts(pair: tuple[KorvetServer, Server]) -> None:
    broker, server = pair
    name = created(broker.port)
    told = [led_by(broker, name)]
    for _ in range(2):
        with broker.redis_outage():
            server.kill()
            (partition,) = metadata(broker, name)["topics"][0]["partitions"]
            assert (partition["leader_id"], partition["leader_epoch"]) == (-1, told[-1])
            topics = [{"name": name}]
            paged = ask(broker.port, "describe_topic_partitions", 0, topics=topics, response_partition_limit=9)
            assert {topic["error_code"] for topic in paged["topics"]} == {"LEADER_NOT_AVAILABLE"}
            server.start()
        until(lambda: led_by(broker, name) is not None)
        told.append(led_by(broker, name))
    assert told == sorted(set(told))


def test_front_end_that_heard_no_leader_epoch_takes_none_back(pair: tuple[KorvetServer, Server]) -> None:
    """A client that knows a higher epoch passes 0 over; librdkafka and Java would take -1 for news."""
    broker, server = pair
    name = created(broker.port)
    with broker.redis_outage():
        server.kill()
        server.start()
    # The kill began another epoch, which the second front-end is never asked for.
    until(lambda: (led_by(broker, name) or 0) > 0)
    with running_broker(redis_url=server.url) as unasked, broker.redis_outage():
        server.kill()
        (partition,) = metadata(unasked, name)["topics"][0]["partitions"]
        assert (partition["leader_id"], partition["error_code"]) == (-1, "LEADER_NOT_AVAILABLE")
        assert partition["leader_epoch"] == 0
        server.start()
        until(lambda: (led_by(unasked, name) or 0) > 0)
    until(lambda: led_by(broker, name) is not None)


def test_change_that_redis_refuses_fails_at_once_with_the_reason(pair: tuple[KorvetServer, Server]) -> None:
    """NOT_CONTROLLER, on which admin clients try again until their time is up, would hide it."""
    broker, server = pair
    name = created(broker.port)
    produced(broker.port, name, records())
    with server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        try:
            (refused,) = create_topics(broker.port, {"name": "refused"})
            appended = produce(broker.port, name, records())
            until(lambda: "redis refuses writes" in broker.log)
        finally:
            client.config_set("min-replicas-to-write", 0)
    assert refused["error_code"] == "KAFKA_STORAGE_ERROR"
    assert "fewer replicas than min-replicas-to-write asks for" in refused["error_message"]
    # Producers try again on this code until it is over; 'korvet topics produce' shows the message when it gives up.
    assert appended["error_code"] == "NOT_LEADER_OR_FOLLOWER"
    assert "fewer replicas than min-replicas-to-write asks for" in appended["error_message"]
    until(lambda: "redis takes writes again" in broker.log)
    assert broker.log.count("redis refuses writes") == 1


def test_a_full_redis_takes_deletions_but_no_new_topics(pair: tuple[KorvetServer, Server]) -> None:
    broker, server = pair
    name = created(broker.port)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            assert create_topics(broker.port, {"name": "full"})[0]["error_code"] == "KAFKA_STORAGE_ERROR"
            assert metadata(broker, name)["topics"][0]["error_code"] == "NONE"
            deleted = ask(broker.port, "delete_topics", 6, topics=[{"name": name, "topic_id": None}], timeout=1000)
            assert deleted["responses"][0]["error_code"] == "NONE"
        finally:
            client.config_set("maxmemory", 0)
    assert metadata(broker, name, "full")["topics"][0]["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert create_topics(broker.port, {"name": "full"})[0]["error_code"] == "NONE"
