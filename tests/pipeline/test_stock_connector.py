"""Spark's own `format("kafka")` reads and writes korvet's topics, unchanged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.kafka.test_tier import SETTINGS, leave_to_the_tier, new_topic, written
from tests.kafka.test_tier import produce as produce_records
from tests.pipeline.written import create_topic, read_topic
from tests.support.broker import KorvetServer, running_broker

START_MS = 1_700_000_000_000
HEADERS = "array(named_struct('key', 'h', 'value', cast(value as binary)))"


def produce(broker: KorvetServer, topic: str, numbers: range) -> None:
    """Produce numbers: n goes to partition n % 2, a second after n - 1, with a header."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for n in numbers:
        at_ms = START_MS + n * 1_000
        producer.produce(topic, f"v{n}", f"k{n}", partition=n % 2, timestamp=at_ms, headers=[("n", str(n).encode())])
    assert producer.flush(30) == 0


def test_stock_stream_goes_on_from_its_checkpoint(spark: SparkSession, broker: KorvetServer, tmp_path: Path) -> None:
    source = create_topic(broker.bootstrap, "stock-stream-source")
    sink = create_topic(broker.bootstrap, "stock-stream-sink")
    kafka = {"kafka.bootstrap.servers": broker.bootstrap}

    def run() -> int:
        options = {**kafka, "subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
        records = spark.readStream.format("kafka").options(**options, includeHeaders="true").load()
        chosen = records.select("key", "value", "headers", "partition").writeStream.format("kafka")
        chosen = chosen.options(**kafka, topic=sink, checkpointLocation=str(tmp_path / "checkpoint"))
        query = chosen.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240)
        finally:
            query.stop()
        return sum(one["numInputRows"] for one in query.recentProgress)

    for numbers in (range(8), range(8, 20), range(20, 20)):
        produce(broker, source, numbers)
        assert run() == len(numbers)
    found = [(one.partition, one.key, one.value, one.headers) for one in read_topic(broker.bootstrap, sink)]
    assert sorted(found) == sorted(
        (n % 2, f"k{n}".encode(), f"v{n}".encode(), [("n", str(n).encode())]) for n in range(20)
    )


def test_stock_sink_writes_a_batch(spark: SparkSession, broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "stock-write", 3)
    frame = spark.range(30).selectExpr(f"'{topic}' as topic", "cast(id % 3 as int) as partition", "string(id) as value")
    before_ms = int(datetime.now(UTC).timestamp() * 1000)
    frame = frame.selectExpr("*", f"{HEADERS} as headers", "if(value = '7', null, concat('k', value)) as key")
    frame.write.format("kafka").options(**{"kafka.bootstrap.servers": broker.bootstrap}).save()
    found = read_topic(broker.bootstrap, topic)
    assert len(found) == 30
    for one in found:
        value = one.value or b""
        assert one.partition == int(value) % 3
        assert one.key == (None if value == b"7" else b"k" + value)
        assert one.headers == [("h", value)]
        assert one.timestamp_ms >= before_ms


def test_stock_source_reads_records_that_only_the_tier_has(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker(tier=str(tmp_path / "tier"), broker=SETTINGS) as broker:
        topic, records = new_topic(broker), written(600)
        produce_records(broker, topic, records, "lz4")
        assert leave_to_the_tier(broker, topic, 0.6) < len(records)
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
        source = spark.read.format("kafka").options(**options)
        for start, first in ({"startingOffsets": "earliest"}, 0), ({"startingTimestamp": records[77].timestamp_ms}, 77):
            rows = source.options(**start).load().orderBy("offset").collect()
            assert [(row.offset, row.timestamp.timestamp() * 1000, row.key, row.value) for row in rows] == [
                (one.offset, one.timestamp_ms, one.key, one.value) for one in records[first:]
            ]
