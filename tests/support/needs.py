"""Markers for a test's needs beyond Python and the session's servers; `./scripts/test quick` leaves such tests out.

A test gets its markers from its directory, and from the names in its code and in the code of its fixtures.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from inspect import unwrap
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.support.broker import KorvetServer
from tests.support.kafka import fetch_dependencies
from tests.support.redis import Server

TESTS = Path(__file__).resolve().parents[1]
BY_DIRECTORY: Mapping[str, str] = {"kafka": "programs", "pipeline": "spark"}
BY_NAME: Mapping[object, str] = {
    Server: "servers", KorvetServer: "servers", fetch_dependencies: "jvm", subprocess: "programs"
}  # fmt: skip
OF_SESSION = {"servers", "programs"}
"""The needs that fixtures of the session meet for all tests, so a test with such a fixture starts nothing itself."""
OURS = {"tests", "scripts"}


@cache
def reached(function: FunctionType) -> frozenset[object]:
    """The globals that the function's code names. Functions of tests and scripts among them are followed in turn."""
    found: set[object] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        for name in {name for code in _codes(one.__code__) for name in code.co_names}:
            named = _ours(one.__globals__.get(name))
            if named is None or named in found:
                continue
            found.add(named)
            if isinstance(named, FunctionType):
                waiting.append(named)
    return frozenset(found)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and the code of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _ours(value: Any) -> Any:
    """A function or class of tests and scripts, undecorated, or the module subprocess; else None."""
    if value is subprocess:
        return value
    if callable(value) and (getattr(value, "__module__", None) or "").partition(".")[0] in OURS:
        return unwrap(value)
    return None


def needs(item: pytest.Function) -> set[str]:
    """The names of the item's markers."""
    directory, *_ = item.path.relative_to(TESTS).parts
    found = {marker for name, marker in BY_DIRECTORY.items() if name == directory}
    found |= _needs_of(item.function)
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for one in definitions:
            if isinstance(one.func, FunctionType):
                found |= _needs_of(one.func) - (OF_SESSION if one.scope == "session" else set())
    return found


@cache
def _needs_of(function: FunctionType) -> frozenset[str]:
    return frozenset({BY_NAME[one] for one in reached(function) if one in BY_NAME})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test before pytest selects tests by markers."""
    for item in items:
        if isinstance(item, pytest.Function):
            for name in sorted(needs(item)):
                item.add_marker(name)
