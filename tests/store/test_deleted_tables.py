"""Tables that somebody deletes by hand while front-ends serve: a front-end that knows one writes it back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from korvet.errors import StoreError
from korvet.quotas.entity import Entity
from korvet.quotas.quotas import Quotas
from korvet.quotas.rules import Windows
from korvet.redis.client import Purpose
from korvet.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from korvet.store.catalog.settings import ConfigChange
from korvet.store.damaged_keys import REPAIR, repair_of, type_of
from korvet.store.followed import Followed, read_secret
from korvet.store.keys import TENANTS, Namespace
from korvet.store.security.users import Credential, CredentialKey, Users
from korvet.store.tenants import Tenants
from tests.store.logs import NAMESPACE, Front, created, front
from tests.store.test_access_rules import authorizer_of
from tests.support.redis import Server

pytestmark = pytest.mark.anyio

KEYS = NAMESPACE.catalog
RULE = Acl(ResourceType.TOPIC, PatternType.LITERAL, "t", "User:a", "*", Operation.READ, Permission.DENY)


async def _users(front: Front) -> tuple[Followed, str, Callable[[], object]]:
    users = Users(NAMESPACE, front.store, front.wakeups)
    await users.open()
    await users.alter({CredentialKey("SCRAM-SHA-256", "a"): Credential(b"salt", b"stored", b"server", 4096)})
    return users, NAMESPACE.security.users, lambda: users.credentials


async def _rules(front: Front) -> tuple[Followed, str, Callable[[], object]]:
    await Users(NAMESPACE, front.store, front.wakeups).open()
    authorizer = authorizer_of(front)
    assert await authorizer.add([RULE]) == 0
    return authorizer, NAMESPACE.security.acls, lambda: authorizer.acls


async def _quotas(front: Front) -> tuple[Followed, str, Callable[[], object]]:
    await Users(NAMESPACE, front.store, front.wakeups).open()
    quotas = Quotas(NAMESPACE, front.store, front.wakeups, Windows(11, 1, 11, 1), lambda: 1)
    entity = Entity(user="a")
    assert await quotas.alter({(entity, "producer_byte_rate"): 5.0}) == 0
    return quotas, NAMESPACE.security.quotas, lambda: quotas.settings


async def _tenants(front: Front) -> tuple[Followed, str, Callable[[], object]]:
    tenants = Tenants(front.store, front.wakeups)
    await tenants.open()
    args = {"name": "acme", "id": "1", "limits": "{}", "super_users": ""}
    await front.store.call_function(Purpose.COORDINATE, "korvet_tenant_create", [TENANTS.tenants], **args)
    await tenants.refresh()
    return tenants, TENANTS.tenants, tenants.names


TABLES = {"users": _users, "acls": _rules, "quotas": _quotas, "tenants": _tenants}


@pytest.mark.parametrize("table", TABLES)
async def test_front_end_writes_a_deleted_table_back(one: Front, other: Front, table: str) -> None:
    followed, key, held = await TABLES[table](one)
    before = held()
    assert before
    await one.store.call(Purpose.COORDINATE, key, "DEL", key)
    await followed.refresh()
    assert held() == before
    again, _, found = await TABLES[table](other)
    await again.refresh()
    assert found() == before


@pytest.mark.parametrize("table", TABLES)
async def test_table_of_a_deleted_unit_does_not_come_into_a_new_one_of_the_name(one: Front, table: str) -> None:
    """A tenant that was deleted and made again, or a Redis that was emptied and opened by another front-end."""
    followed, key, held = await TABLES[table](one)
    secret = f"{key.rpartition(':')[0]}:secret"
    await one.store.call(Purpose.COORDINATE, key, "DEL", key, secret)
    await read_secret(one.store, secret)
    await followed.refresh()
    assert not held()
    assert await one.store.call(Purpose.COORDINATE, key, "EXISTS", key) == 0


@pytest.mark.parametrize("is_short", [True, False])
async def test_front_end_that_was_away_leaves_a_deleted_table_to_others(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch, is_short: bool
) -> None:
    """It may not know which users were removed meanwhile. Its own clients may log in as before, unless the whole unit
    was deleted."""
    followed, key, held = await _users(one)
    with one.wakeups.listen([key]) as listening:
        await listening.ready()
        await followed.refresh()
        before = held()
        if is_short:
            await other.store.call(Purpose.COORDINATE, key, "CLIENT", "KILL", "TYPE", "pubsub")
            await listening.wait(10.0)
        else:
            monkeypatch.setattr(followed, "_refresh_s", 0.0)
        await other.store.call(Purpose.COORDINATE, key, "DEL", key)
        with pytest.raises(StoreError, match=f"{key} was deleted"):
            await followed.refresh()
        assert held() == before
        assert await other.store.call(Purpose.COORDINATE, key, "EXISTS", key) == 0
        await other.store.call(Purpose.COORDINATE, key, "DEL", NAMESPACE.security.secret)
        await followed.refresh()
        assert not held()


@pytest.mark.parametrize(
    ("deleted", "count"), [((1,), 2), ((2,), 2), ((1, 2), 501)], ids=["topics", "settings", "both, in two calls"]
)
async def test_front_end_writes_deleted_topics_and_settings_back(
    server: Server, deleted: tuple[int, ...], count: int
) -> None:
    async with front(server.url) as one, front(server.url) as other:
        topics = [await created(one, f"t{at}", 3, retention_ms="5") for at in range(count)]
        await one.catalog.configure_cluster(ConfigChange(set={"num.partitions": "7"}))
        await other.catalog.refresh()
        with server.client() as client:
            client.delete(*(KEYS[at] for at in deleted))
        await other.catalog.refresh()
        async with front(server.url) as third:
            assert sorted(topic.name for topic in third.catalog.topics()) == sorted(topic.name for topic in topics)
            assert third.catalog.topic(f"t{count - 1}") == topics[-1]
            assert third.catalog.setting(None, "num.partitions") == "7"
        await one.catalog.refresh()
        assert one.catalog.topic("t0") == topics[0]


async def test_topics_that_are_deleted_between_two_pages_are_not_taken_for_a_whole_catalog(
    server: Server, one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created(one, "t")
    with server.client() as client:
        text = json.loads(client.hget(KEYS.topics, "t") or "")
        entries = {f"t{at}": json.dumps(text | {"id": f"{at:032x}"}) for at in range(1500)}
        client.hset(KEYS.topics, mapping=entries)
        client.hincrby(KEYS.meta, "version", 1)
        await one.catalog.refresh()
        async with front(server.url) as other:
            other.catalog._distrust()
            page = other.catalog._page

            async def deleted_meanwhile(known: int, cursor: str | bytes = "0") -> Any:
                reply = await page(known, cursor)
                client.delete(KEYS.topics)
                return reply

            monkeypatch.setattr(other.catalog, "_page", deleted_meanwhile)
            with pytest.raises(StoreError, match=f"{KEYS.topics}.* was deleted"):
                await other.catalog.refresh()
            monkeypatch.undo()
            with pytest.raises(StoreError, match=f"{KEYS.topics}.* was deleted"):
                await other.catalog.refresh()
        await one.catalog.refresh()
        assert client.hlen(KEYS.topics) == len(one.catalog.topics()) + 1 == 1502


async def test_change_of_a_catalog_without_topics_fails_and_brings_them_back(server: Server, one: Front) -> None:
    topic = await created(one, "t", 3)
    with server.client() as client:
        client.delete(KEYS.topics)
    with pytest.raises(StoreError, match=f"{KEYS.topics}.* was deleted"):
        await created(one, "u")
    assert await created(one, "u")
    assert one.catalog.topic("t") == topic


async def test_front_end_that_does_not_know_deleted_topics_names_the_repair(server: Server, one: Front) -> None:
    await created(one, "t")
    with server.client() as client:
        client.delete(KEYS.topics)
    with pytest.raises(StoreError) as raised:
        async with front(server.url):
            pass
    assert repair_of(str(raised.value)) == REPAIR


async def test_damaged_entry_of_a_topic_hides_no_topic(server: Server, one: Front) -> None:
    first, second = await created(one, "first"), await created(one, "second")
    with server.client() as client:
        client.hset(KEYS.topics, "first", "{")
    with capture_logs() as lines:
        third = await created(one, "third")
    assert sorted(one.catalog.topics(), key=lambda topic: topic.name) == [first, second, third]
    assert [repair_of(line["reason"]) for line in lines] == [REPAIR]


async def test_error_of_a_plain_command_names_its_key_of_another_type(one: Front) -> None:
    key = NAMESPACE.group_index(0)
    await one.store.call(Purpose.COORDINATE, key, "SET", key, "text")
    with pytest.raises(StoreError) as raised:
        await one.store.call(Purpose.COORDINATE, key, "SMEMBERS", key)
    assert repair_of(str(raised.value)) == f"redis-cli DEL '{key}'"


async def test_error_of_a_function_names_its_unit(one: Front) -> None:
    with pytest.raises(StoreError, match=f"first key {NAMESPACE.catalog.meta}"):
        await one.store.fcall(Purpose.COORDINATE, "korvet_catalog_configure", NAMESPACE.catalog, "{")


@pytest.mark.parametrize("name", ["default", "", "a:b}"])
def test_every_key_has_its_type(name: str) -> None:
    one = Namespace(name)
    transactions = one.transaction_log("t", 0)
    types = dict(zip(transactions, ["stream", "hash", "hash", "zset", "zset", "hash"], strict=True))
    types |= dict.fromkeys([*one.catalog, one.frontends, *one.group("g:1}")[:2], TENANTS.tenants], "hash")
    types |= {one.group("g").sessions: "zset", one.group_index(3): "set", one.inlet("t", 0).inlet: "stream"}
    types |= dict(zip(one.security, ["hash", "hash", "string", "hash"], strict=True))
    types |= dict(zip(one.transaction("a:b"), ["hash", "zset"], strict=True))
    types |= {one.reader("c", "h"): "hash", one.quota_bucket("b"): "string", one.connections.leases: "zset"}
    types |= {one.connections.counter("ip", "::1"): "hash", f"{transactions.log}:5": "string"}
    types[f"{transactions.log}:spare"] = "stream"
    assert {key: type_of(key) for key in types} == types
    assert type_of("korvet:{other}") is None
