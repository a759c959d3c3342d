"""The Spark session of the jobs: Delta, and settings that fit this machine if Spark runs on it alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

DELTA_PACKAGES: Final = (
    "io.delta:delta-spark_4.2_2.13:4.4.0",
    "io.delta:delta-storage:4.4.0",
    "io.delta:delta-kernel-api:4.4.0",
    "io.delta:delta-kernel-defaults:4.4.0",
    "io.delta:delta-kernel-unitycatalog:4.4.0",
    "io.unitycatalog:unitycatalog-client:0.6.0",
    "io.unitycatalog:unitycatalog-hadoop:0.6.0",
)
"""Delta, and the packages that it needs beside Spark's. Spark's Ivy fetches these, and not their own dependencies."""
EXCLUDED_PACKAGES: Final = (
    "org.apache.*:*",
    "com.*:*",
    "commons-*:*",
    "org.scala-lang*:*",
    "org.antlr:*",
    "jakarta*:*",
    "javax*:*",
    "org.openapitools:*",
    "org.slf4j:*",
    "org.locationtech*:*",
    "net.*:*",
    "org.roaringbitmap:*",
    "org.xerial*:*",
    "io.airlift:*",
)
_PACKAGES: Final = ("spark.jars.packages", "spark.jars.excludes")
_WORKER_PYTHON: Final = Path(__file__).with_name("worker_python.sh")
_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def make_session(
    app_name: str, master: str | None = None, settings: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """The running session, else a new one.

    With spark-submit, its arguments tell master and jars. Else Spark runs in this process's own JVM, with a thread for
    each processor, and fetches Delta's jars the first time.

    :param master: a Spark master instead of this machine.
    :param settings: Spark's; they override all others. With ``spark.jars`` Spark fetches nothing.
    """
    chosen = {**_DELTA}
    master = settings.get("spark.master", master)
    is_own = "PYSPARK_GATEWAY_PORT" not in os.environ
    _choose_worker_python(is_local=is_own and _is_local(master))
    if is_own:
        chosen |= _own_session(master)
    if "spark.jars" in settings:
        chosen = {name: value for name, value in chosen.items() if name not in _PACKAGES}
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**chosen, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _own_session(master: str | None) -> dict[str, str]:
    chosen = {
        "spark.master": master or "local[*]",
        "spark.jars.packages": ",".join(DELTA_PACKAGES),
        "spark.jars.excludes": ",".join(EXCLUDED_PACKAGES),
    }
    if _is_local(master):
        # One task for each processor: with Spark's 200 and Delta's 50, writing a small table takes half a minute.
        tasks = str(os.cpu_count() or 1)
        chosen |= {
            "spark.sql.shuffle.partitions": tasks,
            "spark.databricks.delta.snapshotPartitions": tasks,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    return chosen


def _is_local(master: str | None) -> bool:
    return master is None or master.startswith("local")


def _choose_worker_python(*, is_local: bool) -> None:
    """Have tasks run in this Python. The first Python in the path may not have korvet."""
    given = os.environ.get("PYSPARK_PYTHON")
    # This function may have set it before, here or in a parent process. Else a user set it.
    if given is not None and Path(given).name != _WORKER_PYTHON.name:
        return
    if not is_local:
        # No other machine has the script.
        os.environ.pop("PYSPARK_PYTHON", None)
        return
    # A running JVM passes the script's variables on only if it was started with them.
    is_told = SparkContext._gateway is None or given == str(_WORKER_PYTHON)
    os.environ |= {
        # If the installed script is not executable, tasks only start later.
        "PYSPARK_PYTHON": str(_WORKER_PYTHON) if is_told and os.access(_WORKER_PYTHON, os.X_OK) else sys.executable,
        "KORVET_WORKER_PYTHON": sys.executable,
        "KORVET_WORKER_PATH": os.environ.get("PYTHONPATH", ""),
    }
