"""A replay ends its tasks before rows that are too large for batches of any bytes, and goes on there once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from structlog.testing import capture_logs

from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.judged import File, Judged, statistics_of_files
from korvet.pipeline.replay import ReplayConfig, ReplayProgress, handing, planning
from korvet.pipeline.replay.handing import Batches, by_partition
from korvet.pipeline.replay.planning import find, plan
from korvet.pipeline.replay.run import replay
from korvet.pipeline.replay.sending import Sender, TakenOver
from tests.pipeline.replaying import numbered, read_topic, record, write
from tests.support.broker import KorvetServer

LARGE = 1000
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
EACH = 40
PARTITIONS = 2


@pytest.fixture
def few_bytes(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Batches of five rows, in which rows of more than 1,000 bytes are large."""
    before = spark.conf.get(ROWS)
    monkeypatch.setattr(handing, "_MOST_BYTES", 5 * LARGE)
    spark.conf.set(ROWS, "5")
    yield
    spark.conf.set(ROWS, str(before))


def table_of(spark: SparkSession, lake: Path, sizes: tuple[int, ...]) -> int:
    """The topic ``numbers`` with 40 rows of each size, one size after the other; returns their number."""
    for index, size in enumerate(sizes):
        write(numbered(spark, EACH, PARTITIONS, first=EACH * index, size_bytes=size), lake, "numbers")
    return EACH * len(sizes)


def assert_has_all(broker: KorvetServer, topic: str, sizes: tuple[int, ...]) -> None:
    numbers = range(EACH * len(sizes))
    expected = {
        partition: [record(number, sizes[number // EACH]) for number in numbers[partition::PARTITIONS]]
        for partition in range(PARTITIONS)
    }
    assert read_topic(broker.bootstrap, topic) == expected


def config_of(broker: KorvetServer, lake: Path, to: str) -> ReplayConfig:
    return ReplayConfig(bootstrap_servers=broker.bootstrap, lake=str(lake), topic="numbers", to=to, create=True)


def test_large_rows_come_with_their_place_alone(spark: SparkSession) -> None:
    def sized(key: int, value: int, headers: int) -> list[object]:
        header = f.struct(f.lit("k").alias("key"), f.repeat(f.lit("v"), headers).cast("binary").alias("value"))
        contents = (f.repeat(f.lit("x"), size).cast("binary") for size in (key, value))
        return [*contents, f.array(header) if headers else f.lit(None).cast("array<struct<key:string,value:binary>>")]

    # The header of 36 bytes has 48 in base64, and its list 24 besides.
    sizes = [(500, 500, 0), (501, 500, 0), (0, 1001, 0), (1001, 0, 0), (0, 928, 36), (0, 929, 36), (0, 0, 900)]
    names = ("key", "value", "headers")
    rows = numbered(spark, len(sizes), 1)
    for index, name in enumerate(names):
        chosen = f.lit(None).cast(rows.schema[name].dataType)
        for number, size in enumerate(sizes):
            chosen = f.when(f.col("offset") == number, sized(*size)[index]).otherwise(chosen)
        rows = rows.withColumn(name, chosen)
    whole = [tuple(row) for row in by_partition(rows, [0], {}, None).collect()]
    came = [tuple(row) for row in by_partition(rows, [0], {}, LARGE).collect()]
    assert [sum(len(each or b"") for each in row[2:5]) for row in whole] == [1000, 1001, 1001, 1001, 1000, 1001, 1224]
    assert came == [
        row if number in (0, 4) else (0, number, None, None, None, None) for number, row in enumerate(whole)
    ]


@pytest.mark.parametrize(
    "sizes",
    [pytest.param((50, 2000, 60), marks=pytest.mark.scene), (2000, 2000, 2000), (6000, 900, 70)],
    ids=str,
)
@pytest.mark.usefixtures("few_bytes")
def test_replay_with_large_rows_writes_each_once_in_order(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    count = table_of(spark, tmp_path, sizes)
    config = config_of(broker, tmp_path, f"large-{sum(sizes)}")
    with capture_logs() as logs:
        result = replay(spark, config)
    assert (result.records, result.total, result.complete) == (count, count, True)
    assert [entry["bytes"] for entry in logs if "rows are large" in entry["event"]] == [LARGE]
    assert_has_all(broker, "large-" + str(sum(sizes)), sizes)


@pytest.mark.usefixtures("few_bytes")
def test_replay_that_was_stopped_before_large_rows_goes_on(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path
) -> None:
    sizes = (50, 2000, 60)
    count = table_of(spark, tmp_path, sizes)
    config, stop = config_of(broker, tmp_path, "large-stopped"), threading.Event()

    def heed(told: ReplayProgress) -> None:
        if told.records:
            stop.set()

    stopped = replay(spark, config, stop=stop, progress=heed)
    assert (stopped.complete, stopped.total) == (False, count)
    last = replay(spark, config)
    assert (stopped.records + last.records, last.complete) == (count, True)
    assert_has_all(broker, "large-stopped", sizes)


@pytest.mark.usefixtures("few_bytes")
def test_rows_that_do_not_seem_small_are_read_once(spark: SparkSession, broker: KorvetServer, tmp_path: Path) -> None:
    number = (f.col("offset") * PARTITIONS + f.col("partition")) * 1000
    noise = f.concat(*(f.sha2((number + each).cast("string").cast("binary"), 512) for each in range(80)))
    write(numbered(spark, 60, PARTITIONS).withColumn("value", f.encode(noise, "UTF-8")), tmp_path, "numbers")
    config = config_of(broker, tmp_path, "large-noise")
    with capture_logs() as logs:
        assert replay(spark, replace(config, partitions=(1,), name="part")).records == 30
        assert replay(spark, config).records == 60
    begun = [entry["event"] for entry in logs if entry["event"].startswith("replay ")]
    assert begun == ["replay begins", "replay ended"] * 2


@pytest.mark.usefixtures("few_bytes")
def test_replay_at_a_rate_is_not_cut_by_large_rows(spark: SparkSession, broker: KorvetServer, tmp_path: Path) -> None:
    sizes = (50, 2000)
    table_of(spark, tmp_path, sizes)
    with capture_logs() as logs:
        assert replay(spark, replace(config_of(broker, tmp_path, "large-slow"), rate=1000.0)).complete
    assert not [entry for entry in logs if "rows are large" in entry["event"]]
    assert_has_all(broker, "large-slow", sizes)


@pytest.mark.usefixtures("few_bytes")
def test_files_that_were_passed_over_before_a_large_row_are_missed(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = table_of(spark, tmp_path, (50, 2000))

    def told(files: Sequence[File]) -> Judged | None:
        found = statistics_of_files(files)
        return None if found is None else replace(found, records=found.records + 1)

    monkeypatch.setattr(planning, "statistics_of_files", told)
    result = replay(spark, config_of(broker, tmp_path, "large-missed"))
    assert (result.records, result.total, result.complete) == (count, count + 1, False)


@pytest.mark.usefixtures("few_bytes")
def test_topic_that_was_made_anew_before_a_large_row_gets_nothing(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path
) -> None:
    table_of(spark, tmp_path, (50, 2000))
    is_new: list[bool] = []

    def make_anew(told: ReplayProgress) -> None:
        if told.records == EACH and not is_new:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            admin.delete_topics(["large-anew"])["large-anew"].result()
            with Broker({"bootstrap.servers": broker.bootstrap}) as made:
                assert made.create_topic("large-anew", PARTITIONS, {"retention.ms": "-1"})
            is_new.append(True)

    with pytest.raises(PipelineError, match="large-anew was deleted and created anew while"):
        replay(spark, config_of(broker, tmp_path, "large-anew"), progress=make_anew)
    assert is_new
    assert read_topic(broker.bootstrap, "large-anew") == {}


@pytest.mark.usefixtures("few_bytes")
def test_run_does_not_go_on_after_a_large_row_if_another_run_did(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path
) -> None:
    table_of(spark, tmp_path, (50, 2000))
    config, settings = config_of(broker, tmp_path, "large-taken"), {"bootstrap.servers": broker.bootstrap}
    with Broker(settings) as admin:
        subject = find(Batches(spark), config, admin, {**settings, "transaction.timeout.ms": "60000"})
        job = plan(subject, admin)
        other = plan(subject, admin)
        second = plan(subject, admin, former=job)
        runs = [each.plan.target.note.run for each in (job, second, other)]
        assert runs == sorted(set(runs))
        assert replay(spark, config).complete
        with pytest.raises(TakenOver, match="started a second time"):
            plan(subject, admin, former=job)
        target = second.plan.target
        with Sender(target, 0, 0) as sender, pytest.raises(TakenOver, match="started a second time"):
            sender.init_transactions()


def test_batches_keep_the_lower_bounds_of_the_callers_session(spark: SparkSession) -> None:
    rows = numbered(spark, 3, 1)
    before = {name: str(spark.conf.get(name)) for name in (ROWS, BYTES)}
    found = []
    try:
        for given in (("100", "1m"), ("10000", "2147483647"), ("0", "64m")):
            spark.conf.set(ROWS, given[0])
            spark.conf.set(BYTES, given[1])
            batches = Batches(spark)
            bounds = []
            for only_small in (True, False):
                batches.hand_over(rows, [0], {}, only_small=only_small)
                bounds.append(batches.session.conf.get(BYTES))
            found.append((batches.session.conf.get(ROWS), *bounds, batches.large_bytes))
            assert (spark.conf.get(ROWS), spark.conf.get(BYTES)) == given
    finally:
        for name, kept in before.items():
            spark.conf.set(name, kept)
    unbounded, most = str(2**31 - 1), 64 << 20
    assert found == [
        ("100", unbounded, str(1 << 20), (1 << 20) // 100),
        ("1000", unbounded, str(most), most // 1000),
        ("1000", unbounded, str(most), most // 1000),
    ]
