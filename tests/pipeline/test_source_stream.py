"""Streaming queries of ``format("korvet")``: batches, checkpoints, triggers, and changes of topics meanwhile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from korvet.pipeline.errors import PipelineError, UnknownTopic
from korvet.pipeline.failures import failure
from korvet.pipeline.source import KorvetDataSource
from korvet.pipeline.source.ranges import OffsetRange
from korvet.pipeline.source.readers import KorvetStreamReader
from tests.pipeline.queries import tried_again
from tests.pipeline.sourcing import create, delete, grow, produce, transact, trim
from tests.support.broker import KorvetServer

WITHIN_S = 240
Row = tuple[Any, ...]


class Query:
    """A streaming query with a checkpoint. Each run reads the records at hand, and goes on where the last one ended."""

    def __init__(self, spark: SparkSession, broker: KorvetServer, directory: Path, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": broker.bootstrap, "includeHeaders": "true", **options}
        self._checkpoint = directory / "checkpoint"
        self.rows: dict[int, list[Row]] = {}
        self.progress: list[Any] = []

    def run(self, form: str, **more: str) -> list[Row]:
        """Run the query to its end; returns each row's topic, partition, offset and hash over all columns, sorted."""
        before = set(self.rows)
        tried_again(partial(self._run, form, more))
        return sorted(row for batch, rows in self.rows.items() if batch not in before for row in rows)

    def _run(self, form: str, more: Mapping[str, str]) -> None:
        stream = self._spark.readStream.format(form).options(**self._options, **more).load()
        writer = stream.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WITHIN_S)
            self.progress = list(query.recentProgress)
        finally:
            query.stop()

    def offsets(self, batch: int) -> dict[str, dict[str, int]]:
        """The end of a batch, as the checkpoint has it."""
        text = (self._checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
        found: dict[str, dict[str, int]] = json.loads(text)
        return found

    def _keep(self, frame: DataFrame, batch: int) -> None:
        kept = frame.select("topic", "partition", "offset", sql.xxhash64(*frame.columns)).collect()
        self.rows[batch] = [tuple(row) for row in kept]


def test_both_sources_read_one_stream_and_each_others_checkpoints(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path
) -> None:
    create(broker, "stream-same", 2)
    produce(broker, "stream-same", [b"%d" % n for n in range(100)], settings={"compression.type": "lz4"})
    transact(broker, "stream-same", [b"aborted"], commit=False, partition=1)
    transact(broker, "stream-same", [b"committed"], commit=True, partition=1)
    options = {
        "subscribe": "stream-same",
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": "60",
    }
    ours = Query(spark, broker, tmp_path / "ours", options)
    stock = Query(spark, broker, tmp_path / "stock", options)
    assert ours.run("korvet") == stock.run("kafka")
    assert sorted(ours.rows) == sorted(stock.rows) and len(ours.rows) >= 2
    assert [ours.offsets(batch) for batch in ours.rows] == [stock.offsets(batch) for batch in stock.rows]
    assert ours.progress[0].sources[0].latestOffset == '{"stream-same": {"0": 100, "1": 4}}'

    produce(broker, "stream-same", [b"more"] * 5)
    grow(broker, "stream-same", 3)
    produce(broker, "stream-same", [b"new"] * 3, partition=2)
    # Each source goes on from the other's checkpoint.
    crossed = [row[:3] for row in stock.run("korvet")]
    assert crossed == [row[:3] for row in ours.run("kafka")]
    assert crossed == [*(("stream-same", 0, 100 + n) for n in range(5)), *(("stream-same", 2, n) for n in range(3))]
    assert stock.run("korvet") == []


@pytest.mark.scene
def test_records_trimmed_under_a_query_fail_it_or_are_skipped(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path
) -> None:
    create(broker, "stream-trimmed")
    produce(broker, "stream-trimmed", [b"a"] * 2)
    query = Query(spark, broker, tmp_path, {"subscribe": "stream-trimmed", "startingOffsets": "earliest"})
    assert len(query.run("korvet")) == 2
    produce(broker, "stream-trimmed", [b"b"] * 6, settings={"batch.num.messages": "1"})
    trim(broker, {("stream-trimmed", 0): 5})
    with pytest.raises(Exception) as raised:
        query.run("korvet")
    assert "Offsets 2 up to 5 of stream-trimmed-0 cannot be read" in str(failure(raised.value))
    assert [row[2] for row in query.run("korvet", failOnDataLoss="false")] == [5, 6, 7]


def reader(broker: KorvetServer, topic: str, **options: str) -> KorvetStreamReader:
    """A reader, as Spark makes it in the driver."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
    source = KorvetDataSource({name.lower(): value for name, value in given.items()})
    return source.streamReader(source.schema())


def test_stream_begins_at_its_starting_offsets(broker: KorvetServer) -> None:
    create(broker, "begins", 2)
    produce(broker, "begins", [b""] * 5, start_ms=1_000_000)
    transact(broker, "begins", [b"x"], commit=True, partition=1)
    assert reader(broker, "begins").initialOffset() == {"begins": {"0": 5, "1": 2}}
    for starting, expected in (
        ({"startingOffsets": "earliest"}, {"0": 0, "1": 0}),
        ({"startingOffsets": '{"begins":{"0":3,"1":-1}}'}, {"0": 3, "1": 2}),
        ({"startingTimestamp": "1002000"}, {"0": 2, "1": 0}),
        (
            {
                "startingOffsetsByTimestamp": '{"begins":{"0":9999999,"1":0}}',
                "startingOffsetsByTimestampStrategy": "latest",
            },
            {"0": 5, "1": 0},
        ),
    ):
        found = reader(broker, "begins", **starting)
        assert found.initialOffset() == {"begins": expected}
        found.stop()


def test_stream_of_later_records_begins_where_it_first_began(broker: KorvetServer) -> None:
    create(broker, "comes")
    produce(broker, "comes", [b""] * 2)
    found = reader(broker, "comes")
    start = found.initialOffset()
    produce(broker, "comes", [b""] * 3)
    assert found.latestOffset(start, ReadAllAvailable()) == start == found.initialOffset() == {"comes": {"0": 2}}
    assert found.partitions(start, start) == []
    assert found.latestOffset(start, ReadAllAvailable()) == {"comes": {"0": 5}}
    found.stop()
    again = reader(broker, "comes")
    assert again.partitions(again.initialOffset(), start) == []
    assert again.latestOffset(start, ReadAllAvailable()) == {"comes": {"0": 5}}
    assert again.partitions(start, {"comes": {"0": 5}}) == [OffsetRange("comes", 0, 2, 5)]
    again.stop()


def test_stream_of_later_records_loses_nothing_in_its_first_batch(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path
) -> None:
    create(broker, "first-batch")
    produce(broker, "first-batch", [b"before"])
    query = Query(spark, broker, tmp_path, {"subscribe": "first-batch"})
    commit = tmp_path / "checkpoint" / "commits" / "0"
    assert query.run("korvet") == []
    # The query looks as if a kill came before the batch's end.
    commit.unlink()
    commit.with_name(".0.crc").unlink()
    produce(broker, "first-batch", [b"after"] * 3)
    assert [row[:3] for row in query.run("korvet")] == [("first-batch", 0, offset) for offset in (1, 2, 3)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"minOffsetsPerTrigger": "4"}, ReadMinRows(4)),
        ({"minOffsetsPerTrigger": "4", "maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
    ],
)
def test_source_reports_its_limits_to_spark(broker: KorvetServer, options: dict[str, str], expected: ReadLimit) -> None:
    assert reader(broker, "any", **options).getDefaultReadLimit() == expected


def test_trigger_waits_for_enough_records_but_not_for_ever(broker: KorvetServer) -> None:
    create(broker, "least")
    produce(broker, "least", [b""] * 3)
    waiting = reader(broker, "least", minOffsetsPerTrigger="4", maxOffsetsPerTrigger="5", maxTriggerDelay="1h")
    start = {"least": {"0": 0}}
    limit = waiting.getDefaultReadLimit()
    # The first batch does not wait, since no batch came before it.
    assert waiting.latestOffset(start, limit) == {"least": {"0": 3}}
    assert waiting.latestOffset(start, limit) == start
    assert waiting.reportLatestOffset() == {"least": {"0": 3}}
    assert waiting.latestOffset(start, ReadAllAvailable()) == {"least": {"0": 3}}
    produce(broker, "least", [b""] * 4)
    assert waiting.latestOffset(start, limit) == {"least": {"0": 5}}
    waiting.stop()
    hasty = reader(broker, "least", minOffsetsPerTrigger="9", maxTriggerDelay="0s")
    assert hasty.latestOffset(start, hasty.getDefaultReadLimit()) == {"least": {"0": 7}}
    hasty.stop()


def test_available_now_leaves_later_records(broker: KorvetServer) -> None:
    create(broker, "now")
    produce(broker, "now", [b""] * 3)
    found = reader(broker, "now", minOffsetsPerTrigger="2")
    found.prepareForTriggerAvailableNow()
    start = found.initialOffset() | {"now": {"0": 0}}
    assert found.latestOffset(start, ReadMaxRows(2)) == {"now": {"0": 2}}
    produce(broker, "now", [b""] * 3)
    # One record is below the least, but ends the records that were there.
    assert found.latestOffset({"now": {"0": 2}}, ReadMaxRows(2)) == {"now": {"0": 3}}
    assert found.latestOffset({"now": {"0": 3}}, ReadAllAvailable()) == {"now": {"0": 3}}
    found.stop()


def test_stream_reads_new_partitions_from_their_beginning(broker: KorvetServer) -> None:
    create(broker, "grows")
    produce(broker, "grows", [b""] * 3)
    found = reader(broker, "grows", maxOffsetsPerTrigger="4")
    start = {"grows": {"0": 1}}
    grow(broker, "grows", 2)
    produce(broker, "grows", [b""] * 6, partition=1)
    end = found.latestOffset(start, ReadMaxRows(4))
    assert end == {"grows": {"0": 2, "1": 3}}
    assert found.partitions(start, end) == [OffsetRange("grows", 0, 1, 2), OffsetRange("grows", 1, 0, 3)]
    assert found.partitions(end, end) == []
    trim(broker, {("grows", 1): 2})
    with pytest.raises(PipelineError, match="grows-1 is new, and begins at 2 instead of 0: records may have been"):
        found.partitions(start, end)
    found.stop()


def test_records_gone_between_batches_fail_the_query_or_are_skipped(broker: KorvetServer) -> None:
    create(broker, "stays")
    produce(broker, "stays", [b""])
    end = {"stays": {"0": 1}}
    for start, complaint in (
        ({"stays": {"0": 0, "1": 5}}, "stays-1: they are gone: records may have been missed"),
        ({"gone": {"0": 0}, "stays": {"0": 0}}, "gone-0: they are gone"),
        ({"stays": {"0": 4}}, "The end of stays-0 went back from 4 to 1"),
    ):
        strict, lenient = (reader(broker, "stays", failOnDataLoss=fail) for fail in ("true", "false"))
        with pytest.raises(PipelineError, match=complaint):
            strict.partitions(start, end)
        kept = [] if start["stays"]["0"] == 4 else [OffsetRange("stays", 0, 0, 1)]
        assert lenient.partitions(start, end) == kept
        strict.stop()
        lenient.stop()


def test_topic_deleted_under_the_query_is_an_error(broker: KorvetServer) -> None:
    create(broker, "short-lived")
    found = reader(broker, "short-lived")
    start = found.initialOffset()
    delete(broker, "short-lived")
    with pytest.raises(UnknownTopic, match="short-lived"):
        found.latestOffset(start, ReadAllAvailable())
    found.stop()


def test_source_reads_an_end_again_that_went_back_and_not_one_that_stays(
    broker: KorvetServer, caplog: pytest.LogCaptureFixture
) -> None:
    create(broker, "behind")
    produce(broker, "behind", [b""])
    found = reader(broker, "behind", **{"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "1"})
    for known, again in ((9, 1), (1, 0)):
        caplog.clear()
        assert found.latestOffset({"behind": {"0": known}}, ReadAllAvailable()) == {"behind": {"0": 1}}
        assert sum("asking again" in line for line in caplog.messages) == again
    found.stop()
