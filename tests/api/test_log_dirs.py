"""DescribeLogDirs: the bytes of kept batches, and the room of Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.data import produced, records
from tests.api.raw import ask, created
from tests.support.broker import running_broker
from tests.support.redis import Server, ServerUnavailable, running_server, unavailable
from tests.support.waiting import until


def described(port: int, *topics: str, partitions: int = 1) -> dict[str, Any]:
    """The node's only log directory."""
    asked = [{"topic": topic, "partitions": list(range(partitions))} for topic in topics]
    answer = ask(port, "describe_log_dirs", 4, topics=asked)
    assert answer["error_code"] == "NONE"
    (directory,) = answer["results"]
    return dict(directory)


def sizes(directory: dict[str, Any]) -> dict[tuple[str, int], int]:
    return {
        (topic["name"], one["partition_index"]): one["partition_size"]
        for topic in directory["topics"]
        for one in topic["partitions"]
    }


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        with running_server("redis") as running:
            yield running
    except ServerUnavailable as error:
        unavailable(error)


def test_bytes_are_those_of_the_batches_that_are_kept(server: Server) -> None:
    with running_broker(redis_url=server.url) as broker:
        topic = created(broker.port, partitions=2)
        small, large = records(3), records(1, 100_000)
        produced(broker.port, topic, small, large, partition=1)
        found = described(broker.port, topic, partitions=2)
        assert found["error_code"] == "NONE"
        assert sizes(found) == {(topic, 0): 0, (topic, 1): len(small) + len(large)}
        part = {"partition_index": 1, "offset": 3}
        ask(broker.port, "delete_records", 2, timeout=1000, topics=[{"name": topic, "partitions": [part]}])
        assert sizes(described(broker.port, topic, partitions=2)) == {(topic, 0): 0, (topic, 1): len(large)}


def test_total_and_usable_bytes_are_those_of_redis(server: Server) -> None:
    with running_broker(redis_url=server.url) as broker, server.client() as client:
        found = described(broker.port)
        assert (found["total_bytes"], found["usable_bytes"]) == (-1, -1)
        client.config_set("maxmemory", 1 << 30)
        found = described(broker.port)
        client.config_set("maxmemory", 1)
        full = described(broker.port)
        client.config_set("maxmemory", 0)
    assert found["total_bytes"] == 1 << 30
    assert (1 << 29) < found["usable_bytes"] < (1 << 30)
    assert (full["total_bytes"], full["usable_bytes"]) == (1, 0)


def test_each_partition_lies_at_the_one_node_that_leads_it(server: Server) -> None:
    with running_broker(redis_url=server.url, namespace="nodes") as one:
        topic = created(one.port, partitions=12)
        with running_broker(redis_url=server.url, namespace="nodes") as other:
            until(lambda: len(ask(one.port, "metadata", 12, topics=[])["brokers"]) == 2)
            led: dict[int, set[int]] = {}
            (meta,) = ask(other.port, "metadata", 12, topics=[{"name": topic, "topic_id": None}])["topics"]
            for part in meta["partitions"]:
                led.setdefault(part["leader_id"], set()).add(part["partition_index"])
            found = [{index for _, index in sizes(described(node.port, topic, partitions=12))} for node in (one, other)]
    assert len(led) == 2
    assert sorted(map(sorted, found)) == sorted(map(sorted, led.values()))


def test_directory_is_offline_while_redis_is_away(server: Server) -> None:
    with running_broker(redis_url=server.url, namespace="away") as broker:
        created(broker.port, "t")
        server.kill()
        found = described(broker.port, "t")
        server.start()
        assert (found["error_code"], found["topics"]) == ("KAFKA_STORAGE_ERROR", [])
