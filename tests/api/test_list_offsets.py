"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords against a real front-end, as Apache Kafka 4.1.2 answers them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.data import fetch, produced, records, wanted
from tests.api.raw import ask, created
from tests.support.broker import KorvetServer
from tests.support.times import MIDNIGHT_MS

VERSIONS = range(1, 11)
LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
SINCE = {LATEST: 1, EARLIEST: 1, NEWEST: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}


def listed(broker: KorvetServer, topic: str, *asked: tuple[int, int], version: int = 10, epoch: int = -1) -> list[Any]:
    """Code, offset, timestamp and (from version 4 on) leader epoch for pairs of partition and timestamp."""
    parts = [
        {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch} for index, timestamp in asked
    ]
    answer = ask(broker.port, "list_offsets", version, replica_id=-1, topics=[{"name": topic, "partitions": parts}])
    return [
        (part["error_code"], part["offset"], part["timestamp"], part.get("leader_epoch", 0))
        for part in answer["topics"][0]["partitions"]
    ]


@pytest.fixture(scope="module")
def topic(broker: KorvetServer) -> str:
    """Three batches in partition 0, the first of them the newest; nothing in partition 1."""
    name = created(broker.port, partitions=2)
    for ahead in (0, -10_000, -5000):
        produced(broker.port, name, records(3, timestamp=MIDNIGHT_MS + ahead, step_ms=10))
    return name


@pytest.mark.parametrize("version", VERSIONS)
def test_special_timestamps_give_starts_and_ends(broker: KorvetServer, topic: str, version: int) -> None:
    known = {
        LATEST: ("NONE", 9, -1, 0),
        EARLIEST: ("NONE", 0, -1, 0),
        NEWEST: ("NONE", 2, MIDNIGHT_MS + 20, 0),
        EARLIEST_LOCAL: ("NONE", 0, -1, 0),
        LATEST_TIERED: ("NONE", -1, -1, -1),
    }
    unsupported = ("UNSUPPORTED_VERSION", -1, -1, -1 if version >= 4 else 0)
    for timestamp in (*known, -6, -7):
        expected = known[timestamp] if version >= SINCE.get(timestamp, 99) else unsupported
        assert listed(broker, topic, (0, timestamp), version=version) == [expected], timestamp


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_by_time_in_compressed_batches_of_a_real_producer(broker: KorvetServer, codec: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    name = created(broker.port)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 200}
    )
    for number in range(50):
        producer.produce(name, b"v" * 200, timestamp=MIDNIGHT_MS + 10 * number)
    assert producer.flush(20) == 0
    assert listed(broker, name, (0, MIDNIGHT_MS + 345)) == [("NONE", 35, MIDNIGHT_MS + 350, 0)]


# ---------------------------------------------------------------------- OffsetForLeaderEpoch


# ---------------------------------------------------------------------- DeleteRecords


def deleted(broker: KorvetServer, topic: str, offset: int, partition: int = 0, version: int = 2) -> tuple[str, int]:
    """Code and low watermark."""
    part = {"partition_index": partition, "offset": offset}
    topics = [{"name": topic, "partitions": [part]}]
    answer = ask(broker.port, "delete_records", version, topics=topics, timeout=5000)
    (found,) = answer["topics"][0]["partitions"]
    return found["error_code"], found["low_watermark"]


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_up_to_an_offset(broker: KorvetServer, version: int) -> None:
    name = created(broker.port)
    for ahead in (0, 1000, 2000):
        produced(broker.port, name, records(3, timestamp=MIDNIGHT_MS + ahead))
    assert deleted(broker, name, 4, version=version) == ("NONE", 4)
    assert deleted(broker, name, 2, version=version) == ("NONE", 4)
    below, inside = (fetch(broker.port, name, wanted(offset))[0] for offset in (3, 4))
    assert below["error_code"] == "OFFSET_OUT_OF_RANGE"
    assert (inside["error_code"], inside["log_start_offset"]) == ("NONE", 4)
    assert listed(broker, name, (0, EARLIEST)) == [("NONE", 4, -1, 0)]
    assert listed(broker, name, (0, 0)) == [("NONE", 4, MIDNIGHT_MS + 1000, 0)]
    assert deleted(broker, name, -1, version=version) == ("NONE", 9)
    assert listed(broker, name, (0, EARLIEST)) == listed(broker, name, (0, LATEST)) == [("NONE", 9, -1, 0)]
    produced(broker.port, name, records())
    assert listed(broker, name, (0, LATEST)) == [("NONE", 12, -1, 0)]
