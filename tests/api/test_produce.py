"""Produce against a real front-end. Codes, messages and the other fields were seen on Apache Kafka 4.1.2."""

from __future__ import annotations

from uuid import UUID

import pytest

from korvet.wire.batch import HEADER_BYTES, ZSTD, sealed, stamped
from tests.api.data import (
    batches_of,
    connected,
    fetch,
    now_ms,
    produce,
    produce_request,
    records,
    wanted,
)
from tests.api.raw import ask, create_topics, created, unique
from tests.api.test_archived_retention import altered, start_of
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka
from tests.support.waiting import until
from tests.wire.whole import Whole, built

LARGE = 20_000


def topic_of(broker: KorvetServer, version: int, **configs: str) -> str | UUID:
    """A new topic as this version of Produce or Fetch calls it."""
    pairs = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    (result,) = create_topics(broker.port, {"name": unique(), "configs": pairs})
    topic: str | UUID = result["topic_id"] if version >= 13 else result["name"]
    return topic


def test_null_records_are_refused_and_the_connection_lives(broker: KorvetServer) -> None:
    """Kafka does not answer at all."""
    topic = created(broker.port)
    with connected(broker.port) as connection:
        for data, code in ((None, "INVALID_RECORD"), (records(), "NONE")):
            answer = connection.ask("produce", 12, **produce_request(topic, data))
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == code


def test_acks_0_is_not_answered_and_keeps_its_order(broker: KorvetServer) -> None:
    topic = created(broker.port)
    with connected(broker.port) as connection:
        for count in range(1, 5):
            connection.send("produce", 12, **produce_request(topic, records(count), acks=0))
            connection.skip()
        connection.send("produce", 12, **produce_request(topic, records(), acks=1))
        assert connection.receive()["responses"][0]["partition_responses"][0]["base_offset"] == 10


def test_records_of_a_client_that_leaves_at_once_with_acks_0_are_appended(broker: KorvetServer) -> None:
    topic, count = created(broker.port), 1000
    with connected(broker.port) as connection:
        for _ in range(5):
            # So many records of an unknown library are looked at in a thread.
            connection.send("produce", 12, **produce_request(topic, records(count), acks=0))
    until(lambda: fetch(broker.port, topic, wanted(0))[0]["high_watermark"] == 5 * count)


@pytest.mark.parametrize("size", [10, LARGE])
def test_many_requests_in_flight_are_appended_and_answered_in_order(broker: KorvetServer, size: int) -> None:
    topic = created(broker.port)
    with connected(broker.port) as connection:
        for _ in range(50):
            connection.send("produce", 12, **produce_request(topic, records(2, size)))
        answers = [connection.receive() for _ in range(50)]
    bases = [answer["responses"][0]["partition_responses"][0]["base_offset"] for answer in answers]
    assert bases == list(range(0, 100, 2))


def test_first_requests_for_a_topic_new_to_the_front_end_keep_their_order(broker: KorvetServer) -> None:
    with connected(broker.port) as connection:
        topic = unique()
        connection.send("produce", 12, **produce_request(topic, records()))
        assert connection.receive()["responses"][0]["partition_responses"][0]["error_code"] == (
            "UNKNOWN_TOPIC_OR_PARTITION"
        )
        create_topics(broker.port, {"name": topic})
        for count in (1, 2, 3):
            connection.send("produce", 12, **produce_request(topic, records(count)))
        answers = [connection.receive()["responses"][0]["partition_responses"][0] for _ in range(3)]
        assert [answer["base_offset"] for answer in answers] == [0, 1, 3]


@pytest.mark.parametrize("size", [10, LARGE])
def test_log_append_time_is_the_brokers(broker: KorvetServer, size: int) -> None:
    topic = created(broker.port, message_timestamp_type="LogAppendTime")
    before = now_ms()
    answer = produce(broker.port, topic, records(3, size, timestamp=5))
    assert before <= answer["log_append_time"] <= now_ms()
    (read,) = fetch(broker.port, topic, wanted(0))
    (batch,) = batches_of(read)
    assert (batch["crc"], batch["attributes"], batch["first_time"]) == ("right", 0x08, 5)
    assert batch["max_time"] == answer["log_append_time"]


def test_a_deleted_topic_is_unknown_and_its_successor_begins_anew(broker: KorvetServer) -> None:
    topic = created(broker.port)
    with connected(broker.port) as connection:
        connection.ask("produce", 12, **produce_request(topic, records()))
        connection.ask("delete_topics", 5, topic_names=[topic], timeout=5000)
        answer = connection.ask("produce", 12, **produce_request(topic, records()))
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        created(broker.port, topic)
        answer = connection.ask("produce", 12, **produce_request(topic, records()))
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0


def test_ten_megabytes_in_one_request_are_stored_byte_for_byte(broker: KorvetServer) -> None:
    topic = created(broker.port, max_message_bytes=str(20 << 20))
    data = records(10, 1 << 20)
    assert produce(broker.port, topic, data)["error_code"] == "NONE"
    (read,) = fetch(broker.port, topic, wanted(0))
    assert read["records"][16:] == data[16:]


@kafka("UnifiedLogTest.testCompactedTopicConstraints")
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_topic_takes_no_record_without_a_key(broker: KorvetServer, policy: str) -> None:
    topic = topic_of(broker, 9, cleanup_policy=policy)
    refused = produce(broker.port, topic, records(2), 9)
    why = f"Compacted topic cannot accept message without key in topic partition {topic}-0"
    assert (refused["error_code"], refused["base_offset"], refused["log_start_offset"]) == ("INVALID_RECORD", -1, 0)
    assert [tuple(error.values()) for error in refused["record_errors"]] == [(0, why), (1, why)]
    assert refused["error_message"].startswith("One or more records have been rejected due to 2 record errors in total")
    assert produce(broker.port, topic, records(2, key=b"k"), 9)["base_offset"] == 0
    assert produce(broker.port, topic, records(2, key=b"k", attributes=1), 9)["base_offset"] == 2
    assert produce(broker.port, topic, records(2, attributes=1), 9)["error_code"] == "INVALID_RECORD"


def dated_batch(claimed: int, *times: int, codec: int = 0) -> bytes:
    """A batch whose header claims a greatest time."""
    batch, data = built(*(Whole(timestamp=time) for time in times), codec=codec)
    return stamped(batch, data, batch.attributes, claimed)[1]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("ahead", [-30 * 86_400_000, 70])
def test_greatest_time_is_that_of_the_records_of_a_long_batch(broker: KorvetServer, ahead: int, codec: int) -> None:
    """franz-go writes the last record's time, Sarama -1, other clients 0; retention and lookups go by it."""
    topic, now = created(broker.port), now_ms()
    times = [now, now + 5, *[now - 30 * 86_400_000] * 198]
    assert produce(broker.port, topic, dated_batch(now + ahead, *times, codec=codec))["error_code"] == "NONE"
    (batch,) = batches_of(fetch(broker.port, topic, wanted(0))[0])
    assert (batch["max_time"], batch["first_time"], batch["count"]) == (now + 5, now, 200)
    for asked, found in ((-3, (1, now + 5)), (now + 1, (1, now + 5)), (now + 6, (-1, -1))):
        assert by_time(broker.port, topic, asked) == found


def test_retention_keeps_records_of_now_whatever_their_header_claims() -> None:
    """The broker checks often: it trims no topic soon whose limits are lowered within a second of its creation."""
    with running_broker(broker={"log.retention.check.interval.ms": "50"}) as broker:
        topic, now = created(broker.port, retention_ms="-1"), now_ms()
        ago = now - 30 * 86_400_000
        sent = dated_batch(ago, ago), dated_batch(ago, now, now, ago), dated_batch(0, now), dated_batch(-1, now)
        for batch in sent:
            assert produce(broker.port, topic, batch)["error_code"] == "NONE"
        assert altered(broker.port, topic, retention_ms="604800000") == ("NONE", None)
        until(lambda: start_of(broker.port, topic) > 0)
        assert start_of(broker.port, topic) == 1


def test_many_compressed_batches_and_long_ones_are_dated_too(broker: KorvetServer) -> None:
    """The loop looks into a few short ones; what is more goes to a thread, and the request keeps its order."""
    topic, now = created(broker.port, partitions=30), now_ms()
    batch, short = built(Whole(timestamp=now - 7), Whole(timestamp=now - 8), codec=ZSTD)
    bad = sealed(batch._replace(records=3, last_offset_delta=2), short[HEADER_BYTES:])[1]
    batch, long = built(*[Whole(value=bytes(9000), timestamp=now - 7)] * 10, codec=ZSTD)
    long = stamped(batch, long, batch.attributes, 0)[1]
    sent = [long if index == 20 else bad if index in (3, 25) else short for index in range(30)]
    data = [{"name": topic, "partition_data": [{"index": at, "records": one} for at, one in enumerate(sent)]}]
    with connected(broker.port) as connection:
        answer = connection.ask("produce", 12, acks=-1, timeout=5000, topic_data=data)
    parts = answer["responses"][0]["partition_responses"]
    assert [one["index"] for one in parts if one["error_code"] != "NONE"] == [3, 25]
    for part in fetch(broker.port, topic, *(wanted(0, index) for index in range(30))):
        times = [batch["max_time"] for batch in batches_of(part)]
        assert times == ([] if part["partition_index"] in (3, 25) else [now - 7])


def by_time(port: int, topic: str, timestamp: int) -> tuple[int, int]:
    """Offset and time of the first record that is not older; -3 is the newest record."""
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    answer = ask(port, "list_offsets", 7, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
    (found,) = answer["topics"][0]["partitions"]
    return found["offset"], found["timestamp"]


@pytest.mark.parametrize(
    ("name", "version", "is_believed"),
    [
        ("librdkafka", "2.10.0", True),
        ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0", True),
        ("apache-kafka-java", "4.1.2", True),
        ("korvet", "0.7.0", True),
        ("sarama", "1.43.3", False),
        ("apache-kafka-javascript", "1", False),
    ],
)
def test_header_of_a_library_that_computes_it_is_believed(
    broker: KorvetServer, name: str, version: str, is_believed: bool
) -> None:
    """Such batches are stored as they came, which costs nothing; but no batch is older than its base time."""
    topic, now = created(broker.port), now_ms()
    with connected(broker.port) as connection:
        connection.ask("api_versions", 3, client_software_name=name, client_software_version=version)
        for claimed in (now + 1, 0):
            request = produce_request(topic, dated_batch(claimed, now, now + 9))
            connection.ask("produce", 12, **request)
    first, second = batches_of(fetch(broker.port, topic, wanted(0))[0])
    assert (first["max_time"], second["max_time"]) == (now + 1 if is_believed else now + 9, now + 9)


@pytest.mark.parametrize("name", ["apache-kafka-java", "sarama"])
def test_age_of_each_record_is_bounded_whatever_the_library(broker: KorvetServer, name: str) -> None:
    topic, now = created(broker.port, message_timestamp_before_max_ms="3600000"), now_ms()
    with connected(broker.port) as connection:
        connection.ask("api_versions", 3, client_software_name=name, client_software_version="1")
        codes = []
        for second in (now - 1, now - 86_400_000):
            answer = connection.ask("produce", 12, **produce_request(topic, dated_batch(now, now, second)))
            codes.append(answer["responses"][0]["partition_responses"][0]["error_code"])
    assert codes == ["NONE", "INVALID_TIMESTAMP"]
