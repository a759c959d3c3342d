"""``format("korvet")`` over Spark Connect: the client has no Java, and the server no code of the client's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyspark
import pytest

from korvet.pipeline.public import (
    ArchiveConfig,
    IcebergConfig,
    MaintainConfig,
    PipelineError,
    ReplayConfig,
    ReportConfig,
    RetypeConfig,
    archive_topics,
    keep_one_writer,
    maintain_lake,
    make_report,
    publish_iceberg,
    replay_topic,
    retype_topic,
)
from tests.pipeline.archiving import schema_of
from tests.pipeline.sourcing import create
from tests.support.broker import ROOT, KorvetServer
from tests.support.ports import free_port
from tests.support.tools import find_tool

pytest.importorskip("grpc")

from pyspark.sql.connect.session import SparkSession as RemoteSession

READY_WITHIN_S = 120.0
DONE_WITHIN_S = 240.0
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

CLIENT = """
import sys
from korvet.pipeline import KorvetDataSource
from pyspark.sql import SparkSession
from tests.pipeline.queries import tried_again

remote, broker, source, target, directory = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
brokers = {"kafka.bootstrap.servers": broker}

def told(topic):
    rows = spark.read.format("korvet").options(**brokers, subscribe=topic).load().select("value").collect()
    print(topic, sorted(bytes(row.value).decode() for row in rows))

rows = spark.createDataFrame([(b"a",), (b"b",)], "value binary")
rows.write.format("korvet").options(**brokers, topic=source).mode("append").save()
told(source)
spark.dataSource.register(KorvetDataSource)
told(source)

def copy():
    stream = spark.readStream.format("korvet").options(**brokers, subscribe=source, startingOffsets="earliest").load()
    stream = stream.select("value").writeStream.format("korvet").options(**brokers, topic=target)
    stream.option("checkpointLocation", directory).trigger(availableNow=True).start().awaitTermination()

tried_again(copy)
told(target)
"""


@pytest.mark.parametrize("verb", ["archive", "iceberg", "keep_one_writer", "maintain", "replay", "report", "retype"])
def test_verb_refuses_a_session_of_spark_connect_in_one_sentence(
    verb: str, broker: KorvetServer, tmp_path: Path
) -> None:
    create(broker, topic := f"connect-{verb}")
    spark: Any = RemoteSession(f"sc://127.0.0.1:{free_port()}")
    lake, now = str(tmp_path), datetime.now(UTC)
    known: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "lake": lake}
    calls: dict[str, Callable[[], object]] = {
        "archive": lambda: archive_topics(spark, ArchiveConfig(**known, topics=(topic,))),
        "iceberg": lambda: publish_iceberg(spark, IcebergConfig(lake=lake, catalog=f"sqlite:///{tmp_path}/catalog.db")),
        "keep_one_writer": lambda: keep_one_writer(spark, "s3a://bucket/lake"),
        "maintain": lambda: maintain_lake(spark, MaintainConfig(lake=lake)),
        "replay": lambda: replay_topic(spark, ReplayConfig(**known, topic=topic, to="back", create=True)),
        "report": lambda: make_report(spark, ReportConfig(**known, since=now - timedelta(hours=1), until=now)),
        "retype": lambda: retype_topic(
            spark, RetypeConfig(**known, topic=topic, schema=schema_of(a={"type": "string"}))
        ),
    }
    with pytest.raises(PipelineError, match=r"^a session of Spark Connect only reads and writes topics"):
        calls[verb]()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The address of a server, which has no jars beside Spark's own."""
    find_tool("java")
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "512m", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1",
        "spark.local.dir": str(tmp_path / "local"), "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }  # fmt: skip
    command = [str(SUBMIT), "--master", "local[1]", "--class", SERVER]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    log = tmp_path / "server.log"
    with open(log, "wb") as sink:
        server = subprocess.Popen(
            command, env=ENVIRONMENT, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
    try:
        _await_listener(port, server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _await_listener(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)


@pytest.mark.all
def test_client_of_spark_connect_reads_and_writes_topics(remote: str, broker: KorvetServer, tmp_path: Path) -> None:
    create(broker, "connect-source")
    create(broker, "connect-target")
    topics = ("connect-source", "connect-target")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, remote, broker.bootstrap, *topics, str(tmp_path / "checkpoint")],
        env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=DONE_WITHIN_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    both = ["connect-source ['a', 'b']"] * 2
    assert done.stdout.splitlines() == [*both, "connect-target ['a', 'b']"]
