"""The library on both kinds of server: fixtures for every test of ``lua/``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.lua.consumer import ConsumerGroup
from tests.lua.group import Group
from tests.lua.log import Log
from tests.lua.partition import Loop, looping
from tests.support.redis import Server

LUA = Path(__file__).resolve().parents[2] / "lua"
CLOCK = """local clock = {}
function clock.now_us()
  return tonumber(redis.call('GET', 'clock_us'))
end
"""
"""What takes the clock's place: the time lies in a key."""


@pytest.fixture(scope="session")
def library() -> str:
    """The library's text, as ``cat lua/*.lua`` makes it."""
    return "".join(path.read_text() for path in sorted(LUA.glob("*.lua")))


@pytest.fixture(scope="session")
def _connection(redis_server: Server) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def server(_connection: redis.Redis, library: str) -> redis.Redis:
    """A client of an empty server with the library loaded."""
    _connection.config_set("maxmemory", 0)
    _connection.flushall()
    _connection.function_load(library, replace=True)
    return _connection


@pytest.fixture
def set_clock(server: redis.Redis) -> Callable[[float], None]:
    """Have the library's clock stand at the seconds since 1970 that it is given."""
    files = sorted(LUA.glob("*.lua"))
    source = "".join(CLOCK if path.name == "01_clock.lua" else path.read_text() for path in files)
    server.function_load(source, replace=True)

    def set_to(seconds: float) -> None:
        server.set("clock_us", round(seconds * 1_000_000))

    set_to(1_700_000_000)
    return set_to


@pytest.fixture(scope="module")
def loop(redis_server: Server) -> Iterator[Loop]:
    """Where what a front-end does is run, for tests that are none of asyncio's."""
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
    """A group that does not exist yet, in a time that stands still."""
    return Group(server, set_clock)


@pytest.fixture
def consumers(group: Group, set_clock: Callable[[float], None]) -> ConsumerGroup:
    """The same group, as the consumer protocol drives it."""
    return ConsumerGroup(group.server, set_clock)
