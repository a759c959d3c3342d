"""Apache Kafka for comparison: one KRaft node on loopback, with all its files in a temporary directory.

The jars of a version come once from Maven into `.cache` of the clone. `running_kafka` is for any caller; the session
fixture `kafka` is for tests and holds one broker for the whole run.
"""

import base64
import fcntl
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.java import SHORT_LIVED
from tests.support.ports import free_port as free_port
from tests.support.tools import cannot_run, trouble

ROOT = Path(__file__).resolve().parents[2]
VERSION = "4.1.2"
"""The version that answers are compared with."""
NEWEST = "4.4.0"
"""The version for what `VERSION` does not serve."""
POM = Path(__file__).with_name("kafka-pom.xml")
READY_WITHIN_S = 150.0
FETCH_WITHIN_S = 600.0

# This heap is enough for tests.
TEST_JVM = ("-Xmx512m", *SHORT_LIVED)


class KafkaUnavailable(RuntimeError):
    """Kafka cannot run here: a tool is missing, Maven cannot fetch the jars, or Kafka did not become ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """A running broker: `bootstrap` is host:port, `ready_s` the seconds from its start to its first answers."""

    bootstrap: str
    pid: int
    directory: Path
    ready_s: float


def _tool(name: str) -> str:
    if reason := trouble(name):
        raise KafkaUnavailable(reason)
    return str(shutil.which(name))


def fetch_jars(version: str = VERSION) -> Path:
    """The directory of Kafka's jars, which Maven fills if it is empty. Safe for several processes at once."""
    return fetch_dependencies(POM, ROOT / ".cache" / f"kafka-{version}", f"-Dkafka.version={version}")


def fetch_dependencies(pom: Path, jars: Path, *options: str) -> Path:
    """The directory with a project's dependencies, which Maven fills if it is missing. Raises KafkaUnavailable."""
    jars.parent.mkdir(parents=True, exist_ok=True)
    with open(jars.parent / f"{jars.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            partial = Path(tempfile.mkdtemp(prefix="jars-", dir=jars.parent))
            command = [_tool("mvn"), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
            command += [f"-DoutputDirectory={partial}", *options]
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_WITHIN_S, check=False)
            if done.returncode != 0:
                shutil.rmtree(partial)
                raise KafkaUnavailable(f"Maven could not fetch {jars.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
            partial.chmod(0o755)
            partial.rename(jars)
    return jars


def _properties(
    directory: Path, port: int, controller_port: int, settings: Mapping[str, str], others: Sequence[str]
) -> Path:
    listeners = [f"PLAINTEXT://127.0.0.1:{port}", f"CONTROLLER://127.0.0.1:{controller_port}", *others]
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "log.dirs": str(directory / "log"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # Otherwise an idle broker writes twice a second, and a run has some of them.
        "metadata.max.idle.interval.ms": "0",
        **settings,
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return path


def _format(java: str, classpath: str, properties: Path, features: Sequence[str]) -> None:
    # A first byte of zero gives a first letter A: the tools would read an id that begins with a dash as an option.
    cluster_id = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
    command = [java, *TEST_JVM, "-cp", classpath, "kafka.tools.StorageTool", "format", "--standalone"]
    command += ["-t", cluster_id, "-c", str(properties)]
    # With this feature Kafka makes min.insync.replicas a dynamic config of the cluster, which one node does not need.
    for feature in ("eligible.leader.replicas.version=0", *features):
        command += ["--feature", feature]
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY_WITHIN_S, check=False)
    if done.returncode != 0:
        raise KafkaUnavailable(f"StorageTool format failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data


def _ask(port: int, api_key: int, version: int, body: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        frame = struct.pack(">hhih", api_key, version, 1, -1) + body
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        return _receive(connection, size)[4:]


def _is_ready(port: int) -> bool:
    """True if the group coordinator has loaded and producer ids are given out: both come after the topics."""
    group, producer = struct.pack(">h", 5) + b"ready", struct.pack(">hi", -1, 0)
    try:
        if struct.unpack(">h", _ask(port, 10, 0, group)[:2]) != (0,):  # FindCoordinator v0 creates __consumer_offsets
            return False
        if _ask(port, 9, 2, group + struct.pack(">i", -1))[-2:] != b"\0\0":  # OffsetFetch v2, all topics
            return False
        return _ask(port, 22, 0, producer)[4:6] == b"\0\0"  # InitProducerId v0
    except (OSError, struct.error):
        return False


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if _is_ready(port):
            return
        time.sleep(0.05)
    raise KafkaUnavailable(f"Kafka did not become ready:\n{output.read_text()[-4000:]}")


@contextmanager
def running_kafka(
    *,
    version: str = VERSION,
    jvm: tuple[str, ...] = TEST_JVM,
    settings: Mapping[str, str] | None = None,
    parent: Path | None = None,
    listeners: Sequence[str] = (),
    features: Sequence[str] = (),
) -> Iterator[Kafka]:
    """Start a Kafka of the caller's own, yield it after it serves topics, groups and producers, and stop it.

    `jvm` are options of its JVM, `settings` override server.properties, `parent` holds its temporary directory.
    `listeners` come beside the plain one, as in `SASL_PLAINTEXT://127.0.0.1:9093`. `features` are as in
    `share.version=1`.
    Raises KafkaUnavailable.
    """
    java, classpath = _tool("java"), f"{fetch_jars(version)}/*"
    with tempfile.TemporaryDirectory(prefix="kafka-", dir=parent, ignore_cleanup_errors=True) as name:
        directory, port = Path(name), free_port()
        properties = _properties(directory, port, free_port(), settings or {}, listeners)
        _format(java, classpath, properties, features)
        output, started = directory / "output.txt", time.monotonic()
        with open(output, "wb") as sink:
            process = subprocess.Popen(
                [java, *jvm, "-cp", classpath, "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=directory,
            )  # fmt: skip
        try:
            _wait_until_ready(process, port, output)
            ready_s = time.monotonic() - started
            yield Kafka(bootstrap=f"127.0.0.1:{port}", pid=process.pid, directory=directory, ready_s=ready_s)
        finally:
            process.kill()  # its data goes with it, so nothing is worth an orderly shutdown
            process.wait()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """One Apache Kafka for the session. Without Java or Maven the test is skipped; if CI is set, it fails."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(running_kafka())
        except KafkaUnavailable as error:
            cannot_run(str(error))
        yield running
