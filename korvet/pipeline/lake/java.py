"""Classes of the driver's Java that Python reaches in no other way."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from korvet.pipeline.session import driver


def java_class(spark: SparkSession, name: str) -> Any:
    """A class, by its full name.

    Through an attribute for each part of the name, Java would search all jars for a class of each package's name.
    """
    jvm: Any = driver(spark)._jvm
    return getattr(jvm, name)


def newest_snapshot(spark: SparkSession, table: str) -> Any:
    """Delta's own view of the table as it is now. Its DESCRIBE commands show the same, but run as jobs of Spark."""
    nothing = java_class(spark, "scala.Option").empty()
    log = java_class(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, table)
    return log.update(False, nothing, nothing)
