"""The marker `all`: `./scripts/test` leaves such tests out, and `./scripts/test all` runs them too.

A test gets it from its directory, from what its code and its fixtures' code start, or from a parameter that repeats it
on a second kind of server. Other tests carry it by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from inspect import unwrap
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.oracle.tools import Tools
from tests.support.haproxy import running_haproxy
from tests.support.iceberg_catalog import running_catalog
from tests.support.mirror import running_mirror
from tests.support.object_store import running_object_store
from tests.support.prometheus import running_prometheus
from tests.support.redis import KINDS
from tests.support.topologies import running_cluster, running_replicas, running_sentinel

TESTS = Path(__file__).resolve().parents[1]
DIRECTORIES = ("cluster", "deploy")
CHEAPEST = ("chaos", "store")
"""The directories in which servers that mark other tests mark none: no cheaper test reaches what theirs do."""
STARTERS: tuple[Callable[..., object], ...] = (
    running_cluster, running_replicas, running_sentinel, running_haproxy, running_prometheus, Tools, running_catalog,
    running_object_store, running_mirror,
)  # fmt: skip
STARTS = frozenset(map(unwrap, STARTERS))
BROWSER = "browser"
SMOKE = "test_overview_leads_to_topics_and_groups"
"""The one test that looks at the console by a browser in each run."""
OURS = {"tests", "scripts"}


@cache
def reached(function: FunctionType) -> frozenset[object]:
    """The globals that the function's code names. Functions and classes of tests and scripts are followed in turn."""
    found: set[object] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        for name in {name for code in _codes(one.__code__) for name in code.co_names}:
            named = _ours(one.__globals__.get(name))
            if named is None or named in found:
                continue
            found.add(named)
            methods = vars(named).values() if isinstance(named, type) else [named]
            waiting += [one for one in methods if isinstance(one, FunctionType)]
    return frozenset(found)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and the code of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _ours(value: Any) -> Any:
    """A function or class of tests and scripts, undecorated; else None."""
    if callable(value) and (getattr(value, "__module__", None) or "").partition(".")[0] in OURS:
        return unwrap(value)
    return None


def is_beyond_the_default(item: pytest.Function) -> bool:
    """Whether a rule gives the test the marker."""
    directory, *_ = item.path.relative_to(TESTS).parts
    if hasattr(item, "callspec") and any(value in KINDS[1:] for value in item.callspec.params.values()):
        return True
    if directory in DIRECTORIES or (BROWSER in item.fixturenames and item.originalname != SMOKE):
        return True
    fixtures = [one.func for all_of_a_name in item._fixtureinfo.name2fixturedefs.values() for one in all_of_a_name]
    functions = [one for one in (item.function, *fixtures) if isinstance(one, FunctionType)]
    return directory not in CHEAPEST and any(map(_starts, functions))


@cache
def _starts(function: FunctionType) -> bool:
    return not STARTS.isdisjoint(reached(function))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test before pytest selects tests by markers."""
    for item in items:
        if isinstance(item, pytest.Function) and is_beyond_the_default(item):
            item.add_marker("all")
