"""Spark's own `format("kafka")` reads and writes korvet's topics, unchanged."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, Row, SparkSession

from tests.pipeline.written import create_topic, read_topic
from tests.support.broker import KorvetServer

START_MS = 1_700_000_000_000
HEADERS = "array(named_struct('key', 'h', 'value', cast(value as binary)))"


def produce(broker: KorvetServer, topic: str, numbers: range) -> None:
    """Produce numbers: n goes to partition n % 2, a second after n - 1, with a header."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for n in numbers:
        at_ms = START_MS + n * 1_000
        producer.produce(topic, f"v{n}", f"k{n}", partition=n % 2, timestamp=at_ms, headers=[("n", str(n).encode())])
    assert producer.flush(30) == 0


def transact(broker: KorvetServer, topic: str, values: list[str], *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"of-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    producer.commit_transaction(30) if commit else producer.abort_transaction(30)


def read(spark: SparkSession, broker: KorvetServer, **options: str) -> DataFrame:
    return spark.read.format("kafka").options(**{"kafka.bootstrap.servers": broker.bootstrap}, **options).load()


def values(frame: DataFrame) -> list[str]:
    rows = frame.selectExpr("cast(value as string) as value").collect()
    return sorted((row.value for row in rows), key=lambda value: int(value[1:]))


def expected(numbers: range) -> list[str]:
    return [f"v{n}" for n in numbers]


def test_stock_batch_reads_every_column(spark: SparkSession, broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "stock-batch")
    produce(broker, topic, range(20))
    rows = read(spark, broker, subscribe=topic, includeHeaders="true").orderBy("timestamp").collect()
    for n, row in enumerate(rows):
        assert (row.topic, row.partition, row.offset, row.timestampType) == (topic, n % 2, n // 2, 0)
        assert (bytes(row.key), bytes(row.value)) == (f"k{n}".encode(), f"v{n}".encode())
        assert row.headers == [Row(key="n", value=bytearray(str(n).encode()))]
        assert row.timestamp.timestamp() * 1000 == START_MS + n * 1_000
    assert len(rows) == 20


def test_stock_pattern_reads_the_topics_that_match(spark: SparkSession, broker: KorvetServer) -> None:
    for index, name in enumerate(("stock-pattern-a", "stock-pattern-b", "stock-other")):
        produce(broker, create_topic(broker.bootstrap, name), range(index * 10, index * 10 + 10))
    assert values(read(spark, broker, subscribePattern="stock-pattern-.*")) == expected(range(20))


def test_stock_offsets_and_times_bound_a_batch(spark: SparkSession, broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "stock-bounds")
    produce(broker, topic, range(20))
    from_5, to_12 = str(START_MS + 5_000), str(START_MS + 12_000)
    by_time = read(spark, broker, subscribe=topic, startingTimestamp=from_5, endingTimestamp=to_12)
    assert values(by_time) == expected(range(5, 12))
    starting = json.dumps({topic: {"0": int(from_5), "1": int(from_5) + 1}})
    by_partition = read(spark, broker, subscribe=topic, startingOffsetsByTimestamp=starting)
    assert values(by_partition) == expected(range(6, 20))
    starting, ending = json.dumps({topic: {"0": 2, "1": -2}}), json.dumps({topic: {"0": -1, "1": 3}})
    by_offset = read(spark, broker, subscribe=topic, startingOffsets=starting, endingOffsets=ending)
    assert values(by_offset) == sorted([*expected(range(4, 20, 2)), "v1", "v3", "v5"], key=lambda v: int(v[1:]))
    assigned = read(spark, broker, assign=json.dumps({topic: [1]}), minPartitions="4")
    assert assigned.rdd.getNumPartitions() >= 4
    assert values(assigned) == expected(range(1, 20, 2))


def test_stock_batch_reads_only_committed_records_if_told(spark: SparkSession, broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "stock-committed", 1)
    transact(broker, topic, ["v0", "v1"], commit=True)
    transact(broker, topic, ["v2", "v3"], commit=False)
    transact(broker, topic, ["v4"], commit=True)
    committed = {"kafka.isolation.level": "read_committed"}
    assert values(read(spark, broker, subscribe=topic, **committed)) == ["v0", "v1", "v4"]
    assert values(read(spark, broker, subscribe=topic)) == expected(range(5))


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
