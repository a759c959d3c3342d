"""An archive of Spark's classes. A driver of the tests maps them from it, and so takes a quarter less processor time.

A run starts some fifty drivers, most of them to be killed. A JVM leaves out an archive of other jars than its own.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from korvet.pipeline.session import make_session
from tests.support.java import SHORT_LIVED, spark_classes

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 200.0


def make_class_archive(jars: str) -> None:
    """Make the archive if it is missing. Safe for several processes at once.

    No test needs it. If this Java makes none, the lock's file says so, and drivers only start later.

    :param jars: Delta's, as Spark's setting has them.
    """
    classes = spark_classes()
    if classes is None:
        return
    classes.parent.mkdir(parents=True, exist_ok=True)
    with open(classes.with_suffix(".lock"), "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if not classes.exists() and not lock.read() and not _make(classes, jars):
            lock.write("this Java makes no archive\n")


def _make(classes: Path, jars: str) -> bool:
    """Make the archive; returns whether there is one."""
    with tempfile.TemporaryDirectory(dir=classes.parent, ignore_cleanup_errors=True) as directory:
        made = Path(directory) / classes.name
        flags = " ".join((*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={made}"))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark_classes", jars, directory],
            cwd=ROOT, env={**os.environ, "SPARK_SUBMIT_OPTS": flags}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            if process.wait(WITHIN_S) != 0 or not made.exists():
                return False
        except subprocess.TimeoutExpired:
            return False
        finally:
            # The JVM is of the same process group.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        made.rename(classes)
    return True


def main(jars: str, directory: str) -> None:
    """Use what a driver of the pipeline uses, and wait until its JVM has written the archive."""
    settings = {"spark.jars": jars, "spark.local.dir": directory, "spark.sql.warehouse.dir": directory}
    spark = make_session("classes", "local[2]", settings)
    rows, table = f"{directory}/rows", f"{directory}/table"
    spark.range(10).selectExpr("id", "cast(id as string) AS text", "id % 2 AS half").write.parquet(rows)
    stream = spark.readStream.schema("id long, text string, half long").parquet(rows).writeStream
    stream = stream.format("delta").partitionBy("half").option("checkpointLocation", f"{directory}/checkpoint")
    stream.trigger(availableNow=True).start(table).awaitTermination()
    spark.read.format("delta").load(table).groupBy("half").count().collect()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    process = gateway.proc
    spark.stop()
    gateway.shutdown()
    process.stdin.close()
    process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
