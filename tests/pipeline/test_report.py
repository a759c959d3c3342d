"""A report agrees with the groups at the broker, and with the records and files in the lake."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake import RAW_COLUMNS, Lake
from korvet.pipeline.lake.table import Table
from korvet.pipeline.plan.losses import Loss
from korvet.pipeline.plan.proofs import APPLICATION, Proven
from korvet.pipeline.report import (
    Day,
    Interval,
    Lag,
    Report,
    ReportConfig,
    TopicLoss,
    UnreadableGroup,
    html_page,
    report,
    save,
)
from korvet.pipeline.report.making import lags as lags_of
from korvet.pipeline.report.making import unarchived
from korvet.pipeline.reported import ARCHIVE_GROUP
from korvet.store.keys import Namespace
from tests.pipeline.sourcing import create, produce
from tests.support.broker import KorvetServer

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def raw_rows(spark: SparkSession, topic: str, times: list[datetime]) -> DataFrame:
    """A record of 1 + 10 bytes, and 4 of a header, for each time."""
    frame = spark.createDataFrame([(time,) for time in times], "timestamp timestamp")
    header = F.struct(F.lit("h").alias("key"), F.lit(b"abc").alias("value"))
    nameless = F.struct(F.lit("").alias("key"), F.lit(None).cast("binary").alias("value"))
    return frame.select(
        F.lit(b"k").alias("key"),
        F.lit(b"0123456789").alias("value"),
        F.array(header, nameless).alias("headers"),
        F.lit(topic).alias("topic"),
        F.lit(0).alias("partition"),
        F.unix_micros("timestamp").alias("offset"),
        "timestamp",
        F.lit(0).alias("timestampType"),
        F.to_date("timestamp").alias("date"),
    )


def append(spark: SparkSession, lake: Lake, topic: str, times: list[datetime]) -> None:
    rows = raw_rows(spark, topic, times).coalesce(1)
    assert rows.columns == RAW_COLUMNS.names
    rows.write.format("delta").partitionBy("date").mode("append").save(lake.raw(topic))


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """``orders`` with six records of two days, ``clicks`` with one."""
    found = Lake(str(tmp_path_factory.mktemp("lake")))
    seconds = [timedelta(seconds=at) for at in (-86400, -1, 0, 9, 10, 3600)]
    append(spark, found, "orders", [NOON + second for second in seconds[:3]])
    append(spark, found, "orders", [NOON + second for second in seconds[3:]])
    append(spark, found, "clicks", [NOON + timedelta(seconds=5)])
    # The size of a topic's other tables counts, and their records do not.
    letters = raw_rows(spark, "clicks", [NOON + timedelta(seconds=5)]).withColumn("reason", F.lit("no JSON"))
    writer = letters.coalesce(1).write.format("delta").partitionBy("date").option("txnAppId", f"{APPLICATION}id")
    writer.option("txnVersion", 1).save(found.dead_letters("clicks"))
    return found


def told(spark: SparkSession, lake: Lake, **others: object) -> Report:
    given = {"since": NOON, "until": NOON + HOUR, "interval_s": 10.0, **others}
    return report(spark, ReportConfig(lake=lake.location, **given))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(spark: SparkSession, lake: Lake) -> Report:
    """The report on both topics."""
    return told(spark, lake)


@pytest.mark.scene
def test_report_counts_records_and_bytes_of_its_intervals(whole: Report) -> None:
    assert whole.intervals == (
        Interval(topic="clicks", start=NOON, records=1, bytes=15),
        Interval(topic="orders", start=NOON, records=2, bytes=30),
        Interval(topic="orders", start=NOON + timedelta(seconds=10), records=1, bytes=15),
    )
    assert whole.lags == ()


@pytest.mark.scene
def test_report_counts_records_bytes_and_files_of_each_day(whole: Report, lake: Lake) -> None:
    assert [(day.topic, day.date, day.records, day.files) for day in whole.days] == [
        ("clicks", date(2026, 3, 1), 1, 2),
        ("orders", date(2026, 2, 28), 1, 1),
        ("orders", date(2026, 3, 1), 5, 2),
    ]
    for day in whole.days:
        files = Path(lake.location, day.topic).glob(f"*/date={day.date}/*.parquet")
        assert day.bytes == sum(file.stat().st_size for file in files)


def test_report_has_the_losses_in_the_proof(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    loss = Loss(partition=0, kind="replaced", start=2, end=4)
    proven = Proven(topic="orders", topic_id="id", generation=1, batch_id=0, offsets={0: 5}, losses=(loss,))
    Table(spark, lake.raw("orders"), {}).append(raw_rows(spark, "orders", [NOON]), proven)
    found = told(spark, lake)
    assert found.losses == (TopicLoss(topic="orders", loss=loss),)
    assert found.to_json()["losses"][0]["loss"] == {"partition": 0, "kind": "replaced", "start": 2, "end": 4}


def test_report_chooses_intervals_by_its_time(spark: SparkSession, lake: Lake) -> None:
    assert told(spark, lake, topics=("clicks",), interval_s=None, until=NOON + 24 * HOUR).interval_s == 600


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"until": NOON}, "the report's time is empty: it would begin at 2026-03-01 12:00:00"),
        ({"interval_s": 0.1}, "intervals of 0.1 s: there would be 36000 of them, and 10000 are the most"),
        ({"topics": ("orders", "absent")}, "topic absent: there is no archive of it in .*; there is: clicks, orders"),
        ({"bootstrap_servers": "127.0.0.1:1"}, "groups: no broker answers at 127.0.0.1:1"),
    ],
)
def test_report_that_cannot_be_made_is_one_sentence(
    spark: SparkSession, lake: Lake, given: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.pipeline.broker.TIMEOUT_S", 2.0)
    with pytest.raises(PipelineError, match=sentence):
        told(spark, lake, **given)


def test_report_has_an_alarm_while_old_records_wait_for_an_archive(
    spark: SparkSession, lake: Lake, broker: KorvetServer
) -> None:
    create(broker, "orders", 2, {"korvet.retention": "archived"})
    create(broker, "clicks", 2)
    for topic in ("orders", "clicks"):
        produce(broker, topic, [b"old", b"old"])
    alarm = "topic orders: its archive seems to have stopped: 2 offsets older than ten minutes are not archived"
    found = told(spark, lake, topics=("orders", "clicks"), bootstrap_servers=broker.bootstrap)
    assert [str(each).startswith(alarm) for each in found.unarchived] == [True]
    assert f"<strong>Alarm:</strong> {alarm}" in html_page(found)

    with Broker({"bootstrap.servers": broker.bootstrap}) as asked:
        asked.commit(ARCHIVE_GROUP, {("orders", 0): Position(offset=1, leader_epoch=None)})
        assert [each.offsets for each in unarchived(asked, ()) if each.topic == "orders"] == [1]
        asked.commit(ARCHIVE_GROUP, {("orders", 0): Position(offset=2, leader_epoch=None)})
        produce(broker, "orders", [b"new"], partition=1, start_ms=round(datetime.now(UTC).timestamp() * 1000))
        assert unarchived(asked, ("orders", "never-made")) == []


def test_report_on_a_lake_without_topics_fails(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no archived topic in it"):
        told(spark, Lake(str(tmp_path)))


def test_report_on_an_unreadable_table_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "orders" / "raw" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("no log\n")
    with pytest.raises(PipelineError, match="orders/raw: it cannot be read: ") as caught:
        told(spark, Lake(str(tmp_path)))
    assert "\n" not in str(caught.value)


@pytest.fixture
def group(broker: KorvetServer) -> Iterator[tuple[str, str]]:
    """A topic of two partitions with 3 and 0 records, and a group that read one."""
    name = f"report-{secrets.token_hex(4)}"
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap}
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(settings)
    for future in admin.create_topics([NewTopic(name, 2)]).values():
        future.result(30)
    producer = confluent_kafka.Producer(settings)
    for _ in range(3):
        producer.produce(name, b"value", partition=0)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**settings, "group.id": name})
    positions = [confluent_kafka.TopicPartition(name, 0, 1), confluent_kafka.TopicPartition(name, 1, 0)]
    consumer.commit(offsets=positions, asynchronous=False)
    consumer.close()
    yield name, name
    for future in admin.delete_topics([name]).values():
        future.result(30)


def test_report_shows_the_brokers_lags(
    spark: SparkSession, lake: Lake, broker: KorvetServer, group: tuple[str, str], tmp_path: Path
) -> None:
    topic, name = group
    found = told(spark, lake, bootstrap_servers=broker.bootstrap, groups=(name,))
    assert found.lags == (
        Lag(group=name, topic=topic, partition=0, committed=1, end=3),
        Lag(group=name, topic=topic, partition=1, committed=0, end=0),
    )
    assert [lag.lag for lag in found.lags] == [2, 0]
    with Broker({"bootstrap.servers": broker.bootstrap}) as asked:
        assert set(found.lags) <= set(lags_of(asked, (), ())[0])
    facts = json.loads(json.dumps(found.to_json()))
    assert facts["lags"][0]["lag"] == 2
    assert facts["intervals"][0]["start"] == "2026-03-01T12:00:00+00:00"


def test_report_leaves_out_a_group_that_the_broker_cannot_read(
    spark: SparkSession, lake: Lake, broker: KorvetServer, group: tuple[str, str]
) -> None:
    topic, readable = group
    damaged = f"{readable}-damaged"
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": damaged})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    with broker.redis() as client:
        keys = Namespace().group(damaged)
        client.delete(keys.offsets)
        client.set(keys.offsets, "not a hash")
        try:
            found = told(spark, lake, bootstrap_servers=broker.bootstrap)
            with pytest.raises(PipelineError, match=f"offsets of group {damaged}: UNKNOWN"):
                told(spark, lake, bootstrap_servers=broker.bootstrap, groups=(readable, damaged))
        finally:
            client.delete(*keys)
    assert {lag.group for lag in found.lags} >= {readable}
    # Groups that other tests have damaged may be there as well.
    (left_out,) = (one for one in found.unreadable if one.group == damaged)
    assert left_out.reason.startswith(f"offsets of group {damaged}: UNKNOWN")
    told_of = json.loads(json.dumps(found.to_json()))["unreadable"]
    assert [one for one in told_of if one["group"] == damaged] == [{"group": damaged, "reason": left_out.reason}]


MADE = Report(
    made_at=NOON + HOUR,
    since=NOON,
    until=NOON + HOUR,
    interval_s=30.0,
    lags=(Lag(group="<script>$x$", topic="orders", partition=0, committed=1, end=3),),
    intervals=(Interval(topic="orders", start=NOON, records=60, bytes=6000),),
    days=(Day(topic="orders", date=date(2026, 3, 1), records=60, bytes=4000, files=1),),
)


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_saved_reports_make_a_history(spark: SparkSession, tmp_path: Path, form: str) -> None:
    path = str(tmp_path / "figures")
    for _ in range(2):
        save(spark, MADE, path, "delta" if form == "delta" else "parquet")

    def read(name: str) -> DataFrame:
        return spark.read.format(form).load(f"{path}/{name}")

    lags = read("lags").select("group", "lag", F.unix_seconds("made_at").alias("at")).collect()
    assert [tuple(row) for row in lags] == [("<script>$x$", 2, int((NOON + HOUR).timestamp()))] * 2
    assert read("intervals").agg(F.sum("records"), F.sum("bytes")).first() == (120, 12000)
    assert read("days").select("date", "bytes").distinct().collect() == [(date(2026, 3, 1), 4000)]


class Page(HTMLParser):
    """Checks that elements close in order, and collects texts, pictures and links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.pictures: list[str | None] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        values = dict(attrs)
        if tag == "svg":
            assert values["role"] == "img"
            self.pictures.append(values["aria-label"])
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "link", "br"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def test_page_stands_alone_and_describes_its_pictures() -> None:
    page = Page(html_page(MADE))
    assert page.open == []
    assert len(page.pictures) == 3
    assert all(page.pictures)
    assert all(link.startswith("#") for link in page.links)
    assert "script" not in page.open
    # The group's name looks like an element, but is text in the plot and in the table.
    assert page.texts.count("<script>$x$") == 2
    assert {"orders", "60", "6 kB", "4 kB"} <= set(page.texts)


def test_records_that_the_lake_does_not_count_are_no_zero_on_the_page() -> None:
    day = replace(MADE.days[0], records=None)
    texts = Page(html_page(replace(MADE, days=(*MADE.days, day)))).texts
    # In the summary, and in the table of sizes.
    assert texts.count("-") == 2


def test_each_plot_of_the_page_names_its_topics() -> None:
    interval = Interval(topic="_own", start=NOON, records=60, bytes=6000)
    day = Day(topic="_own", date=date(2026, 3, 1), records=60, bytes=4000, files=1)
    page = Page(html_page(replace(MADE, intervals=(*MADE.intervals, interval), days=(*MADE.days, day))))
    # Both plots and both tables name the topic.
    assert [page.texts.count(topic) for topic in ("orders", "_own")] == [4 + 1, 4]


def test_page_names_the_groups_that_its_lags_leave_out() -> None:
    unreadable = (UnreadableGroup(group="<b>bad", reason="offsets of group <b>bad: UNKNOWN"),)
    for lags in (MADE.lags, ()):
        page = Page(html_page(replace(MADE, lags=lags, unreadable=unreadable)))
        assert page.texts.count("Group <b>bad is left out: offsets of group <b>bad: UNKNOWN.") == 1
        assert len(page.pictures) == 2 + bool(lags)


def test_page_shows_the_offsets_that_archives_went_on_without() -> None:
    loss = TopicLoss(topic="<b>", loss=Loss(partition=3, kind="trimmed", start=10, end=12))
    page = Page(html_page(replace(MADE, losses=(loss,))))
    told = "topic <b>, partition 3: offsets 10 up to 12 were removed before they were archived"
    assert page.texts.count(told) == 1


def test_page_without_figures_says_so() -> None:
    empty = Report(made_at=NOON, since=NOON, until=NOON + HOUR, interval_s=30.0, lags=(), intervals=(), days=())
    page = Page(html_page(empty))
    assert "There is nothing to report on." in page.texts
    assert page.pictures == []
