"""Produce against a real front-end. Codes, messages and the other fields were seen on Apache Kafka 4.1.2."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from korvet.wire.batch import HEADER_BYTES, ZSTD, sealed, stamped
from tests.api.data import (
    Connection,
    batches_of,
    connected,
    fetch,
    now_ms,
    offsets,
    produce,
    produce_request,
    records,
    wanted,
)
from tests.api.raw import ask, create_topics, created, unique
from tests.api.rdkafka import until
from tests.api.test_archived_retention import altered, start_of
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka
from tests.wire.whole import Whole, built

LARGE = 20_000


def topic_of(broker: KorvetServer, version: int, **configs: str) -> str | UUID:
    """A new topic as this version of Produce or Fetch calls it."""
    pairs = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    (result,) = create_topics(broker.port, {"name": unique(), "configs": pairs})
    topic: str | UUID = result["topic_id"] if version >= 13 else result["name"]
    return topic


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("version", [9, 13])
def test_batches_get_dense_offsets(broker: KorvetServer, version: int, size: int) -> None:
    topic = topic_of(broker, version)
    answers = [produce(broker.port, topic, records(count, size), version) for count in (3, 1, 2)]
    assert [answer["error_code"] for answer in answers] == ["NONE"] * 3
    assert [answer["base_offset"] for answer in answers] == [0, 3, 4]
    assert {answer["log_append_time"] for answer in answers} == {None}
    if version >= 5:
        assert {answer["log_start_offset"] for answer in answers} == {0}
    (read,) = fetch(broker.port, topic, wanted(0), version=max(4, version))
    assert (offsets(read), read["high_watermark"]) == ([0, 3, 4], 6)


def test_the_zero_id_is_no_topic(broker: KorvetServer) -> None:
    assert produce(broker.port, UUID(int=0), records(), 13)["error_code"] == "UNKNOWN_TOPIC_ID"


@pytest.mark.parametrize(
    ("data", "code", "tells_log_start"),
    [
        pytest.param(None, "INVALID_RECORD", False, id="null"),
        pytest.param(records(producer_id=5, producer_epoch=0), "INVALID_RECORD", True, id="no sequence"),
    ],
)
def test_a_bad_batch_is_refused_and_the_connection_lives(
    broker: KorvetServer, data: bytes | None, code: str, tells_log_start: bool
) -> None:
    topic = created(broker.port)
    with connected(broker.port) as connection:
        answer = connection.ask("produce", 12, **produce_request(topic, data))
        (part,) = answer["responses"][0]["partition_responses"]
        assert (part["error_code"], part["base_offset"]) == (code, -1)
        assert part["log_start_offset"] == (0 if tells_log_start else -1)
        answer = connection.ask("produce", 12, **produce_request(topic, records()))
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0


def both(
    connection: Connection, topic: str, first: bytes, second: bytes, **values: Any
) -> list[tuple[str, str | None]]:
    """Codes and messages for batches for partitions 0 and 1 of one request."""
    request = produce_request(topic, first, **values)
    request["topic_data"][0]["partition_data"].append({"index": 1, "records": second})
    answer = connection.ask("produce", 12, **request)
    parts = answer["responses"][0]["partition_responses"]
    return [(part["error_code"], part["error_message"]) for part in parts]


def test_partitions_fail_alone_except_for_broken_frames_and_transactions(broker: KorvetServer) -> None:
    topic = created(broker.port, partitions=2)
    good = records()
    with connected(broker.port) as connection:
        assert both(connection, topic, good, records(damage="crc")) == [("NONE", None), ("CORRUPT_MESSAGE", None)]
        message = "Record size 0 is less than the minimum record overhead (14)"
        assert both(connection, topic, good, bytes(100)) == [("CORRUPT_MESSAGE", message)] * 2
        refused = [("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", None)] * 2
        assert both(connection, topic, good, records(attributes=0x10)) == refused
        assert both(connection, topic, good, good) == [("NONE", None)] * 2
    (read,) = fetch(broker.port, topic, wanted(0))
    assert offsets(read) == [0, 3]


@pytest.mark.parametrize("acks", [2, -2])
def test_acks_are_all_one_or_none(broker: KorvetServer, acks: int) -> None:
    topic = created(broker.port)
    assert produce(broker.port, topic, records(), acks=acks)["error_code"] == "INVALID_REQUIRED_ACKS"
    assert produce(broker.port, topic, records(damage="crc"), acks=acks)["error_code"] == "INVALID_REQUIRED_ACKS"
    assert produce(broker.port, topic, records(damage="magic"), acks=acks)["error_code"] == "INVALID_RECORD"
    assert produce(broker.port, topic, records(), acks=1)["base_offset"] == 0


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


@pytest.mark.parametrize("data", [records(damage="crc"), bytes(100), records(attributes=0x10)])
def test_an_error_with_acks_0_closes_the_connection(broker: KorvetServer, data: bytes) -> None:
    topic = created(broker.port)
    with connected(broker.port) as connection:
        connection.send("produce", 12, **produce_request(topic, data, acks=0))
        assert connection.socket.recv(1) == b""


def test_a_request_without_topics_or_partitions_has_an_empty_answer(broker: KorvetServer) -> None:
    with connected(broker.port) as connection:
        assert connection.ask("produce", 12, acks=-1, timeout=1000, topic_data=[])["responses"] == []
        nothing = [{"name": created(broker.port), "partition_data": []}]
        assert connection.ask("produce", 12, acks=-1, timeout=1000, topic_data=nothing)["responses"] == []


@kafka("UnifiedLogTest.testMessageSizeCheck")
@pytest.mark.parametrize("size", [10, LARGE])
def test_too_large_batch_is_refused_and_the_connection_stays_open(broker: KorvetServer, size: int) -> None:
    data = records(3, size)
    topic = created(broker.port, max_message_bytes=str(len(data) - 1))
    with connected(broker.port) as connection:
        answer = connection.ask("produce", 12, **produce_request(topic, data))
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == "MESSAGE_TOO_LARGE"
        answer = connection.ask("produce", 12, **produce_request(topic, records(1, 1)))
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0


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


def test_timestamps_too_far_ahead_or_behind_are_refused(broker: KorvetServer) -> None:
    topic = created(broker.port, message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="30000")
    now = now_ms()
    outcomes = {
        ahead: produce(broker.port, topic, records(timestamp=now + ahead))["error_code"]
        for ahead in (-90_000, -30_000, 10_000, 60_000)
    }
    assert outcomes == {-90_000: "INVALID_TIMESTAMP", -30_000: "NONE", 10_000: "NONE", 60_000: "INVALID_TIMESTAMP"}
    assert produce(broker.port, topic, records(timestamp=-1))["error_code"] == "NONE"
    refused = produce(broker.port, topic, records(timestamp=0))
    assert refused["error_message"] == "One or more records have been rejected due to invalid timestamp"
    assert refused["log_start_offset"] == 0


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


def test_producers_clock_counts_if_the_topic_says_so(broker: KorvetServer) -> None:
    topic = created(broker.port, retention_ms="-1")
    produce(broker.port, topic, records(timestamp=5, attributes=0x08))
    (read,) = fetch(broker.port, topic, wanted(0))
    (batch,) = batches_of(read)
    assert (batch["crc"], batch["attributes"], batch["max_time"]) == ("right", 0, 5)


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
@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("claimed", ["the last record's", "-1", "0", "too great"])
def test_greatest_time_is_that_of_the_records(broker: KorvetServer, claimed: str, count: int, codec: int) -> None:
    """franz-go writes the last record's time, Sarama -1, other clients 0; retention and lookups go by it."""
    topic, now = created(broker.port), now_ms()
    ago = now - 30 * 86_400_000
    times = [now, now + 5, *[ago] * (count - 2)]
    wrong = {"the last record's": ago, "-1": -1, "0": 0, "too great": now + 70}[claimed]
    assert produce(broker.port, topic, dated_batch(wrong, *times, codec=codec))["error_code"] == "NONE"
    (batch,) = batches_of(fetch(broker.port, topic, wanted(0))[0])
    assert (batch["max_time"], batch["first_time"], batch["count"]) == (now + 5, now, count)
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


@kafka("LogValidatorTest.testUnmatchedNumberOfRecords")
@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("claimed", [2, 4])
def test_batch_of_more_or_fewer_records_than_its_header_says_is_refused(
    broker: KorvetServer, claimed: int, codec: int
) -> None:
    batch, data = built(*[Whole(timestamp=now_ms())] * 3, codec=codec)
    batch = batch._replace(records=claimed, last_offset_delta=claimed - 1)
    answer = produce(broker.port, created(broker.port), sealed(batch, data[HEADER_BYTES:])[1])
    assert (answer["error_code"], answer["base_offset"]) == ("INVALID_RECORD", -1)
