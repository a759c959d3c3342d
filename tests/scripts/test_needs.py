"""Markers name a test's needs, which come from the names in its code."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import pytest

from tests.support.broker import KorvetServer, running_broker
from tests.support.needs import reached
from tests.support.redis import Server, running_server


def starts_in_a_closure() -> Callable[[], object]:
    return lambda: [running_server("valkey") for _ in range(1)]


def starts_by_others() -> None:
    starts_in_a_closure()()
    running_broker()


def starts_nothing(server: Server) -> str:
    return server.url


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (starts_in_a_closure, {Server}),
        (starts_by_others, {Server, KorvetServer}),
        (starts_nothing, set()),
    ],
)
def test_servers_are_found_through_closures_decorators_and_functions(
    function: FunctionType, expected: set[object]
) -> None:
    assert reached(function) & {Server, KorvetServer} == expected


@pytest.fixture
def own_server() -> type[Server]:
    """A name for code that starts a server."""
    return Server


def test_fixture_that_starts_a_server_marks_its_tests(own_server: type[Server], request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("servers")


@pytest.mark.usefixtures("valkey_server")
def test_server_of_the_session_gives_no_marker(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("servers") is None
