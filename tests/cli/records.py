"""Records for the tests of ``topics consume``, and the command as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.offsets import TopicPartition
from korvet.cli.kafka.produce import Producer
from korvet.cli.kafka.records import Unsent
from tests.support.broker import KorvetServer
from tests.support.times import MIDNIGHT_MS

ROOT = Path(__file__).resolve().parents[2]
KORVET = [sys.executable, "-m", "korvet.cli"]


def store(broker: KorvetServer, topic: str, *values: bytes) -> None:
    with Client(broker.bootstrap) as client:
        Producer(client, [TopicPartition(topic, 0)], 0).send(Unsent(None, value, [], MIDNIGHT_MS) for value in values)


@contextmanager
def consuming(broker: KorvetServer, *arguments: str, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    """The command, as a terminal starts it; a test that fails leaves it killed."""
    # Under nohup the tests ignore SIGHUP, which their children would inherit.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        started = subprocess.Popen(
            [*KORVET, "topics", "consume", *arguments, "-b", broker.bootstrap],
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm"},
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    with started as process:
        try:
            yield process
        finally:
            process.kill()
