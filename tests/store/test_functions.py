"""The library on a server: absent, current, older, changed and newer; and where a line of it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import redis

import korvet
from korvet.errors import KorvetError
from korvet.store import functions
from korvet.store.client import open_store
from korvet.store.functions import Found, State
from tests.support.redis import Server

LUA = Path(__file__).resolve().parents[2] / "lua"


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    """A client of a server without any functions."""
    with redis_server.client() as client:
        client.function_flush()
        yield client
        client.function_flush()


def _put(client: redis.Redis, version: str) -> None:
    """Load a library of another version."""
    source = functions.library_source().decode().replace(f"'{korvet.__version__}'", f"'{version}'")
    client.function_load(source, replace=True)


def _load(client: redis.Redis) -> None:
    client.execute_command(*functions.load_command())  # type: ignore[no-untyped-call]


def _judged(client: redis.Redis) -> Found:
    return functions.judge(client.execute_command(*functions.QUESTION))  # type: ignore[no-untyped-call]


async def _ensure(server: Server) -> list[Found]:
    async with open_store(server.url) as store:
        await functions.ensure(store)
        return await functions.check(store)


def test_source_is_the_concatenation_of_the_files() -> None:
    assert functions.library_source() == b"".join(path.read_bytes() for path in sorted(LUA.glob("*.lua")))


def test_library_has_the_version_of_the_package(client: redis.Redis) -> None:
    assert functions.library_version() == korvet.__version__
    _load(client)
    assert client.fcall_ro("korvet_version", 0) == korvet.__version__.encode()


def test_absent_library_is_loaded(client: redis.Redis, redis_server: Server) -> None:
    assert _judged(client) == Found(state=State.ABSENT, version="")
    assert anyio.run(_ensure, redis_server) == [Found(state=State.CURRENT, version=korvet.__version__)]


@pytest.mark.parametrize("version", ["0.0.9", "0.0", ""])
def test_older_library_is_replaced(client: redis.Redis, redis_server: Server, version: str) -> None:
    _put(client, version)
    assert _judged(client) == Found(state=State.OLDER, version=version)
    anyio.run(_ensure, redis_server)
    assert _judged(client).state is State.CURRENT


def test_library_with_another_text_of_the_same_version_is_replaced(client: redis.Redis, redis_server: Server) -> None:
    client.function_load(functions.library_source().decode() + "-- more\n")
    assert _judged(client) == Found(state=State.CHANGED, version=korvet.__version__)
    anyio.run(_ensure, redis_server)
    assert _judged(client).state is State.CURRENT


def test_newer_library_is_left_and_refused_with_what_to_do(client: redis.Redis, redis_server: Server) -> None:
    _put(client, "99.0.0")
    with pytest.raises(KorvetError, match=r"version 99\.0\.0 .* install korvet 99\.0\.0 or newer"):
        anyio.run(_ensure, redis_server)
    assert _judged(client) == Found(state=State.NEWER, version="99.0.0")


def test_judging_takes_the_answer_of_either_protocol_as_bytes_or_text(
    redis_server: Server, client: redis.Redis
) -> None:
    _load(client)
    for protocol in (2, 3):
        for decode in (False, True):
            with redis_server.client(protocol=protocol, decode_responses=decode) as other:
                assert _judged(other).state is State.CURRENT


def test_line_of_the_library_is_found_in_its_file() -> None:
    assert functions.where("1") == ("00_library.lua", 1)
    first = sorted(LUA.glob("*.lua"))[0].read_text().count("\n")
    assert functions.where(f"user_function:{first}") == ("00_library.lua", first)
    assert functions.where(str(first + 1)) == ("01_clock.lua", 1)
    assert str(functions.where(str(first + 1))) == "lua/01_clock.lua:1"


def test_line_in_a_servers_error_text_is_found(client: redis.Redis) -> None:
    _load(client)
    with pytest.raises(redis.ResponseError) as raised:
        client.fcall("korvet_topic_create", 3, "{c}meta", "{c}topics", "{c}configs", "t", "id", "1", "no JSON")
    place = functions.where(str(raised.value))
    line = (LUA / place.file).read_text().splitlines()[place.line - 1]
    assert re.search(r"cjson\.decode", line)


@pytest.mark.parametrize("place", ["0", "99999999"])
def test_line_that_is_not_there_is_an_error(place: str) -> None:
    with pytest.raises(KorvetError, match="lines, and none is"):
        functions.where(place)


def test_text_without_a_line_is_an_error() -> None:
    with pytest.raises(KorvetError, match="names no line"):
        functions.where("user_function")
