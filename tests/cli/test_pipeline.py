"""``korvet pipeline`` without Spark: its flags, their defaults from a file, and its messages if a part is missing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from korvet.cli import run
from korvet.cli.pipeline import pipeline, running
from korvet.errors import ConfigError
from korvet.settings.file import read_config
from korvet.settings.pipeline import PIPELINE
from tests.support.terminal import terminal

Given = Callable[..., dict[str, Any]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """The arguments of a verb's function for its flags."""
    for name in ("KORVET_BOOTSTRAP_SERVER", "KORVET_CLIENT_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def given(verb: str, *flags: str) -> dict[str, Any]:
        return pipeline.commands[verb].make_context(verb, list(flags)).params

    return given


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "korvet.toml"
    path.write_text(
        """
        [pipeline]
        bootstrap-server = "broker.example:9092"
        command-config = "client.properties"
        lake = "lake"
        [pipeline.spark]
        spark.driver.memory = "2g"
        "spark.ui.enabled" = true
        [pipeline.kafka]
        security.protocol = "SSL"
        [pipeline.archive]
        topics = ["orders", "clicks"]
        every = "10s"
        max-offsets-per-trigger = 5000
        fail-on-data-loss = false
        schemas = { orders = "orders.json" }
        [pipeline.replay]
        topic = "orders"
        to = "copy"
        from-offset = ["0:5", "1:7"]
        [pipeline.report]
        to = "s3a://figures/lags"
        since = "2026-01-31T12:00:00+01:00"
        """
    )
    return path


def test_file_stands_in_for_flags(given: Given, config: Path) -> None:
    told = given("archive", "--config", str(config))
    assert told["bootstrap_server"] == "broker.example:9092"
    assert told["command_config"] == config.parent / "client.properties"
    assert told["lake"] == str(config.parent / "lake")
    assert (told["topics"], told["every"], told["max_offsets_per_trigger"]) == (("orders", "clicks"), 10.0, 5000)
    assert told["fail_on_data_loss"] is False
    assert told["spark"] == {"spark.driver.memory": "2g", "spark.ui.enabled": "true"}
    assert told["kafka"] == {"security.protocol": "SSL"}
    assert told["schemas"] == {"orders": str(config.parent / "orders.json")}


def test_each_verb_has_its_own_table(given: Given, config: Path) -> None:
    replay = given("replay", "--config", str(config))
    assert (replay["topic"], replay["to"], replay["from_offset"]) == ("orders", "copy", {0: 5, 1: 7})
    report = given("report", "--config", str(config))
    assert (report["to"], report["since"]) == ("s3a://figures/lags", datetime(2026, 1, 31, 11, tzinfo=UTC))


@pytest.mark.parametrize("verb", ["archive", "replay", "report", "status", "retype", "maintain", "iceberg"])
def test_each_setting_of_the_file_is_one_of_the_verb(verb: str) -> None:
    names = {setting.replace("-", "_") for setting in PIPELINE["properties"][verb]["properties"]}
    assert names <= {parameter.name for parameter in pipeline.commands[verb].params}


def test_flags_win_over_the_file(given: Given, config: Path) -> None:
    flags = ["--lake", "/there", "--topic", "other", "--every", "1m", "--conf", "spark.driver.memory=4g", "-X", "a=b"]
    told = given("archive", "--config", str(config), *flags)
    assert (told["lake"], told["topics"], told["every"]) == ("/there", ("other",), 60.0)
    assert told["spark"] == {"spark.driver.memory": "4g", "spark.ui.enabled": "true"}
    assert told["kafka"] == {"security.protocol": "SSL", "a": "b"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[pipeline]\nlak = 'x'", "there is no setting 'lak' in [pipeline]; did you mean 'lake'?"),
        (
            "[pipeline.archive]\nevery = 10",
            'pipeline.archive.every: 10 is not allowed; want a duration, for example "10s"',
        ),
        (
            "[pipeline.archive]\nevery = 'often'",
            "pipeline.archive.every: 'often' is not allowed; want a duration, for example \"10s\"",
        ),
        ("[pipeline.archive]\ntopics = 'x'", "pipeline.archive.topics: 'x' is not allowed; want a list of names"),
        ("[pipeline.archive]\nsource = 'x'", "pipeline.archive.source: 'x' is not allowed; allowed: kafka, korvet"),
        ("[pipeline.spark]\na = [1]", "pipeline.spark.a: [1] is not allowed; want a text, a number, true or false"),
        ("[pipeline.replay]\nrate = 0", "pipeline.replay.rate: 0 is not allowed; want records per second"),
    ],
)
def test_error_in_the_file_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "korvet.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}: {sentence}")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["archive", "--topic", "x"], "missing option '--lake'; see korvet pipeline archive --help"),
        (["archive", "--lake", "x", "--every", "often"], "invalid value for '--every': 'often' is no duration"),
        (["archive", "--lake", "x", "--conf", "y"], "invalid value for '--conf': 'y' is not of the form NAME=VALUE"),
        (["replay", "--lake", "x", "--topic", "y", "--from-offset", "z"], "invalid value for '--from-offset': 'z' is"),
        (
            ["replay", "--lake", "x", "--topic", "y", "--from-time", "noon"],
            "invalid value for '--from-time': 'noon' is",
        ),
        (
            ["report", "--lake", "x", "--since", "99999999999d"],
            "invalid value for '--since': '99999999999d' is no time",
        ),
        (["report", "--lake", "x", "--since", "0001-01-01T00:00+14:00"], "invalid value for '--since': '0001-01-01T00"),
        (
            ["archive", "--lake", "x", "--topic", "y", "--maintain-every", "1h"],
            "option '--maintain-every' needs '--every'",
        ),
        (
            ["archive", "--lake", "x", "--topic", "y", "--every", "1s", "--expire-after", "9d"],
            "option '--expire-after' needs '--maintain-every'",
        ),
        (
            ["archive", "--lake", "x", "--topic", "y", "--tier", "z", "--source", "kafka"],
            "option '--tier' needs '--source korvet'",
        ),
        (["archive", "--lake", "x", "--topic", "y", "--metrics", "9465"], "--metrics: '9465' is not HOST:PORT"),
        (["archiv"], "no such command 'archiv'"),
    ],
)
def test_misunderstood_command_is_one_line(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.lower().startswith(f"korvet: {sentence}".lower())


def test_times_are_absolute_or_before_now(given: Given) -> None:
    told = given("replay", "--lake", "x", "--topic", "y", "--from-time", "2h", "--to-time", "2026-01-31")
    assert timedelta(hours=2) <= datetime.now(UTC) - told["from_time"] < timedelta(hours=3)
    assert told["to_time"] == datetime(2026, 1, 31, tzinfo=UTC)


def test_offset_for_all_partitions_is_a_number(given: Given) -> None:
    told = given("replay", "--lake", "x", "--topic", "y", "--to-offset", "7")
    assert (told["from_offset"], told["to_offset"]) == (None, 7)


ARCHIVE = ["pipeline", "archive", "--lake", "x", "--topic", "y"]


def test_missing_packages_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "_PACKAGES", ("pyspark", "korvet_is_without_it"))
    assert run(ARCHIVE) == 1
    err = capfd.readouterr().err
    assert err.startswith(
        "korvet: the pipeline needs packages that are not installed here (korvet_is_without_it); run: "
    )
    assert err.endswith(" -m pip install 'korvet[spark]'\n")


def test_missing_java_is_one_line() -> None:
    code = f"import sys; from korvet.cli import run; sys.exit(run({ARCHIVE!r}))"
    for environment, sentence in (
        ({}, "korvet: Spark needs Java 17 or newer and there is none; install one"),
        ({"JAVA_HOME": "/nowhere"}, "korvet: JAVA_HOME is /nowhere, which has no bin/java"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PATH": "/nowhere", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith(sentence)


def test_help_comes_without_what_commands_need() -> None:
    heavy = {"pyspark", "confluent_kafka", "matplotlib", "pyarrow", "asyncio", "kio", "redis", "structlog"}
    code = (
        "import sys; from korvet.cli import run; run(['pipeline', 'archive', '--help']);"
        f"sys.exit(bool({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", ["archive", "replay", "report", "retype", "maintain", "iceberg"])
def test_job_is_the_file_of_its_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "job", verb]) == 0
    path = Path(capsys.readouterr().out.strip())
    done = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"Usage: korvet pipeline {verb} ")
    assert isinstance(pipeline.commands[verb], click.Command)


def test_job_can_have_the_options_that_fetch_delta(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "job", "--packages", "archive"]) == 0
    words = capsys.readouterr().out.split()
    assert words[0::2][:2] == ["--packages", "--exclude-packages"]
    assert "io.delta:delta-spark_4.2_2.13:" in words[1]
    assert words[-1].endswith("archive.py")


def test_job_adds_packages_to_those_of_delta(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "job", "--add", "a:b:1", "--add", "c:d:2", "archive"]) == 0
    _, packages, _, excludes, path = capsys.readouterr().out.split()
    assert packages.startswith("io.delta:delta-spark_4.2_2.13:") and packages.endswith(",a:b:1,c:d:2")
    # An unquoted word with a star would be a pattern for files of the shell.
    assert "*" not in excludes
    assert path.endswith("archive.py")


def test_job_refuses_what_is_no_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "job", "--add", "hadoop-aws", "archive"]) == 2
    assert capsys.readouterr().err.startswith("korvet: hadoop-aws is not GROUP:ARTIFACT:VERSION")


def test_signal_stops_work_that_is_about_to_wait_for_it() -> None:
    """The work may hold the event's lock when the signal interrupts it."""
    with running.stoppable() as stop:
        with stop._cond:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(60)


INTERRUPTED = """
from types import SimpleNamespace as Facts
from korvet.cli.pipeline.progress import archive_progress, log_to_stderr
from korvet.cli.pipeline.running import stoppable
log_to_stderr(Facts(log_format="text", debug=False))
with archive_progress(Facts(log_format="text")) as show, stoppable() as stop:
    show(Facts(topic="orders", batch_id=1, rows=7, rows_per_s=7.0, behind=0))
    stop.wait(60)
"""


HIDE_CURSOR = "\x1b[?25l"
"""The escape with which a drawing on a terminal begins."""


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_note_of_an_interrupt_is_not_drawn_over(kind: str) -> None:
    environment = {**os.environ, "TERM": kind}
    with (
        terminal() as shown,
        subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED], env=environment, stdin=shown.end, stdout=shown.end, stderr=shown.end
        ) as process,
    ):
        shown.read_until("orders", process)
        process.send_signal(signal.SIGINT)
        text = shown.read_to_end(process)
    assert process.returncode == 0, text
    # The note is a line of its own, which ends before the next drawing.
    assert re.search(r"[\r\nK]korvet: ending after the running work; a second signal ends at once\s*\n", text), text
    assert (HIDE_CURSOR in text) == (kind == "xterm"), text
