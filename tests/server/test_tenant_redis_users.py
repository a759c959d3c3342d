"""Tenants that front-ends serve as Redis users of their own: Redis itself refuses what is not the tenant's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis
from confluent_kafka import Consumer, Producer
from structlog.testing import capture_logs

from korvet.cli.tenant_redis_user import front_ends_line, tenant_line
from korvet.errors import KorvetError, StoreError, StoreUnavailable
from korvet.redis.client import Purpose
from korvet.security.protocol import NamespaceFrom, Security
from korvet.server.bounds.connection_quotas import Bound, Bounds, ConnectionQuotas
from korvet.server.ground import machine
from korvet.server.ground.settings import ListenerSettings
from korvet.server.tenants import namespaces as module
from korvet.server.tenants.namespaces import Namespaces, NoEntry
from korvet.store.keys import Namespace
from korvet.store.topics import create_topic
from tests.server.script import until
from tests.server.visitors import AlwaysTurn, Visitor, create, opened
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server
from tests.support.scraping import scrape_until, total
from tests.support.tenants import PASSWORD, connected, create_tenant, korvet, topics_of

pytestmark = pytest.mark.anyio

WITHIN_S = 60.0
NAMES = ("acme", "globex")
FRONT_ENDS = "korvet"
LISTENER = ListenerSettings(
    port=0, namespace_from=NamespaceFrom.PRINCIPAL, security=Security.SASL_PLAINTEXT, sasl=("PLAIN",)
)
THEIRS = Namespace("globex").catalog.topics


class Users:
    """The Redis users of tenants, and the directory with their passwords."""

    def __init__(self, server: Server, client: redis.Redis, directory: Path) -> None:
        self.client: Any = client
        self.directory = directory
        self.admin_url = server.url
        self.url = server.url.replace("unix://", f"unix://{FRONT_ENDS}:secret@")

    def make(self, name: str, password: str) -> None:
        """Make a tenant's user anew in Redis; its connections stay."""
        self.client.execute_command(*tenant_line(name, password, is_cluster=False))

    def write(self, name: str, password: str) -> None:
        """Write a tenant's password for front-ends."""
        file = self.directory / name
        file.touch(0o600)
        file.write_text(f"{password}\n")

    def connections(self, name: str) -> int:
        """The connections of a tenant's user."""
        return sum(one["user"] == f"korvet-{name}" for one in self.client.client_list())

    def refusals(self) -> set[tuple[str, str, str]]:
        """User, kind and object of what Redis refused since `forget`."""
        return {(one["username"], one["reason"], one["object"]) for one in self.client.acl_log()}

    def forget(self) -> None:
        self.client.acl_log_reset()


@pytest.fixture
def users(redis_server: Server, tmp_path: Path) -> Iterator[Users]:
    with made_users(redis_server, tmp_path) as made:
        yield made


@pytest.fixture
def valkey_users(valkey_server: Server, tmp_path: Path) -> Iterator[Users]:
    with made_users(valkey_server, tmp_path) as made:
        yield made


@contextmanager
def made_users(server: Server, tmp_path: Path) -> Iterator[Users]:
    """Users of two tenants, and the least one of front-ends."""
    with server.client() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        client.execute_command(*front_ends_line("secret", is_cluster=False))
        made = Users(server, client, tmp_path)
        for name in NAMES:
            made.make(name, f"of-{name}")
            made.write(name, f"of-{name}")
        made.forget()
        yield made
        client.acl_deluser(FRONT_ENDS, *(f"korvet-{name}" for name in NAMES))


class Waiter:
    """A listening socket at which a connection waits."""

    listener = "a"

    def go_on(self) -> None:
        raise AssertionError


async def entered(namespaces: Namespaces, name: str) -> Any:
    with anyio.fail_after(WITHIN_S):
        return await namespaces.enter(name, Visitor())


async def test_redis_refuses_a_key_that_the_store_let_through(users: Users) -> None:
    async with opened(users.url, passwords=users.directory) as namespaces:
        await create(namespaces, users.client, *NAMES)
        await entered(namespaces, "globex")
        frontend = await entered(namespaces, "acme")
        theirs = users.client.hgetall(THEIRS)
        assert theirs and users.refusals() == set()
        # A mistake of the store: it takes another tenant's keys for its own.
        frontend.store._prefix = Namespace("globex").prefix
        for purpose in (Purpose.APPEND, Purpose.READ, Purpose.COORDINATE):
            with pytest.raises(StoreError, match="NOPERM"):
                await frontend.store.call(purpose, THEIRS, "HGETALL", THEIRS)
        users_key = Namespace("globex").security.users
        with pytest.raises(StoreError, match="NOPERM"):
            await frontend.store.call_function(Purpose.COORDINATE, "korvet_users_read", [users_key], known_version=-1)
        with capture_logs() as lines, frontend.wakeups.listen([THEIRS]) as listening:
            await listening.ready()
        assert "redis refused a subscription; waits last until their deadlines" in {one["event"] for one in lines}
        assert users.refusals() == {
            ("korvet-acme", "key", THEIRS), ("korvet-acme", "key", users_key), ("korvet-acme", "channel", THEIRS),
        }  # fmt: skip
        assert users.client.hgetall(THEIRS) == theirs


async def test_connections_of_front_ends_reach_nothing_of_a_tenant_but_its_users(users: Users) -> None:
    async with opened(users.url, passwords=users.directory) as namespaces:
        await create(namespaces, users.client, "globex")
        await entered(namespaces, "globex")
        store = namespaces._process.store
        users_key = Namespace("globex").security.users
        code, *_ = await store.call_function(Purpose.COORDINATE, "korvet_users_read", [users_key], known_version=-1)
        assert code == 0
        for key, *command in (
            (THEIRS, "HGETALL", THEIRS), (users_key, "HSET", users_key, "x", "y"), (THEIRS, "SPUBLISH", THEIRS, "x"),
        ):  # fmt: skip
            with pytest.raises(StoreError, match="NOPERM"):
                await store.call(Purpose.COORDINATE, key, *command)


async def test_namespace_has_connections_of_its_own_until_it_is_closed(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REST_S", 0.2)
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    async with opened(users.url, passwords=users.directory) as namespaces:
        await create(namespaces, users.client, *NAMES)
        guest = Visitor()
        await namespaces.enter("acme", guest)
        assert (users.connections("acme"), users.connections("globex")) == (4, 0)
        with capture_logs() as lines:
            namespaces.leave(guest)
            await until(lambda: users.connections("acme") == 0)
        assert lines == []
        await entered(namespaces, "acme")
        assert users.connections("acme") == 4


@pytest.mark.parametrize("content", [None, "", "wrong", "x" * 5000, "directory"])
async def test_tenant_whose_password_is_wrong_is_refused_alone(users: Users, content: str | None) -> None:
    secret = users.directory / "acme"
    secret.unlink()
    if content == "directory":
        secret.mkdir()
    elif content is not None:
        secret.touch(0o600)
        secret.write_text(content)
    async with opened(users.url, passwords=users.directory) as namespaces:
        await create(namespaces, users.client, *NAMES)
        with capture_logs() as lines:
            for _ in range(2):
                with pytest.raises(NoEntry, match="cannot be opened"):
                    await entered(namespaces, "acme")
        (line,) = lines
        assert (line["event"], line["tenant"]) == ("the namespace of a tenant cannot be opened", "acme")
        assert ("WRONGPASS" if content == "wrong" else "password") in line["reason"]
        assert await entered(namespaces, "globex")
        secret.rmdir() if content == "directory" else secret.unlink(missing_ok=True)
        users.write("acme", "of-acme")
        assert await entered(namespaces, "acme")


async def test_user_without_a_right_is_refused_with_its_name(users: Users) -> None:
    users.client.execute_command("ACL", "SETUSER", "korvet-acme", "-xadd")
    async with opened(users.url, passwords=users.directory) as namespaces:
        await create(namespaces, users.client, "acme")
        with pytest.raises(NoEntry, match=r"korvet-acme lacks rights: .*xadd.*korvet tenants redis-user acme"):
            await entered(namespaces, "acme")


async def test_new_password_counts_at_the_next_connection(users: Users) -> None:
    async with opened(users.url, passwords=users.directory) as namespaces:
        await create(namespaces, users.client, *NAMES)
        acme, globex = await entered(namespaces, "acme"), await entered(namespaces, "globex")
        users.make("acme", "next")

        async def is_served(frontend: Any) -> bool:
            try:
                await frontend.catalog.read()
            except KorvetError:
                return False
            return True

        assert await is_served(acme), "connections that are open stay"
        with capture_logs() as lines:
            users.client.client_kill_filter(user="korvet-acme")
            await until(lambda: "redis refuses a tenant's user" in {one["event"] for one in lines})
            assert not await is_served(acme) and await is_served(globex)
            users.write("acme", "next")
            await until(lambda: "redis takes a tenant's user again" in {one["event"] for one in lines})
        assert await is_served(acme)
        assert len(lines) == 2 and {(one["user"]) for one in lines} == {"korvet-acme"}
        assert "WRONGPASS" in lines[0]["reason"]


async def test_front_ends_user_loads_the_library_for_a_tenants_calls(users: Users) -> None:
    async with opened(users.url, passwords=users.directory) as namespaces:
        await create(namespaces, users.client, "acme")
        frontend = await entered(namespaces, "acme")
        users.client.function_flush()
        await create_topic(frontend.catalog, frontend.log, "orders", 1, {})
        assert [topic.name for topic in frontend.catalog.topics()] == ["orders"]


async def test_lost_library_is_an_outage_for_a_tenant_until_the_front_ends_user_is_back(users: Users) -> None:
    async with opened(users.url, passwords=users.directory) as namespaces:
        await create(namespaces, users.client, "acme")
        frontend, first = await entered(namespaces, "acme"), namespaces._process.store
        users.client.execute_command("ACL", "SETUSER", FRONT_ENDS, "off")
        users.client.client_kill_filter(user=FRONT_ENDS)
        await until(lambda: not any(link.is_connected for server in first.servers for link in server.links))
        users.client.function_flush()
        users.forget()
        with capture_logs() as lines:
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await create_topic(frontend.catalog, frontend.log, "orders", 1, {})
            users.client.execute_command("ACL", "SETUSER", FRONT_ENDS, "on")
            await until(first.is_connected)
            await create_topic(frontend.catalog, frontend.log, "orders", 1, {})
        assert "korvet's functions cannot be loaded" not in {one["event"] for one in lines}
        assert "command" not in {kind for _, kind, _ in users.refusals()}


async def test_another_history_that_the_front_ends_user_hears_of_counts_for_a_tenant(users: Users) -> None:
    async with opened(users.url, passwords=users.directory) as namespaces:
        await create(namespaces, users.client, "acme")
        frontend = await entered(namespaces, "acme")
        key, first = Namespace("acme").catalog.meta, namespaces._process.store
        link = first.coordination(key)
        assert link is not None and frontend.store.history(key) == link.history
        first.note_replid(link, "f" * 40)
        assert frontend.store.history(key) == link.history and link.replid == "f" * 40


async def test_password_that_everybody_may_read_is_logged_once(users: Users) -> None:
    for name in NAMES:
        (users.directory / name).chmod(0o644)
    with capture_logs() as lines:
        async with opened(users.url, passwords=users.directory) as namespaces:
            await create(namespaces, users.client, *NAMES)
            for name in NAMES:
                await entered(namespaces, name)
    told = [line for line in lines if "every user of the machine may read" in line["event"]]
    assert [line["file"] for line in told] == [str(users.directory / "acme")]


async def test_tenant_is_refused_when_too_few_descriptors_are_left(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each user may need five. They are no client's meanwhile, and come back with the end of the namespace."""
    monkeypatch.setattr(module, "REST_S", 0.2)
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    monkeypatch.setattr(machine, "most_connections", lambda: 12)
    quotas, guest = ConnectionQuotas(Bounds(process=Bound(most=9))), Visitor()
    async with opened(users.url, passwords=users.directory) as namespaces:
        namespaces._process.lend = quotas.lend
        await create(namespaces, users.client, *NAMES)
        await namespaces.enter("acme", guest)
        assert quotas.most == 7
        for _ in range(3):
            assert quotas.may_accept(Waiter())
        with capture_logs() as lines, pytest.raises(NoEntry, match="not as many file descriptors left"):
            await entered(namespaces, "globex")
        assert [line["tenant"] for line in lines] == ["globex"]
        assert (quotas.most, users.connections("globex")) == (7, 0)
        namespaces.leave(guest)
        await until(lambda: quotas.most == 9)
        await entered(namespaces, "globex")
        assert quotas.most == 7


async def test_visit_logs_in_as_the_tenant(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    async def visit(_: Any) -> None:
        seen.append(users.connections("acme"))

    monkeypatch.setattr(module, "VISIT_S", 0.1)
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    monkeypatch.setattr(module, "visit", visit)
    async with opened(users.url, AlwaysTurn(), users.directory) as namespaces:
        await create(namespaces, users.client, "acme")
        await until(lambda: bool(seen))
    assert seen[0] == 4


def test_clients_of_two_tenants_work_while_redis_refuses_nothing(valkey_users: Users, tmp_path: Path) -> None:
    users = valkey_users
    operator = KorvetServer(tmp_path, redis_url=users.admin_url)
    korvet(operator, "functions", "load")
    for name in NAMES:
        create_tenant(operator, name)
    settings = {"korvet.sasl.plain.without.tls": "true", "group.initial.rebalance.delay.ms": "0"}
    with running_broker(
        redis_url=users.url, listeners=[LISTENER], broker=settings,
        tenant_redis_passwords=users.directory, has_metrics=True,
    ) as broker:  # fmt: skip
        for name in NAMES:
            login = {
                "bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN", "sasl.username": f"alice@{name}", "sasl.password": PASSWORD,
            }  # fmt: skip
            producer = Producer({**login, "transactional.id": "writer"})
            producer.init_transactions(WITHIN_S)
            producer.begin_transaction()
            for value in (name.encode(), b"x" * 20_000):
                producer.produce("orders", value)
            producer.commit_transaction(WITHIN_S)
            consumer = Consumer({**login, "group.id": "readers", "auto.offset.reset": "earliest"})
            consumer.subscribe(["orders"])
            message = consumer.poll(WITHIN_S)
            assert message is not None and message.error() is None and message.value() == name.encode()
            consumer.commit(message=message, asynchronous=False)
            consumer.close()
        scrape_until(broker.metrics_port, lambda found: total(found, "korvet_topics") == 2, "metrics of both tenants")
        # Those of the worker, and those of the process that tells metrics.
        assert [users.connections(name) for name in NAMES] == [8, 8]
        korvet(operator, "tenants", "suspend", "acme")
        with connected(broker.port, login="alice@globex") as client:
            assert topics_of(client) == {"orders"}
        assert "NOPERM" not in broker.log and "warning" not in broker.log, broker.log
    assert users.refusals() == set()
