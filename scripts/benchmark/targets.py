"""The brokers that are measured: korvet, Apache Kafka 4.4.0 and the floor, each started and stopped here."""

import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.broker import UNINSTALLED
from tests.support.kafka import NEWEST, free_port, running_kafka

ROOT: Final = Path(__file__).resolve().parents[2]
READY_WITHIN_S: Final = 60.0
STOP_WITHIN_S: Final = 20.0
SCRAPED_EVERY_S: Final = 1.0

# The options of kafka-server-start.sh and kafka-run-class.sh.
KAFKA_JVM: Final = ("-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
                    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")  # fmt: skip
# Kafka's own defaults, because the tests use less; deleted topics free the disk before the next measurement.
KAFKA_SETTINGS: Final = {"offsets.topic.num.partitions": "50", "log.segment.delete.delay.ms": "1000"}


class CreateTopic(Protocol):
    """Make a topic with these settings."""

    def __call__(self, topic: str, settings: Mapping[str, str] = MappingProxyType({}), partitions: int = 1) -> None: ...


class TargetError(RuntimeError):
    """A broker did not start or did not do what the benchmark needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A running broker. `pids` are the processes started for it; their children count as its memory too."""

    name: str
    address: str
    pids: tuple[int, ...]
    ready_s: float
    create_topic: CreateTopic
    delete_topic: Callable[[str], None]
    redis_url: str | None = None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _started(command: Sequence[str], directory: Path, environment: dict[str, str]) -> Iterator[tuple[int, Path]]:
    """A process and the file its output goes to."""
    output = directory / f"{Path(command[0]).name}-{time.monotonic_ns()}.txt"
    with open(output, "wb") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=directory,
            env={**os.environ, **environment},
        )  # fmt: skip
    try:
        yield process.pid, output
    finally:
        _stop(process)


def _wait(is_ready: Callable[[], bool], what: str, output: Path, within_s: float = READY_WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not is_ready():
        if time.monotonic() > deadline:
            raise TargetError(f"{what} did not become ready:\n{output.read_text()[-4000:]}")
        time.sleep(0.002)


def admin_topics(address: str) -> tuple[CreateTopic, Callable[[str], None]]:
    """A function that makes a topic, of one partition by default, and one that deletes it."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})  # quiet when the broker is stopped under it

    def create(topic: str, settings: Mapping[str, str] = MappingProxyType({}), partitions: int = 1) -> None:
        admin.create_topics([NewTopic(topic, partitions, 1, config=dict(settings))])[topic].result(30)

    def delete(topic: str) -> None:
        admin.delete_topics([topic])[topic].result(30)

    return create, delete


def _importing(checkout: Path) -> dict[str, str]:
    """The environment in which Python imports korvet from a checkout, and nothing that users do not have."""
    return {"PYTHONPATH": os.pathsep.join(map(str, (checkout, UNINSTALLED)))}


@contextmanager
def _scraped(port: int) -> Iterator[None]:
    """Read the metrics at a port again and again, as a Prometheus in a hurry does, until the block ends."""
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.wait(SCRAPED_EVERY_S):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                page.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def korvet(
    directory: Path, name: str = "korvet", checkout: Path = ROOT, *, workers: int = 1, redis_url: str | None = None,
    program: Sequence[str] = ("-m", "korvet.cli"), has_metrics: bool = False,
) -> Iterator[Target]:  # fmt: skip
    """`korvet serve`; cold start is from the process's start to its ready line.

    :param checkout: of korvet; it runs with this one's packages.
    :param redis_url: without one, it has its embedded server.
    :param program: what Python runs.
    :param has_metrics: it has its HTTP port, which is read each second.
    """
    port, metrics_port = free_port(), free_port()
    data = tempfile.mkdtemp(prefix="korvet-", dir=directory)
    storage = ["--data-dir", data] if redis_url is None else ["--redis", redis_url]
    serve = ["serve", "--listen", f"127.0.0.1:{port}", "--workers", str(workers), *storage]
    serve += ["--metrics", f"127.0.0.1:{metrics_port}"] if has_metrics else []
    command = [sys.executable, *program, *serve]
    started = time.monotonic()
    with _started(command, directory, _importing(checkout)) as (pid, output):
        _wait(lambda: b" ready on " in output.read_bytes(), name, output)
        ready_s = time.monotonic() - started
        create, delete = admin_topics(f"127.0.0.1:{port}")
        with _scraped(metrics_port) if has_metrics else nullcontext():
            yield Target(
                name=name, address=f"127.0.0.1:{port}", pids=(pid,), ready_s=ready_s, create_topic=create,
                delete_topic=delete, redis_url=redis_url or f"unix://{data}/valkey.sock",
            )  # fmt: skip


@contextmanager
def korvet_of(config: Path, directory: Path, within_s: float) -> Iterator[int]:
    """`korvet serve` with a config file, until the block ends; its process id."""
    command = [sys.executable, "-m", "korvet.cli", "serve", "--config", str(config)]
    with _started(command, directory, _importing(ROOT)) as (pid, output):
        _wait(lambda: b" ready on " in output.read_bytes(), "korvet", output, within_s)
        yield pid


@contextmanager
def kafka(directory: Path) -> Iterator[Target]:
    """Apache Kafka as its own scripts start it; cold start is from the JVM's start to its first answers."""
    with running_kafka(version=NEWEST, jvm=KAFKA_JVM, settings=KAFKA_SETTINGS, parent=directory) as broker:
        create, delete = admin_topics(broker.bootstrap)
        yield Target(
            name="kafka", address=broker.bootstrap, pids=(broker.pid,), ready_s=broker.ready_s, create_topic=create,
            delete_topic=delete,
        )  # fmt: skip


def _nothing(*_: object, **__: object) -> None:
    """The floor has one log and one group, which are there."""


@contextmanager
def floor(directory: Path, *, program: Sequence[str] = ("-m", "scripts.benchmark.floor")) -> Iterator[Target]:
    """The floor, with korvet's embedded server.

    :param program: what Python runs.
    """
    port, data = free_port(), tempfile.mkdtemp(prefix="floor-", dir=directory)
    command = [sys.executable, *program, str(port), data]
    started = time.monotonic()
    with _started(command, directory, _importing(ROOT)) as (pid, output):
        _wait(lambda: b" ready on " in output.read_bytes(), "the floor", output)
        yield Target(
            name="floor", address=f"127.0.0.1:{port}", pids=(pid,), ready_s=time.monotonic() - started,
            create_topic=_nothing, delete_topic=_nothing, redis_url=f"unix://{data}/valkey.sock",
        )  # fmt: skip
