"""The tests that repeat cases of Kafka's own tests.

``@kafka("Class.method", …)`` names these cases at a test. ``python -m tests.support.ported`` prints the list of
them all for docs/kafka-tests.md, and tests/lua/kafka/test_sources.py compares the page with it.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

kafka = pytest.mark.kafka

TESTS = Path(__file__).resolve().parents[1]


class Ported(NamedTuple):
    """A case of Kafka's tests and the test that repeats it."""

    class_name: str
    method: str
    test: str


def _named(node: ast.AST) -> Iterator[str]:
    """The cases that a function's decorators name, on the function or on one of its parameters."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "kafka":
            for arg in call.args:
                assert isinstance(arg, ast.Constant) and isinstance(arg.value, str), ast.dump(arg)
                yield arg.value


@cache
def ported() -> list[Ported]:
    """All ported cases, in order."""
    found = []
    for path in TESTS.rglob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                test = f"{path.relative_to(TESTS)}::{node.name}"
                names = [name for decorator in node.decorator_list for name in _named(decorator)]
                found += [Ported._make((*name.split("."), test)) for name in names]
    return sorted(found)


def table() -> str:
    """The list for docs/kafka-tests.md: one table for each of Kafka's test classes."""
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
