"""The marker `all` comes from the names in a test's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType

import pytest

from tests.support.needs import STARTS, reached
from tests.support.redis import Server
from tests.support.topologies import running_cluster


class Fleet:
    def __init__(self) -> None:
        self.start: Callable[[], object] = lambda: [running_cluster() for _ in range(1)]


def starts_by_a_class() -> None:
    Fleet().start()


def starts_nothing(server: Server) -> str:
    return server.url


@pytest.mark.parametrize(("function", "expected"), [(starts_by_a_class, True), (starts_nothing, False)])
def test_servers_are_found_through_closures_decorators_functions_and_classes(
    function: FunctionType, expected: bool
) -> None:
    assert bool(STARTS & reached(function)) is expected


@pytest.fixture
def cluster() -> Iterator[object]:
    """A name for code that starts a cluster."""
    yield running_cluster


@pytest.mark.usefixtures("cluster")
def test_fixture_that_starts_a_cluster_marks_its_tests(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("all")


def test_second_kind_of_server_alone_marks_a_test(redis_server: Server, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("all") is None) is (redis_server.kind == "valkey")
