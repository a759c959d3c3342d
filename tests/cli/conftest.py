"""Brokers for the commands: korvet, and Apache Kafka, whose tools are the commands' models."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from korvet.cli import run
from tests.kafka.waiting import TIMEOUT_S, poll_until
from tests.support.broker import UNINSTALLED

Shown = tuple[int, str, str]
Korvet = Callable[..., Shown]
Produce = Callable[..., Shown]


@pytest.fixture(autouse=True)
def without_what_users_do_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run as processes start as a user's do."""
    monkeypatch.setenv("PYTHONPATH", str(UNINSTALLED), prepend=os.pathsep)


@pytest.fixture(params=["korvet", pytest.param("kafka", marks=pytest.mark.all)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """host:port of a running broker."""
    server: str = request.getfixturevalue("broker" if request.param == "korvet" else "kafka").bootstrap
    return server


@pytest.fixture
def korvet(request: pytest.FixtureRequest, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Korvet:
    """Run a command on the broker: exit code, stdout and stderr."""
    is_kafka = request.node.callspec.params["bootstrap"] == "kafka"

    def korvet(*arguments: str) -> Shown:
        capsys.readouterr()
        code = run([*arguments, "--bootstrap-server", bootstrap])
        shown = capsys.readouterr()
        if is_kafka and code == 0 and arguments[:2] == ("topics", "create"):
            _await_leaders(bootstrap, [*takewhile(lambda argument: argument[0] != "-", arguments[2:])])
        return code, shown.out, shown.err

    return korvet


def _await_leaders(bootstrap: str, topics: Sequence[str]) -> None:
    """Wait until all partitions have leaders: Kafka answers a creation before its metadata shows the topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def have_leaders() -> bool:
        known = admin.list_topics(timeout=TIMEOUT_S).topics
        return all(
            topic in known and all(part.leader >= 0 for part in known[topic].partitions.values()) for topic in topics
        )

    poll_until(have_leaders, "leaders of new topics")


@pytest.fixture
def ask(korvet: Korvet) -> Callable[..., Any]:
    """Run a command with ``--json`` and hand over its output."""

    def ask(*arguments: str) -> Any:
        code, out, err = korvet(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return ask


@pytest.fixture
def name() -> str:
    """A name for a topic or group that no other test has."""
    return f"cli-{secrets.token_hex(4)}"


@pytest.fixture
def produce(bootstrap: str) -> Callable[[str, int, Iterable[int]], None]:
    """Append a record for each timestamp (ms) to one partition of a topic."""

    def produce(topic: str, partition: int, timestamps: Iterable[int]) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        for timestamp in timestamps:
            producer.produce(topic, value=b"record", partition=partition, timestamp=timestamp)
        assert producer.flush(30) == 0

    return produce


@pytest.fixture
def topic(korvet: Korvet, name: str) -> str:
    """A topic of one partition."""
    korvet("topics", "create", name, "--partitions", "1")
    return name


@pytest.fixture
def send(korvet: Korvet, tmp_path: Path) -> Produce:
    """Produce the lines of a file."""

    def send(topic: str, data: bytes, *flags: str) -> Shown:
        (tmp_path / "records").write_bytes(data)
        return korvet("topics", "produce", topic, str(tmp_path / "records"), *flags)

    return send
