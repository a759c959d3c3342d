"""The commands that run the examples. The clone's `.cache` keeps what their package managers fetch and compile."""

from __future__ import annotations

import json
import shutil
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


def node_example(name: str = "orders.js") -> list[str]:
    """Raises BuildError."""
    node, npm = find_tool("node"), find_tool("npm")
    sources = [
        EXAMPLES / "node" / name for name in ("package.json", "package-lock.json", "orders.js", "orders_applied.js")
    ]

    def build(target: Path) -> None:
        for source in sources:
            (target / source.name).write_bytes(source.read_bytes())
        run_build([npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], target)

    return [node, str(built_once("example-node", sources, build) / name)]


def go_example() -> list[str]:
    """Raises BuildError."""
    go, project = find_tool("go"), EXAMPLES / "go"

    def build(target: Path) -> None:
        run_build([go, "build", "-o", str(target / "orders"), "."], project)

    sources = [project / name for name in ("go.mod", "go.sum", "main.go")]
    return [str(built_once("example-go", sources, build) / "orders")]


def go_program(name: str) -> list[str]:
    """A program in tests/kafka/go, with the example's franz-go. Raises BuildError."""
    go, program = find_tool("go"), ROOT / "tests" / "kafka" / "go" / f"{name}.go"

    def build(target: Path) -> None:
        run_build([go, "build", "-o", str(target / name), str(program)], EXAMPLES / "go")

    sources = [EXAMPLES / "go" / "go.mod", EXAMPLES / "go" / "go.sum", program]
    return [str(built_once(f"go-{name}", sources, build) / name)]


def rust_example() -> list[str]:
    """Raises BuildError."""
    cargo, project = find_tool("cargo"), EXAMPLES / "rust"

    def build(target: Path) -> None:
        run_build([cargo, "build", "--locked", "--quiet", "--target-dir", str(target)], project)

    sources = [project / name for name in ("Cargo.toml", "Cargo.lock", "src/main.rs")]
    return [str(built_once("example-rust", sources, build) / "debug" / "orders")]


def franz_go_tests() -> str:
    """franz-go's own tests, of the version of the example, whose clients also log in. Raises BuildError."""
    go, project = find_tool("go"), EXAMPLES / "go"

    def build(target: Path) -> None:
        found = json.loads(run_build([go, "mod", "download", "-json", "github.com/twmb/franz-go"], project))
        module = target / "franz-go"
        shutil.copytree(found["Dir"], module, copy_function=shutil.copyfile)
        for path in (module, *module.rglob("*")):
            path.chmod(0o755)
        # By themselves only the tests of SCRAM log in.
        helpers, with_tls = module / "pkg" / "kgo" / "helpers_test.go", "\tif testCert != nil {"
        text, with_login = (
            helpers.read_text(),
            "\tif saslScram != nil {\n\t\topts = append(opts, SASL(saslScram))\n\t}\n",
        )
        assert text.count(with_tls) == 1
        helpers.write_text(text.replace(with_tls, with_login + with_tls))
        run_build([go, "test", "-c", "-o", str(target / "kgo.test"), "./pkg/kgo"], module)

    sources = [project / name for name in ("go.mod", "go.sum")]
    return str(built_once("franz-go-tests", sources, build) / "kgo.test")
