"""korvet.retention=archived as clients see it: only archived records go."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.api.data import produced, records
from tests.api.raw import ask, create_topics, created, errors, unique
from tests.api.rdkafka import WITHIN_S
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import running_server
from tests.support.waiting import until

GROUP = "korvet.archive"
SELDOM = {"log.retention.check.interval.ms": "3600000"}
UNSUPPORTED = "korvet.retention=archived is unsupported for compacted topics: compaction removes unarchived records"


def start_of(port: int, topic: str) -> int:
    """The log's start, as ListOffsets tells it."""
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
    topics = [{"name": topic, "partitions": [part]}]
    answer = ask(port, "list_offsets", 6, replica_id=-1, isolation_level=0, topics=topics)
    (found,) = answer["topics"][0]["partitions"]
    return int(found["offset"]) if found["error_code"] == "NONE" else -1


def commit(port: int, topic: str, offset: int, epoch: int = 0) -> str:
    """Commit an offset as the archive does; returns the code."""
    part = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "committed_metadata": None,
    }
    fields = {"group_id": GROUP, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    answer = ask(port, "offset_commit", 8, **fields, topics=[{"name": topic, "partitions": [part]}])
    return str(answer["topics"][0]["partitions"][0]["error_code"])


def deleted(port: int, topic: str, offset: int) -> tuple[str, int]:
    """A DeleteRecords' code and low watermark."""
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = ask(port, "delete_records", 2, topics=topics, timeout=5000)
    (found,) = answer["topics"][0]["partitions"]
    return found["error_code"], found["low_watermark"]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[KorvetServer, KorvetServer]]:
    """Two front-ends of one server, whose sweeps come too late for any test."""
    with (
        running_server("valkey") as server,
        running_broker(redis_url=server.url, broker=SELDOM) as one,
        running_broker(redis_url=server.url, broker=SELDOM) as other,
    ):
        yield one, other


def test_retention_frees_memory_as_the_archive_grows(served: tuple[KorvetServer, KorvetServer]) -> None:
    """The archive commits at either front-end, and one of them dies with a commit that it has just taken."""
    one, other = served
    topic = created(one.port, korvet_retention="archived", retention_bytes="0")
    produced(one.port, topic, records(3), records(3), records(3))
    assert commit(other.port, topic, 3) == "NONE"
    until(lambda: start_of(one.port, topic) == 3)
    assert commit(other.port, topic, 6) == "NONE"
    other.kill()
    assert start_of(one.port, topic) in (3, 6)
    assert commit(one.port, topic, 6) == "NONE"
    until(lambda: start_of(one.port, topic) == 6)
    other.start()
    assert commit(other.port, topic, 9) == "NONE"
    until(lambda: start_of(one.port, topic) == 9)


def test_records_are_deleted_up_to_the_archive_only(served: tuple[KorvetServer, KorvetServer]) -> None:
    one, other = served
    topic = created(one.port, korvet_retention="archived")
    produced(one.port, topic, records(3), records(3))
    for offset in (-1, 1, 6):
        assert deleted(other.port, topic, offset) == ("POLICY_VIOLATION", -1)
    assert deleted(other.port, topic, 0) == ("NONE", 0)
    assert deleted(other.port, topic, 7) == ("OFFSET_OUT_OF_RANGE", -1)
    assert deleted(other.port, topic, -2) == ("OFFSET_OUT_OF_RANGE", -1)
    assert commit(one.port, topic, 4) == "NONE"
    assert deleted(other.port, topic, 5) == ("POLICY_VIOLATION", -1)
    assert deleted(other.port, topic, 2) == ("NONE", 2)
    assert deleted(other.port, topic, 4) == ("NONE", 4)
    assert deleted(other.port, topic, 2) == ("NONE", 4)
    assert commit(one.port, topic, 6) == "NONE"
    assert deleted(other.port, topic, -1) == ("NONE", 6)
    assert "korvet.retention=archived" in other.log
    results = ask(one.port, "delete_topics", 3, topic_names=[topic], timeout=5000)["responses"]
    assert [result["error_code"] for result in results] == ["NONE"]


def test_compacted_topic_cannot_have_archived_retention(served: tuple[KorvetServer, KorvetServer]) -> None:
    one, _ = served
    both = [{"name": "korvet.retention", "value": "archived"}, {"name": "cleanup.policy", "value": "delete,compact"}]
    name = unique()
    assert errors(create_topics(one.port, {"name": name, "configs": both})) == [(name, "INVALID_CONFIG", UNSUPPORTED)]
    archived, compacted = created(one.port, korvet_retention="archived"), created(one.port, cleanup_policy="compact")
    assert altered(one.port, archived, cleanup_policy="compact") == ("INVALID_CONFIG", UNSUPPORTED)
    assert altered(one.port, compacted, korvet_retention="archived") == ("INVALID_CONFIG", UNSUPPORTED)
    assert altered(one.port, compacted, korvet_retention="archived", cleanup_policy="delete") == ("NONE", None)
    code, message = altered(one.port, archived, korvet_retention="sometimes")
    assert (code, "String must be one of: limits, archived" in str(message)) == ("INVALID_CONFIG", True)


def altered(port: int, topic: str, **configs: str) -> tuple[str, str | None]:
    changes = [
        {"name": name.replace("_", "."), "config_operation": 0, "value": value} for name, value in configs.items()
    ]
    resource = {"resource_type": 2, "resource_name": topic, "configs": changes}
    answer = ask(port, "incremental_alter_configs", 1, resources=[resource], validate_only=False)
    (found,) = answer["responses"]
    return found["error_code"], found["error_message"]


def test_kafkas_clients_make_and_see_the_setting(served: tuple[KorvetServer, KorvetServer]) -> None:
    one, other = served
    topic = created(one.port)
    produced(one.port, topic, records(3), records(3))
    admin = AdminClient({"bootstrap.servers": one.bootstrap})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in {"korvet.retention": "archived", "retention.bytes": "0"}.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for altering in admin.incremental_alter_configs([resource]).values():
        altering.result(WITHIN_S)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    shown = admin.describe_configs([resource])[resource].result(WITHIN_S)["korvet.retention"]
    assert (shown.value, shown.is_default) == ("archived", False)
    position = confluent_kafka.TopicPartition(topic, 0, 3, leader_epoch=0)
    offsets = confluent_kafka.ConsumerGroupTopicPartitions(GROUP, [position])
    admin.alter_consumer_group_offsets([offsets])[GROUP].result(WITHIN_S)
    until(lambda: start_of(other.port, topic) == 3)


def test_late_archive_report_after_a_loss_removes_no_newer_records() -> None:
    options = {"appendonly": "yes", "appendfsync": "always"}
    with running_server("valkey", options=options) as server, running_broker(redis_url=server.url) as broker:
        port = broker.port
        topic = created(port, korvet_retention="archived", retention_bytes="0")
        produced(port, topic, records(3))
        shutil.copytree(server.directory / "appendonlydir", server.directory / "earlier")
        produced(port, topic, records(3))
        with broker.redis_outage():
            server.kill()
            shutil.rmtree(server.directory / "appendonlydir")
            (server.directory / "earlier").rename(server.directory / "appendonlydir")
            server.start()
        until(lambda: start_of(port, topic) == 0)
        produced(port, topic, records(5))
        until(lambda: commit(port, topic, 6) == "NONE")
        until(lambda: start_of(port, topic) == 3)
        assert deleted(port, topic, 4) == ("POLICY_VIOLATION", -1)
        assert deleted(port, topic, 3) == ("NONE", 3)
