"""The store on real servers: the order of commands, errors, and the loss and return of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import redis
from structlog.testing import capture_logs

from korvet.api import registry
from korvet.errors import SlotMoving, StoreError, StoreFull, StoreUnavailable, UnknownArguments
from korvet.quotas.entity import REQUEST, Entity
from korvet.quotas.meters import Meters
from korvet.quotas.rules import Rules
from korvet.redis import client, connecting, link
from korvet.redis.client import Argument, Purpose, Store
from korvet.redis.error_replies import as_exception
from korvet.redis.resp import pack_command
from korvet.server.conversation.metering import Metering
from korvet.store import library
from korvet.store.keys import Namespace
from korvet.store.library import open_store
from tests.store.logs import until
from tests.support.quotas import WINDOWS
from tests.support.redis import Server, running_server

pytestmark = pytest.mark.anyio

KEY = "korvet:{t}:list"
CATALOG = Namespace("client").catalog


@pytest.fixture
def server(redis_server: Server) -> Iterator[Server]:
    """The session's server, without data and functions."""
    with redis_server.client() as client:
        client.flushall()
        client.function_flush()
    yield redis_server


async def outcome(pending: Awaitable[Any]) -> Any:
    """The reply, or the exception as a value."""
    try:
        return await pending
    except (StoreError, StoreFull, StoreUnavailable) as error:
        return error


async def test_commands_reach_redis_in_the_order_of_the_calls(server: Server) -> None:
    async with open_store(server.url) as store:
        futures = [store.call(Purpose.APPEND, KEY, "RPUSH", KEY, number) for number in range(2000)]
        assert [await future for future in futures] == list(range(1, 2001))
        items = await store.call(Purpose.READ, KEY, "LRANGE", KEY, 0, -1)
        assert [int(item) for item in items] == list(range(2000))


async def test_function_call_returns_its_reply(server: Server) -> None:
    async with open_store(server.url) as store:
        await library.ensure(store)
        version = await store.fcall(Purpose.COORDINATE, "korvet_version", ())
        assert version.decode() == library.library_version()
        code, cluster_id = await store.fcall(Purpose.COORDINATE, "korvet_catalog_init", CATALOG, "abc")
        assert (code, cluster_id) == (0, b"abc")


async def test_time_of_redis_for_a_request_is_estimated_by_its_calls_and_counts_for_its_client(server: Server) -> None:
    async with open_store(server.url) as store:
        meters = Meters(Rules({Entity(None, "c", None): {REQUEST: 1.0}}, WINDOWS), lambda: None)
        context: Any = SimpleNamespace(principal="User:a", client_id="c", frontend=SimpleNamespace(store=store))
        asked = [f"{number:0100}" for number in range(1000)]

        def ask() -> asyncio.Future[Any]:
            return store.fcall(
                Purpose.COORDINATE, "korvet_reader_note", ["korvet:{t:@reader:c}:groups"], "g", 9, *asked
            )

        metering = Metering(meters, registry()[8], context)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("korvet.server.conversation.metering.thread_time", lambda: 0.0)
            assert await metering.call(ask) == 0
        metering.answered({})
        assert [round(used, 4) for _, used in meters.reports(9)] == [round(20e-6 + 1002e-6 + 0.11e6 * 2e-9, 4)]


async def test_placed_value_has_its_key_and_expiry_before_the_call(server: Server) -> None:
    parts: list[bytes | memoryview] = [b"head", memoryview(bytearray(b"x" * 300_000)), memoryview(b"tail")]
    async with open_store(server.url) as store:
        await library.ensure(store)
        # The function runs behind the SET, even if the SET fails.
        call = store.fcall_placed("korvet_version", (KEY,), parts, 60_000)
        ttl = store.call(Purpose.APPEND, KEY, "PTTL", KEY)
        value = store.call(Purpose.APPEND, KEY, "GET", KEY)
        assert (await call).decode() == library.library_version()
        assert 0 < await ttl <= 60_000
        assert await value == b"".join(parts)


async def test_arguments_may_be_text_bytes_views_and_numbers(server: Server) -> None:
    async with open_store(server.url) as store:
        await store.call(Purpose.APPEND, KEY, "RPUSH", KEY, "é", b"\x00\xff", memoryview(b"view")[1:], 7, 1.5)
        assert await store.call(Purpose.READ, KEY, "LRANGE", KEY, 0, -1) == [
            "é".encode(), b"\x00\xff", b"iew", b"7", b"1.5",
        ]  # fmt: skip


async def test_error_reply_is_a_store_error_and_later_commands_go_on(server: Server) -> None:
    async with open_store(server.url) as store:
        await store.call(Purpose.APPEND, KEY, "SET", KEY, "text")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await store.call(Purpose.APPEND, KEY, "LPUSH", KEY, "x")
        assert await store.call(Purpose.APPEND, KEY, "GET", KEY) == b"text"


async def test_full_server_is_store_full(own_server: Server) -> None:
    async with open_store(own_server.url) as store:
        await library.ensure(store)
        await store.call(Purpose.COORDINATE, KEY, "CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreFull):
            await store.fcall(Purpose.COORDINATE, "korvet_catalog_init", CATALOG, "abc")
        with pytest.raises(StoreFull):
            await store.call(Purpose.COORDINATE, KEY, "SET", KEY, "x")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFull),
        ("LOADING Redis is loading the dataset in memory", StoreUnavailable),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailable),
        ("READONLY You can't write against a read only replica.", StoreUnavailable),
        ("CLUSTERDOWN The cluster is down", StoreUnavailable),
        ("ERR something else", StoreError),
        ("ERR Script attempted to access a non local key in a cluster node script: on @user_function:1.", SlotMoving),
        ("ERR Attempted to access a non local key in a cluster node script: on @user_function:1.", SlotMoving),
        ("ARGUMENTS korvet_x takes the arguments a; the call has 2", UnknownArguments),
        ("ERR korvet_x takes the arguments a; the call has 2", UnknownArguments),
        ("NOPERM User korvet has no permissions", StoreError),
    ],
)
async def test_error_replies_have_their_meaning(text: str, kind: type[Exception]) -> None:
    error = as_exception(text)
    assert isinstance(error, kind)
    assert not getattr(error, "outcome_unknown", False)


async def test_commands_on_a_lost_connection_fail_with_unknown_outcome(own_server: Server) -> None:
    async with open_store(own_server.url) as store:
        await store.call(Purpose.APPEND, KEY, "CLIENT", "PAUSE", 60_000, "WRITE")
        futures = [store.call(Purpose.APPEND, KEY, "RPUSH", KEY, number) for number in range(100)]
        await store.call(Purpose.READ, KEY, "PING")
        own_server.kill()
        errors = [await outcome(future) for future in futures]
        assert all(isinstance(error, StoreUnavailable) and error.outcome_unknown for error in errors)


async def test_commands_without_a_connection_fail_at_once_with_known_outcome(own_server: Server) -> None:
    async with open_store(own_server.url) as store:
        own_server.kill()
        await until(lambda: not store.is_connected())
        error = await outcome(store.call(Purpose.COORDINATE, KEY, "PING"))
        assert isinstance(error, StoreUnavailable)
        assert not error.outcome_unknown
        assert isinstance(await outcome(store.fcall_placed("korvet_version", (KEY,), [b"x"], 1000)), StoreUnavailable)


async def test_store_announces_a_new_history_before_a_command_reaches_the_server(own_server: Server) -> None:
    async with open_store(own_server.url) as store:
        before, told = store.run_id(KEY), []
        store.on_history_change(lambda: told.append(store.run_id(KEY)))
        own_server.restart(crash=True)
        await until(lambda: len(told) == Purpose.CONFIRM)
        await until(store.is_connected)
        assert store.run_id(KEY) != before
        assert await store.call(Purpose.APPEND, KEY, "PING") == b"PONG"


def connection_of(store: Store, purpose: Purpose) -> Any:
    """The present connection of one purpose. The next one may come so soon that nobody sees the link down."""
    link = store.link(purpose, KEY)
    assert link is not None
    return link.live


async def test_broken_connection_to_the_same_server_is_no_change_of_history(server: Server) -> None:
    async with open_store(server.url) as store:
        told: list[None] = []
        store.on_history_change(lambda: told.append(None))
        before = store.run_id(KEY)
        killed = {purpose: connection_of(store, purpose) for purpose in (Purpose.APPEND, Purpose.COORDINATE)}
        await store.call(Purpose.READ, KEY, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await until(lambda: all(connection_of(store, purpose) is not one for purpose, one in killed.items()))
        await until(store.is_connected)
        assert store.run_id(KEY) == before
        assert not told


async def test_store_gives_up_a_connection_whose_server_owes_replies(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "SILENCE_LIMIT_S", 1.0)
    async with open_store(own_server.url) as store:
        with own_server.paused():
            error = await outcome(store.call(Purpose.APPEND, KEY, "PING"))
        assert isinstance(error, StoreUnavailable)
        assert error.outcome_unknown
        await until(store.is_connected)


async def test_store_gives_up_a_subscriber_connection_to_a_silent_server(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "SILENCE_LIMIT_S", 1.0)
    async with open_store(own_server.url) as store:
        subscriber = store.subscriber(KEY)
        assert subscriber is not None
        with own_server.paused():
            await until(lambda: not subscriber.is_up)
        await until(store.is_connected)


async def test_refused_login_is_an_error_at_once(own_server: Server) -> None:
    with own_server.client() as client:
        client.config_set("requirepass", "secret")
    with anyio.fail_after(10):
        with pytest.raises(StoreUnavailable, match="NOAUTH"):
            async with open_store(own_server.url):
                pass


async def test_lost_functions_are_loaded_and_calls_sent_again_in_order(server: Server) -> None:
    async with open_store(server.url) as store:
        await library.ensure(store)
        with server.client() as client:
            client.function_flush()
        await store.fcall(Purpose.COORDINATE, "korvet_catalog_init", CATALOG, "abc")
        with server.client() as client:
            client.function_flush()
        ids = [store.fcall(Purpose.COORDINATE, "korvet_producer_id", CATALOG) for _ in range(50)]
        # The first refusals have come and the library is being loaded: new calls wait behind the refused ones.
        await asyncio.wait([store.call(Purpose.READ, KEY, "PING")])
        ids += [store.fcall(Purpose.COORDINATE, "korvet_producer_id", CATALOG) for _ in range(50)]
        handed_out = [(await reply)[1] for reply in ids]
        assert handed_out == sorted(handed_out)
        assert len(set(handed_out)) == 100


def without_the_function(version: str) -> str:
    """A library of another version, without korvet_catalog_init."""
    source = library.library_source().decode()
    return source.replace(f"'{library.library_version()}'", f"'{version}'").replace("'catalog_init'", "'other'")


@pytest.mark.parametrize(("version", "ours"), [("0.0.1", True), ("99.0.0", False)])
async def test_older_library_without_a_function_is_replaced(server: Server, version: str, ours: bool) -> None:
    """A front-end of the former version may be the first to load a library after the server lost its functions."""
    async with open_store(server.url) as store:
        with server.client() as client:
            client.function_load(without_the_function(version))
            replies = [store.fcall(Purpose.COORDINATE, "korvet_catalog_init", CATALOG, "abc")]
            await asyncio.wait([store.call(Purpose.READ, KEY, "PING")])
            replies.append(store.fcall(Purpose.COORDINATE, "korvet_producer_id", CATALOG))
            first, second = [await outcome(reply) for reply in replies]
            assert isinstance(first, StoreError) != ours
            assert second[0] == 0
            there = client.fcall_ro("korvet_version", 0)
            assert there.decode() == (library.library_version() if ours else version)


async def test_library_that_cannot_be_loaded_fails_the_calls(own_server: Server) -> None:
    async with open_store(own_server.url) as store:
        await store.call(Purpose.COORDINATE, KEY, "CONFIG", "SET", "maxmemory", 1)
        assert isinstance(await outcome(store.fcall(Purpose.COORDINATE, "korvet_version", ())), StoreFull)
        assert await store.call(Purpose.COORDINATE, KEY, "PING") == b"PONG"


async def test_cancelled_waiter_does_not_shift_the_replies(server: Server) -> None:
    async with open_store(server.url) as store:
        dropped = store.call(Purpose.READ, KEY, "ECHO", "first")
        kept = store.call(Purpose.READ, KEY, "ECHO", "second")
        dropped.cancel()
        assert await kept == b"second"


async def test_store_uses_password_user_and_database() -> None:
    with running_server("valkey", tcp=True) as server:
        with server.client() as client:
            client.acl_setuser("korvet", enabled=True, passwords=["+p@ss/word"], commands=["+@all"], keys=["*"])
            client.acl_setuser("default", enabled=False)
        url = f"redis://korvet:p%40ss%2Fword@127.0.0.1:{server.port}/3"
        async with open_store(url) as store:
            await store.call(Purpose.APPEND, KEY, "SET", KEY, "x")
            assert "word" not in str(store.url)
        with redis.Redis.from_url(url) as client:
            assert client.get(KEY) == b"x"
        with pytest.raises(StoreUnavailable, match=r"WRONGPASS.*ACL SAVE"):
            async with open_store(f"redis://korvet:no@127.0.0.1:{server.port}", connect_timeout_s=0.3):
                pass


async def test_outage_is_logged_once_and_so_is_its_end(own_server: Server) -> None:
    with capture_logs() as lines:
        async with open_store(own_server.url) as store:
            own_server.kill()
            await until(lambda: any(line["event"] == "redis is not available" for line in lines))
            await until(lambda: not any(link.is_up for link in map(store.link, Purpose, [KEY] * 4) if link))
            own_server.start()
            await until(lambda: any(line["event"] == "redis is back" for line in lines))
            await until(store.is_connected)
    told = [line["event"] for line in lines]
    assert told.count("redis connection lost") == told.count("redis is back") == 1
    reasons = [line["reason"] for line in lines if line["event"] == "redis is not available"]
    assert len(reasons) == len(set(reasons))


async def test_demoted_server_loses_all_connections_until_it_leads_again(own_server: Server) -> None:
    """A replica's data may be old, and a call that outlives a demotion would write into a lost history."""
    links = [Purpose.APPEND, Purpose.READ, Purpose.COORDINATE, Purpose.SUBSCRIBE]
    with capture_logs() as lines:
        async with open_store(own_server.url) as store:
            with own_server.client() as client:
                client.replicaof("127.0.0.1", 1)
                with pytest.raises(StoreUnavailable, match="READONLY"):
                    await store.call(Purpose.COORDINATE, KEY, "SET", KEY, "x")
                await until(lambda: not any(one.is_up for one in (store.link(of, KEY) for of in links) if one))
                await until(lambda: "is a replica and takes no writes" in store.problem)
                client.replicaof("NO", "ONE")
            await until(store.is_connected)
            await store.call(Purpose.COORDINATE, KEY, "SET", KEY, "x")
    told = [line["event"] for line in lines]
    assert (told.count("redis connection lost"), told.count("redis is back")) == (1, 1)


async def test_unreachable_redis_is_one_error_in_time() -> None:
    with pytest.raises(StoreUnavailable, match=r"redis://127\.0\.0\.1:1: "):
        async with open_store("redis://127.0.0.1:1", connect_timeout_s=0.2):
            pass


async def test_exception_passes_through_an_open_store_unchanged(server: Server) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_store(server.url) as store:
            assert isinstance(store, Store)
            _ = 1 / 0


async def test_call_with_more_arguments_than_its_bound_is_not_sent(server: Server) -> None:
    async with open_store(server.url) as store:
        with pytest.raises(StoreError, match="korvet_version takes 0 arguments, not 1"):
            await store.fcall(Purpose.COORDINATE, "korvet_version", (), "surplus")


async def test_call_with_a_kept_beginning_has_the_same_bytes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_HEADS_KEPT", 9)
    values: list[Argument] = ["é", 7, b"x" * 100_000, memoryview(b"v"), 1.5, *(["x"] * 96)]
    sent: list[bytes] = []
    async with open_store(server.url) as store:
        coordination = store.coordination(KEY)
        assert coordination is not None
        monkeypatch.setattr(coordination, "send", lambda _future, packed: sent.append(packed))
        for keys in [("k", "l"), ("m", "x" * 2000), ["k", "l"], ("k", "l")]:
            for count in (0, 1, 9, 10, 11, 99, 100, 101):
                args = values[:count]
                store.fcall(Purpose.COORDINATE, "korvet_reader_note", keys, *args)
                assert sent.pop() == pack_command(("FCALL", "korvet_reader_note", 2, *keys, *args))
        assert len(store._heads) <= 9


async def test_server_that_hides_its_limits_costs_one_connection_at_a_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one behind a proxy that swallows CONFIG: each try ends its connection before the next one."""
    monkeypatch.setattr(link, "CONNECT_TIMEOUT_S", 0.5)
    opened: list[asyncio.StreamWriter] = []
    asked: list[bool] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        answers, questions = await asyncio.open_unix_connection(server.url.removeprefix("unix://"))

        async def answer() -> None:
            while data := await answers.read(65_536):
                writer.write(data)

        answering = asyncio.create_task(answer())
        while data := await reader.read(65_536):
            asked.append(b"proto-max-bulk-len" in data)
            if not asked[-1]:
                questions.write(data)
        opened.remove(writer)
        answering.cancel()
        for one in (writer, questions):
            one.close()

    proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with proxy:
        with anyio.CancelScope() as scope:

            async def stop() -> None:
                await until(lambda: sum(asked) > 2)
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop)
                async with open_store(f"redis://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"):
                    await anyio.sleep_forever()
        try:
            await until(lambda: not opened, within_s=10)
        finally:
            for one in opened:
                one.close()
