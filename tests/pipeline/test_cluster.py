"""The jobs on a real cluster, by spark-submit: a master and two workers, each with an executor of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import confluent_kafka
import pyspark
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from korvet.cli import run
from tests.support.broker import KorvetServer
from tests.support.java import COMPILED, spark_flags

SPARK_HOME = Path(pyspark.__file__).parent
READY_WITHIN_S = 120.0
DONE_WITHIN_S = 280.0
PARTITIONS = 4
RECORDS = 2000
ENVIRONMENT = {
    **os.environ,
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "PYSPARK_PYTHON": sys.executable,
}


@contextmanager
def running(log: Path, *arguments: str) -> Iterator[None]:
    """A process of the cluster, which ends with the block."""
    command = [str(SPARK_HOME / "bin" / "spark-class"), *arguments]
    with open(log, "wb") as sink:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def logged(log: Path, text: str) -> str:
    """The rest of the line behind a text, once the log has it."""
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        for line in log.read_text(errors="replace").splitlines():
            if text in line:
                return line.partition(text)[2].strip()
        time.sleep(0.1)
    raise AssertionError(f"no {text!r} in: {log.read_text(errors='replace')[-2000:]}")


@dataclass(frozen=True)
class Cluster:
    """The master's address, and each worker's directory."""

    master: str
    works: tuple[Path, Path]

    def executors(self) -> list[set[str]]:
        """The ids of the executors that each worker started, for all applications."""
        return [{path.name for path in work.glob("app-*/*")} for work in self.works]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    works = (directory / "work-1", directory / "work-2")
    there = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        log = directory / "master.log"
        stack.enter_context(running(log, "org.apache.spark.deploy.master.Master", *there))
        master = logged(log, "Starting Spark master at ")
        for work in works:
            size = ("--cores", "1", "--memory", "600m", "--work-dir", str(work))
            worker = ("org.apache.spark.deploy.worker.Worker", *there, *size, master)
            stack.enter_context(running(work.with_suffix(".log"), *worker))
        for work in works:
            logged(work.with_suffix(".log"), "Successfully registered with master")
        yield Cluster(master=master, works=works)


@pytest.fixture(scope="module")
def topic(broker: KorvetServer) -> str:
    """A topic of four partitions with equal numbers of records."""
    name = f"cluster-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = admin.create_topics([NewTopic(name, PARTITIONS)]).values()
    future.result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(name, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return name


def submit(
    cluster: Cluster,
    jars: str,
    verb: str,
    capsys: pytest.CaptureFixture[str],
    *flags: str,
    executors: int,
    chosen: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """The JSON that a job prints.

    :param chosen: settings of Spark for this job.
    """
    settings = {
        "spark.driver.memory": "600m",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": spark_flags(),
        # Spark gives out the first task when all executors are there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.cores.max": str(executors),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
        **chosen,
    }
    assert run(["pipeline", "job", verb]) == 0
    job = capsys.readouterr().out.strip()
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master, "--jars", jars]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    # In a session of its own the job's Python ends with spark-submit's Java.
    with subprocess.Popen(
        [*command, job, *flags, "--json"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=DONE_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, err[-4000:]
    # spark-submit joins a job's output with its log, whose lines are JSON objects, too.
    _, mark, shown = f"\n{out}".rpartition("\n{\n")
    return json.loads(mark + shown)


def executors_by_stage(events: Path) -> list[set[str]]:
    """The executors that ran tasks, by stage."""
    (log,) = events.iterdir()
    found: dict[int, set[str]] = {}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerTaskEnd":
            found.setdefault(event["Stage ID"], set()).add(event["Task Info"]["Executor ID"])
    return list(found.values())


def test_jobs_run_on_all_workers_of_a_cluster(
    cluster: Cluster,
    broker: KorvetServer,
    topic: str,
    spark_jars: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lake = str(tmp_path / "lake")
    common = ("--lake", lake, "--bootstrap-server", broker.bootstrap)
    events = tmp_path / "archive-events"
    events.mkdir()
    logged_events = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    # This job compiles its plans, and changes them while they run, as those of users do.
    chosen = {**COMPILED, **logged_events}
    done = submit(cluster, spark_jars, "archive", capsys, "--topic", topic, *common, executors=2, chosen=chosen)
    each = RECORDS // PARTITIONS
    assert done == {
        topic: {
            "records": RECORDS,
            "batches": 1,
            "offsets": {str(number): each for number in range(PARTITIONS)},
            "error": None,
        }
    }
    first, second = cluster.executors()
    assert len(first) == len(second) == 1
    # One stage reads all partitions, and both workers' executors ran tasks of it.
    assert first | second in executors_by_stage(events)

    report = submit(cluster, spark_jars, "report", capsys, "--group", "korvet.archive", *common, executors=1)
    assert sum(interval["records"] for interval in report["intervals"]) == RECORDS
    lags = [lag for lag in report["lags"] if lag["topic"] == topic]
    assert [(lag["committed"], lag["lag"]) for lag in lags] == [(each, 0)] * PARTITIONS
