"""One Spark on this machine for all tests here, with Delta, the stock Kafka connector and S3A."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from korvet.pipeline.session import make_session
from tests.pipeline.archiving import Scene
from tests.support.broker import KorvetServer
from tests.support.java import hasten_spark
from tests.support.kafka import ROOT, KafkaUnavailable, fetch_dependencies
from tests.support.object_store import ObjectStore, running_object_store, s3a_jars
from tests.support.spark_classes import make_class_archive
from tests.support.tools import cannot_run, find_tool

JARS = ROOT / ".cache" / "spark-4.2.0-jars"
POM = Path(__file__).with_name("spark-pom.xml")


@pytest.fixture(scope="session")
def spark_jars() -> str:
    """Delta and the stock Kafka connector, for the setting spark.jars. Drivers that start later start quickly."""
    find_tool("java"), find_tool("mvn")
    try:
        jars = ",".join(sorted(str(path) for path in fetch_dependencies(POM, JARS).glob("*.jar")))
    except KafkaUnavailable as error:
        cannot_run(str(error))
    make_class_archive(jars)
    hasten_spark()
    return jars


@pytest.fixture(scope="package")
def spark(spark_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two threads; its checkpoints, tables and files are the tests' own."""
    directory = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.jars": f"{spark_jars},{s3a_jars()}",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # Delta's own jobs read logs of a few commits.
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    os.environ.pop("ARROW_ENABLE_UNSAFE_MEMORY_ACCESS", None)  # The session's own choice is tested.
    session = make_session("tests", "local[2]", settings)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="package")
def object_store(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A bucket that the session reaches by its ``url``."""
    with running_object_store(tmp_path_factory.mktemp("object-store")) as store:
        reach(spark, store)
        yield store


@pytest.fixture
def scene(spark: SparkSession, broker: KorvetServer, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    return Scene.of(spark, broker.bootstrap, request.node.name, tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests with Spark to `./scripts/test all`, but for the scenes: each shows something that only Spark does."""
    for item in items:
        if "spark_jars" in getattr(item, "fixturenames", ()) and item.get_closest_marker("scene") is None:
            item.add_marker("all")


def reach(spark: SparkSession, store: ObjectStore) -> None:
    """Tell a session of a bucket."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in store.settings.items():
        hadoop.set(name.removeprefix("spark.hadoop."), value)
