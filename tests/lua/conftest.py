"""The library on both kinds of server: fixtures for every test of ``lua/``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.redis import Server

LUA = Path(__file__).resolve().parents[2] / "lua"


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
    _connection.flushall()
    _connection.config_set("maxmemory", 0)
    _connection.function_load(library, replace=True)
    return _connection
