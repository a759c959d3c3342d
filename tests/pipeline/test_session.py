"""The session of the jobs, with Delta at work."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession

import korvet.pipeline
from korvet.pipeline import public, session
from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake.files import kind
from korvet.pipeline.packages import IN_SPARK, excludes, packages
from tests.support.broker import ROOT, KorvetServer
from tests.support.object_store import AWS_BUNDLE, HADOOP_AWS, ObjectStore


def test_session_writes_and_reads_a_table_of_an_object_store(spark: SparkSession, object_store: ObjectStore) -> None:
    for _ in range(2):
        spark.range(10).write.format("delta").mode("append").save(f"{object_store.url}/table")
    assert spark.read.format("delta").load(f"{object_store.url}/table").count() == 20


def test_workers_have_the_python_and_the_pyspark_of_the_driver(spark: SparkSession) -> None:
    told = spark.sparkContext.parallelize([0], 1).map(lambda _: (sys.executable, pyspark.__file__)).collect()
    assert told == [(sys.executable, pyspark.__file__)]


def test_session_without_pages_keeps_few_queries_for_them(spark: SparkSession) -> None:
    store: Any = spark._jsparkSession.sharedState().statusStore()
    for _ in range(40):
        spark.range(1).count()
    deadline = time.monotonic() + 30
    # Spark forgets queries in a thread of its own.
    while store.executionsCount() > 20:
        assert time.monotonic() < deadline, store.executionsCount()
        time.sleep(0.05)


def test_session_with_pages_keeps_all_that_spark_keeps() -> None:
    assert not [name for name in session._own_session(None, has_pages=True) if "retained" in name]


@pytest.mark.scene
def test_session_like_another_has_its_settings_and_keeps_its_own(spark: SparkSession) -> None:
    name, of_a_commit = "spark.hadoop.korvet.test", "spark.databricks.delta.commitInfo.userMetadata"
    to_frame = RDD.toDF
    spark.conf.set(name, "given at run time")
    spark.conf.set(of_a_commit, "of the caller's next commit")
    try:
        other = session.session_like(spark)
        assert (other.conf.get(name), other.conf.get(of_a_commit, None)) == ("given at run time", None)
        other.conf.set(name, "its own")
        assert spark.conf.get(name) == "given at run time"
    finally:
        spark.conf.unset(name)
        spark.conf.unset(of_a_commit)
    # PySpark lets the newest session serve this method.
    assert RDD.toDF is to_frame


UNCHECKED = "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS"


def test_java_does_not_check_each_access_to_the_rows_of_a_sink(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    assert jvm.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED is False
    assert spark.sparkContext.getConf().get(f"spark.executorEnv.{UNCHECKED}") == "true"


def test_other_java_of_a_process_with_a_session_does_check(spark: SparkSession) -> None:
    assert UNCHECKED not in os.environ


def test_user_who_wants_these_checks_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, UNCHECKED: "false"})
    with session._arrow_unchecked():
        assert os.environ[UNCHECKED] == "false"
    assert os.environ[UNCHECKED] == "false"
    assert session._own_session(None, has_pages=False)[f"spark.executorEnv.{UNCHECKED}"] == "false"


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


# Jars of Spark that hold the classes of other modules.
NAMES_IN_SPARK = {"commons-logging": "jcl-over-slf4j", "shims": "RoaringBitmap"}


def test_excludes_name_only_what_spark_has() -> None:
    """An exclude of anything else would take it from the packages that a user adds."""
    jars = Path(pyspark.__file__).with_name("jars")
    modules = [package.partition(":")[2] for package in IN_SPARK]
    names = [NAMES_IN_SPARK.get(name, name) for name in modules]
    assert [name for name in names if not list(jars.glob(f"{name}-[0-9]*.jar"))] == []


def test_package_that_a_user_adds_is_fetched_beside_delta(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    fetched = jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(
        True,
        excludes([AWS_BUNDLE]),
        packages([HADOOP_AWS]),
        None,
        None,
        jvm.scala.Option.apply(None),
    )
    names = {Path(fetched.apply(at)).name for at in range(fetched.size())}
    assert {"io.delta_delta-spark_4.2_2.13-4.4.0.jar", "org.apache.hadoop_hadoop-aws-3.5.0.jar"} <= names
    assert not [name for name in names if "hadoop-client" in name or "awssdk" in name]


FIRST, *OTHERS = packages().split(",")


@pytest.mark.parametrize(
    ("given", "fetched"),
    [
        ({}, [FIRST, *OTHERS]),
        ({"spark.jars.packages": " a:b:1, c:d:2,"}, [FIRST, *OTHERS, "a:b:1", "c:d:2"]),
        ({"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:9"}, ["io.delta:delta-spark_4.2_2.13:9", *OTHERS]),
        ({"spark.jars": "/jars/connector.jar"}, [FIRST, *OTHERS]),
    ],
)
def test_settings_of_a_user_leave_delta_among_the_packages(given: Mapping[str, str], fetched: list[str]) -> None:
    assert session._fetched(given)["spark.jars.packages"].split(",") == fetched


def test_spark_fetches_no_delta_beside_delta_among_its_jars() -> None:
    assert session._fetched({"spark.jars": "/jars/a.jar,/jars/delta-spark_4.2_2.13-4.4.0.jar"}) == {}


def test_missing_package_of_an_object_store_is_named(spark: SparkSession) -> None:
    with pytest.raises(PipelineError) as caught:
        kind(spark, "gs://bucket/lake")
    assert str(caught.value).startswith(
        "gs://bucket/lake: Spark has no file system gs; add it with "
        "--conf spark.jars.packages=org.apache.hadoop:hadoop-gcp:3.5.0, "
    )


def test_session_without_delta_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(session._DELTA, "spark.sql.extensions", "absent.Extension")
    with pytest.raises(PipelineError, match=r"Spark was started without Delta; give spark-submit the options"):
        session.make_session("tests")


def test_registered_source_runs_in_the_python_that_registered_it(
    spark: SparkSession, broker: KorvetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a plain session start the first Python in the path, which has no korvet."""
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", f"{sys.base_prefix}/bin/python3")
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        assert admin.create_topic("registered", 1, {})
    spark.dataSource.register(korvet.pipeline.KorvetDataSource)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "registered"}
    assert spark.read.format("korvet").options(**options).load().count() == 0


def test_public_names_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    _, _, reference = page.partition("## Public names\n")
    listed = re.findall(r"^\| (.+?) \|", reference.partition("\n## ")[0], re.MULTILINE)
    names = {name for cell in listed for name in re.findall(r"`(\w+)`", cell)}
    assert names == set(public.__all__)
