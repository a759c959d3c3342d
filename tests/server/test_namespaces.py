"""The namespaces that a process has open: opened once for all who come, closed when idle, bounded, visited."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import redis
from structlog.testing import capture_logs

from korvet.api.shared.context import Frontend, Listener
from korvet.api.shared.nodes import FixedNodes, Node
from korvet.cli.redis import tenant_deletion
from korvet.redis.client import Purpose
from korvet.security.sasl import State
from korvet.security.scram import LoginRefused, make_credential
from korvet.server.bounds.connections import Connections
from korvet.server.conversation.connection import Connection
from korvet.server.ground.settings import limits_of
from korvet.server.tenants import namespaces as module
from korvet.server.tenants.choice import Choice, ChosenRealm, Destination
from korvet.server.tenants.namespaces import Namespaces, NoEntry
from korvet.store import tenants
from korvet.store.every import RETRY_S
from korvet.store.keys import TENANTS, Namespace
from korvet.store.security.users import CredentialKey, field_of, text_of
from korvet.store.topics import create_topic, delete_topic
from korvet.tier import removal
from korvet.tier.manifest import topic_folder
from korvet.tier.objects import Directory
from korvet.tier.tier import Tier
from tests.server.script import until
from tests.server.visitors import LISTENERS, AlwaysTurn, Visitor, create, opened
from tests.support.redis import Server

pytestmark = pytest.mark.anyio

WITHIN_S = 30.0
ALICE = CredentialKey("SCRAM-SHA-256", "alice")


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        yield client


async def test_namespace_is_opened_once_for_all_who_come(redis_server: Server, client: redis.Redis) -> None:
    async with opened(redis_server.url) as namespaces:
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
    async with opened(redis_server.url) as namespaces:
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
    async with opened(redis_server.url) as namespaces:
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
    async with opened(redis_server.url) as namespaces:
        await create(namespaces, client, "acme", "globex")
        visitor, other = Visitor(), Visitor()
        first = await namespaces.enter("acme", visitor)
        await namespaces.enter("globex", other)
        callbacks = len(first.store._history_callbacks)
        namespaces.leave(visitor)
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
    async with opened(redis_server.url) as namespaces:
        await create(namespaces, client, "a", "b", "c", "d")
        visitors = [Visitor() for _ in range(3)]
        await namespaces.enter("a", visitors[0])
        await namespaces.enter("b", visitors[1])
        with pytest.raises(NoEntry, match="2 namespaces are open"):
            await namespaces.enter("c", visitors[2])
        namespaces.leave(visitors[0])
        await namespaces.enter("c", visitors[2])
        assert {one.namespace.name for one in namespaces.frontends()} == {"b", "c"}
        assert not any(visitor.is_aborted for visitor in visitors)


async def test_later_tenant_of_the_same_name_is_opened_anew(redis_server: Server, client: redis.Redis) -> None:
    async with opened(redis_server.url) as namespaces:
        await create(namespaces, client, "acme")
        visitor = Visitor()
        first = await namespaces.enter("acme", visitor)
        await begin_again(namespaces, client, "acme")
        assert visitor.is_aborted
        assert await namespaces.enter("acme", Visitor()) is not first


async def test_namespace_that_nobody_opens_is_visited(
    redis_server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(redis_server.url) as namespaces:
        await create(namespaces, client, "acme")
        visitor = Visitor()
        frontend = await namespaces.enter("acme", visitor)
        _, topic = await create_topic(frontend.catalog, frontend.log, "gone", 1, {})
        assert topic is not None
        await frontend.catalog.begin_delete(topic)
        namespaces.leave(visitor)
    topics = Namespace("acme").catalog.topics
    assert client.hexists(topics, "gone")
    monkeypatch.setattr(module, "VISIT_S", 0.1)
    async with opened(redis_server.url, AlwaysTurn()) as namespaces:
        with anyio.fail_after(WITHIN_S):
            while client.hexists(topics, "gone"):
                await anyio.sleep(0.05)
        assert list(namespaces.frontends()) == []


async def test_objects_of_a_topic_that_a_tenant_deleted_before_it_left_go(
    redis_server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(removal, "GRACE_S", 0.0)
    objects = Directory(tmp_path)
    async with opened(redis_server.url) as namespaces:
        await create(namespaces, client, "acme")
        visitor = Visitor()
        frontend = await namespaces.enter("acme", visitor)
        _, topic = await create_topic(frontend.catalog, frontend.log, "gone", 1, {"remote.storage.enable": "true"})
        assert topic is not None
        folder = topic_folder("acme", "gone", topic.id.hex)
        await objects.put(f"{folder}/0/0-x.segment", [b"x"])
        await delete_topic(frontend.catalog, frontend.log, topic)
        namespaces.leave(visitor)
    monkeypatch.setattr(module, "VISIT_S", 0.1)
    note = f"deleted:{topic.id.hex}"
    async with opened(redis_server.url, AlwaysTurn()) as namespaces, anyio.create_task_group() as tasks:
        namespaces._process.tier = Tier(objects, tasks)
        namespaces._process.tier.usable.set()
        with anyio.fail_after(WITHIN_S):
            while client.hexists(Namespace("acme").catalog.meta, note):
                await anyio.sleep(0.05)
        assert await objects.names(folder) == ()


async def begin_again(namespaces: Namespaces, client: redis.Redis, name: str) -> None:
    """Delete a tenant whose id is its name, and create another one of that name."""
    client.fcall("korvet_tenant_switch", 1, TENANTS.tenants, name, "deleting")
    client.fcall("korvet_tenant_forget", 1, TENANTS.tenants, name, name)
    client.fcall("korvet_tenant_create", 1, TENANTS.tenants, name, "a later one", "{}", "")
    await namespaces.tenants.refresh()


def chosen(namespaces: Namespaces) -> Choice:
    host, port = "127.0.0.1", 9092
    nodes = FixedNodes([Node(id=1, host=host, port=port)])
    listener = Listener(host=host, port=port, advertised_host=host, advertised_port=port, nodes=nodes)
    return Choice(LISTENERS[0], listener, namespaces)


async def test_login_enters_the_tenant_alone_that_judged_it(redis_server: Server, client: redis.Redis) -> None:
    async with opened(redis_server.url) as namespaces:
        await create(namespaces, client, "acme")
        first, second = (ChosenRealm(chosen(namespaces), Visitor(), None) for _ in range(2))
        await first.judge("alice@acme")
        await begin_again(namespaces, client, "acme")
        with pytest.raises(LoginRefused, match="a later one"):
            await first.admit("alice@acme")
        await second.judge("alice@acme")
        assert await second.admit("alice@acme") == "alice"


def alter(client: redis.Redis, name: str, password: str) -> None:
    """Give alice a password, and the credentials the version 7."""
    key = Namespace(name).security.users
    client.fcall("korvet_users_alter", 1, key, field_of(ALICE), text_of(make_credential(ALICE.mechanism, password)))
    client.hset(key, "", 7)


async def test_credentials_of_a_former_history_are_not_kept(
    redis_server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(redis_server.url) as namespaces:
        await create(namespaces, client, "acme")
        alter(client, "acme", "former")
        ask = namespaces._fetch_users

        async def ask_while_history_changes(name: str, known_version: int) -> Any:
            reply = await ask(name, known_version)
            for callback in namespaces._process.store._history_callbacks:
                callback()
            return reply

        with monkeypatch.context() as patch:
            patch.setattr(namespaces, "_fetch_users", ask_while_history_changes)
            former = await namespaces.credentials("acme")
        alter(client, "acme", "later")
        assert (await namespaces.credentials("acme")).find(*ALICE) != former.find(*ALICE)


async def test_credentials_of_a_former_tenant_are_not_kept(redis_server: Server, client: redis.Redis) -> None:
    async with opened(redis_server.url) as namespaces:
        await create(namespaces, client, "acme")
        alter(client, "acme", "former")
        former = await namespaces.credentials("acme")
        await begin_again(namespaces, client, "acme")
        assert not namespaces._views
        alter(client, "acme", "later")
        assert (await namespaces.credentials("acme")).find(*ALICE) != former.find(*ALICE)


@pytest.mark.parametrize("sasl", [(), ("PLAIN",)])
async def test_connection_that_was_lost_before_it_entered_leaves_nothing(
    redis_server: Server, client: redis.Redis, sasl: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(redis_server.url) as namespaces:
        await create(namespaces, client, "acme")
        choice, connections, tasks = (
            chosen(namespaces),
            Connections(limits_of({})),
            list[Callable[[], Awaitable[None]]](),
        )
        # The connection's task goes on where the test says.
        monkeypatch.setattr(connections, "start_soon", tasks.append)
        listener = replace(choice.listener("acme"), sasl=sasl)
        connection = Connection(connections, listener, choice.lobby, choice=choice)
        ours, theirs = socket.socketpair()
        with theirs:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
            connection.abort()
            await until(lambda: connection.transport is None)
        if connection._gate is not None:
            assert connection._gate._chosen is not None
            await connection._gate._chosen.judge("alice@acme")
            await connection._gate._chosen.admit("alice@acme")
            assert connection.headers.login is not None
            connection.headers.login.state = State.READY
            connection._gate.answered()
        else:
            await connection._enter(choice, Destination("acme", "alice"))
        (serve,) = tasks
        await serve()
        (frontend,) = namespaces.frontends()
        assert not namespaces._connections and not frontend.users._watchers and not +connections.kinds
        assert connection.frontend is choice.lobby


async def test_visit_that_fails_or_whose_tenant_goes_holds_up_no_other(
    redis_server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VISIT_S", 0.1)
    visited, cancelled = set[str](), anyio.Event()

    async def visit(frontend: Frontend) -> None:
        name = frontend.namespace.name
        visited.add(name)
        if name == "damaged":
            raise ValueError("no batch")
        if name == "endless":
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()

    monkeypatch.setattr(module, "visit", visit)
    with capture_logs() as lines:
        async with opened(redis_server.url, AlwaysTurn()) as namespaces:
            await create(namespaces, client, "damaged")
            await until(lambda: "damaged" in visited)
            await create(namespaces, client, "endless")
            await until(lambda: "endless" in visited)
            client.fcall("korvet_tenant_switch", 1, TENANTS.tenants, "endless", "deleting")
            await namespaces.tenants.refresh()
            with anyio.fail_after(WITHIN_S):
                await cancelled.wait()
            await create(namespaces, client, "other")
            await until(lambda: "other" in visited)
    events = {(line["event"], line.get("tenant")) for line in lines if line["log_level"] == "error"}
    assert events == {("a visit to a tenant's namespace failed unexpectedly", "damaged")}


def test_deletion_waits_longer_than_a_front_end_takes_to_hear_of_it() -> None:
    assert tenants.REFRESH_S + RETRY_S < tenant_deletion.GRACE_S


async def test_opened_namespace_cannot_name_keys_of_another(redis_server: Server, client: redis.Redis) -> None:
    async with opened(redis_server.url) as namespaces:
        await create(namespaces, client, "acme")
        frontend = await namespaces.enter("acme", Visitor())
        key = Namespace("globex").catalog.meta
        with pytest.raises(Exception, match="keys that begin with"):
            await frontend.store.call(Purpose.COORDINATE, key, "HGETALL", key)
