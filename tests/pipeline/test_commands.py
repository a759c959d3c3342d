"""The verbs of ``korvet pipeline`` as a user runs them: their output, their files and their exit codes."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import structlog
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from korvet.cli import run
from korvet.pipeline.lake.files import newest_snapshot
from tests.support.broker import KorvetServer
from tests.support.delta import delta_rows
from tests.support.ports import free_port
from tests.support.scraping import scrape, total
from tests.support.terminal import terminal

WITHIN_S = 300.0
Shown = tuple[int, str, str]


@pytest.fixture
def korvet(
    spark: SparkSession, broker: KorvetServer, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Shown]]:
    """Run a verb in the tests' session: exit code, stdout and stderr."""

    def korvet(verb: str, *flags: str) -> Shown:
        capfd.readouterr()
        code = run(["pipeline", verb, *flags, "--bootstrap-server", broker.bootstrap])
        shown = capfd.readouterr()
        # librdkafka's clients of other tests print there that their brokers are gone.
        err = "".join(line for line in shown.err.splitlines(keepends=True) if not line.startswith("%"))
        return code, shown.out, err

    yield korvet
    structlog.reset_defaults()


@pytest.fixture
def topic(broker: KorvetServer) -> str:
    """A topic of two partitions with 10 records each."""
    return filled(broker, 10)


def filled(broker: KorvetServer, records: int) -> str:
    name = f"commands-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = admin.create_topics([NewTopic(name, 2)]).values()
    future.result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(2 * records):
        producer.produce(name, f"value {number}".encode(), partition=number % 2)
    assert producer.flush(60) == 0
    return name


def log_lines(err: str) -> list[dict[str, Any]]:
    """The JSON objects on stderr, one on each line."""
    return [json.loads(line) for line in err.splitlines()]


@pytest.mark.scene
def test_verbs_work_one_after_the_other(
    korvet: Callable[..., Shown], spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    config = tmp_path / "korvet.toml"
    config.write_text(f'[pipeline]\nlake = "lake"\n[pipeline.archive]\ntopics = ["{topic}"]\n')
    code, out, err = korvet("archive", "--config", str(config))
    assert code == 0, err
    assert out.splitlines()[1].split() == [topic, "20", "1", "0:10", "1:10"]
    (batch,) = [line for line in log_lines(err) if line["event"] == "archived a batch"]
    assert (batch["topic"], batch["records"], batch["behind"]) == (topic, 20, 0)
    assert len(delta_rows(spark, f"{lake}/{topic}/raw")) == 20

    code, out, err = korvet("status", "--lake", lake)
    assert code == 0, err
    # Topics of other tests may ask for tables, too.
    (shown,) = (words for line in out.splitlines() if (words := line.split())[:2] == [topic, "raw"])
    snapshot = newest_snapshot(spark, f"{lake}/{topic}/raw")
    size = [str(figure) for figure in (snapshot.sizeInBytes(), snapshot.numOfFiles())]
    assert (shown[:3], shown[-2:]) == ([topic, "raw", "0"], size)

    code, out, err = korvet("maintain", "--lake", lake, "--json")
    assert code == 0, err
    assert [(done["table"], done["error"]) for done in json.loads(out)] == [(f"{lake}/{topic}/raw", None)]

    catalog = f"sqlite:///{tmp_path}/catalog.db"
    code, out, err = korvet("iceberg", "--lake", lake, "--catalog", catalog)
    assert code == 0, err
    assert out.splitlines()[1].split()[::2] == [f"{topic}.raw", "1"]
    code, out, err = korvet("iceberg", "--lake", lake, "--catalog", catalog, "--topic", "absent")
    assert (code, "there are no tables of an archive" in err) == (1, True)

    copy = f"{topic}-copy"
    code, out, err = korvet("replay", "--lake", lake, "--topic", topic, "--to", copy, "--create", "--json")
    assert code == 0, err
    replayed = json.loads(out)
    assert (replayed["target"], replayed["records"], replayed["complete"]) == (copy, 20, True)

    page = tmp_path / "page.html"
    code, out, err = korvet("report", "--lake", lake, "--group", "korvet.archive", "--html", str(page))
    assert code == 0, err
    rows = [line.split() for line in out.splitlines() if line.startswith("korvet.archive") and topic in line]
    assert rows == [["korvet.archive", topic, str(number), "10", "10", "0"] for number in range(2)]
    assert out.splitlines()[-1].split()[:2] == [topic, "20"]
    assert topic in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["archive", "--lake", "LAKE", "--topic", "absent"], "topic absent: it does not exist at "),
        (
            ["archive", "--lake", "LAKE", "--topic", "x", "--schema", "x=/nowhere"],
            "cannot read schema /nowhere: No such",
        ),
        (
            ["archive", "--lake", "LAKE", "--topic", "x", "--metrics", "192.0.2.1:9465"],
            "cannot listen at 192.0.2.1:9465 for metrics: Cannot assign requested address",
        ),
        (["replay", "--lake", "LAKE", "--topic", "absent"], ""),
        (
            ["report", "--lake", "LAKE"],
            "lake LAKE: there is no archived topic in it; archive one, or name another lake",
        ),
        (
            ["retype", "--lake", "LAKE", "--topic", "absent"],
            "topic absent: it has no raw table in LAKE; archive the topic first",
        ),
        (["iceberg", "--lake", "LAKE", "--catalog", "nowhere"], "the Iceberg catalog nowhere: Iceberg's client failed"),
        (["maintain", "--lake", "LAKE"], "LAKE: there are no tables of an archive"),
        (
            ["maintain", "--lake", "LAKE", "--expire-after", "23h"],
            "rows cannot expire after 23 hours: a day is the least",
        ),
        (["maintain", "--lake", "LAKE", "--retention", "1h"], "retention of 1 hours: below 168 files may go"),
    ],
)
def test_verb_that_fails_prints_one_line(
    korvet: Callable[..., Shown], tmp_path: Path, flags: list[str], sentence: str
) -> None:
    lake = str(tmp_path)
    code, out, err = korvet(*[lake if flag == "LAKE" else flag for flag in flags])
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("korvet: " + sentence.replace("LAKE", lake))
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_interrupted_archive_ends_in_good_order(broker: KorvetServer, spark_jars: str, tmp_path: Path) -> None:
    topic = filled(broker, 10)
    command = [sys.executable, "-m", "korvet.cli", "pipeline", "archive", "--topic", topic, "--every", "500ms"]
    command += ["--lake", str(tmp_path / "lake"), "--bootstrap-server", broker.bootstrap]
    command += ["--conf", f"spark.jars={spark_jars}", "--conf", "spark.driver.memory=600m", "--master", "local[2]"]
    port = free_port()
    command += ["--metrics", f"127.0.0.1:{port}"]
    with (
        terminal() as shown,
        subprocess.Popen(
            command,
            env={**os.environ, "TERM": "xterm"},
            stdin=shown.end,
            stdout=subprocess.PIPE,
            stderr=shown.end,
            start_new_session=True,
        ) as process,
    ):
        # The terminal shows the record count once the batch is in the lake.
        shown.read_until("BEHIND", process, WITHIN_S)
        shown.read_until(topic, process, WITHIN_S)
        assert total(scrape(port), "korvet_archived_records_total", topic=topic) == 20
        # A terminal signals all processes in the foreground.
        os.killpg(process.pid, signal.SIGINT)
        text = shown.read_to_end(process, WITHIN_S)
        out, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, text
    assert "ending after the running work" in text
    assert out.decode().splitlines()[1].split() == [topic, "20", "1", "0:10", "1:10"]
    assert "Traceback" not in text
    assert "WARN" not in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_start_leaves_no_java(spark_jars: str, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "korvet.cli", "pipeline", "report", "--lake", str(tmp_path), "--debug"]
    command += ["--conf", f"spark.jars={spark_jars}", "--conf", "spark.driver.memory=600m", "--master", "local[2]"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stderr is not None
        # Java's first words come before its listener.
        assert process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT) if number == signal.SIGINT else process.terminate()
        # This ends when no process has stderr any more.
        process.communicate(timeout=WITHIN_S)
        assert process.returncode == 130


def test_setting_that_java_refuses_is_one_line(spark_jars: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "korvet.cli", "pipeline", "report", "--lake", str(tmp_path)]
    command += ["--conf", f"spark.jars={spark_jars}", "--conf", "spark.driver.memory=much"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(
        "korvet: Java does not start with these options: Invalid maximum heap size: -Xmxmuch; "
    )


NO_REPOSITORY = """<ivysettings>
  <settings defaultResolver="none"/>
  <resolvers><filesystem name="none"><artifact pattern="/nowhere/[artifact].jar"/></filesystem></resolvers>
</ivysettings>"""


def test_package_that_cannot_be_fetched_is_named(spark_jars: str, tmp_path: Path) -> None:
    (tmp_path / "ivy.xml").write_text(NO_REPOSITORY)
    command = [sys.executable, "-m", "korvet.cli", "pipeline", "report", "--lake", str(tmp_path)]
    command += ["--conf", f"spark.jars={spark_jars}", "--conf", "spark.jars.packages=org.none:no-such:1.0"]
    command += ["--conf", f"spark.jars.ivySettings={tmp_path / 'ivy.xml'}", "--conf", "spark.driver.memory=600m"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("korvet: package org.none:no-such:1.0 could not be fetched from Maven Central; ")
