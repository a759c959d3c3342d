"""A REST catalog of Iceberg on this machine: the server of Iceberg's own tests."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pyspark

from tests.support.java import SHORT_LIVED
from tests.support.kafka import ROOT, KafkaUnavailable, fetch_dependencies
from tests.support.ports import free_port
from tests.support.tools import cannot_run, find_tool

WITHIN_S = 150.0
POM = Path(__file__).with_name("iceberg-pom.xml")
SERVER = Path(__file__).with_name("IcebergCatalog.java")
JARS = ROOT / ".cache" / "iceberg-1.10.1-jars"


class CatalogFailed(AssertionError):
    """The server did not start."""


def iceberg_jars() -> Path:
    """The directory of the server's jars. Raises KafkaUnavailable."""
    return fetch_dependencies(POM, JARS)


@contextmanager
def running_catalog(directory: Path) -> Iterator[str]:
    """Run a catalog without tables until the block ends; yields its URI. Its log gets into ``directory``."""
    java, port, output = find_tool("java"), free_port(), directory / "catalog.log"
    find_tool("mvn")
    try:
        classes = f"{iceberg_jars()}/*:{Path(pyspark.__file__).with_name('jars')}/*"
    except KafkaUnavailable as error:
        cannot_run(str(error))
    command = [java, *SHORT_LIVED, "-Xmx256m", "-cp", classes, str(SERVER), str(port), directory.as_uri()]
    with open(output, "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        uri = f"http://127.0.0.1:{port}"
        _wait_until_ready(f"{uri}/v1/config", process, output)
        yield uri
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(page: str, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            urlopen(page, timeout=WITHIN_S).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise CatalogFailed(f"Iceberg's catalog does not answer: {output.read_text()[-2000:]}") from None
            time.sleep(0.05)
