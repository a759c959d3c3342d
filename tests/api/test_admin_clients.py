"""Topics and configs through the admin clients of confluent-kafka (librdkafka) and kafka-python, at their defaults."""

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic
from confluent_kafka.admin import ResourceType as Resource

from tests.api.raw import unique
from tests.support.broker import KorvetServer

WITHIN_S = 60.0


@pytest.fixture
def confluent(broker: KorvetServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def kafka_python() -> Iterator[Any]:
    """The package `kafka`, whose import uses deprecated parts of Python's library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("kafka.admin")
        yield importlib.import_module("kafka")


def outcome(futures: dict[Any, Any]) -> Any:
    """The only future's result."""
    (future,) = futures.values()
    return future.result(WITHIN_S)


def test_confluent_creates_grows_configures_and_deletes(confluent: AdminClient) -> None:
    name = unique()
    outcome(confluent.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "60000"})]))
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        outcome(confluent.create_topics([NewTopic(name, 2, 1)]))
    topic = confluent.list_topics(name, timeout=WITHIN_S).topics[name]
    assert (topic.error, sorted(topic.partitions), topic.partitions[0].isrs) == (None, [0, 1], [1])
    outcome(confluent.create_partitions([NewPartitions(name, 5)]))
    assert len(confluent.list_topics(name, timeout=WITHIN_S).topics[name].partitions) == 5
    entry = ConfigEntry("retention.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    outcome(confluent.incremental_alter_configs([ConfigResource(Resource.TOPIC, name, incremental_configs=[entry])]))
    configs = outcome(confluent.describe_configs([ConfigResource(Resource.TOPIC, name)]))
    assert (configs["retention.ms"].value, configs["retention.bytes"].value) == ("60000", "1000")
    assert configs["cleanup.policy"].is_default
    outcome(confluent.delete_topics([name]))
    assert name not in confluent.list_topics(timeout=WITHIN_S).topics


def test_confluent_describes_the_cluster(confluent: AdminClient, broker: KorvetServer) -> None:
    cluster = confluent.describe_cluster(include_authorized_operations=True).result(WITHIN_S)
    assert (len(cluster.cluster_id), cluster.controller.id) == (22, 1)
    assert [(node.id, node.port) for node in cluster.nodes] == [(1, broker.port)]
    configs = outcome(confluent.describe_configs([ConfigResource(Resource.BROKER, "1")]))
    assert configs["num.partitions"].value == "1"


def test_confluent_finds_no_election_needed_and_no_passwords(confluent: AdminClient) -> None:
    name = unique()
    outcome(confluent.create_topics([NewTopic(name, 1, 1)]))
    outcome(confluent.create_partitions([NewPartitions(name, 3, replica_assignment=[[1], [1]])]))
    partitions = [TopicPartition(name, index) for index in (2, 9)]
    elected = confluent.elect_leaders(ElectionType.PREFERRED, partitions).result(WITHIN_S)
    assert {of.partition: error.name() for of, error in elected.items()} == {
        2: "ELECTION_NOT_NEEDED",
        9: "UNKNOWN_TOPIC_OR_PART",
    }
    found: Any = confluent.describe_user_scram_credentials()
    assert found.result(WITHIN_S) == {}


def test_kafka_python_finds_no_reassignments_and_the_quorum(kafka_python: Any, broker: KorvetServer) -> None:
    client = kafka_python.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        assert client.list_partition_reassignments() == {}
        (topic,) = client.describe_metadata_quorum()["topics"]
        assert [voter["replica_id"] for voter in topic["partitions"][0]["current_voters"]] == [1]
    finally:
        client.close()
