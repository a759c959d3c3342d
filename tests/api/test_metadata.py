"""Metadata and DescribeCluster against a real front-end. Expected answers are those of Apache Kafka 4.1.2."""

import struct
from typing import Any
from uuid import UUID

import pytest

from tests.api.raw import ask, created, exchange, unique
from tests.oracle.messages import parse_answer
from tests.support.broker import KorvetServer, running_broker

NOT_ASKED = -(2**31)
CLUSTER_OPERATIONS = 8096
VERSIONS = range(14)


def metadata(broker: KorvetServer, version: int, *names: str | UUID, create: bool = False, **values: Any) -> Any:
    topics = [
        {"name": None, "topic_id": name} if isinstance(name, UUID) else {"name": name, "topic_id": None}
        for name in names
    ]
    if version >= 4:
        values["allow_auto_topic_creation"] = create
    return ask(broker.port, "metadata", version, topics=topics, **values)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_has_one_replica_at_the_broker_that_answers(broker: KorvetServer, version: int) -> None:
    name = created(broker.port, partitions=3)
    answer = metadata(broker, version, name)
    (node,) = answer["brokers"]
    assert (node["node_id"], node["host"], node["port"]) == (1, "127.0.0.1", broker.port)
    (topic,) = answer["topics"]
    assert (topic["name"], topic["error_code"]) == (name, "NONE")
    assert [partition["partition_index"] for partition in topic["partitions"]] == [0, 1, 2]
    for partition in topic["partitions"]:
        assert (partition["leader_id"], partition["replica_nodes"], partition["isr_nodes"]) == (1, [1], [1])
        assert partition.get("leader_epoch", 0) == 0
    assert answer.get("controller_id", 1) == 1
    assert version < 2 or len(answer["cluster_id"]) == 22


def test_bytes_after_the_body_do_not_matter(broker: KorvetServer) -> None:
    """librdkafka 2.16 writes four bytes for the null array of "all topics", so that three are left over."""
    name = created(broker.port)
    body = bytes.fromhex("00 00 00 00 01 00 00")
    frame = struct.pack(">hhih7sb", 3, 13, 9, 7, b"rdkafka", 0) + body
    answer = parse_answer("metadata", 13, exchange(broker.port, struct.pack(">i", len(frame)) + frame), 9)
    assert name in {topic["name"] for topic in answer["topics"]}


@pytest.mark.parametrize("version", [0, 6, 13])
def test_client_that_deletes_a_topic_first_learns_that_it_is_gone(broker: KorvetServer, version: int) -> None:
    """kafka-go's test of DeleteTopics needs this: its Metadata version creates the topics that it names."""
    name, other = created(broker.port, partitions=2), created(broker.port)
    deleted = ask(broker.port, "delete_topics", 5, topic_names=[name, other], timeout=10_000)["responses"]
    assert [topic["error_code"] for topic in deleted] == ["NONE", "NONE"]
    gone = metadata(broker, version, name, other, create=True)["topics"]
    assert [(topic["error_code"], topic["partitions"]) for topic in gone] == [("UNKNOWN_TOPIC_OR_PARTITION", [])] * 2
    (topic,) = metadata(broker, version, name, create=True)["topics"]
    assert (topic["error_code"], len(topic["partitions"])) == ("NONE", 1)


def test_another_front_end_too_first_answers_that_a_deleted_topic_is_gone(broker: KorvetServer) -> None:
    # One with an advertised address takes no lease, so that other tests see one node.
    with running_broker(redis_url=f"unix://{broker.embedded_socket}", advertised=("127.0.0.1", 9599)) as other:
        name = created(broker.port)
        assert metadata(other, 9, name)["topics"][0]["error_code"] == "NONE"
        ask(broker.port, "delete_topics", 5, topic_names=[name], timeout=10_000)
        for code in ("UNKNOWN_TOPIC_OR_PARTITION", "NONE"):
            assert metadata(other, 9, name, create=True)["topics"][0]["error_code"] == code


def test_a_name_that_collides_is_not_created(broker: KorvetServer) -> None:
    name = created(broker.port, f"{unique()}.x")
    (topic,) = metadata(broker, 9, name.replace(".", "_"), create=True)["topics"]
    assert topic["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_kafkas_internal_topics_are_internal_and_not_created(broker: KorvetServer) -> None:
    (topic,) = metadata(broker, 9, "__consumer_offsets", create=True)["topics"]
    assert (topic["error_code"], topic["is_internal"]) == ("UNKNOWN_TOPIC_OR_PARTITION", True)


def test_automatic_creation_follows_the_cluster_and_the_config_file() -> None:
    file = {"auto.create.topics.enable": "false", "num.partitions": "3"}
    with running_broker(broker=file, advertised=("kafka.example", 19092)) as own:
        (topic,) = metadata(own, 9, "t", create=True)["topics"]
        assert topic["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        change = {"name": "auto.create.topics.enable", "config_operation": 0, "value": "true"}
        resource = {"resource_type": 4, "resource_name": "", "configs": [change]}
        altered = ask(own.port, "incremental_alter_configs", 1, resources=[resource], validate_only=False)
        assert altered["responses"][0]["error_code"] == "NONE"
        answer = metadata(own, 9, "t", create=True)
        assert len(answer["topics"][0]["partitions"]) == 3
        assert (answer["brokers"][0]["host"], answer["brokers"][0]["port"]) == ("kafka.example", 19092)


# ---------------------------------------------------------------------- DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_has_the_broker_that_answers(broker: KorvetServer, version: int) -> None:
    answer = ask(broker.port, "describe_cluster", version, include_cluster_authorized_operations=True, endpoint_type=1)
    assert (answer["error_code"], answer["controller_id"]) == ("NONE", 1)
    assert answer["cluster_id"] == metadata(broker, 9)["cluster_id"]
    assert [(node["broker_id"], node["port"]) for node in answer["brokers"]] == [(1, broker.port)]
    assert answer["cluster_authorized_operations"] == CLUSTER_OPERATIONS
    plain = ask(broker.port, "describe_cluster", version, include_cluster_authorized_operations=False)
    assert plain["cluster_authorized_operations"] == NOT_ASKED
