"""Batch queries of ``format("korvet")`` give the same rows as ``format("kafka")``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from korvet.pipeline.failures import failure
from korvet.pipeline.source.fetch import FetchOptions, close_idle, fetch
from korvet.pipeline.source.ranges import OffsetRange
from tests.pipeline.sourcing import create, produce, transact, trim
from tests.support.broker import KorvetServer, running_broker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SETTLED_WITHIN_S = 60.0
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def stocked() -> Iterator[KorvetServer]:
    """A broker with topics of all kinds."""
    with running_broker(broker={"log.cleaner.backoff.ms": "50"}) as server:
        for codec in CODECS:
            create(server, f"codec-{codec}", 2)
            values = [b"%d " % n * 20 for n in range(300)]
            produce(server, f"codec-{codec}", values, partition=0, settings={"compression.type": codec})
            produce(server, f"codec-{codec}", values[:50], partition=1, settings={"compression.type": codec})
        create(server, "kind-empty", 2)
        create(server, "kind-appended", 1, {"message.timestamp.type": "LogAppendTime"})
        produce(server, "kind-appended", [b"a", b"b"])
        _fill_odd(server)
        _fill_transactional(server)
        _fill_trimmed(server)
        _fill_compacted(server)
        create(server, "times", 2)
        produce(server, "times", [b"%d" % n for n in range(10)], partition=0, start_ms=1_000_000)
        produce(server, "times", [b"%d" % n for n in range(5)], partition=1, start_ms=1_000_000)
        yield server


def _fill_odd(server: KorvetServer) -> None:
    """Produce nulls, empty texts, headers, and a missing timestamp."""
    create(server, "kind-odd")
    producer = Producer({"bootstrap.servers": server.bootstrap})
    producer.produce("kind-odd", None, None)
    producer.produce("kind-odd", b"", b"")
    producer.produce("kind-odd", b"value", None, headers=[("a", b"1"), ("a", None), ("", b""), ("ä€", b"\xff\x00")])
    producer.produce("kind-odd", None, b"key", headers=[])
    producer.produce("kind-odd", b"untimed", b"key", timestamp=-1, headers={"b": b"2"})
    producer.produce("kind-odd", b"y" * 500_000, b"large")
    assert producer.flush(30) == 0


def _fill_transactional(server: KorvetServer) -> None:
    create(server, "kind-transactional", 2)
    transact(server, "kind-transactional", [b"committed"] * 3, commit=True)
    transact(server, "kind-transactional", [b"aborted"] * 4, commit=False)
    produce(server, "kind-transactional", [b"plain"] * 2)
    transact(server, "kind-transactional", [b"aborted"], commit=False)
    transact(server, "kind-transactional", [b"committed"], commit=True, partition=1)


def _fill_trimmed(server: KorvetServer) -> None:
    create(server, "kind-trimmed", 2)
    for partition in (0, 1):
        produce(server, "kind-trimmed", [b"%d" % n for n in range(10)], partition=partition)
    trim(server, {("kind-trimmed", 0): 4, ("kind-trimmed", 1): 10})


def _fill_compacted(server: KorvetServer) -> None:
    """Produce twenty keys three times; the compactor leaves the last record of each."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0"}
    create(server, "kind-compacted", 1, settings)
    for round_ in range(3):
        produce(server, "kind-compacted", [b"%d" % round_ for _ in range(20)])
    producer = Producer({"bootstrap.servers": server.bootstrap})
    producer.produce("kind-compacted", b"last", b"last")
    assert producer.flush(30) == 0
    client = {"bootstrap.servers": server.bootstrap, "group.id": "tests"}
    how = FetchOptions(client=client, read_committed=False, fail_on_data_loss=True, poll_timeout_s=SETTLED_WITHIN_S)
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while sum(map(len, fetch(OffsetRange("kind-compacted", 0, 0, 61), how))) > 21:
        assert time.monotonic() < deadline, "it was not compacted"
    close_idle()


def read(spark: SparkSession, form: str, server: KorvetServer, options: Mapping[str, str]) -> DataFrame:
    settings = {"kafka.bootstrap.servers": server.bootstrap, "includeHeaders": "true", **options}
    return spark.read.format(form).options(**settings).load()


def hashes(frame: DataFrame) -> list[Row]:
    """The topic, partition and offset of each row, and the hash over all its columns; sorted."""
    rows = frame.select("topic", "partition", "offset", sql.xxhash64(*frame.columns)).collect()
    return sorted(tuple(row) for row in rows)


def both(spark: SparkSession, server: KorvetServer, options: Mapping[str, str]) -> tuple[list[Row], list[Row]]:
    return hashes(read(spark, "korvet", server, options)), hashes(read(spark, "kafka", server, options))


def offsets(rows: list[Row], topic: str, partition: int = 0) -> list[int]:
    return [row[2] for row in rows if row[:2] == (topic, partition)]


@pytest.mark.scene
def test_both_sources_read_all_kinds_of_topics_alike(spark: SparkSession, stocked: KorvetServer) -> None:
    ours, stock = both(spark, stocked, {"subscribePattern": "^(codec|kind)-"})
    assert ours == stock
    assert all(len(offsets(ours, f"codec-{codec}")) == 300 for codec in CODECS)
    assert offsets(ours, "kind-trimmed") == [4, 5, 6, 7, 8, 9] and not offsets(ours, "kind-trimmed", 1)
    assert offsets(ours, "kind-transactional") == [0, 1, 2, 4, 5, 6, 7, 9, 10, 11]
    assert offsets(ours, "kind-compacted") == list(range(40, 61))
    assert len(offsets(ours, "kind-odd")) == 6 and len(offsets(ours, "kind-appended")) == 2


@pytest.mark.scene
def test_both_sources_read_committed_records_alike(spark: SparkSession, stocked: KorvetServer) -> None:
    committed = {"subscribePattern": "kind", "kafka.isolation.level": "read_committed"}
    ours, stock = both(spark, stocked, committed)
    assert ours == stock
    assert offsets(ours, "kind-transactional") == [0, 1, 2, 9, 10]
    assert offsets(ours, "kind-transactional", 1) == [0]


def test_source_has_the_stock_sources_columns(spark: SparkSession, stocked: KorvetServer) -> None:
    for headers in ("true", "false"):
        options = {"subscribe": "kind-odd", "includeHeaders": headers}
        ours, stock = (read(spark, form, stocked, options) for form in ("korvet", "kafka"))
        assert ours.schema.simpleString() == stock.schema.simpleString()
    rows = read(spark, "korvet", stocked, {"subscribe": "kind-odd"}).orderBy("offset").collect()
    assert [row.headers for row in rows[:2]] == [None, None]
    assert [tuple(header) for header in rows[2].headers][1:3] == [("a", None), ("", b"")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(
            {
                "minPartitions": "3",
                "assign": '{"times":[1]}',
                "startingOffsets": '{"times":{"1":-2}}',
                "endingOffsets": '{"times":{"1":3}}',
            },
            [(), (0, 1, 2)],
            id="assigned, by offset",
        ),
        pytest.param(
            {"subscribe": "times", "startingTimestamp": "1003000", "endingTimestamp": "1006500"},
            [(3, 4, 5, 6), (3, 4)],
            id="one time, and none that late",
        ),
        pytest.param(
            {
                "subscribe": "times",
                "startingOffsetsByTimestamp": '{"times":{"0":1008000,"1":1009000}}',
                "startingOffsetsByTimestampStrategy": "latest",
                "endingOffsetsByTimestamp": '{"times":{"0":1009000,"1":1009000}}',
            },
            [(8,), ()],
            id="times, of which one has no record",
        ),
    ],
)
def test_both_sources_read_parts_of_topics_alike(
    spark: SparkSession, stocked: KorvetServer, options: dict[str, str], expected: list[tuple[int, ...]]
) -> None:
    ours, stock = both(spark, stocked, options)
    assert ours == stock
    assert [tuple(offsets(ours, "times", partition)) for partition in (0, 1)] == expected


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        pytest.param({"subscribe": "nonesuch"}, "topic nonesuch: it does not exist at 127.0.0.1", id="no such topic"),
        pytest.param(
            {"subscribe": "times", "startingTimestamp": "9999999"},
            "times-0 has no record of timestamp 9999999 or later",
            id="no record that late",
        ),
        pytest.param(
            {"subscribe": "times", "startingOffsets": '{"times":{"0":1}}'},
            "must name all partitions that are read",
            id="a partition left out",
        ),
        pytest.param(
            {"subscribe": "kind-trimmed", "startingOffsets": '{"kind-trimmed":{"0":2,"1":-2}}'},
            "Offsets 2 up to 4 of kind-trimmed-0 cannot be read",
            id="trimmed",
        ),
    ],
)
def test_query_that_cannot_be_read_is_one_sentence(
    spark: SparkSession, stocked: KorvetServer, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Exception) as raised:
        read(spark, "korvet", stocked, options).collect()
    assert complaint in str(failure(raised.value))


def test_trimmed_records_are_skipped_if_that_is_no_failure(spark: SparkSession, stocked: KorvetServer) -> None:
    options = {
        "subscribe": "kind-trimmed",
        "startingOffsets": '{"kind-trimmed":{"0":2,"1":3}}',
        "endingOffsets": '{"kind-trimmed":{"0":-1,"1":10}}',
        "failOnDataLoss": "false",
    }
    ours, stock = both(spark, stocked, options)
    assert ours == stock and offsets(ours, "kind-trimmed") == [4, 5, 6, 7, 8, 9]
