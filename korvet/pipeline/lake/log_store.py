"""Delta's log on S3 with several drivers: a log store that writes a commit only if its name is free.

Delta 4.4 has one for a single driver, which overwrites a commit of another driver. Ours is `S3LogStore.java`. Spark's
own compiler, Janino, makes its class in the driver's JVM, so the pipeline needs no jar beside Delta's and S3A.
Source: delta-storage's S3SingleDriverLogStore, HADOOP-19256.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.session import driver

_SOURCE: Final = Path(__file__).with_name("S3LogStore.java")
_BASE: Final = "io.delta.storage.S3SingleDriverLogStore"
_NAME: Final = "io.delta.storage.KorvetS3LogStore"
_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})


def keep_one_writer(spark: SparkSession, location: str) -> None:
    """Let Delta write the logs of an S3 location through this store, unless the session names another one.

    :raises PipelineError: if Hadoop's S3A is missing, or too old to write on condition.
    """
    scheme = urlsplit(location).scheme
    if scheme not in _SCHEMES:
        return
    context: Any = driver(spark)._jsc.sc()
    setting = f"spark.delta.logStore.{scheme}.impl"
    if context.conf().contains(setting) or context.conf().contains("spark.delta.logStore.class"):
        return
    jvm: Any = spark._jvm
    try:
        _define(jvm)
    except Py4JJavaError as error:
        raise PipelineError(
            f"{location}: Spark cannot write there safely ({failure(error)}); give it hadoop-aws of its own version of "
            "Hadoop, 3.4.2 or newer"
        ) from None
    context.conf().set(setting, _NAME)
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def _define(jvm: Any) -> None:
    """Make the class in the package and the loader of Delta's own store, unless another context of the JVM has."""
    base = jvm.org.apache.spark.util.Utils.classForName(_BASE, True, True)
    if jvm.org.apache.spark.util.Utils.classIsLoadable(_NAME):
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(base.getClassLoader())
    compiler.cook(_SOURCE.name, _SOURCE.read_text("utf-8"))
    lookup = jvm.java.lang.invoke.MethodHandles.lookup()
    beside = jvm.java.lang.invoke.MethodHandles.privateLookupIn(base, lookup)
    beside.defineClass(compiler.getBytecodes().get(_NAME))
