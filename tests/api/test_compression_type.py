"""Topics with a compression.type of their own: every codec into every other, and batches that stay as they were."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
import pytest

from tests.api.data import batches_of, fetch, now_ms, produce, wanted
from tests.api.raw import ask, created
from tests.oracle.batches import Batch, describe, encode
from tests.support.broker import KorvetServer
from tests.support.ported import kafka
from tests.support.times import MIDNIGHT_MS

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
WITHIN_S = 30.0


@pytest.mark.parametrize("sent", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("kept", CODECS)
def test_batch_is_stored_as_the_topic_says(broker: KorvetServer, sent: str, kept: str) -> None:
    topic = created(broker.port, compression_type=kept)
    settings = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}
    producer = confluent_kafka.Producer({**settings, "compression.type": sent, "linger.ms": 200})
    now = int(time.time() * 1000)
    failed: list[Any] = []
    values = [b"%d" % number + b"v" * 1000 for number in range(100)]
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            b"key",
            headers=[("h", b"x")],
            timestamp=now - number,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(WITHIN_S) == 0
    assert failed == []
    (read,) = fetch(broker.port, topic, wanted(0))
    stored = batches_of(read)
    assert {batch["attributes"] & 7 for batch in stored} == {CODECS[kept]}
    assert all(batch["producer_id"] >= 0 and batch["base_sequence"] >= 0 for batch in stored)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = consumer.consume(100, WITHIN_S)
    consumer.close()
    assert [one.value() for one in found] == values
    assert [one.offset() for one in found] == list(range(100))
    assert [one.timestamp()[1] for one in found] == [now - number for number in range(100)]
    assert all((one.key(), one.headers()) == (b"key", [("h", b"x")]) for one in found)


def test_batch_that_grows_over_the_bound_is_too_large(broker: KorvetServer) -> None:
    topic = created(broker.port, compression_type="uncompressed", max_message_bytes="2000")
    batch = encode(Batch(count=100, value=b"v" * 100, attributes=1))
    assert len(batch) < 2000
    assert produce(broker.port, topic, batch)["error_code"] == "MESSAGE_TOO_LARGE"


def test_undecodable_batch_is_refused(broker: KorvetServer) -> None:
    topic = created(broker.port, compression_type="lz4")
    assert produce(broker.port, topic, encode(Batch(attributes=4)))["error_code"] == "UNKNOWN_SERVER_ERROR"


LEVELS = {"gzip": ("1", "9"), "lz4": ("9", "12"), "zstd": ("-50", "19")}


@pytest.mark.parametrize("codec", LEVELS)
def test_level_is_the_topics(broker: KorvetServer, codec: str) -> None:
    """The higher level takes fewer bytes, and every client reads it: LZ4's thorough mode makes another kind of
    frame."""
    words = [b"%x" % (number * 2654435761 % 2**32) for number in range(300)]
    value = b" ".join(words[number * number % 300] for number in range(3000))
    sizes = []
    for level in LEVELS[codec]:
        topic = created(broker.port, **{"compression_type": codec, f"compression_{codec}_level": level})  # type: ignore[arg-type]
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(topic, value)
        assert producer.flush(WITHIN_S) == 0
        consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        (found,) = consumer.consume(1, WITHIN_S)
        consumer.close()
        assert found.value() == value
        (read,) = fetch(broker.port, topic, wanted(0))
        sizes.append(len(read["records"]))
    assert sizes[1] < sizes[0] < len(value)


@pytest.mark.parametrize("kept", ["uncompressed", "gzip", "lz4"])
def test_broker_sets_the_time_of_a_batch_that_it_compresses_anew(broker: KorvetServer, kept: str) -> None:
    topic = created(broker.port, compression_type=kept, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    sent = encode(Batch(count=3, value=b"v" * 100, key=b"k", attributes=1, producer_id=7, producer_epoch=0, sequence=0))
    answer = produce(broker.port, topic, sent)
    assert (answer["error_code"], answer["base_offset"]) == ("NONE", 0)
    assert before <= answer["log_append_time"] <= int(time.time() * 1000)
    # The partition knows the producer by the batch that it sent, which is not the stored one.
    assert produce(broker.port, topic, sent)["base_offset"] == 0
    (batch,) = batches_of(fetch(broker.port, topic, wanted(0))[0])
    assert (batch["attributes"], batch["max_time"]) == (8 | CODECS[kept], answer["log_append_time"])
    assert (batch["producer_id"], batch["producer_epoch"], batch["base_sequence"]) == (7, 0, 0)


@kafka("LogValidatorTest.testDifferentLevelDoesNotCauseRecompression")
@pytest.mark.parametrize("level", ["1", "9"])
def test_batch_in_another_level_stays_as_it_came(broker: KorvetServer, level: str) -> None:
    data = encode(Batch(count=2, value=b"data" * 256, attributes=1, timestamp=now_ms()))
    topic = created(broker.port, compression_type="gzip", compression_gzip_level=level)
    assert produce(broker.port, topic, data)["error_code"] == "NONE"
    (batch,) = batches_of(fetch(broker.port, topic, wanted(0))[0])
    (sent,) = describe(data) or ({},)
    assert batch["body"] == sent["body"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_record_is_found_by_time_in_the_compressed_batches_of_a_real_producer(broker: KorvetServer, codec: str) -> None:
    topic = created(broker.port)
    settings = {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 200}
    producer = confluent_kafka.Producer(settings)
    for number in range(50):
        producer.produce(topic, b"v" * 200, timestamp=MIDNIGHT_MS + 10 * number)
    assert producer.flush(WITHIN_S) == 0
    part = {"partition_index": 0, "timestamp": MIDNIGHT_MS + 345, "current_leader_epoch": -1}
    answer = ask(broker.port, "list_offsets", 10, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
    (found,) = answer["topics"][0]["partitions"]
    assert (found["error_code"], found["offset"], found["timestamp"]) == ("NONE", 35, MIDNIGHT_MS + 350)
