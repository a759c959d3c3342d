"""The Spark session of the jobs: Delta, and settings that fit the machine where Spark runs on this one alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

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
"""Delta and what Spark does not bring along of it: Spark's Ivy fetches these, and nothing that they name."""
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

    Started by spark-submit, master and jars are what that was told. Else Spark runs in this process's own JVM, on as
    many threads as there are processors, and fetches Delta's jars the first time.

    :param master: a Spark master in the place of this machine.
    :param settings: Spark's, in addition to and before all others. With ``spark.jars`` nothing is fetched.
    """
    chosen = {**_DELTA}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
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
    if master is None or master.startswith("local"):
        _choose_worker_python()
        # One task for each processor: with Spark's 200, and Delta's 50, small tables take half a minute to write.
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


def _choose_worker_python() -> None:
    """Else tasks run in whatever Python comes first in the path, which may know nothing of korvet."""
    script = str(_WORKER_PYTHON)
    # What is inherited from a process that had chosen it too may have another path.
    if os.environ.get("PYSPARK_PYTHON", script) != script:
        return
    os.environ |= {
        # Where it was installed as a file that cannot be run, tasks merely start later.
        "PYSPARK_PYTHON": script if os.access(script, os.X_OK) else sys.executable,
        "KORVET_WORKER_PYTHON": sys.executable,
        "KORVET_WORKER_PATH": os.environ.get("PYTHONPATH", ""),
    }
