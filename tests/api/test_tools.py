"""Korvet serves each API that Kafka UI and Redpanda Console ask for, and answers with the fields that they read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.api.acls import TURNED_ON
from tests.api.quotas import limit
from tests.api.raw import ask, created
from tests.oracle.versions import API_KEYS
from tests.support.broker import KorvetServer, running_broker

WITHIN_S = 60.0
TOPIC, CLASSIC, CONSUMER = "orders", "classic", "consumer"
ANY, TOPIC_RESOURCE, LATEST = 1, 2, -1
QUORUM = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
TIMED = [{"name": TOPIC, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}]}]
CONFIGS = [{"resource_type": TOPIC_RESOURCE, "resource_name": TOPIC, "configuration_keys": None}]
RULE = {
    "resource_type": TOPIC_RESOURCE, "resource_name": TOPIC, "resource_pattern_type": 3, "principal": "User:alice",
    "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip
RULES = {"resource_type_filter": ANY, "pattern_type_filter": ANY, "operation": ANY, "permission_type": ANY}

SERVED = """
    api_versions describe_cluster describe_configs describe_acls metadata describe_log_dirs
    incremental_alter_configs describe_quorum alter_replica_log_dirs describe_topic_partitions list_offsets
    create_topics delete_topics create_partitions delete_records describe_producers alter_configs fetch produce
    init_producer_id list_groups find_coordinator describe_groups consumer_group_describe offset_fetch offset_commit
    offset_delete delete_groups alter_partition_reassignments list_partition_reassignments create_acls delete_acls
    describe_user_scram_credentials alter_user_scram_credentials describe_client_quotas alter_client_quotas
"""
"""What Kafka UI and Redpanda Console ask for, by their sources."""

ASKED: Mapping[str, tuple[int, Mapping[str, Any], str]] = {
    "describe_cluster": (
        1, {"include_cluster_authorized_operations": True, "endpoint_type": 1},
        "cluster_id controller_id broker_id host port cluster_authorized_operations",
    ),
    "metadata": (
        12, {"topics": [{"name": TOPIC}]},
        "controller_id node_id host port name is_internal partition_index leader_id leader_epoch "
        "replica_nodes isr_nodes"
    ),
    "describe_topic_partitions": (
        0, {"topics": [{"name": TOPIC}], "response_partition_limit": 10},
        "name is_internal partition_index leader_id replica_nodes isr_nodes",
    ),
    "list_offsets": (
        7, {"replica_id": -1, "topics": TIMED},
        "partition_index offset",
    ),
    "describe_configs": (
        4, {"resources": CONFIGS, "include_synonyms": True, "include_documentation": True},
        "name value config_source config_type read_only is_sensitive synonyms documentation",
    ),
    "describe_log_dirs": (
        4, {"topics": None},
        "log_dir name partition_index partition_size offset_lag",
    ),
    "describe_producers": (
        0, {"topics": [{"name": TOPIC, "partition_indexes": [0]}]},
        "producer_id producer_epoch last_sequence last_timestamp current_txn_start_offset",
    ),
    "describe_quorum": (
        2, {"topics": QUORUM},
        "leader_id leader_epoch high_watermark replica_id log_end_offset node_id host port",
    ),
    "list_groups": (
        5, {},
        "group_id protocol_type group_state",
    ),
    "find_coordinator": (
        4, {"key_type": 0, "coordinator_keys": [CLASSIC]},
        "node_id host port",
    ),
    "describe_groups": (
        5, {"groups": [CLASSIC]},
        "group_state protocol_type protocol_data member_id client_id client_host member_assignment",
    ),
    "consumer_group_describe": (
        1, {"group_ids": [CONSUMER]},
        "group_state assignor_name member_id client_id client_host topic_name partitions",
    ),
    "offset_fetch": (
        8, {"groups": [{"group_id": CLASSIC, "topics": None}]},
        "name partition_index committed_offset",
    ),
    "describe_acls": (
        3, RULES,
        "resource_type resource_name pattern_type principal host operation permission_type",
    ),
    "describe_user_scram_credentials": (
        0, {"users": None},
        "user mechanism iterations",
    ),
    "describe_client_quotas": (
        1, {"components": [], "strict": False},
        "entity_type entity_name key value",
    ),
}  # fmt: skip
"""Request -> its version, its values, and the fields of the answer that the tools read."""


def api_versions(broker: KorvetServer, version: int = 4) -> Any:
    return ask(broker.port, "api_versions", version, client_software_name="tools", client_software_version="1")


def test_every_api_that_tools_use_is_served(broker: KorvetServer) -> None:
    served = {entry["api_key"] for entry in api_versions(broker)["api_keys"]}
    assert {name for name in SERVED.split() if API_KEYS[name] not in served} == set()


@pytest.mark.parametrize(
    ("version", "supported"),
    [(3, {"metadata.version"}), (4, {"group.version", "metadata.version", "share.version", "transaction.version"})],
)
def test_features_are_finalized_and_those_of_level_0_are_supported_only_from_version_4_on(
    broker: KorvetServer, version: int, supported: set[str]
) -> None:
    answer = api_versions(broker, version)
    assert {entry["name"] for entry in answer["supported_features"]} == supported
    levels = {entry["name"]: entry["max_version_level"] for entry in answer["finalized_features"]}
    # MetadataVersion.IBP_4_1_IV1 is Kafka 4.1's own.
    assert levels == {"group.version": 1, "metadata.version": 27, "share.version": 2, "transaction.version": 2}
    assert answer["finalized_features_epoch"] >= 0


@pytest.fixture(scope="module")
def used() -> Iterator[KorvetServer]:
    """A broker with something to tell in each answer."""
    with running_broker(broker={**TURNED_ON, "super.users": "User:ANONYMOUS"}) as broker:
        created(broker.port, TOPIC)
        limit(broker.port, {"user": "alice"}, producer_byte_rate=1e9)
        assert ask(broker.port, "create_acls", 3, creations=[RULE])["results"][0]["error_code"] == "NONE"
        user = {"name": "alice", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"salted"}
        told = ask(broker.port, "alter_user_scram_credentials", 0, deletions=[], upsertions=[user])
        assert told["results"][0]["error_code"] == "NONE"
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
        consumers = [member(broker, CLASSIC), member(broker, CONSUMER)]
        try:
            producer.init_transactions(WITHIN_S)
            producer.begin_transaction()
            producer.produce(TOPIC, b"in a transaction")
            assert producer.flush(WITHIN_S) == 0
            yield broker
        finally:
            for consumer in consumers:
                consumer.close()


def member(broker: KorvetServer, protocol: str) -> Consumer:
    """The only member of a group that is named as its protocol, with a partition and an offset."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": protocol, "group.protocol": protocol}
    consumer = Consumer(settings)
    assigned: list[TopicPartition] = []
    consumer.subscribe([TOPIC], on_assign=lambda _, partitions: assigned.extend(partitions))
    deadline = time.monotonic() + WITHIN_S
    while not assigned:
        assert time.monotonic() < deadline, f"{protocol} has a partition"
        consumer.poll(0.1)
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 0)], asynchronous=False)
    return consumer


def values(answer: Any, name: str) -> Iterator[Any]:
    """Every value of a field, however deep in an answer."""
    if isinstance(answer, Mapping):
        if name in answer:
            yield answer[name]
        for inner in answer.values():
            yield from values(inner, name)
    elif isinstance(answer, list):
        for inner in answer:
            yield from values(inner, name)


@pytest.mark.parametrize("name", ASKED)
def test_fields_that_tools_read_are_answered(used: KorvetServer, name: str) -> None:
    version, asked, fields = ASKED[name]
    answer = ask(used.port, name, version, **asked)
    nothing: tuple[Any, ...] = (None, "", b"", [], -1)
    untold = {field for field in fields.split() if all(value in nothing for value in values(answer, field))}
    assert untold == set(), answer
