"""Frameworks that speak Kafka run one job each: Kafka Connect, Spring Kafka, Faust and Quix Streams."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from tests.kafka.builds import framework_command, java_command
from tests.kafka.conftest import NewTopic
from tests.kafka.process import Administrator
from tests.kafka.waiting import poll_until

pytestmark = pytest.mark.all

WITHIN_S = 120.0
AMOUNTS = [("tea", 3), ("coffee", 5), ("tea", 4), ("tea", 1), ("coffee", 2)]
TOTALS = [("tea", 3), ("coffee", 5), ("tea", 7), ("tea", 8), ("coffee", 7)]

Command = tuple[list[str], Mapping[str, str]]


def spring() -> Command:
    return java_command("korvet.frameworks.Totals", "frameworks"), os.environ


FRAMEWORKS: dict[str, Callable[[], Command]] = {
    "faust": lambda: framework_command("totals_faust.py"),
    "quix": lambda: framework_command("totals_quix.py"),
    "spring": spring,
}


@contextmanager
def running(command: list[str], environment: Mapping[str, str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends, which may stop it; its output is told if the block fails."""
    path = directory / "output.txt"
    with open(path, "wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=directory
        )
    try:
        yield process
    except BaseException as error:
        error.add_note(path.read_text(errors="replace")[-6000:])
        raise
    finally:
        process.kill()
        process.wait()


def told(consumer: confluent_kafka.Consumer, found: list[tuple[str, int]]) -> bool:
    """Read on; whether there are as many totals as are wanted."""
    for message in consumer.consume(100, 0.2):
        assert message.error() is None, message.error()
        found.append(((message.key() or b"").decode(), int(message.value() or b"")))
    return len(found) >= len(TOTALS)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_framework_reads_adds_up_writes_commits_and_ends(
    bootstrap: str, administrator: Administrator, new_topic: NewTopic, tmp_path: Path, framework: str
) -> None:
    command, environment = FRAMEWORKS[framework]()
    amounts, totals = new_topic(), new_topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for key, amount in AMOUNTS:
        producer.produce(amounts, str(amount), key)
    assert producer.flush(WITHIN_S) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_committed"}
    )
    consumer.assign([confluent_kafka.TopicPartition(totals, 0, 0)])
    found: list[tuple[str, int]] = []
    with running([*command, bootstrap, amounts, totals], environment, tmp_path) as process:
        poll_until(lambda: told(consumer, found), f"totals of {framework}", WITHIN_S)
        process.send_signal(signal.SIGTERM)
        process.wait(WITHIN_S)
        group = f"{framework}-{amounts}"
        committed = administrator.committed(group, amounts)
    consumer.close()
    assert found == TOTALS
    # A transaction's marker has an offset of its own.
    assert committed == {0: len(AMOUNTS)}


def test_connect_moves_lines_of_a_file_through_a_topic_to_another_file(
    bootstrap: str, administrator: Administrator, tmp_path: Path
) -> None:
    topic = f"lines-of-{tmp_path.name}"
    lines = "".join(f"line {number}\n" for number in range(100))
    (tmp_path / "in.txt").write_text(lines)
    files = {
        "worker": {
            "bootstrap.servers": bootstrap,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": tmp_path / "offsets",
            "offset.flush.interval.ms": 200,
            "listeners": "http://127.0.0.1:0",
            "plugin.path": "",
            "plugin.discovery": "service_load",
        },
        "source": {
            "name": "source",
            "connector.class": "FileStreamSource",
            "file": tmp_path / "in.txt",
            "topic": topic,
        },
        "sink": {
            "name": f"sink-{topic}",
            "connector.class": "FileStreamSink",
            "file": tmp_path / "out.txt",
            "topics": topic,
            "consumer.override.metadata.max.age.ms": 500,
        },
    }
    for name, settings in files.items():
        (tmp_path / name).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = java_command("org.apache.kafka.connect.cli.ConnectStandalone", "frameworks")
    moved = tmp_path / "out.txt"
    with running([*command, *(str(tmp_path / name) for name in files)], os.environ, tmp_path):
        poll_until(lambda: moved.exists() and moved.read_text() == lines, "all lines in the other file", WITHIN_S)
        group = f"connect-sink-{topic}"
        poll_until(lambda: administrator.committed(group, topic) == {0: 100}, "the sink's offsets", WITHIN_S)
