"""The Spark session of the jobs: Delta, and settings that fit this machine if Spark runs on it alone."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark import RDD, SparkContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.packages import excludes, has_delta, listed, packages

_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)\])?")
_TRIES_OF_A_TASK: Final = 4
_WORKER_PYTHON: Final = Path(__file__).with_name("worker_python.sh")
_WITHOUT_PAGES: Final = {
    "spark.ui.enabled": "false",
    # Spark keeps what its pages would show, of a thousand queries, with their plans at length.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
}
_OF_A_COMMIT: Final = (
    "spark.databricks.delta.write.txnAppId",
    "spark.databricks.delta.write.txnVersion",
    "spark.databricks.delta.write.txnVersion.autoReset.enabled",
    "spark.databricks.delta.commitInfo.userMetadata",
)
_ARROW_UNCHECKED: Final = "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS"
_to_frame_is_kept: Final = threading.Lock()
_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def make_session(
    app_name: str, master: str | None = None, settings: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """The running session, else a new one.

    With spark-submit, its arguments name master and jars. Else Spark runs in this process's own JVM, with a thread for
    each processor, and fetches Delta's jars the first time.

    :param master: a Spark master instead of this machine.
    :param settings: Spark's; they override all others. The lists ``spark.jars.packages`` and ``spark.jars.excludes``
        are added to those of Delta. With Delta among ``spark.jars`` Spark fetches only what is listed.
    :raises PipelineError: if Spark was started before, and without Delta.
    """
    chosen = {**_DELTA}
    master = settings.get("spark.master", master)
    is_own = "PYSPARK_GATEWAY_PORT" not in os.environ
    _choose_worker_python(is_local=is_own and _is_local(master))
    if is_own:
        chosen |= _own_session(master, has_pages=settings.get("spark.ui.enabled", "").lower() == "true")
        master = _with_tries(chosen["spark.master"])
        settings = {**settings, **_fetched(settings), "spark.master": master}
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**chosen, **settings}.items():
        builder = builder.config(name, value)
    with _arrow_unchecked():
        session = builder.getOrCreate()
    if not _has_delta(session):
        raise PipelineError(
            "Spark was started without Delta; give spark-submit the options that 'korvet pipeline job --packages' "
            "prints, or start Python anew and call make_session before anything else starts Spark"
        )
    return session


def session_like(spark: SparkSession) -> SparkSession:
    """A session with a copy of another one's settings, except the settings of single Delta commits.

    Spark's own ``newSession`` would forget settings that were made at run time, such as an object store's keys.
    """
    with _to_frame_is_kept:
        to_frame = RDD.toDF
        session = SparkSession(driver(spark), spark._jsparkSession.cloneSession())
        # PySpark lets the newest session serve this method of all RDDs.
        RDD.toDF = to_frame  # type: ignore[method-assign]
    for name in _OF_A_COMMIT:
        session.conf.unset(name)
    return session


def driver(spark: SparkSession) -> SparkContext:
    """The session's context in this process.

    :raises PipelineError: if the session is one of Spark Connect, which has none.
    """
    try:
        return spark.sparkContext
    except PySparkAttributeError:
        raise PipelineError(
            "a session of Spark Connect only reads and writes topics, with format('korvet'); run this beside the "
            "server, with a session of make_session or by spark-submit"
        ) from None


def _has_delta(session: SparkSession) -> bool:
    extension = _DELTA["spark.sql.extensions"]
    utils = session._jvm.org.apache.spark.util.Utils  # type: ignore[union-attr]
    return extension in (session.conf.get("spark.sql.extensions", "") or "") and utils.classIsLoadable(extension)


def _own_session(master: str | None, *, has_pages: bool) -> dict[str, str]:
    chosen = {
        "spark.master": master or "local[*]",
        # An archive with a typed table, a replay and a sink in one session need more compiled classes than the 100 that
        # Spark keeps. It compiles the rest anew in each batch, and they are slow at first.
        "spark.sql.codegen.cache.maxEntries": "500",
        # After each row for Python, Spark asks for the size of its batch, and a list answers by a walk over all nulls
        # at its end. With Spark's 10,000 rows that can take more than half of a sink's time if no record has headers.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        f"spark.executorEnv.{_ARROW_UNCHECKED}": os.environ.get(_ARROW_UNCHECKED, "true"),
    }
    if _is_local(master):
        # One task for each processor: with Spark's 200 and Delta's 50, writing a small table takes half a minute.
        tasks = str(os.cpu_count() or 1)
        chosen |= {
            "spark.sql.shuffle.partitions": tasks,
            "spark.databricks.delta.snapshotPartitions": tasks,
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
        chosen |= {} if has_pages else _WITHOUT_PAGES
    return chosen


@contextmanager
def _arrow_unchecked() -> Iterator[None]:
    """Let Java processes that start meanwhile skip the checks of each access to Arrow's memory.

    A setting in the environment wins.

    With the checks a sink's rows take Java up to twice the time. Spark and PyArrow make the batches of a session.
    Source: Arrow's BoundsChecking.
    """
    is_unset = _ARROW_UNCHECKED not in os.environ
    if is_unset:
        os.environ[_ARROW_UNCHECKED] = "true"
    try:
        yield
    finally:
        if is_unset:
            del os.environ[_ARROW_UNCHECKED]


def _fetched(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with which Spark fetches Delta, and what these settings add."""
    if has_delta(settings.get("spark.jars", "")):
        return {}
    return {
        "spark.jars.packages": packages(listed(settings.get("spark.jars.packages"))),
        "spark.jars.excludes": excludes(listed(settings.get("spark.jars.excludes"))),
    }


def _with_tries(master: str) -> str:
    """The master with as many tries of a task as a cluster gives. On one machine Spark gives a task only one."""
    found = _LOCAL.fullmatch(master)
    return master if found is None else f"local[{found[1] or 1},{_TRIES_OF_A_TASK}]"


def _is_local(master: str | None) -> bool:
    return master is None or master.startswith("local")


def _choose_worker_python(*, is_local: bool) -> None:
    """Run tasks in this Python. The first Python in the path may lack korvet."""
    given = os.environ.get("PYSPARK_PYTHON")
    # This function may have set it before, here or in a parent process. Else a user set it.
    if given is not None and Path(given).name != _WORKER_PYTHON.name:
        return
    if not is_local:
        # No other machine has the script.
        os.environ.pop("PYSPARK_PYTHON", None)
        return
    # A running JVM passes the script's variables on only if it was started with them.
    is_given = SparkContext._gateway is None or given == str(_WORKER_PYTHON)
    os.environ |= {
        # If the installed script is not executable, tasks only start later.
        "PYSPARK_PYTHON": str(_WORKER_PYTHON) if is_given and os.access(_WORKER_PYTHON, os.X_OK) else sys.executable,
        "KORVET_WORKER_PYTHON": sys.executable,
        "KORVET_WORKER_PATH": os.environ.get("PYTHONPATH", ""),
    }
