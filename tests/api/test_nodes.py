"""The leaders and coordinators told to clients: evenly spread, the same by every process, and moved as little as
possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import cast

import pytest

from korvet.api.shared.nodes import FixedNodes, LeasedNodes, Node, virtual_nodes
from korvet.redis.address import Address
from korvet.store.registry import Registry
from tests.api.raw import ask, create_topics, created, unique
from tests.support.broker import KorvetServer, running_broker

PARTITIONS = 1000


def nodes(*ids: int) -> FixedNodes:
    return FixedNodes([Node(node_id, f"host-{node_id}", 9092) for node_id in ids])


def leaders(of: FixedNodes, topic: str) -> list[int]:
    return [of.leader(topic, partition).id for partition in range(PARTITIONS)]


@pytest.mark.parametrize("topic", ["orders", "t", "a" * 249])
@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_partitions_and_groups_are_spread_evenly(topic: str, count: int) -> None:
    several = nodes(*range(1, count + 1))
    share = PARTITIONS / count
    for found in (leaders(several, topic), [several.coordinator(f"{topic}-{n}").id for n in range(PARTITIONS)]):
        counted = Counter(found)
        assert len(counted) == count
        assert all(0.7 * share < one < 1.3 * share for one in counted.values()), counted


def test_node_that_goes_moves_only_its_own_share() -> None:
    before, after = leaders(nodes(1, 2, 3, 4), "orders"), leaders(nodes(1, 2, 4), "orders")
    assert all(new == old for old, new in zip(before, after, strict=True) if old != 3)
    assert {new for old, new in zip(before, after, strict=True) if old == 3} == {1, 2, 4}


def test_every_process_names_the_same_nodes() -> None:
    """Front-ends of several versions run side by side during an upgrade, so these results never change."""
    three = nodes(1, 2, 3)
    assert [three.leader("orders", partition).id for partition in range(8)] == [3, 1, 1, 2, 3, 2, 2, 3]
    assert [three.coordinator(f"group-{n}").id for n in range(8)] == [2, 2, 2, 1, 1, 1, 1, 3]


def test_first_half_of_a_balancers_ports_leads_and_the_second_coordinates() -> None:
    several = virtual_nodes("kafka.example", range(9092, 9098))
    assert [(node.id, node.port) for node in several.all()] == [(n, 9091 + n) for n in range(1, 7)]
    assert {several.leader("t", partition).id for partition in range(50)} == {1, 2, 3}
    assert {several.coordinator(f"g{n}").id for n in range(50)} == {4, 5, 6}
    odd = virtual_nodes("kafka.example", range(9092, 9095))
    assert ({odd.leader("t", n).id for n in range(50)}, {odd.coordinator(f"g{n}").id for n in range(50)}) == (
        {1, 2},
        {3},
    )
    only = virtual_nodes("kafka.example", [9092])
    assert only.all() == (Node(1, "kafka.example", 9092),)
    assert (only.leader("t", 0).id, only.coordinator("g").id, only.own_id) == (1, 1, 1)


def test_group_and_partition_are_listed_at_the_port_that_they_belong_to() -> None:
    several = virtual_nodes("kafka.example", range(9092, 9098))
    port = several.coordinator("g").port
    assert [asked for asked in range(9092, 9098) if several.lists("g", asked)] == [port]
    assert several.lists("g", None)
    assert several.lists("g", 1234)
    leader = several.leader("t", 3).port
    assert [asked for asked in range(9092, 9098) if several.leads("t", 3, asked)] == [leader]
    assert several.leads("t", 3, None)
    assert several.leads("t", 3, 1234)


class _Known:
    """The parts of a registry that `LeasedNodes` reads."""

    own_id = 2
    live: tuple[tuple[int, Address], ...] = ((1, Address("a", 1)), (2, Address("b", 2)))

    def live_at(self, name: str) -> tuple[tuple[int, Address], ...]:
        assert name == "default"
        return self.live


def test_leased_nodes_follow_the_registry() -> None:
    known = _Known()
    leased = LeasedNodes(cast(Registry, known))
    assert leased.all() == (Node(1, "a", 1), Node(2, "b", 2))
    assert {leased.leader("t", partition).id for partition in range(50)} == {1, 2}
    assert all(leased.leads("t", n, None) is (leased.leader("t", n).id == 2) for n in range(50))
    known.live = ((2, Address("b", 2)), (7, Address("c", 3)))
    assert {leased.leader("t", partition).id for partition in range(50)} == {2, 7}
    assert {leased.coordinator(f"g{n}").id for n in range(50)} == {2, 7}
    assert leased.all() == (Node(2, "b", 2), Node(7, "c", 3))


# ---------------------------------------------------------------------- in answers


@pytest.fixture(scope="module")
def balanced(broker: KorvetServer) -> Iterator[KorvetServer]:
    """A front-end of the broker's Redis that stands behind a balancer with four ports, in a namespace of its own."""
    redis_url = f"unix://{broker.embedded_socket}"
    with running_broker(redis_url=redis_url, namespace="nodes", advertised=("kafka.example", 9092, 9095)) as server:
        yield server


def test_answers_agree_on_the_nodes(balanced: KorvetServer) -> None:
    topic = created(balanced.port, partitions=12)
    answer = ask(balanced.port, "metadata", 12, topics=[{"name": topic, "topic_id": None}])
    assert [(node["node_id"], node["port"]) for node in answer["brokers"]] == [(n, 9091 + n) for n in range(1, 5)]
    assert {node["host"] for node in answer["brokers"]} == {"kafka.example"}
    assert answer["controller_id"] == 1
    partitions = answer["topics"][0]["partitions"]
    assert {one["leader_id"] for one in partitions} == {1, 2}
    assert all(one["replica_nodes"] == one["isr_nodes"] == [one["leader_id"]] for one in partitions)
    cluster = ask(balanced.port, "describe_cluster", 1, include_cluster_authorized_operations=False, endpoint_type=1)
    assert ([node["broker_id"] for node in cluster["brokers"]], cluster["controller_id"]) == ([1, 2, 3, 4], 1)
    described = ask(
        balanced.port,
        "describe_topic_partitions",
        0,
        topics=[{"name": topic}],
        response_partition_limit=100,
        cursor=None,
    )
    found = described["topics"][0]["partitions"]
    assert [one["leader_id"] for one in found] == [one["leader_id"] for one in partitions]


def test_every_version_of_find_coordinator_names_the_same_node(balanced: KorvetServer) -> None:
    groups = [unique("g") for _ in range(20)]
    batch = ask(balanced.port, "find_coordinator", 6, key_type=0, coordinator_keys=groups)["coordinators"]
    assert [one["key"] for one in batch] == groups
    assert {(one["node_id"], one["port"], one["host"]) for one in batch} == {
        (3, 9094, "kafka.example"),
        (4, 9095, "kafka.example"),
    }
    for version in range(4):
        alone = ask(balanced.port, "find_coordinator", version, key=groups[0])
        assert (alone["node_id"], alone["port"]) == (batch[0]["node_id"], batch[0]["port"])


def test_configs_are_answered_of_every_shown_node_and_no_other(balanced: KorvetServer) -> None:
    def of(name: str) -> tuple[str, str | None]:
        resource = {"resource_type": 4, "resource_name": name, "configuration_keys": ["num.partitions"]}
        (result,) = ask(balanced.port, "describe_configs", 4, resources=[resource])["results"]
        return result["error_code"], result["error_message"]

    assert [of(name) for name in ("1", "4", "")] == [("NONE", "")] * 3
    assert of("5") == (
        "INVALID_REQUEST",
        "Unexpected broker id, expected 1 or 2 or 3 or 4 or empty string, but received 5",
    )
    for name, code in (("4", "NONE"), ("5", "INVALID_REQUEST")):
        resource = {"resource_type": 4, "resource_name": name, "configs": []}
        altered = ask(balanced.port, "incremental_alter_configs", 1, resources=[resource], validate_only=False)
        assert altered["responses"][0]["error_code"] == code


def test_replica_may_be_put_on_any_shown_node(balanced: KorvetServer) -> None:
    def put(*brokers: int) -> tuple[str, str | None]:
        assignment = {"partition_index": 0, "broker_ids": list(brokers)}
        asked = {"name": unique(), "num_partitions": -1, "replication_factor": -1, "assignments": [assignment]}
        (result,) = create_topics(balanced.port, asked)
        return result["error_code"], result["error_message"]

    assert put(4)[0] == "NONE"
    refused = "INVALID_REPLICA_ASSIGNMENT"
    assert put(5) == (refused, "The manual partition assignment includes broker 5, but no such broker is registered.")
    assert put(2, 2) == (refused, "The manual partition assignment includes the broker 2 more than once.")
    assert put(1, 2) == (
        refused,
        "The manual partition assignment includes 2 brokers, but partitions have one replica here.",
    )
