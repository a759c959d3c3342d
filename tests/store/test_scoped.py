"""The store of one namespace: keys of any other are refused, and nothing of such a call is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from korvet.errors import StoreError
from korvet.redis.client import Purpose, Store
from korvet.redis.scoped import ScopedStore
from korvet.store.groups.call import GroupCalls
from korvet.store.keys import TENANTS, Namespace
from korvet.store.log.log import Log
from korvet.store.outages import Outages
from tests.store.logs import Front

pytestmark = pytest.mark.anyio

OWN, OTHER = Namespace("ta"), Namespace("tab")
MINE, THEIRS = OWN.catalog.meta, OTHER.catalog.meta


@pytest.fixture
async def scoped(one: Front) -> AsyncIterator[ScopedStore]:
    yield ScopedStore(one.store, OWN.prefix)


CALLS: dict[str, Callable[[Store], Any]] = {
    "command": lambda store: store.call(Purpose.COORDINATE, THEIRS, "HSET", THEIRS, "field", "1"),
    "routed by a key of its own": lambda store: store.call(Purpose.COORDINATE, MINE, "HSET", THEIRS, "field", "1"),
    "one of many keys": lambda store: store.call(Purpose.COORDINATE, MINE, "UNLINK", MINE, THEIRS),
    "subcommand": lambda store: store.call(Purpose.COORDINATE, MINE, "XGROUP", "CREATE", THEIRS, "g", "0", "MKSTREAM"),
    "function": lambda store: store.call_function(
        Purpose.COORDINATE, "korvet_catalog_init", OTHER.catalog, cluster_id="x"
    ),
    "one key of a function": lambda store: store.fcall(
        Purpose.COORDINATE, "korvet_catalog_init", [*OWN.catalog[:2], OTHER.catalog.configs], "x"
    ),
    "placed batch": lambda store: store.fcall_placed(
        "korvet_log_append", [*OWN.partition("t", 0), OTHER.partition("t", 0).log + ":t1"], [b"x"], 1000
    ),
    "tenants": lambda store: store.call_function(Purpose.COORDINATE, "korvet_tenants_read", [TENANTS.tenants],
                                                 known_version=-1),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
async def test_key_of_another_namespace_is_refused_and_nothing_is_sent(
    one: Front, scoped: ScopedStore, name: str
) -> None:
    with pytest.raises(StoreError, match=r"keys that begin with 'korvet:\{ta:'"):
        await CALLS[name](scoped)
    written = await one.store.call(Purpose.COORDINATE, THEIRS, "EXISTS", THEIRS)
    assert (written, await scoped.call(Purpose.COORDINATE, MINE, "EXISTS", MINE)) == (0, 0)


@pytest.mark.parametrize("ask", [lambda one: one.link(Purpose.READ, THEIRS), lambda one: one.confirmation(THEIRS),
                                 lambda one: one.run_id(THEIRS), lambda one: one.subscriber(THEIRS)])  # fmt: skip
async def test_link_for_a_key_of_another_namespace_is_refused(scoped: ScopedStore, ask: Callable[[Store], Any]) -> None:
    with pytest.raises(StoreError):
        ask(scoped)


async def test_own_keys_are_served_as_by_the_whole_store(one: Front, scoped: ScopedStore) -> None:
    await scoped.call_function(Purpose.COORDINATE, "korvet_catalog_init", OWN.catalog, cluster_id="x")
    assert await one.store.call(Purpose.READ, MINE, "HGET", MINE, "cluster_id") == b"x"
    assert scoped.run_id(MINE) == one.store.run_id(MINE)
    assert int((await scoped.call(Purpose.COORDINATE, MINE, "TIME"))[0]) > 0


async def test_log_makes_no_memory_of_a_partition_of_another_namespace(one: Front, scoped: ScopedStore) -> None:
    topic = await one.topic()
    assert Log(OWN, scoped, one.catalog, one.wakeups).partition(topic, 0).keys == OWN.partition(topic.name, 0)
    with pytest.raises(StoreError, match=r"keys that begin with 'korvet:\{ta:'"):
        Log(OTHER, scoped, one.catalog, one.wakeups).partition(topic, 0)


async def test_group_of_another_namespace_is_not_called(one: Front, scoped: ScopedStore) -> None:
    outages = Outages(one.store)
    assert await GroupCalls(OWN, scoped, outages, lambda: 10).call("korvet_group_state", "g")
    with pytest.raises(StoreError, match=r"keys that begin with 'korvet:\{ta:'"):
        await GroupCalls(OTHER, scoped, outages, lambda: 10).call("korvet_group_state", "g")


async def test_closed_view_calls_nobody_back(one: Front) -> None:
    told: list[str] = []
    first, second = ScopedStore(one.store, OWN.prefix), ScopedStore(one.store, OTHER.prefix)
    first.on_history_change(lambda: told.append("first"))
    second.on_history_change(lambda: told.append("second"))
    first.close()
    one.store.slots_moved()
    assert told == ["second"]


@pytest.mark.parametrize("name", ["a:b", "a}", "%7B", "%7b", "A", "*", "@catalog", "", "a", "a:@group", "{a", "ä"])
def test_no_two_names_share_a_prefix(name: str) -> None:
    others = {"a", "A", "a:b", "a}", "%7B", "{", "*", "", "b", "@tenants", "ä"} - {name}
    keys = [key for other in map(Namespace, others) for key in (other.frontends, *other.group("g"), *other.security)]
    keys += [Namespace(other).partition("t", 0).log for other in others] + list(TENANTS)
    assert not [key for key in keys if key.startswith(Namespace(name).prefix)]
