"""Topics that say how batches are compressed: every codec into every other, and what stays as it was."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
import pytest

from tests.api.data import batches_of, fetch, produce, wanted
from tests.api.raw import created
from tests.oracle.batches import Batch, encode
from tests.support.broker import KorvetServer

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
    assert produce(broker.port, topic, encode(Batch(attributes=4)))["error_code"] == "INVALID_RECORD"
