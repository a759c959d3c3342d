"""The commands that start the drivers. The clone's `.cache` keeps the files that Maven and npm fetch and compile."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.kafka.client import ClientError
from tests.kafka.options import MemberOptions, ProduceOptions
from tests.kafka.process import Driver
from tests.kafka.records import numbered
from tests.kafka.waiting import wait_until
from tests.support.broker import BrokerFailed, running_broker
from tests.support.java import QUIETLY, SHORT_LIVED
from tests.support.kafka import VERSION, fetch_jars
from tests.support.tools import find_tool

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "kafka-drivers"
BUILD_WITHIN_S = 600.0

# The drivers live briefly and mostly wait, so start-up counts. Their log goes only to a caller that asks for it.
SHORT_LIVED_JVM = (*SHORT_LIVED, "-Xshare:auto", "-Xmx512m", f"-Djava.util.logging.config.file={os.devnull}")

JAVA_VERSIONS = {"java-3.9": "3.9.2", "java-4.4": "4.4.0"}
"""Drivers of the Java client in other versions than the pom's."""

PYTHON_DRIVERS = {"confluent-kafka": "confluent", "aiokafka": "aiokafka", "kafka-python": "kafka_python"}


class BuildError(RuntimeError):
    """Maven or npm failed; the message is its output."""


def driver_command(name: str, bootstrap: str) -> list[str]:
    """The command that starts a client's driver, which the first use builds. Raises BuildError."""
    if name == "java":
        return [*java_command("korvet.driver.Main"), bootstrap]
    if name in JAVA_VERSIONS:
        return [*java_command("korvet.driver.Main", clients=JAVA_VERSIONS[name]), bootstrap]
    if name == "kafkajs":
        return [*_node_command(), bootstrap]
    return [sys.executable, "-m", f"tests.kafka.drivers.{PYTHON_DRIVERS[name]}", bootstrap]


def java_command(main: str, project: str = "java", clients: str | None = None) -> list[str]:
    """The command that runs a class of a Java project here, which the first use compiles. Raises BuildError.

    With ``clients``, a version of Kafka's clients, the same classes run on that version.
    """
    java, maven = find_tool("java"), find_tool("mvn")
    directory = HERE / project
    sources = [directory / "pom.xml", *sorted(directory.glob("src/**/*.java"))]

    def run_maven(target: Path, *arguments: str) -> None:
        command = [maven, "-q", "-B", "-f", str(directory / "pom.xml"), f"-Dkorvet.build={target}"]
        run_build([*command, *arguments], directory)

    jars = "dependency:copy-dependencies"

    def compile_classes(target: Path) -> None:
        run_maven(target, "compiler:compile", jars)
        Path(shutil.make_archive(str(target / "classes"), "zip", target / "classes")).rename(target / "classes.jar")

    built = built_once(project, sources, compile_classes)
    if clients is not None:
        version = f"-Dkafka.version={clients}"
        others = built_once(f"{project}-{clients}", sources[:1], lambda target: run_maven(target, jars, version))
        return [java, *SHORT_LIVED_JVM, "-cp", f"{built}/classes:{others}/lib/*", main]
    if project != "java":
        return [java, *SHORT_LIVED_JVM, "-cp", f"{built}/classes:{built}/lib/*", main]
    drivers = [java, *SHORT_LIVED_JVM, "-cp", f"{built}/classes.jar:{built}/lib/*"]
    archives = built_once("java-archive", [*sources, HERE / "builds.py"], lambda made: _archive_classes(drivers, made))
    archive = archives / "classes.jsa"
    return [*drivers, *((f"-XX:SharedArchiveFile={archive}", *QUIETLY) if archive.exists() else ()), main]


def _archive_classes(drivers: list[str], target: Path) -> None:
    """Let a driver produce and join groups, and write down its classes. Mapped from there, a driver costs half.

    Drivers go without it if that fails, as with a Java that makes no such archive. One JVM leaves out another one's.
    """
    archive = (f"-XX:ArchiveClassesAtExit={target / 'classes.jsa'}", *QUIETLY)
    read: list[dict[str, Any]] = []
    with suppress(BrokerFailed, ClientError, TimeoutError), running_broker() as broker:
        driver = Driver([*drivers, *archive, "korvet.driver.Main", broker.bootstrap], read.append)
        try:
            _produce_and_join(driver, read)
        finally:
            driver.stop()


def _produce_and_join(driver: Driver, read: list[dict[str, Any]]) -> None:
    """Let the driver do what most tests ask of one.

    :param read: gets its events.
    """
    driver.call("create_topic", topic="topic", partitions=2, configs={})
    records = [record.to_json() for record in numbered(2)]
    driver.call("produce", topic="topic", records=records, options=asdict(ProduceOptions()))
    for protocol in ("classic", "consumer"):
        read.clear()
        options = MemberOptions(reset="earliest", protocol=protocol)
        driver.call("join", group=protocol, topic="topic", options=asdict(options))
        wait_until(lambda: sum(event["event"] == "record" for event in read) == 2, "the records")
        driver.call("commit")
        driver.call("leave")
        driver.call("committed", group=protocol, topic="topic")


def tools_command(version: str = VERSION) -> list[str]:
    """The command that runs Kafka's command line tools in one process. Raises BuildError, KafkaUnavailable."""
    java, javac = find_tool("java"), find_tool("javac")
    sources, jars = sorted((HERE / "tools").glob("*.java")), f"{fetch_jars(version)}/*"

    def build(target: Path) -> None:
        made = [target / source.name for source in sources]
        for source, path in zip(sources, made, strict=True):
            # Kafka 4.4 has moved this class.
            path.write_text(
                source.read_text().replace("utils.Exit", f"utils{'.internals' * (version != VERSION)}.Exit")
            )
        run_build([javac, "-d", str(target), "-cp", jars, *map(str, made)], HERE)

    built = built_once("tools" if version == VERSION else f"tools-{version}", sources, build)
    return [java, *SHORT_LIVED_JVM, "-Dlog4j2.level=OFF", "-cp", f"{built}:{jars}", "Tools"]


def framework_command(program: str) -> tuple[list[str], dict[str, str]]:
    """The command of a Python program in frameworks/, and its environment. Raises BuildError."""
    wanted = HERE / "frameworks" / "requirements.txt"

    def build(target: Path) -> None:
        quietly = ["--quiet", "--disable-pip-version-check"]
        run_build([sys.executable, "-m", "pip", "install", *quietly, "--target", str(target), "-r", str(wanted)], HERE)

    packages = built_once("frameworks-python", [wanted], build)
    return [sys.executable, str(wanted.with_name(program))], {**os.environ, "PYTHONPATH": str(packages)}


def _node_command() -> list[str]:
    node, npm = find_tool("node"), find_tool("npm")
    project = HERE / "node"
    sources = [project / name for name in ("package.json", "package-lock.json", "driver.js", "visit.js")]

    def build(target: Path) -> None:
        for source in sources:
            shutil.copy(source, target)
        run_build([npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], target)

    return [node, str(built_once("node", sources, build) / "driver.js")]


def built_once(kind: str, sources: list[Path], build: Callable[[Path], object]) -> Path:
    """The directory that `build` filled from these sources, now or earlier. Safe for several processes at once."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    finished = CACHE / f"{kind}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{kind}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.is_dir():
            partial = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=CACHE))
            try:
                build(partial)
                partial.rename(finished)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return finished


def run_build(command: list[str], directory: Path) -> str:
    """Run the command in the directory; what it prints. Raises BuildError."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=BUILD_WITHIN_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout
