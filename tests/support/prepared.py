"""Everything that tests build once, built before they run: ``python -m tests.support.prepared``.

Maven, npm, compilers and Spark take both processors for minutes. While tests run, their servers would starve.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.deploy.helm import helm_program
from tests.deploy.image import base
from tests.kafka.builds import (
    BUILD_WITHIN_S,
    JAVA_VERSIONS,
    BuildError,
    driver_command,
    framework_command,
    java_command,
    run_build,
    tools_command,
)
from tests.kafka.example_builds import go_example, java_example, node_example, rust_example
from tests.support.iceberg_catalog import iceberg_jars
from tests.support.kafka import ROOT, KafkaUnavailable, fetch_dependencies
from tests.support.mirror import mirror_jars
from tests.support.object_store import AWS_BUNDLE, HADOOP_AWS, s3a_jars
from tests.support.spark_classes import make_class_archive
from tests.support.tools import find_tool

AT_ONCE = 2
_TROUBLES = (
    BuildError, KafkaUnavailable, OSError, subprocess.SubprocessError, pytest.skip.Exception, pytest.fail.Exception
)  # fmt: skip
"""What the tests that need it meet again and tell: `find_tool` skips or fails."""


def _ivy() -> None:
    """Have Spark's Ivy fetch the packages of the pipeline, as it does when a user first starts it."""
    find_tool("java")
    settings = {"spark.jars.packages": HADOOP_AWS, "spark.jars.excludes": AWS_BUNDLE}
    session = f"from korvet.pipeline import make_session; make_session('prepared', 'local[1]', {settings}).stop()"
    done = subprocess.run([sys.executable, "-c", session], cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=BUILD_WITHIN_S)  # fmt: skip
    if done.returncode != 0:
        raise BuildError(done.stderr[-2000:])


def _collected() -> None:
    """Have pytest compile all tests, which each of its processes would do at the same time."""
    run_build([sys.executable, "-m", "pytest", "--collect-only", "-q"], ROOT)


def _spark() -> None:
    pom, jars = ROOT / "tests" / "pipeline" / "spark-pom.xml", ROOT / ".cache" / "spark-4.2.0-jars"
    make_class_archive(",".join(sorted(str(path) for path in fetch_dependencies(pom, jars).glob("*.jar"))))


STEPS: dict[str, Callable[[], object]] = {
    "the pipeline's packages": _ivy,
    "the bytecode of all tests": _collected,
    "Spark's jars and classes": _spark,
    "the jars of S3": s3a_jars,
    "Iceberg's jars": iceberg_jars,
    "Kafka's jars and tools": tools_command,
    "MirrorMaker's jars": mirror_jars,
    "the Java clients": lambda: [driver_command(name, "") for name in ("java", *JAVA_VERSIONS)],
    "Kafka Streams": lambda: java_command("", "streams"),
    "Kafka Connect and Spring Kafka": lambda: java_command("", "frameworks"),
    "Faust and Quix Streams": lambda: framework_command("totals_faust.py"),
    "kafkajs": lambda: driver_command("kafkajs", ""),
    "Helm": helm_program,
    "the base of the image": base,
    "the example in Java": java_example,
    "the example in JavaScript": node_example,
    "the example in Go": go_example,
    "the example in Rust": rust_example,
}


def _done(what: str) -> str:
    sys.stderr.write(f"korvet: preparing {what} for the tests\n")
    try:
        STEPS[what]()
    except _TROUBLES as error:
        # The tests that need it tell more.
        return f"{what}: {error}"
    return ""


def main() -> None:
    """Build everything; what cannot be built is named."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for trouble in filter(None, threads.map(_done, STEPS)):
            sys.stderr.write(f"{trouble}\n")


if __name__ == "__main__":
    main()
