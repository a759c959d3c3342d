"""The library on both kinds of server: fixtures for every test of ``lua/``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.lua.consumer import ConsumerGroup
from tests.lua.group import Group
from tests.lua.log import Log
from tests.lua.mixed import MixedGroup
from tests.lua.partition import Loop, looping
from tests.lua.transaction import Transactional
from tests.support.redis import Server

LUA = Path(__file__).resolve().parents[2] / "lua"
CLOCK = """local clock = {}
function clock.now_us()
  return tonumber(redis.call('GET', 'clock_us'))
end
"""
"""The text that replaces the clock: a key holds the time."""


@pytest.fixture(scope="session")
def library() -> str:
    """The library's text, as ``cat lua/*/*.lua`` makes it."""
    return "".join(path.read_text() for path in sorted(LUA.glob("*/*.lua")))


@pytest.fixture(scope="session")
def _still_library() -> str:
    """The library's text with a clock that stands still."""
    return "".join(CLOCK if path.name == "1-clock.lua" else path.read_text() for path in sorted(LUA.glob("*/*.lua")))


@pytest.fixture(scope="session")
def _connection(redis_server: Server) -> Iterator[redis.Redis]:
    with redis_server.client(single_connection_client=True) as client:
        yield client


@pytest.fixture
def server(request: pytest.FixtureRequest, _connection: redis.Redis, library: str, _still_library: str) -> redis.Redis:
    """A client of an empty server with the library loaded; the clock stands still if the test sets it."""
    _connection.config_set("maxmemory", 0)
    _connection.flushall()
    _hold(_connection, _still_library if "set_clock" in request.fixturenames else library)
    return _connection


def _hold(server: redis.Redis, source: str) -> None:
    """Load the text unless the server holds it: to load takes longer than most tests."""
    held: Any = server.function_list(library="korvet", withcode=True)
    if not any(source.encode() in one for one in held):
        server.function_load(source, replace=True)


@pytest.fixture
def set_clock(server: redis.Redis) -> Callable[[float], None]:
    """A function that sets the library's clock to seconds since 1970; the clock then stands still."""

    def set_to(seconds: float) -> None:
        server.set("clock_us", round(seconds * 1_000_000))

    set_to(1_700_000_000)
    return set_to


@pytest.fixture(scope="module")
def loop(redis_server: Server) -> Iterator[Loop]:
    """An event loop for a front-end's part, for tests that do not run on asyncio."""
    with looping(redis_server.url) as loop:
        yield loop


@pytest.fixture
def log(server: redis.Redis) -> Log:
    """A partition with its keys made."""
    log = Log(server)
    assert log.create() == 0
    return log


@pytest.fixture
def group(server: redis.Redis, set_clock: Callable[[float], None]) -> Group:
    """A group that does not exist yet; time stands still."""
    return Group(server, set_clock)


@pytest.fixture
def consumers(group: Group, set_clock: Callable[[float], None]) -> ConsumerGroup:
    """The same group, driven by the consumer protocol."""
    return ConsumerGroup(group.server, set_clock)


@pytest.fixture
def mixed(group: Group, set_clock: Callable[[float], None]) -> MixedGroup:
    """The same group, driven by members of both protocols."""
    return MixedGroup(group.server, set_clock)


@pytest.fixture
def app(server: redis.Redis, set_clock: Callable[[float], None]) -> Transactional:
    return Transactional(server, set_clock)
