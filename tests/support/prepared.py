"""What tests build once, built before they run: ``python -m tests.support.prepared [all]``.

Maven, npm, compilers and Spark take both processors for minutes. While tests run, their servers would starve. Later
runs find what the first one has built.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest

from tests.deploy.helm import helm_program
from tests.deploy.image import base
from tests.kafka.builds import (
    JAVA_VERSIONS,
    BuildError,
    built_once,
    driver_command,
    framework_command,
    java_command,
    run_build,
    tools_command,
)
from tests.kafka.example_builds import franz_go_tests, go_example, go_program, java_example, node_example, rust_example
from tests.support.iceberg_catalog import iceberg_jars
from tests.support.kafka import NEWEST, ROOT, KafkaUnavailable, fetch_dependencies
from tests.support.mirror import mirror_jars
from tests.support.object_store import AWS_BUNDLE, HADOOP_AWS, s3a_jars
from tests.support.spark_classes import make_class_archive
from tests.support.tools import find_tool

TESTS = ROOT / "tests"
AT_ONCE = 4
"""They wait for the network more than for processors."""
_TROUBLES = (
    BuildError, KafkaUnavailable, OSError, subprocess.SubprocessError, pytest.skip.Exception, pytest.fail.Exception
)  # fmt: skip
"""What the tests that need it meet again and tell: `find_tool` skips or fails."""


def _ivy() -> None:
    """Have Spark's Ivy fetch the packages of the pipeline, as it does when a user first starts it."""
    find_tool("java")
    settings = {"spark.jars.packages": HADOOP_AWS, "spark.jars.excludes": AWS_BUNDLE}
    session = f"from korvet.pipeline import make_session; make_session('prepared', 'local[1]', {settings}).stop()"
    sources = [ROOT / "pyproject.toml", ROOT / "korvet" / "pipeline" / "packages.py"]
    built_once("ivy", sources, lambda _: run_build([sys.executable, "-c", session], ROOT))


def _collected() -> None:
    """Have pytest compile all tests if none is, which each of its processes would do at the same time."""
    if not any(TESTS.glob("*/__pycache__/*-pytest-*.pyc")):
        run_build([sys.executable, "-m", "pytest", "--collect-only", "-q"], ROOT)


def _spark() -> None:
    pom, jars = ROOT / "tests" / "pipeline" / "spark-pom.xml", ROOT / ".cache" / "spark-4.2.0-jars"
    make_class_archive(",".join(sorted(str(path) for path in fetch_dependencies(pom, jars).glob("*.jar"))))


STEPS: dict[str, Callable[[], object]] = {
    "the pipeline's packages": _ivy,
    "the bytecode of all tests": _collected,
    "Spark's jars and classes": _spark,
    "Kafka's jars and tools": tools_command,
    "the Java client": lambda: driver_command("java", ""),
    "kafkajs": lambda: driver_command("kafkajs", ""),
}
"""What the tests of each run need."""
FURTHER: dict[str, Callable[[], object]] = {
    "the jars of S3": s3a_jars,
    "Iceberg's jars": iceberg_jars,
    "MirrorMaker's jars": mirror_jars,
    "the newest Kafka's jars and tools": lambda: tools_command(NEWEST),
    "other Java clients": lambda: [driver_command(name, "") for name in JAVA_VERSIONS],
    "Kafka Streams": lambda: java_command("", "streams"),
    "Kafka Connect and Spring Kafka": lambda: java_command("", "frameworks"),
    "Faust and Quix Streams": lambda: framework_command("totals_faust.py"),
    "Helm": helm_program,
    "the base of the image": base,
    "the example in Java": java_example,
    "the example in JavaScript": node_example,
    "the example in Go": go_example,
    "the example in Rust": rust_example,
    "the programs in Go": lambda: [go_program(name) for name in ("read", "share")],
    "franz-go's tests": franz_go_tests,
}
"""What tests with the marker `all` need besides."""


def _trouble(step: Callable[[], object]) -> str:
    try:
        step()
    except _TROUBLES as error:
        return str(error) or type(error).__name__
    return ""


def main() -> None:
    """Build everything, and say what is done and what cannot be built; the tests that need it tell more."""
    steps = {**STEPS, **(FURTHER if sys.argv[1:] == ["all"] else {})}
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        waiting = {threads.submit(_trouble, step): what for what, step in steps.items()}
        for number, done in enumerate(as_completed(waiting), 1):
            told = f"cannot have {waiting[done]}: {done.result()}" if done.result() else waiting[done]
            sys.stderr.write(f"korvet: {number} of {len(steps)} after {time.monotonic() - began:.0f} s: {told}\n")


if __name__ == "__main__":
    main()
