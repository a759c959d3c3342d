"""The namespaces that a process has open: opened once for all who come, closed when idle, bounded, visited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
import redis

from korvet.redis.client import Purpose
from korvet.security.protocol import NamespaceFrom
from korvet.server import namespaces as module
from korvet.server.namespaces import Namespaces, NoEntry
from korvet.server.process import Process
from korvet.server.settings import ListenerSettings, ServeSettings
from korvet.store import library
from korvet.store.keys import TENANTS, Namespace
from korvet.store.library import open_store
from korvet.store.topics import create_topic
from tests.support.redis import Server

pytestmark = pytest.mark.anyio

WITHIN_S = 30.0
LISTENERS = (ListenerSettings(namespace_from=NamespaceFrom.PRINCIPAL, sasl=("PLAIN",)),)


class Visitor:
    """A connection that notes whether it was closed."""

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class AlwaysTurn:
    async def turn(self) -> None:
        return

    def pass_turn(self) -> None:
        return


class NeverTurn(AlwaysTurn):
    async def turn(self) -> None:
        await anyio.sleep_forever()


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        yield client


@asynccontextmanager
async def opened(server: Server, turn: NeverTurn | AlwaysTurn | None = None) -> AsyncIterator[Namespaces]:
    """The namespaces of a process."""
    settings = ServeSettings(listeners=LISTENERS, redis_url=server.url)
    async with open_store(server.url) as store, anyio.create_task_group() as tasks:
        await library.ensure(store)
        process = Process(settings, store)
        namespaces = Namespaces(process)
        await namespaces.tenants.open()
        tasks.start_soon(process.outages.watch)
        tasks.start_soon(namespaces.tenants.follow)
        tasks.start_soon(namespaces.run, turn or NeverTurn())
        await anyio.lowlevel.checkpoint()
        yield namespaces
        namespaces.drain()
        process.wakeups.wake_all()
        tasks.cancel_scope.cancel()


async def create(namespaces: Namespaces, client: redis.Redis, *names: str, limits: str = "{}") -> None:
    for name in names:
        client.fcall("korvet_tenant_create", 1, TENANTS.tenants, name, name, limits, "")
    await namespaces.tenants.refresh()


async def test_namespace_is_opened_once_for_all_who_come(redis_server: Server, client: redis.Redis) -> None:
    async with opened(redis_server) as namespaces:
        await create(namespaces, client, "acme")
        found: list[object] = []

        async def come() -> None:
            found.append(await namespaces.enter("acme", Visitor()))

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(come)
        assert len(found) == 20 and len(set(map(id, found))) == 1
        assert len(list(namespaces.frontends())) == 1


async def test_unknown_and_suspended_tenants_are_not_opened(redis_server: Server, client: redis.Redis) -> None:
    async with opened(redis_server) as namespaces:
        await create(namespaces, client, "acme")
        client.fcall("korvet_tenant_switch", 1, TENANTS.tenants, "acme", "suspended")
        await namespaces.tenants.refresh()
        for name in ("acme", "nobodys", "", "default"):
            with pytest.raises(NoEntry):
                await namespaces.enter(name, Visitor())
        assert list(namespaces.frontends()) == []
    assert not [key for key in client.scan_iter() if b"{acme:" in key or b"nobodys" in key]


async def test_opening_that_fails_refuses_its_clients_and_the_next_one_succeeds(
    redis_server: Server, client: redis.Redis
) -> None:
    async with opened(redis_server) as namespaces:
        await create(namespaces, client, "acme", "globex")
        meta = Namespace("acme").catalog.meta
        client.set(meta, "no hash")
        visitor = Visitor()
        for _ in range(2):
            with pytest.raises(NoEntry, match="cannot be opened"), anyio.fail_after(WITHIN_S):
                await namespaces.enter("acme", visitor)
        assert (await namespaces.enter("globex", Visitor())).namespace.name == "globex"
        client.delete(meta)
        assert (await namespaces.enter("acme", visitor)).namespace.name == "acme"


async def test_namespace_is_closed_when_its_clients_have_left(
    redis_server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REST_S", 0.2)
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    async with opened(redis_server) as namespaces:
        await create(namespaces, client, "acme", "globex")
        visitor, other = Visitor(), Visitor()
        first = await namespaces.enter("acme", visitor)
        await namespaces.enter("globex", other)
        callbacks = len(first.store._history_callbacks)
        namespaces.leave(first, visitor)
        with anyio.fail_after(WITHIN_S):
            while len(list(namespaces.frontends())) > 1 or len(first.store._history_callbacks) >= callbacks:
                await anyio.sleep(0.05)
        assert first.draining.is_set() and not other.is_aborted
        again = await namespaces.enter("acme", visitor)
        assert again is not first


async def test_oldest_empty_namespace_makes_room_and_full_ones_stay(
    redis_server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_OPEN", 2)
    async with opened(redis_server) as namespaces:
        await create(namespaces, client, "a", "b", "c", "d")
        visitors = [Visitor() for _ in range(3)]
        a = await namespaces.enter("a", visitors[0])
        await namespaces.enter("b", visitors[1])
        with pytest.raises(NoEntry, match="2 namespaces are open"):
            await namespaces.enter("c", visitors[2])
        namespaces.leave(a, visitors[0])
        await namespaces.enter("c", visitors[2])
        assert {one.namespace.name for one in namespaces.frontends()} == {"b", "c"}
        assert not any(visitor.is_aborted for visitor in visitors)


async def test_later_tenant_of_the_same_name_is_opened_anew(redis_server: Server, client: redis.Redis) -> None:
    async with opened(redis_server) as namespaces:
        await create(namespaces, client, "acme")
        visitor = Visitor()
        first = await namespaces.enter("acme", visitor)
        client.fcall("korvet_tenant_switch", 1, TENANTS.tenants, "acme", "deleting")
        client.fcall("korvet_tenant_forget", 1, TENANTS.tenants, "acme", "acme")
        client.fcall("korvet_tenant_create", 1, TENANTS.tenants, "acme", "a later one", "{}", "")
        await namespaces.tenants.refresh()
        assert visitor.is_aborted
        assert await namespaces.enter("acme", Visitor()) is not first


async def test_namespace_that_nobody_opens_is_visited(
    redis_server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(redis_server) as namespaces:
        await create(namespaces, client, "acme")
        visitor = Visitor()
        frontend = await namespaces.enter("acme", visitor)
        _, topic = await create_topic(frontend.catalog, frontend.log, "gone", 1, {})
        assert topic is not None
        await frontend.catalog.begin_delete(topic)
        namespaces.leave(frontend, visitor)
    topics = Namespace("acme").catalog.topics
    assert client.hexists(topics, "gone")
    monkeypatch.setattr(module, "VISIT_S", 0.1)
    async with opened(redis_server, AlwaysTurn()) as namespaces:
        with anyio.fail_after(WITHIN_S):
            while client.hexists(topics, "gone"):
                await anyio.sleep(0.05)
        assert list(namespaces.frontends()) == []


async def test_opened_namespace_cannot_name_keys_of_another(redis_server: Server, client: redis.Redis) -> None:
    async with opened(redis_server) as namespaces:
        await create(namespaces, client, "acme")
        frontend = await namespaces.enter("acme", Visitor())
        key = Namespace("globex").catalog.meta
        with pytest.raises(Exception, match="keys that begin with"):
            await frontend.store.call(Purpose.COORDINATE, key, "HGETALL", key)
