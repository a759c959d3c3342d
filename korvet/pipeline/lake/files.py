"""Small files of any file system that Spark knows, and Delta's log: the driver reads them through its own Java."""

from __future__ import annotations

from typing import Any, Literal

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.packages import HADOOP_MODULES
from korvet.pipeline.session import driver


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
