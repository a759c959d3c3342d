"""`df.write.format("korvet")`: the columns of records, and refusals.

After Spark's KafkaSinkBatchSuite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.sink import batch_writer, stream_writer
from korvet.pipeline.sink.columns import Columns
from tests.pipeline.written import create_topic, read_topic
from tests.support.broker import KorvetServer

KINDS: Mapping[str, DataType] = {"string": StringType(), "int": IntegerType(), "long": LongType()}
HEADERS = "array<struct<key:string,value:binary>>"


def write(frame: DataFrame, broker: KorvetServer, **options: Any) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    frame.write.format("korvet").options(**options).mode("append").save()


def error_of(frame: DataFrame, broker: KorvetServer, **options: Any) -> str:
    with pytest.raises(Exception) as caught:
        write(frame, broker, **options)
    return str(failure(caught.value))


@pytest.mark.scene
def test_batch_writes_all_columns_in_any_order(spark: SparkSession, broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "sink-columns", 3)
    at = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    rows = [
        (at, [("a", b"1"), ("b", None)], 7, 2, b"v0", topic, "k0"),
        (None, None, 8, 2, None, topic, "k1"),
        (at, [], 9, 1, b"", topic, None),
    ]
    schema = (
        f"timestamp timestamp, headers {HEADERS}, unused int, partition int, value binary, topic string, key string"
    )
    before_ms = int(datetime.now(UTC).timestamp() * 1000)
    write(spark.createDataFrame(rows, schema).coalesce(1), broker)
    bare, first, second = read_topic(broker.bootstrap, topic)
    at_ms = 1714979289123
    assert first[:5] == (2, 0, b"k0", b"v0", [("a", b"1"), ("b", None)])
    assert (first.timestamp_ms, bare.timestamp_ms) == (at_ms, at_ms)
    assert second[:5] == (2, 1, b"k1", None, [])
    assert second.timestamp_ms >= before_ms
    assert bare[:5] == (1, 0, None, b"", [])


def test_topic_option_overrides_the_column(spark: SparkSession, broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "sink-option", 1)
    write(spark.createDataFrame([("nowhere", "value")], "topic string, value string"), broker, topic=topic)
    assert [one.value for one in read_topic(broker.bootstrap, topic)] == [b"value"]


def test_sink_chooses_a_keys_partition_like_the_java_client(spark: SparkSession, broker: KorvetServer) -> None:
    ours, theirs = (create_topic(broker.bootstrap, f"sink-partitioner-{name}", 5) for name in ("korvet", "kafka"))
    frame = spark.range(200).selectExpr("concat('key ', id) as key", "'' as value")
    write(frame, broker, topic=ours)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": theirs}
    frame.write.format("kafka").options(**options).save()
    by_korvet, by_kafka = (
        {(one.partition, one.key) for one in read_topic(broker.bootstrap, t)} for t in (ours, theirs)
    )
    assert len(by_korvet) == 200
    assert by_korvet == by_kafka


def test_batch_writes_every_row_of_a_large_frame_once(spark: SparkSession, broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "sink-many")
    frame = spark.range(0, 30_000, 1, 3).selectExpr("cast(id as string) as value")
    write(frame, broker, topic=topic, **{"kafka.queue.buffering.max.messages": "1000"})
    assert sorted(int(one.value or b"") for one in read_topic(broker.bootstrap, topic)) == list(range(30_000))


def test_batch_writes_large_values_if_the_topic_takes_them(spark: SparkSession, broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "sink-large", 1)
    frame = spark.sql("select repeat('x', 1040000) as value")
    assert "is too large" in error_of(frame, broker, topic=topic)
    write(frame, broker, topic=topic, **{"kafka.max.request.size": "1048576"})
    assert [len(one.value or b"") for one in read_topic(broker.bootstrap, topic)] == [1_040_000]


@pytest.mark.scene
def test_batch_with_exactly_once_writes_a_transaction_for_each_task(spark: SparkSession, broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "sink-transaction", 1)
    # The topic refuses the second task's last row, so readers see nothing of that task.
    row = "case when id = 199 then 7 else 0 end as partition"
    frame = spark.range(0, 200, 1, 2).selectExpr("cast(id as string) as value", row)
    assert "sink-transaction-7" in error_of(frame, broker, topic=topic, exactlyOnce="true")
    write(frame.where("id < 199"), broker, topic=topic, exactlyOnce="true")
    # The failed job's first task committed, or did not begin, or ended after the job.
    committed = sorted(int(one.value or b"") for one in read_topic(broker.bootstrap, topic))
    assert committed in (list(range(199)), sorted([*range(100), *range(199)]))


@pytest.mark.parametrize(
    ("schema", "options", "told"),
    [
        ("value string", {}, "topic option required when no 'topic' attribute is present"),
        ("topic string, key string", {}, "Required attribute 'value' not found"),
        ("value int", {"topic": "t"}, "value attribute unsupported type int. value must be a(n) string or binary"),
        ("value string, key int", {"topic": "t"}, "key must be a(n) string or binary"),
        ("value string, topic int", {}, "topic must be a(n) string"),
        ("value string, partition string", {"topic": "t"}, "partition must be a(n) int"),
        ("value string, timestamp long", {"topic": "t"}, "timestamp must be a(n) timestamp"),
        ("value string, headers string", {"topic": "t"}, f"headers must be a(n) {HEADERS}"),
        ("value string", {"topic": "t", "exactlyOnce": "yes"}, "option exactlyOnce: expected true, partition or false"),
        ("value string", {"topic": "t", "confirmTimeout": "x"}, "option confirmTimeout: expected seconds"),
        ("value string", {"topic": "t", "kafka.transactional.id": "x"}, "kafka.transactional.id cannot be set"),
        ("value string", {"topic": "t", "kafka.bootstrap.servers": ""}, "'kafka.bootstrap.servers' must be specified"),
    ],
)
def test_writer_refuses_wrong_columns_or_options_in_one_sentence(
    schema: str, options: dict[str, str], told: str
) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", **options}
    columns = StructType([StructField(name, KINDS[kind]) for name, kind in map(str.split, schema.split(", "))])
    for writer in (batch_writer, stream_writer):
        with pytest.raises(PipelineError, match=re.escape(told)):
            writer(given, columns, False)


def test_spark_shows_the_sinks_refusal(spark: SparkSession, broker: KorvetServer) -> None:
    assert error_of(spark.range(1), broker, topic="t") == "Required attribute 'value' not found"


@pytest.mark.parametrize(
    ("name", "column", "told"),
    [
        ("topic", pa.nulls(1, pa.string()), "null topic present in the data"),
        ("partition", pa.array([-1]), "partition -1 in the data"),
        ("timestamp", pa.array([datetime(1960, 1, 1, tzinfo=UTC)]), "ms since 1970 in the data"),
        ("timestamp", pa.array([datetime(1970, 1, 1, tzinfo=UTC)]), "timestamp 0 ms since 1970 in the data"),
        (
            "headers",
            pa.array([[{"key": None, "value": b"0"}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))),
            "a header with a null key",
        ),
    ],
)
def test_sink_refuses_rows_that_cannot_be_records(name: str, column: pa.Array, told: str) -> None:
    rows = pa.record_batch([pa.array(["v"]), column], ["value", name])
    columns = Columns(indexes={"value": 0, name: 1}, topic=None if name == "topic" else "t")
    with pytest.raises(PipelineError, match=told):
        list(columns.records(rows))


def test_sink_refuses_to_overwrite_a_topic() -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    with pytest.raises(PipelineError, match="a topic cannot be overwritten"):
        batch_writer(options, StructType([StructField("value", StringType())]), True)
