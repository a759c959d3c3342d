"""The session of the jobs, with Delta and the stock connector at work."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from korvet.pipeline import session
from korvet.pipeline.broker import Broker
from tests.support.broker import KorvetServer


def test_session_writes_and_reads_a_table(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).write.format("delta").save(str(tmp_path / "table"))
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 10


def test_workers_have_the_python_and_the_pyspark_of_the_driver(spark: SparkSession) -> None:
    told = spark.sparkContext.parallelize([0], 1).map(lambda _: (sys.executable, pyspark.__file__)).collect()
    assert told == [(sys.executable, pyspark.__file__)]


SCRIPT = str(session._WORKER_PYTHON)


@pytest.mark.parametrize(
    ("given", "is_local", "has_java", "chosen"),
    [
        (None, True, False, SCRIPT),
        (SCRIPT, True, True, SCRIPT),
        # A process of another installation started this one.
        ("/elsewhere/worker_python.sh", True, False, SCRIPT),
        # A running JVM did not get the script's variables.
        (None, True, True, sys.executable),
        ("/usr/bin/python3", True, False, "/usr/bin/python3"),
        ("/usr/bin/python3", False, False, "/usr/bin/python3"),
        # Other machines do not have the script.
        (SCRIPT, False, True, None),
        (None, False, False, None),
    ],
)
def test_session_chooses_the_users_python_or_one_that_works(
    monkeypatch: pytest.MonkeyPatch, given: str | None, is_local: bool, has_java: bool, chosen: str | None
) -> None:
    environment = {} if given is None else {"PYSPARK_PYTHON": given}
    monkeypatch.setattr("os.environ", environment)
    monkeypatch.setattr(SparkContext, "_gateway", object() if has_java else None)
    session._choose_worker_python(is_local=is_local)
    assert environment.get("PYSPARK_PYTHON") == chosen


def test_stock_connector_reads_a_topic(spark: SparkSession, broker: KorvetServer) -> None:
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        assert admin.create_topic("stock", 2, {})
        assert admin.topics(["stock"])["stock"].partitions == (0, 1)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "stock"}
    assert spark.read.format("kafka").options(**options).load().count() == 0
