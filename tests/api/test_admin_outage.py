"""What the admin APIs say while Redis is away or full: something to try again, never a wrong fact."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.api.raw import ask, create_topics, created
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server, running_server

WITHIN_S = 20.0


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[KorvetServer, Server]]:
    """A broker and the server behind it, to be stopped at will; it keeps its data."""
    with ExitStack() as stack:
        server = stack.enter_context(running_server("valkey", options={"appendonly": "yes", "appendfsync": "always"}))
        yield stack.enter_context(running_broker(redis_url=server.url)), server


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def metadata(broker: KorvetServer, *names: str) -> Any:
    topics = [{"name": name, "topic_id": None} for name in names]
    return ask(broker.port, "metadata", 12, topics=topics, allow_auto_topic_creation=False)


def test_without_redis_answers_are_retriable_and_nothing_is_forgotten(pair: tuple[KorvetServer, Server]) -> None:
    broker, server = pair
    name = created(broker.port)
    server.stop()
    answer = metadata(broker, name, "nope")
    assert [topic["error_code"] for topic in answer["topics"]] == ["NONE", "LEADER_NOT_AVAILABLE"]
    (partition,) = answer["topics"][0]["partitions"]
    assert (partition["error_code"], partition["leader_id"]) == ("LEADER_NOT_AVAILABLE", -1)
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
    server.start()
    until(lambda: metadata(broker, name)["topics"][0]["partitions"][0]["error_code"] == "NONE")
    assert metadata(broker, "new")["topics"][0]["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_full_redis_takes_deletions_but_no_new_topics(pair: tuple[KorvetServer, Server]) -> None:
    broker, server = pair
    name = created(broker.port)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            assert create_topics(broker.port, {"name": "full"})[0]["error_code"] == "NOT_CONTROLLER"
            assert metadata(broker, name)["topics"][0]["error_code"] == "NONE"
            deleted = ask(broker.port, "delete_topics", 6, topics=[{"name": name, "topic_id": None}], timeout=1000)
            assert deleted["responses"][0]["error_code"] == "NONE"
        finally:
            client.config_set("maxmemory", 0)
    assert metadata(broker, name, "full")["topics"][0]["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert create_topics(broker.port, {"name": "full"})[0]["error_code"] == "NONE"
