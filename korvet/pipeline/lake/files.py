"""Small files of any file system that Spark knows, read in the driver through its Java virtual machine."""

from __future__ import annotations

from typing import Any, Literal

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake.java import java_class
from korvet.pipeline.packages import HADOOP_MODULES


def read_text(spark: SparkSession, path: str) -> str | None:
    """A file's text; None if there is no such file.

    :raises PipelineError: if it cannot be read.
    """
    system, hadoop_path = _at(spark, path)
    try:
        if not system.exists(hadoop_path):
            return None
        stream = system.open(hadoop_path)
        try:
            return str(java_class(spark, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
        finally:
            stream.close()
    except Py4JJavaError as error:
        raise _unreadable(path, error) from None


def kind(spark: SparkSession, path: str) -> Literal["absent", "empty", "directory", "file"]:
    """The kind of file that the path names.

    :raises PipelineError: if Spark cannot find out.
    """
    system, hadoop_path = _at(spark, path)
    try:
        if not system.exists(hadoop_path):
            return "absent"
        if not system.getFileStatus(hadoop_path).isDirectory():
            return "file"
        return "directory" if len(system.listStatus(hadoop_path)) else "empty"
    except Py4JJavaError as error:
        raise _unreadable(path, error) from None


def uri(spark: SparkSession, path: str) -> str:
    """The path as a URI with ``://``, whatever the working directory."""
    system, hadoop_path = _at(spark, path)
    scheme, _, rest = str(system.makeQualified(hadoop_path).toString()).partition(":")
    return f"{scheme}://{rest.removeprefix('//')}"


def directories(spark: SparkSession, path: str) -> list[str]:
    """The names of the directories in a directory, sorted; none if it does not exist.

    :raises PipelineError: if it cannot be read.
    """
    system, hadoop_path = _at(spark, path)
    try:
        if not system.exists(hadoop_path):
            return []
        return sorted(str(each.getPath().getName()) for each in system.listStatus(hadoop_path) if each.isDirectory())
    except Py4JJavaError as error:
        raise _unreadable(path, error) from None


def _at(spark: SparkSession, path: str) -> tuple[Any, Any]:
    try:
        hadoop_path = java_class(spark, "org.apache.hadoop.fs.Path")(path)
        return hadoop_path.getFileSystem(spark._jsc.hadoopConfiguration()), hadoop_path
    except Py4JJavaError as error:
        raise PipelineError(_no_file_system(spark, path) or f"{path}: it is no path: {_reason(error)}") from None


def _no_file_system(spark: SparkSession, path: str) -> str | None:
    """Advice if Spark lacks the package of an object store; None for any other failure."""
    scheme = path.partition("://")[0]
    if scheme not in HADOOP_MODULES:
        return None
    version = java_class(spark, "org.apache.hadoop.util.VersionInfo").getVersion()
    package = f"org.apache.hadoop:{HADOOP_MODULES[scheme]}:{version}"
    return (
        f"{path}: Spark has no file system {scheme}; add it with --conf spark.jars.packages={package}, or for "
        f"spark-submit with 'korvet pipeline job --add {package}'"
    )


def _unreadable(path: str, error: Py4JJavaError) -> PipelineError:
    return PipelineError(f"{path}: it cannot be read: {_reason(error)}")


def _reason(error: Py4JJavaError) -> str:
    return str(error.java_exception.toString()).splitlines()[0]
