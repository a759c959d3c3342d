"""A replay writes the rows of its range as records: unchanged, each once, and in order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from structlog.testing import capture_logs

from korvet.pipeline import broker as brokers
from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.lake import Lake
from korvet.pipeline.plan import judged
from korvet.pipeline.plan.judged import File, Judged, row_bytes, statistics, statistics_of_files
from korvet.pipeline.plan.positions import Topic
from korvet.pipeline.replay import ReplayConfig, ReplayProgress, carrying, planning, target
from korvet.pipeline.replay.handing import by_partition
from korvet.pipeline.replay.judging import judge, listed
from korvet.pipeline.replay.run import replay
from korvet.pipeline.replay.table import after_positions, chosen, open_table, read
from korvet.pipeline.reported import ARCHIVE_GROUP
from korvet.pipeline.session import session_like
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

    # The table grows; the same command still reads the version that it began with.
    write(numbered(spark, 90, PARTITIONS, first=COUNT), tmp_path, "numbers")
    again = replay(spark, config)
    assert (again.records, again.complete, again.version) == (0, True, 0)
    later = replay(spark, replace(config, version=1))
    assert (later.records, later.total, later.complete, later.version) == (90, COUNT + 90, True, 1)
    whole = {number: [record(each) for each in range(number, COUNT + 90, PARTITIONS)] for number in range(PARTITIONS)}
    assert read_topic(broker.bootstrap, "replayed-all") == whole


def test_transaction_takes_the_rows_of_many_batches_of_arrow(
    spark: SparkSession, broker: KorvetServer, lake: str
) -> None:
    config = ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replayed-batches", create=True
    )
    most = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(most)
    assert before is not None
    spark.conf.set(most, "70")
    try:
        assert replay(spark, config).complete
    finally:
        spark.conf.set(most, before)
    assert read_topic(broker.bootstrap, "replayed-batches") == EXPECTED
    # A marker ends each transaction, and takes an offset.
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        wanted = [("replayed-batches", number) for number in range(PARTITIONS)]
        ends = admin.latest(wanted, committed_only=False)
    assert {position.offset for position in ends.values()} == {COUNT // PARTITIONS + 1}


@pytest.mark.scene
def test_stopped_replay_goes_on(spark: SparkSession, broker: KorvetServer, lake: str) -> None:
    make_topic(broker, "replayed-stopped")
    config = ReplayConfig(bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replayed-stopped")
    slowly = replace(config, rate=15.0)

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


@pytest.mark.parametrize("heeds", [True, False], ids=["heed", "do not heed"])
@pytest.mark.parametrize("ends_by", ["stop", "failure", "interrupt"])
def test_tasks_end_when_their_driver_does(
    spark: SparkSession, broker: KorvetServer, lake: str, monkeypatch: pytest.MonkeyPatch, ends_by: str, heeds: bool
) -> None:
    topic = f"replayed-{ends_by}-{heeds}"
    make_topic(broker, topic)
    config = ReplayConfig(bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to=topic, rate=30.0)
    if not heeds:
        monkeypatch.setattr(carrying, "STOP_WITHIN_S", 3.0)
        monkeypatch.setattr(carrying, "_FAILED_WITHIN_S", 3.0)
        monkeypatch.setattr(carrying, "request_stop", lambda *_: True)
    stop = threading.Event()
    raised = {"failure": InterruptedError, "interrupt": KeyboardInterrupt}.get(ends_by)

    def end(told: ReplayProgress) -> None:
        if told.records:
            stop.set()
            if raised is not None:
                raise raised

    with capture_logs() as logs:
        if raised is None:
            assert not replay(spark, config, stop=stop, progress=end).complete
        else:
            with pytest.raises(raised):
                replay(spark, config, progress=end)
    killed = [entry for entry in logs if "are killed" in entry["event"]]
    assert bool(killed) == (not heeds and ends_by != "interrupt")
    deadline = time.monotonic() + 30
    # Spark tells of a job's end later than the job's own caller.
    while spark.sparkContext.statusTracker().getActiveJobsIds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    monkeypatch.undo()
    last = replay(spark, replace(config, rate=None))
    assert last.complete and last.records < COUNT
    assert read_topic(broker.bootstrap, topic) == EXPECTED


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
def test_only_rows_still_to_write_are_judged(spark: SparkSession) -> None:
    rows = numbered(spark, COUNT, PARTITIONS).withColumn(
        "timestamp", f.when((f.col("partition") == 2) & (f.col("offset") == 1), f.timestamp_millis(f.lit(0)))
        .otherwise(f.col("timestamp")),
    )  # fmt: skip
    last = COUNT - PARTITIONS
    ends = {number: offset(last + number, PARTITIONS) + 1 for number in range(PARTITIONS)}
    left = after_positions(rows, {0: offset(30, PARTITIONS), 2: ends.pop(2)})
    assert judge(left) == Judged(
        records=590, partitions=[0, 1], oldest_ms=BEGIN_MS + 1, newest_ms=BEGIN_MS + last + 1, timeless=0, ends=ends
    )
    whole = judge(after_positions(rows, {}))
    assert whole is not None
    assert (whole.records, whole.partitions, whole.oldest_ms, whole.timeless) == (COUNT, [0, 1, 2], 0, 1)
    assert judge(after_positions(rows, dict.fromkeys(range(PARTITIONS), 10**9))) is None


@pytest.mark.scene
def test_statistics_of_files_say_what_reading_the_rows_would(spark: SparkSession, tmp_path: Path) -> None:
    rows = numbered(spark, COUNT, PARTITIONS, first=1)
    path = write(rows, tmp_path, "told")
    write(numbered(spark, 10, 1, first=COUNT + 1), tmp_path, "told")
    table = open_table(spark, path, "told")
    told, read_ = statistics_of_files(listed(table)), judge(read(spark, table, table.newest))
    assert told is not None and read_ is not None
    assert (list(told.partitions), told.ends) == ([0, 1, 2], {})
    assert replace(told, partitions=[0, 1, 2], ends=read_.ends) == read_
    assert told.records == COUNT + 10


def test_statistics_of_files_with_deleted_rows_do_not_count(spark: SparkSession, tmp_path: Path) -> None:
    path = write(numbered(spark, 30, 1), tmp_path, "silent")
    spark.sql(f"alter table delta.`{path}` set tblproperties ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"delete from delta.`{path}` where offset = 3")
    assert statistics_of_files(listed(open_table(spark, path, "silent"))) is None


def told_of(**changed: object) -> File:
    """A file of 30 rows, but for what is changed of its statistics."""
    first = {"partition": 0, "timestamp": "2026-01-01T00:00:00.000Z"}
    last = {"partition": 2, "timestamp": "2026-01-02T00:00:00.000Z"}
    nulls = {"partition": 0, "offset": 0, "timestamp": 0}
    told = {"numRecords": 30, "minValues": first, "maxValues": last, "nullCount": nulls, **changed}
    return File(size_bytes=3000, is_whole=True, statistics=statistics(json.dumps(told)))


def test_statistics_of_files_count_rows_if_each_file_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {"partition": 4, "timestamp": "2026-01-03T00:00:00.001Z"}
    found = statistics_of_files([told_of(), told_of(maxValues=later)])
    assert found is not None
    assert (found.records, list(found.partitions), found.timeless, found.ends) == (60, [0, 1, 2, 3, 4], 0, {})
    assert found.newest_ms - found.oldest_ms == 2 * 24 * HOUR_MS + 1
    without = File(size_bytes=3000, is_whole=True, statistics=statistics(None))
    silent = [
        without,
        replace(told_of(), is_whole=False),
        told_of(minValues={"partition": 0, "timestamp": "1970-01-01T00:00:00.000Z"}),
        told_of(nullCount={"partition": 0, "offset": 1, "timestamp": 0}),
        told_of(minValues={"partition": 0}),
        told_of(numRecords=-1),
    ]
    assert [statistics_of_files([told_of(), each]) for each in silent] == [None] * len(silent)
    assert statistics_of_files([]) is None
    assert (row_bytes([told_of(), without]), row_bytes([without])) == (100, None)
    monkeypatch.setattr(judged, "MOST_FILES", 1)
    assert statistics_of_files([told_of()]) is not None and statistics_of_files([told_of()] * 2) is None


def test_statistics_are_the_same_if_the_writer_had_another_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    session = session_like(spark)
    session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    told = statistics_of_files(listed(open_table(spark, write(numbered(session, 30, 1), tmp_path, "zoned"), "zoned")))
    assert told is not None
    assert (told.oldest_ms, told.newest_ms) == (BEGIN_MS, BEGIN_MS + 29)


def test_row_without_an_offset_is_refused(spark: SparkSession) -> None:
    rows = numbered(spark, 30, 1).withColumn("offset", f.when(f.col("offset") > 3, f.col("offset")))
    with pytest.raises(PipelineError, match="4 rows have no partition, offset or timestamp, which no archive writes"):
        judge(rows)


def test_replay_of_a_whole_table_reads_its_rows_once(
    spark: SparkSession, broker: KorvetServer, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(_rows: object) -> None:
        raise AssertionError("the rows were read to judge them")

    monkeypatch.setattr(planning, "judge", forbidden)
    config = ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replayed-at-once", create=True
    )
    result = replay(spark, config)
    assert (result.records, result.total, result.complete) == (COUNT, COUNT, True)
    assert read_topic(broker.bootstrap, "replayed-at-once") == EXPECTED


def test_replay_that_read_fewer_rows_than_the_table_has_is_not_complete(
    spark: SparkSession, broker: KorvetServer, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(files: Sequence[File]) -> Judged | None:
        found = statistics_of_files(files)
        return None if found is None else replace(found, records=found.records + 1)

    monkeypatch.setattr(planning, "statistics_of_files", told)
    config = ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replayed-in-part", create=True
    )
    with capture_logs() as logs:
        result = replay(spark, config)
    assert (result.records, result.total, result.complete) == (COUNT, COUNT + 1, False)
    assert [entry["total"] for entry in logs if entry["log_level"] == "error"] == [COUNT + 1]
    monkeypatch.undo()
    assert replay(spark, config).complete


@pytest.mark.scene
def test_replay_sends_a_partition_by_one_task_in_order(spark: SparkSession, lake: str) -> None:
    rows = read(spark, open_table(spark, Lake(lake).raw("numbers"), "numbers"), 0)
    starts = {0: 50, 1: 10**9}
    sent = by_partition(after_positions(rows, starts), [0, 2], starts, None)
    tasks = sent.select("partition", "offset", f.spark_partition_id().alias("task")).collect()
    assert {(row["task"], row["partition"]) for row in tasks} == {(0, 0), (1, 2)}
    for number, first in ((0, 50), (2, 0)):
        wanted = [offset(each, 3) for each in range(number, COUNT, 3) if offset(each, 3) >= first]
        assert [row["offset"] for row in tasks if row["partition"] == number] == wanted


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


def test_records_that_are_in_the_topic_may_be_older_than_it_takes_by_now(
    spark: SparkSession, broker: KorvetServer, lake: str
) -> None:
    make_topic(broker, "replayed-narrowed")
    config = ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=lake, topic="numbers", to="replayed-narrowed", to_offset=2
    )
    assert replay(spark, config).records == 6
    operation = AlterConfigOpType.SET
    entry = ConfigEntry("message.timestamp.before.max.ms", "1000", incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, "replayed-narrowed", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(30)
    assert replay(spark, config).records == 0


def aged(oldest_ms: int, newest_ms: int = 0, timeless: int = 0) -> Judged:
    """Rows so much older and newer than now."""
    now, ends = round(time.time() * 1000), dict[int, int]()
    return Judged(
        records=3, partitions=(0, 2), oldest_ms=now - oldest_ms, newest_ms=now + newest_ms, timeless=timeless, ends=ends
    )


def test_rows_that_the_topic_would_refuse_are_refused_before() -> None:
    with pytest.raises(PipelineError, match="topic t has 2 partitions, and there are records of partition 2; give it"):
        target.refuse_missing_partitions(Topic(name="t", id="id", partitions=(0, 1)), (0, 2))
    target.refuse_missing_partitions(Topic(name="t", id="id", partitions=(0, 1, 2)), (0, 2))
    names = [f"message.timestamp.{side}.max.ms" for side in ("before", "after")]
    limits = dict.fromkeys(names, str(HOUR_MS))
    for known, told in (
        (aged(2 * HOUR_MS), rf"older than {names[0]}=3600000, and the oldest is \d+ ms old; raise"),
        (aged(0, 2 * HOUR_MS), rf"further ahead than {names[1]}=3600000, and the newest is \d+ ms ahead; raise"),
    ):
        with pytest.raises(PipelineError, match=told):
            target.refuse_refused("t", limits, known)
        target.refuse_refused("t", {**limits, "message.timestamp.type": "LogAppendTime"}, known)
        target.refuse_refused("t", dict.fromkeys(names, str(2**63 - 1)), known)
    target.refuse_refused("t", limits, aged(HOUR_MS // 2, HOUR_MS // 2))


def test_topic_that_keeps_rows_otherwise_than_the_lake_is_warned_of() -> None:
    kept = {"retention.ms": str(HOUR_MS)}
    with capture_logs() as logs:
        target.warn("t", kept, aged(2 * HOUR_MS, timeless=4))
        target.warn("t", kept, aged(HOUR_MS // 2))
        target.warn("t", {**kept, "cleanup.policy": "compact"}, aged(2 * HOUR_MS))
        target.warn("t", {"retention.ms": "-1"}, aged(2 * HOUR_MS))
    assert [(entry["event"], entry.get("retention_ms"), entry.get("records")) for entry in logs] == [
        ("records are older than the topic keeps them, and may be gone at once", HOUR_MS, None),
        ("records of 1970-01-01T00:00:00Z get the present time", None, 4),
    ]


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
    with pytest.raises(PipelineError, match=r"replayed-large-[01] from \d on cannot be written: .*max\.message\.bytes"):
        replay(spark, config)
    assert read_topic(broker.bootstrap, "replayed-large") == {}
