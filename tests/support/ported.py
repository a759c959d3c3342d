"""The tests that repeat cases of Kafka's own tests: ``@kafka("Class.method", …)`` names these cases at a test.

After a class there may be several methods, with spaces between them.
"""

from __future__ import annotations

import ast
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


def _named(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The cases that a function's decorators name, on the function or on one of its parameters."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "kafka":
            for arg in call.args:
                assert isinstance(arg, ast.Constant) and isinstance(arg.value, str), ast.dump(arg)
                class_name, methods = arg.value.split(".")
                yield from ((class_name, method) for method in methods.split())


@cache
def ported() -> list[Ported]:
    """All ported cases, in order."""
    found = []
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        for node in ast.parse(text).body if "kafka(" in text else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                test = f"{path.relative_to(TESTS)}::{node.name}"
                names = [name for decorator in node.decorator_list for name in _named(decorator)]
                found += [Ported(*name, test) for name in names]
    return sorted(found)
