"""docs/tools.md: korvet serves each API that the tools ask for, and tells the fields that they read."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.api.acls import TURNED_ON
from tests.api.quotas import limit
from tests.api.raw import ask, created
from tests.oracle.versions import API_KEYS
from tests.support.broker import ROOT, KorvetServer, running_broker

PAGE = ROOT / "docs" / "tools.md"
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

ASKED: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "DescribeCluster": (1, {"include_cluster_authorized_operations": True, "endpoint_type": 1}),
    "Metadata": (12, {"topics": [{"name": TOPIC}]}),
    "DescribeTopicPartitions": (0, {"topics": [{"name": TOPIC}], "response_partition_limit": 10}),
    "ListOffsets": (7, {"replica_id": -1, "topics": TIMED}),
    "DescribeConfigs": (4, {"resources": CONFIGS, "include_synonyms": True, "include_documentation": True}),
    "DescribeLogDirs": (4, {"topics": None}),
    "DescribeProducers": (0, {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}),
    "DescribeQuorum": (2, {"topics": QUORUM}),
    "ListGroups": (5, {}),
    "FindCoordinator": (4, {"key_type": 0, "coordinator_keys": [CLASSIC]}),
    "DescribeGroups": (5, {"groups": [CLASSIC]}),
    "ConsumerGroupDescribe": (1, {"group_ids": [CONSUMER]}),
    "OffsetFetch": (8, {"groups": [{"group_id": CLASSIC, "topics": None}]}),
    "DescribeAcls": (3, RULES),
    "DescribeUserScramCredentials": (0, {"users": None}),
    "DescribeClientQuotas": (1, {"components": [], "strict": False}),
}
"""Request -> its version and values."""


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def names_in(text: str) -> list[list[str]]:
    """The names in each row of a table that has any."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [found for line in lines if (found := re.findall(r"`([A-Z]\w+)`", line))]


APIS, _, FIELDS = PAGE.read_text().partition("\nOf the answers")
READ = {request: fields for request, *fields in names_in(FIELDS)}
"""Request -> the fields of its answer that tools read."""


def api_versions(broker: KorvetServer, version: int = 4) -> Any:
    return ask(broker.port, "api_versions", version, client_software_name="tools", client_software_version="1")


def test_every_api_that_tools_ask_for_is_served(broker: KorvetServer) -> None:
    wanted = {snake(name) for row in names_in(APIS) for name in row}
    assert len(wanted) > 30
    served = {entry["api_key"] for entry in api_versions(broker)["api_keys"]}
    assert {name for name in wanted if API_KEYS[name] not in served} == set()


@pytest.mark.parametrize(
    ("version", "supported"),
    [(3, {"metadata.version"}), (4, {"group.version", "metadata.version", "transaction.version"})],
)
def test_features_are_finalized_and_those_of_level_0_are_supported_only_from_version_4_on(
    broker: KorvetServer, version: int, supported: set[str]
) -> None:
    answer = api_versions(broker, version)
    assert {entry["name"] for entry in answer["supported_features"]} == supported
    levels = {entry["name"]: entry["max_version_level"] for entry in answer["finalized_features"]}
    # MetadataVersion.IBP_4_1_IV1 is Kafka 4.1's own.
    assert levels == {"group.version": 1, "metadata.version": 27, "transaction.version": 2}
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


def test_every_request_of_the_page_is_asked() -> None:
    assert READ.keys() == ASKED.keys()


@pytest.mark.parametrize("name", ASKED)
def test_fields_that_tools_read_are_told(used: KorvetServer, name: str) -> None:
    version, asked = ASKED[name]
    answer = ask(used.port, snake(name), version, **asked)
    nothing: tuple[Any, ...] = (None, "", b"", [], -1)
    untold = {field for field in READ[name] if all(value in nothing for value in values(answer, snake(field)))}
    assert untold == set(), answer
