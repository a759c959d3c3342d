"""MirrorMaker 2 between two brokers, by the file that docs/migration.md shows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.kafka import ROOT, TEST_JVM, fetch_dependencies
from tests.support.tools import find_tool

PAGE = ROOT / "docs" / "migration.md"
POM = Path(__file__).with_name("mirror-pom.xml")
JARS = ROOT / ".cache" / "mirror-4.1.2"
_BEGIN = "    clusters = kafka, korvet\n"


def mirror_jars() -> Path:
    """The directory of MirrorMaker's jars. Raises KafkaUnavailable."""
    return fetch_dependencies(POM, JARS)


def shown_settings() -> dict[str, str]:
    """The settings of the page's file."""
    _, begin, text = PAGE.read_text().partition(_BEGIN)
    assert begin
    block, _, _ = (begin + text).partition("\n\n")
    lines = [line.strip() for line in block.splitlines()]
    pairs = (line.partition(" = ") for line in lines if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


@contextmanager
def running_mirror(directory: Path, overrides: Mapping[str, str]) -> Iterator[Path]:
    """Mirror until the block ends; yields the path of MirrorMaker's output."""
    path, output = directory / "mirror.properties", directory / "mirror.txt"
    settings = {**shown_settings(), **overrides}
    path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    command = [find_tool("java"), *TEST_JVM, "-cp", f"{mirror_jars()}/*", main, str(path)]
    with open(output, "wb") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=directory
        )
    try:
        yield output
    finally:
        process.kill()
        process.wait()
