"""A replay writes the rows of its range as records: unchanged, each once, and in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from structlog.testing import capture_logs

from korvet.pipeline import broker as brokers
from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.lake import Lake
from korvet.pipeline.replay import ReplayConfig, ReplayProgress
from korvet.pipeline.replay import run as replay_of
from korvet.pipeline.replay.run import replay
from korvet.pipeline.replay.table import after_places, chosen, open_table, read, spans, window
from korvet.pipeline.reported import ARCHIVE_GROUP
from tests.pipeline.replaying import BEGIN_MS, numbered, offset, read_topic, record, write
from tests.support.broker import KorvetServer

COUNT = 900
HOUR_MS = 3_600_000
PARTITIONS = 3
EXPECTED = {number: [record(each) for each in range(number, COUNT, PARTITIONS)] for number in range(PARTITIONS)}


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A lake with the topic ``numbers``: 900 records of three partitions."""
    path = str(tmp_path_factory.mktemp("replay") / "lake")
    write(numbered(spark, COUNT, PARTITIONS), path, "numbers")
    return path


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a replay at a rate have the records of half a second."""
    monkeypatch.setattr(replay_of, "_LONG_S", 0.5)


def make_topic(
    broker: KorvetServer, name: str, settings: Mapping[str, str] | None = None, partitions: int = PARTITIONS
) -> None:
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        assert admin.create_topic(name, partitions, {"retention.ms": "-1", **(settings or {})})


@pytest.mark.scene
def test_replay_writes_unchanged_records_once(spark: SparkSession, broker: KorvetServer, tmp_path: Path) -> None:
    write(numbered(spark, COUNT, PARTITIONS), tmp_path, "numbers")
    config = ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=str(tmp_path), topic="numbers", to="replayed-all", create=True
    )
    told: list[ReplayProgress] = []
    result = replay(spark, config, progress=told.append)
    assert (result.records, result.total, result.complete, result.version) == (COUNT, COUNT, True, 0)
    assert read_topic(broker.bootstrap, "replayed-all") == EXPECTED
    assert told[-1].records == told[-1].total == COUNT

    # The table grows; the same command goes on, and with a version it reads no other.
    write(numbered(spark, 90, PARTITIONS, first=COUNT), tmp_path, "numbers")
    again = replay(spark, replace(config, version=0))
    assert (again.records, again.complete, again.version) == (0, True, 0)
    later = replay(spark, config)
    assert (later.records, later.total, later.complete, later.version) == (90, COUNT + 90, True, 1)
    whole = {number: [record(each) for each in range(number, COUNT + 90, PARTITIONS)] for number in range(PARTITIONS)}
    assert read_topic(broker.bootstrap, "replayed-all") == whole


@pytest.mark.scene
@pytest.mark.usefixtures("few_at_once")
def test_stopped_replay_goes_on(spark: SparkSession, broker: KorvetServer, lake: str) -> None:
    make_topic(broker, "replayed-stopped")
    config = ReplayConfig(bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replayed-stopped")
    slowly = replace(config, rate=300.0)

    def fail(told: ReplayProgress) -> None:
        if told.records:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        replay(spark, slowly, progress=fail)
    stop = threading.Event()
    seen: list[int] = []

    def heed(told: ReplayProgress) -> None:
        seen.append(told.records)
        if told.records > seen[0]:
            stop.set()

    stopped = replay(spark, slowly, stop=stop, progress=heed)
    assert not stopped.complete
    last = replay(spark, config)
    assert last.complete and 0 < last.records < COUNT
    assert read_topic(broker.bootstrap, "replayed-stopped") == EXPECTED


def test_replay_that_is_stopped_from_the_start_writes_nothing(
    spark: SparkSession, broker: KorvetServer, lake: str
) -> None:
    config = ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replayed-never", create=True
    )
    stop = threading.Event()
    stop.set()
    result = replay(spark, config, stop=stop)
    assert (result.records, result.total, result.complete) == (0, COUNT, False)
    assert read_topic(broker.bootstrap, "replayed-never") == {}


@pytest.mark.usefixtures("few_at_once")
def test_replay_fails_if_its_topic_was_made_anew(spark: SparkSession, broker: KorvetServer, lake: str) -> None:
    make_topic(broker, "replayed-anew")
    config = ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replayed-anew", partitions=(0,), rate=100.0
    )
    is_new: list[bool] = []

    def make_anew(told: ReplayProgress) -> None:
        if told.records and not is_new:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            admin.delete_topics(["replayed-anew"])["replayed-anew"].result()
            make_topic(broker, "replayed-anew")
            is_new.append(True)

    with pytest.raises(PipelineError, match=r"replayed-anew.*(was deleted and created anew while|it was deleted, or)"):
        replay(spark, config, progress=make_anew)
    assert is_new


@pytest.mark.scene
def test_replay_writes_the_chosen_range(spark: SparkSession, lake: str) -> None:
    rows = read(spark, open_table(spark, Lake(lake).raw("numbers"), "numbers"), 0).persist()
    begin = datetime.fromtimestamp(BEGIN_MS / 1000, UTC)

    def numbers(**bounds: object) -> list[int]:
        config = ReplayConfig(bootstrap_servers="", lake=lake, topic="numbers", **bounds)  # type: ignore[arg-type]
        found = chosen(rows, config).select((f.unix_millis("timestamp") - BEGIN_MS).alias("number")).collect()
        return sorted(row["number"] for row in found)

    everything = range(COUNT)
    assert numbers() == list(everything)
    assert numbers(partitions=(2, 0)) == [n for n in everything if n % 3 != 1]
    assert numbers(from_offset=100, to_offset=200) == [n for n in everything if 100 <= offset(n, 3) < 200]
    each = [n for n in everything if (offset(n, 3) >= 300 or n % 3 != 1) and (offset(n, 3) < 7 or n % 3 != 2)]
    assert numbers(from_offset={1: 300}, to_offset={2: 7}) == each
    times = {"from_time": begin + timedelta(milliseconds=10), "to_time": begin + timedelta(milliseconds=20)}
    assert numbers(**times) == list(range(10, 20))
    assert numbers(to_time=begin) == []
    rows.unpersist()


@pytest.mark.scene
def test_window_has_the_next_rows_of_each_partition_in_order_by_one_task(spark: SparkSession, lake: str) -> None:
    rows = read(spark, open_table(spark, Lake(lake).raw("numbers"), "numbers"), 0)
    found = spans(after_places(rows, {0: 50, 1: 10**9}))
    ends = [offset(COUNT - PARTITIONS + number, PARTITIONS) + 1 for number in range(PARTITIONS)]
    assert {number: (one.begin, one.end) for number, one in found.items()} == {0: (50, ends[0]), 2: (0, ends[2])}
    assert found[2].records == COUNT // PARTITIONS and found[2].oldest_ms == BEGIN_MS + 2
    sent = window(rows, {0: 50, 2: 0}, {0: 60, 2: ends[2]})
    tasks = sent.select("partition", "offset", f.spark_partition_id().alias("task")).collect()
    assert {(row["task"], row["partition"]) for row in tasks} == {(0, 0), (1, 2)}
    for number, first, last in ((0, 50, 60), (2, 0, ends[2])):
        wanted = [offset(each, 3) for each in range(number, COUNT, 3) if first <= offset(each, 3) < last]
        assert [row["offset"] for row in tasks if row["partition"] == number] == wanted


@pytest.mark.usefixtures("few_at_once")
def test_rate_holds_for_all_partitions_together(spark: SparkSession, broker: KorvetServer, lake: str) -> None:
    config = ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replayed-slowly", create=True, rate=500.0
    )
    began = time.monotonic()
    assert replay(spark, config).complete
    assert time.monotonic() - began > (COUNT - 250) / 500
    assert read_topic(broker.bootstrap, "replayed-slowly") == EXPECTED


def test_row_without_an_offset_is_refused(spark: SparkSession) -> None:
    rows = numbered(spark, 30, 1).withColumn("offset", f.when(f.col("offset") > 3, f.col("offset")))
    with pytest.raises(PipelineError, match="4 rows have no partition, offset or timestamp, which no archive writes"):
        spans(rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lake": "/nowhere/at/all"}, r"^the lake has no topic numbers: /nowhere/at/all/numbers/raw is no Delta table"),
        ({"to": "replay-missing"}, r"^topic replay-missing does not exist at 127\.0\.0\.1:\d+; create it"),
        ({"from_offset": 10**6}, r"^there is nothing to replay: .* has no record in the range"),
        (
            {"from_offset": 10**6, "to": "replay-missing", "create": True},
            r"^there is nothing to replay: .* has no record in the range",
        ),
        (
            {"version": 77},
            r"^version 77 of .* cannot be read \(.*\); to go on with a later one, name it: the newest is 0$",
        ),
        ({"to": None}, r"^topic numbers is archived: its lake would hold these records a second time"),
        ({"to": "replay-narrow"}, r"^topic replay-narrow has 2 partitions, and there are records of partition 2; give"),
    ],
)
def test_replay_refuses_impossible_requests_before_it_writes(
    spark: SparkSession, broker: KorvetServer, lake: str, change: Mapping[str, object], message: str
) -> None:
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topic("replay-narrow", 2, {})
        admin.create_topic("numbers", PARTITIONS, {})
        admin.commit(ARCHIVE_GROUP, {("numbers", 0): Position(offset=1, leader_epoch=None)})
    config = ReplayConfig(bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replay-narrow")
    with pytest.raises(PipelineError, match=message):
        replay(spark, replace(config, **change))  # type: ignore[arg-type]
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        assert "replay-missing" not in admin.topic_names()
    assert read_topic(broker.bootstrap, "replay-narrow") == {}


def test_replay_refuses_a_corrupt_table(spark: SparkSession, broker: KorvetServer, tmp_path: Path) -> None:
    log = Path(Lake(str(tmp_path)).raw("numbers")) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("rubbish")
    config = ReplayConfig(bootstrap_servers=broker.bootstrap, lake=str(tmp_path), topic="numbers", to="replayed")
    with pytest.raises(PipelineError, match=r"^the table at .*/numbers/raw cannot be read \(.*\); restore it") as told:
        replay(spark, config)
    assert "\n" not in str(told.value)


def test_replay_fails_if_no_broker_answers(spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "TIMEOUT_S", 1.0)
    config = ReplayConfig(bootstrap_servers="127.0.0.1:1", lake=lake, topic="numbers", to="replayed")
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        replay(spark, config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 0.0}, "rate 0.0: a number of records/s above 0"),
        ({"name": "a b"}, "name 'a b': up to 200 letters"),
        ({"from_time": datetime(2026, 1, 1)}, "from 2026-01-01T00:00:00: a time needs a time zone"),
    ],
)
def test_replay_refuses_values_that_are_not_valid(values: Mapping[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        ReplayConfig(bootstrap_servers="", lake="", topic="", **values)  # type: ignore[arg-type]


def test_replay_warns_of_timestamps_that_the_topic_changes(
    spark: SparkSession, broker: KorvetServer, lake: str
) -> None:
    make_topic(broker, "replayed-stamped", {"message.timestamp.type": "LogAppendTime"})
    config = ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replayed-stamped", partitions=(1,),
        to_offset=10, name="stamped",
    )  # fmt: skip
    with capture_logs() as logs:
        assert replay(spark, config).records == 9
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "timestamps are not kept: the topic has the time of the append instead"
    ]
    found = read_topic(broker.bootstrap, "replayed-stamped")
    assert [each[:3] for each in found[1]] == [each[:3] for each in EXPECTED[1][:9]]
    assert all(timestamp > BEGIN_MS + COUNT for _, _, _, timestamp in found[1])

    with pytest.raises(PipelineError, match="replay stamped was begun with another table, range or topic"):
        replay(spark, replace(config, to_offset=20))
    with pytest.raises(PipelineError, match="replay stamped was begun with topic replayed-stamped; choose another"):
        replay(spark, replace(config, to="replayed-elsewhere", create=True))


def test_record_that_the_topic_refuses_ends_the_replay(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path
) -> None:
    write(numbered(spark, 8, 2, first=1, size_bytes=3000), tmp_path, "large")
    make_topic(broker, "replayed-large", {"max.message.bytes": "2000"})
    config = ReplayConfig(bootstrap_servers=broker.bootstrap, lake=str(tmp_path), topic="large", to="replayed-large")
    with pytest.raises(PipelineError, match=r"replayed-large-[01]: a record .* is too large; .*max\.message\.bytes"):
        replay(spark, config)
    assert read_topic(broker.bootstrap, "replayed-large") == {}
