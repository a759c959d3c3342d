"""The jars that Spark fetches from Maven: Delta's, and those that a user adds for an object store or a connector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

DELTA: Final = (
    "io.delta:delta-spark_4.2_2.13:4.4.0",
    "io.delta:delta-storage:4.4.0",
    "io.delta:delta-kernel-api:4.4.0",
    "io.delta:delta-kernel-defaults:4.4.0",
    "io.delta:delta-kernel-unitycatalog:4.4.0",
    "io.unitycatalog:unitycatalog-client:0.6.0",
    "io.unitycatalog:unitycatalog-hadoop:0.6.0",
)
"""Delta, and the packages that it needs beside Spark's."""
IN_SPARK: Final = (
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.datatype:jackson-datatype-jsr310",
    "com.github.luben:zstd-jni",
    "com.google.code.findbugs:jsr305",
    "commons-logging:commons-logging",
    "commons-pool:commons-pool",
    "io.airlift:aircompressor",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.apache.parquet:parquet-column",
    "org.apache.parquet:parquet-common",
    "org.apache.parquet:parquet-encoding",
    "org.apache.parquet:parquet-format-structures",
    "org.apache.parquet:parquet-hadoop",
    "org.apache.parquet:parquet-jackson",
    "org.locationtech.jts:jts-core",
    "org.roaringbitmap:RoaringBitmap",
    "org.roaringbitmap:shims",
    "org.scala-lang:scala-library",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)
"""Dependencies of Delta that Spark has. An exclude holds for all packages, so it may name only what Spark has."""

HADOOP_MODULES: Final = {"s3a": "hadoop-aws", "gs": "hadoop-gcp", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
"""The parts of Hadoop that Spark comes without, by the schemes of their object stores."""


def packages(added: Iterable[str] = ()) -> str:
    """Delta's packages and others for ``spark.jars.packages``. A version that is given goes before korvet's."""
    return ",".join({_module(package): package for package in (*DELTA, *added)}.values())


def excludes(added: Iterable[str] = ()) -> str:
    """The packages that Spark must not fetch, for ``spark.jars.excludes``."""
    return ",".join(dict.fromkeys((*IN_SPARK, *added)))


def listed(setting: str | None) -> list[str]:
    """The members of a setting of Spark's that holds a list."""
    return [word for word in map(str.strip, (setting or "").split(",")) if word]


def has_delta(jars: str) -> bool:
    """True if Delta is among the jars of ``spark.jars``."""
    return any("delta-spark" in jar.rpartition("/")[2] for jar in listed(jars))


def _module(package: str) -> str:
    return package.rpartition(":")[0]
