"""Which tests repeat which cases of Kafka's own tests.

``@kafka("Class.method", …)`` names them at the test, and docs/kafka-tests.md lists them all: what belongs there is
printed by ``python -m tests.support.ported``. tests/lua/kafka/test_sources.py holds the two together.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

kafka = pytest.mark.kafka

TESTS = Path(__file__).resolve().parents[1]


class Ported(NamedTuple):
    """A case of Kafka's and the test that repeats it."""

    class_name: str
    method: str
    test: str


def _named(node: ast.AST) -> Iterator[str]:
    """The cases that a function's decorators name, at the function or at one of its parameters."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "kafka":
            for arg in call.args:
                assert isinstance(arg, ast.Constant) and isinstance(arg.value, str), ast.dump(arg)
                yield arg.value


def ported() -> list[Ported]:
    """All of them, in order."""
    found = []
    for path in TESTS.rglob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                test = f"{path.relative_to(TESTS)}::{node.name}"
                names = [name for decorator in node.decorator_list for name in _named(decorator)]
                found += [Ported._make((*name.split("."), test)) for name in names]
    return sorted(found)


def table() -> str:
    """The list for docs/kafka-tests.md: a table for each class of Kafka's."""
    rows: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in ported():
        rows[one.class_name][one.method].append(f"`{one.test}`")
    parts = []
    for class_name, methods in rows.items():
        lines = [f"### {class_name}: {len(methods)}", "", "| case | test |", "|---|---|"]
        lines += [f"| {method} | {', '.join(dict.fromkeys(tests))} |" for method, tests in methods.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
