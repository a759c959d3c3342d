"""Flags for the Java processes that tests start: they end before better code would pay."""

from __future__ import annotations

import os
import shutil
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SHORT_LIVED = (
    "-XX:+UseSerialGC",
    # Until then the optimizing compiler takes a processor for itself.
    "-XX:TieredStopAtLevel=1",
    # Without that compiler the code cache has 48 MiB. Spark's generated code fills it, and is compiled again and again.
    "-XX:ReservedCodeCacheSize=240m",
    # Looking over classes that come from a published jar takes a quarter of Spark's start.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for tables of some rows: half of Spark's time goes into compiling plans and changing them as they run."""
UNSEEN = {"spark.sql.ui.explainMode": "simple"}
"""Spark tells a page each plan, by default at length. No test looks at it."""
COMPILED = dict(zip(INTERPRETED, ("true", "FALLBACK", "true"), strict=True))
"""The same settings as Spark has them."""
_CACHE = Path(__file__).resolve().parents[2] / ".cache"
# The JVM says on stdout that it leaves an archive out, which tests would take for a command's output.
QUIETLY = ("-Xlog:disable", "-Xlog:all=error:stderr")


def spark_classes() -> Path | None:
    """The archive of Spark's classes, which `tests.support.spark_classes` makes; None without Spark or Java.

    Its name tells Spark and Java apart, because a JVM leaves out an archive that another one made.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    try:
        return None if java is None else _CACHE / f"spark-{version('pyspark')}-{_jdk(Path(java))}-classes.jsa"
    except PackageNotFoundError:
        return None


def _jdk(java: Path) -> str:
    program = java.resolve()
    return blake2b(f"{program} {program.stat().st_mtime_ns}".encode(), digest_size=4).hexdigest()


def spark_flags() -> str:
    """The flags for a Java process of Spark, with the archive of classes if it is there by now."""
    classes = spark_classes()
    archive = (f"-XX:SharedArchiveFile={classes}", *QUIETLY) if classes is not None and classes.exists() else ()
    return " ".join((*SHORT_LIVED, *archive))


def hasten_spark() -> None:
    """Make every Spark that this process or a child of it starts use these flags: driver, master and workers.

    Drivers interpret their plans. Executors on a cluster get the flags by ``spark.executor.extraJavaOptions``.
    """
    flags = spark_flags()
    # A driver takes settings of Spark from system properties, too; what a session is told overrides them.
    driver_flags = " ".join((flags, *(f"-D{name}={value}" for name, value in (INTERPRETED | UNSEEN).items())))
    # Spark's scripts read these: for a driver, for a master or worker, and for the launcher that builds their commands.
    os.environ |= {"SPARK_SUBMIT_OPTS": driver_flags, "SPARK_DAEMON_JAVA_OPTS": flags}
    os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(SHORT_LIVED)
