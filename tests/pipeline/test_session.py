"""The session of the jobs: Delta works in it, and so does the stock connector beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from korvet.pipeline.broker import Broker
from tests.support.broker import KorvetServer


def test_a_table_is_written_and_read(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).write.format("delta").save(str(tmp_path / "table"))
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 10


def test_workers_have_the_python_and_the_pyspark_of_the_driver(spark: SparkSession) -> None:
    told = spark.sparkContext.parallelize([0], 1).map(lambda _: (sys.executable, pyspark.__file__)).collect()
    assert told == [(sys.executable, pyspark.__file__)]


def test_the_stock_connector_reads_a_topic(spark: SparkSession, broker: KorvetServer) -> None:
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        assert admin.create_topic("stock", 2, {})
        assert admin.topics(["stock"])["stock"].partitions == (0, 1)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "stock"}
    assert spark.read.format("kafka").options(**options).load().count() == 0
