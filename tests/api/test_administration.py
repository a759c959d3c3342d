"""Admin requests to a broker with several nodes; the oracle compares the rest with Kafka."""

from collections.abc import Iterator

import pytest

from tests.api.raw import ask, created
from tests.support.broker import KorvetServer, running_broker

NODES = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def four_nodes() -> Iterator[KorvetServer]:
    """A front-end that clients see as four nodes."""
    with running_broker(advertised=("127.0.0.1", 9501, 9504)) as server:
        yield server


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_at_any_node_that_metadata_shows(four_nodes: KorvetServer, version: int) -> None:
    port = four_nodes.port
    shown = [node["node_id"] for node in ask(port, "metadata", 12, topics=[])["brokers"]]
    assert shown == NODES
    topic = {"name": created(port), "count": 5, "assignments": [{"broker_ids": [node]} for node in shown]}
    (result,) = ask(port, "create_partitions", version, topics=[topic], timeout=5000, validate_only=False)["results"]
    assert result["error_code"] == "NONE", result


@pytest.mark.parametrize("version", range(2))
def test_a_partition_stays_where_metadata_shows_it(four_nodes: KorvetServer, version: int) -> None:
    port, name = four_nodes.port, created(four_nodes.port)
    (topic,) = ask(port, "metadata", 12, topics=[{"name": name}])["topics"]
    leader = topic["partitions"][0]["leader_id"]
    codes = []
    for node in NODES:
        parts = [{"partition_index": 0, "replicas": [node]}]
        body = {"topics": [{"name": name, "partitions": parts}], "timeout": 5000}
        (answer,) = ask(port, "alter_partition_reassignments", version, **body)["responses"]
        codes.append(answer["partitions"][0]["error_code"])
    assert codes == ["NONE" if node == leader else "INVALID_REPLICA_ASSIGNMENT" for node in NODES]


def test_all_nodes_hold_the_metadata_and_none_is_behind(four_nodes: KorvetServer) -> None:
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    before = ask(four_nodes.port, "describe_quorum", 2, topics=asked)["topics"][0]["partitions"][0]
    created(four_nodes.port)
    answer = ask(four_nodes.port, "describe_quorum", 2, topics=asked)
    (partition,) = answer["topics"][0]["partitions"]
    assert partition["high_watermark"] > before["high_watermark"]
    assert [voter["replica_id"] for voter in partition["current_voters"]] == NODES
    assert {voter["log_end_offset"] for voter in partition["current_voters"]} == {partition["high_watermark"]}
    assert partition["leader_id"] == ask(four_nodes.port, "metadata", 12, topics=[])["controller_id"]
    assert [node["listeners"][0]["port"] for node in answer["nodes"]] == [9501, 9502, 9503, 9504]


def test_each_broker_shows_its_own_address_in_its_configs(four_nodes: KorvetServer) -> None:
    resources = [{"resource_type": 4, "resource_name": str(node), "configuration_keys": None} for node in NODES]
    for result, node in zip(
        ask(four_nodes.port, "describe_configs", 4, resources=resources, include_synonyms=True)["results"],
        NODES,
        strict=True,
    ):
        configs = {config["name"]: config for config in result["configs"]}
        assert list(configs) == sorted(configs)
        assert configs["advertised.listeners"]["value"] == f"PLAINTEXT://127.0.0.1:{9500 + node}"
        assert configs["advertised.listeners"]["read_only"]


@pytest.mark.parametrize("operation", [0, 1])
def test_change_of_a_brokers_own_configs_leaves_those_of_all_brokers(broker: KorvetServer, operation: int) -> None:
    """kafka-reassign-partitions sets and deletes each broker's throttles."""
    cluster = {"resource_type": 4, "resource_name": ""}
    change = [{"name": "log.retention.ms", "config_operation": 0, "value": "77777777"}]
    ask(broker.port, "incremental_alter_configs", 1, resources=[{**cluster, "configs": change}], validate_only=False)
    try:
        own = [{"name": "log.retention.ms", "config_operation": operation, "value": "1"}]
        asked = [{"resource_type": 4, "resource_name": "1", "configs": own}]
        (result,) = ask(broker.port, "incremental_alter_configs", 1, resources=asked, validate_only=False)["responses"]
        assert result["error_code"] == "NONE"
        resources = [{**cluster, "configuration_keys": ["log.retention.ms"]}]
        (described,) = ask(broker.port, "describe_configs", 4, resources=resources)["results"]
        assert [config["value"] for config in described["configs"]] == ["77777777"]
    finally:
        change[0]["config_operation"] = 1
        ask(broker.port, "incremental_alter_configs", 1, resources=[{**cluster, "configs": change}])
