"""Two listeners of one namespace without a load balancer: clients stay at the one through which they came."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient

from korvet.server.ground.settings import ListenerSettings
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import running_server

WITHIN_S = 30.0
INSIDE = ListenerSettings(port=0, name="inside")
OUTSIDE = ListenerSettings(port=0, name="outside")
ORDERS = ((INSIDE, OUTSIDE), (OUTSIDE, INSIDE))


@pytest.fixture(scope="module")
def front_ends() -> Iterator[list[KorvetServer]]:
    """Two front-ends with the same listeners in another order."""
    with ExitStack() as stack:
        redis = stack.enter_context(running_server("valkey"))
        yield [stack.enter_context(running_broker(redis_url=redis.url, listeners=doors)) for doors in ORDERS]


def ports_of(servers: list[KorvetServer], name: str) -> set[int]:
    return {one.port for server in servers for one in server.listeners if one.name == name}


def told(port: int, count: int) -> dict[int, int]:
    """Node ids and ports in Metadata and DescribeCluster, once as many nodes as this are there."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    while True:
        brokers = admin.list_topics(timeout=WITHIN_S).brokers
        if len(brokers) >= count:
            break
    described = admin.describe_cluster(request_timeout=WITHIN_S).result()
    found = {broker.id: broker.port for broker in brokers.values()}
    assert {node.id: node.port for node in described.nodes} == found
    return found


@pytest.mark.parametrize("name", ["inside", "outside"])
def test_client_gets_only_ports_of_its_listeners_name(front_ends: list[KorvetServer], name: str) -> None:
    ports = ports_of(front_ends, name)
    assert [set(told(port, 2).values()) for port in ports] == [ports] * 2


def test_node_ids_are_equal_at_all_listeners(front_ends: list[KorvetServer]) -> None:
    by_id = [told(one.port, 2) for one in front_ends[0].listeners]
    for node_id in by_id[0]:
        assert {by_id[0][node_id], by_id[1][node_id]} in [set(server.ports) for server in front_ends]
