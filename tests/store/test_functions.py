"""The library on a server: absent, current, older, changed or newer; and the source of one of its lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
import redis
from structlog.testing import capture_logs

import korvet
from korvet.errors import KorvetError, StoreError, StoreFull
from korvet.redis.client import Purpose
from korvet.store import library
from korvet.store.groups.call import keys_of
from korvet.store.keys import Namespace
from korvet.store.library import Found, State, open_store
from tests.support.redis import Server

LUA = Path(__file__).resolve().parents[2] / "lua"


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    """A client of a server without any functions."""
    with redis_server.client() as client:
        client.function_flush()
        yield client
        client.function_flush()


@pytest.mark.anyio
async def test_library_that_a_full_server_refuses_is_logged_once_with_a_remedy(client: redis.Redis) -> None:
    url = f"unix://{client.connection_pool.connection_kwargs['path']}"
    with capture_logs() as lines:
        async with open_store(url) as store:
            client.config_set("maxmemory", 1)
            try:
                for _ in range(3):
                    with pytest.raises(StoreFull):
                        await store.fcall(Purpose.READ, "korvet_version", [])
                with pytest.raises(StoreFull, match="CONFIG SET maxmemory"):
                    await library.ensure(store)
            finally:
                client.config_set("maxmemory", 0)
            with anyio.fail_after(20):
                while True:
                    with suppress(StoreFull):
                        await store.fcall(Purpose.READ, "korvet_version", [])
                        break
                    await anyio.sleep(0.05)
    events = [line["event"] for line in lines]
    assert events.count("the server lost korvet's functions; loading them") == 1
    (refused,) = (line for line in lines if line["event"] == "korvet's functions cannot be loaded")
    assert "redis-cli CONFIG SET maxmemory 134217728" in refused["reason"]
    assert events[-1] == "korvet's functions are loaded"


@pytest.mark.anyio
async def test_call_that_an_older_library_refuses_is_made_again_on_this_one(client: redis.Redis) -> None:
    """If a server loses its functions during an upgrade, a front-end of the former version may load its own library."""
    source = library.library_source().decode().replace(f"'{korvet.__version__}'", "'0.0.1'")
    head = "  local id, instance_id = args[2], args[3]\n"
    assert source.count(head) == 1
    client.function_load(source.replace(head, head + "error('heartbeat takes 3 arguments', 0)\n"), replace=True)
    url = f"unix://{client.connection_pool.connection_kwargs['path']}"
    async with open_store(url) as store:
        keys = keys_of("korvet_group_heartbeat", Namespace().group("older"))
        answer = await store.fcall(Purpose.COORDINATE, "korvet_group_heartbeat", keys, "", "m", "", 1)
        assert answer == 25
        assert await store.fcall(Purpose.COORDINATE, "korvet_version", []) == korvet.__version__.encode()
        with pytest.raises(StoreError, match="korvet_group_heartbeat"):
            await store.fcall(Purpose.COORDINATE, "korvet_group_heartbeat", keys, "")


def _put(client: redis.Redis, version: str) -> None:
    """Load a library of another version."""
    source = library.library_source().decode().replace(f"'{korvet.__version__}'", f"'{version}'")
    client.function_load(source, replace=True)


def _load(client: redis.Redis) -> None:
    client.execute_command(*library.load_command())  # type: ignore[no-untyped-call]


def _judged(client: redis.Redis) -> Found:
    return library.judge(client.execute_command(*library.QUESTION))  # type: ignore[no-untyped-call]


async def _ensure(server: Server) -> list[Found]:
    async with open_store(server.url) as store:
        await library.ensure(store)
        return await library.check(store)


def test_source_is_the_concatenation_of_the_files() -> None:
    assert library.library_source() == b"".join(path.read_bytes() for path in sorted(LUA.glob("*/*.lua")))


def test_library_has_the_version_of_the_package(client: redis.Redis) -> None:
    assert library.library_version() == korvet.__version__
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
    client.function_load(library.library_source().decode() + "-- more\n")
    assert _judged(client) == Found(state=State.CHANGED, version=korvet.__version__)
    anyio.run(_ensure, redis_server)
    assert _judged(client).state is State.CURRENT


def test_newer_library_stays_and_is_refused_with_a_remedy(client: redis.Redis, redis_server: Server) -> None:
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
    assert library.where("1") == ("0-core/0-library.lua", 1)
    first = sorted(LUA.glob("*/*.lua"))[0].read_text().count("\n")
    assert library.where(f"user_function:{first}") == ("0-core/0-library.lua", first)
    assert library.where(str(first + 1)) == ("0-core/1-clock.lua", 1)
    assert str(library.where(str(first + 1))) == "lua/0-core/1-clock.lua:1"


def test_line_in_a_servers_error_text_is_found(client: redis.Redis) -> None:
    _load(client)
    with pytest.raises(redis.ResponseError) as raised:
        client.fcall("korvet_topic_create", 3, "{c}meta", "{c}topics", "{c}configs", "t", "id", "1", "no JSON")
    found = library.where(str(raised.value))
    line = (LUA / found.file).read_text().splitlines()[found.line - 1]
    assert re.search(r"cjson\.decode", line)


@pytest.mark.parametrize("error", ["0", "99999999"])
def test_line_outside_the_library_is_an_error(error: str) -> None:
    with pytest.raises(KorvetError, match="lines, and none is"):
        library.where(error)


def test_text_without_a_line_is_an_error() -> None:
    with pytest.raises(KorvetError, match="names no line"):
        library.where("user_function")
