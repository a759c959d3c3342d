"""The commands that run the examples. The clone's `.cache` keeps what their package managers fetch and compile."""

from __future__ import annotations

from pathlib import Path

from tests.kafka.builds import built_once, run_build
from tests.support.java import SHORT_LIVED
from tests.support.kafka import ROOT, fetch_dependencies
from tests.support.tools import find_tool

EXAMPLES = ROOT / "examples"


def java_example() -> list[str]:
    """Java compiles the one file as it starts. Raises KafkaUnavailable."""
    jars = fetch_dependencies(EXAMPLES / "java" / "pom.xml", ROOT / ".cache" / "example-java")
    return [find_tool("java"), *SHORT_LIVED, "-cp", f"{jars}/*", str(EXAMPLES / "java" / "Orders.java")]


def node_example() -> list[str]:
    """Raises BuildError."""
    node, npm = find_tool("node"), find_tool("npm")
    sources = [EXAMPLES / "node" / name for name in ("package.json", "package-lock.json", "orders.js")]

    def build(target: Path) -> None:
        for source in sources:
            (target / source.name).write_bytes(source.read_bytes())
        run_build([npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], target)

    return [node, str(built_once("example-node", sources, build) / "orders.js")]


def go_example() -> list[str]:
    """Raises BuildError."""
    go, project = find_tool("go"), EXAMPLES / "go"

    def build(target: Path) -> None:
        run_build([go, "build", "-o", str(target / "orders"), "."], project)

    sources = [project / name for name in ("go.mod", "go.sum", "main.go")]
    return [str(built_once("example-go", sources, build) / "orders")]


def rust_example() -> list[str]:
    """Raises BuildError."""
    cargo, project = find_tool("cargo"), EXAMPLES / "rust"

    def build(target: Path) -> None:
        run_build([cargo, "build", "--locked", "--quiet", "--target-dir", str(target)], project)

    sources = [project / name for name in ("Cargo.toml", "Cargo.lock", "src/main.rs")]
    return [str(built_once("example-rust", sources, build) / "debug" / "orders")]
