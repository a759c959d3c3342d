"""The verbs of ``korvet pipeline`` as a user runs them: what they print, what they leave, how they end."""

from __future__ import annotations

import json
import os
import pty
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import structlog
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from korvet.cli import run
from tests.support.broker import KorvetServer

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
        # librdkafka's clients of other tests in this process complain there of brokers that are gone.
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
    """All of stderr, which is JSON, a line each."""
    return [json.loads(line) for line in err.splitlines()]


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
    assert spark.read.format("delta").load(f"{lake}/{topic}/raw").count() == 20

    code, out, err = korvet("maintain", "--lake", lake, "--json")
    assert code == 0, err
    assert [(done["table"], done["error"]) for done in json.loads(out)] == [(f"{lake}/{topic}/raw", None)]

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
        (["replay", "--lake", "LAKE", "--topic", "absent"], ""),
        (
            ["report", "--lake", "LAKE"],
            "lake LAKE: there is no archived topic in it; archive one, or name another lake",
        ),
        (["maintain", "--lake", "LAKE"], "LAKE: there are no tables of an archive"),
        (["maintain", "--lake", "LAKE", "--retention", "1h"], "retention of 1 hours: below 168 files may go"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    korvet: Callable[..., Shown], tmp_path: Path, flags: list[str], sentence: str
) -> None:
    lake = str(tmp_path)
    code, out, err = korvet(*[lake if flag == "LAKE" else flag for flag in flags])
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("korvet: " + sentence.replace("LAKE", lake))
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def read_until(terminal: int, text: str, process: subprocess.Popen[bytes]) -> str:
    """What a terminal shows, up to a text."""
    deadline, read = time.monotonic() + WITHIN_S, ""
    while text not in read and time.monotonic() < deadline and process.poll() is None:
        if select.select([terminal], [], [], 0.1)[0]:
            read += os.read(terminal, 4096).decode(errors="replace")
    assert text in read, read
    return read


def test_interrupted_archive_ends_in_good_order(broker: KorvetServer, spark_jars: str, tmp_path: Path) -> None:
    topic = filled(broker, 10)
    command = [sys.executable, "-m", "korvet.cli", "pipeline", "archive", "--topic", topic, "--every", "500ms"]
    command += ["--lake", str(tmp_path / "lake"), "--bootstrap-server", broker.bootstrap]
    command += ["--conf", f"spark.jars={spark_jars}", "--conf", "spark.driver.memory=600m", "--master", "local[2]"]
    terminal, end = pty.openpty()
    try:
        with subprocess.Popen(
            command, stdin=end, stdout=subprocess.PIPE, stderr=end, start_new_session=True
        ) as process:
            # The record count that the terminal shows once the batch is in the lake.
            shown = read_until(terminal, "BEHIND", process) + read_until(terminal, topic, process)
            # As a terminal does it: everything that runs in the foreground gets it.
            os.killpg(process.pid, signal.SIGINT)
            shown += read_until(terminal, "ending after what is running", process)
            out, _ = process.communicate(timeout=WITHIN_S)
            assert process.returncode == 0, shown
    finally:
        os.close(terminal)
        os.close(end)
    assert out.decode().splitlines()[1].split() == [topic, "20", "1", "0:10", "1:10"]
    assert "Traceback" not in shown
    assert "WARN" not in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_start_leaves_no_java(spark_jars: str, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "korvet.cli", "pipeline", "report", "--lake", str(tmp_path), "--debug"]
    command += ["--conf", f"spark.jars={spark_jars}", "--conf", "spark.driver.memory=600m", "--master", "local[2]"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stderr is not None
        # Java's first words: it does not know yet whom to listen to.
        assert process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT) if number == signal.SIGINT else process.terminate()
        # Ends when nobody has stderr any more.
        process.communicate(timeout=WITHIN_S)
        assert process.returncode == 130


def test_what_java_does_not_take_is_said(spark_jars: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "korvet.cli", "pipeline", "report", "--lake", str(tmp_path)]
    command += ["--conf", f"spark.jars={spark_jars}", "--conf", "spark.driver.memory=much"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("korvet: Java does not start as it is told to: Invalid maximum heap size: -Xmxmuch; ")
