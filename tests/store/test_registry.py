"""The registry as front-ends see it: leases that come and go, a Redis that is away, and keys that somebody spoiled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from uuid import uuid4

import anyio
import pytest
import structlog
from structlog.typing import EventDict

from korvet.store import functions
from korvet.store.address import Address
from korvet.store.client import Purpose, Store, open_store
from korvet.store.keys import Namespace
from korvet.store.outages import Outages
from korvet.store.registry import Registry
from tests.store.logs import Front, until
from tests.support.redis import running_server

pytestmark = pytest.mark.anyio

A, B, C = Address("a.example", 9092), Address("b.example", 9092), Address("fd00::1", 9093)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A registry that is kept, and the event that ends its lease."""

    registry: Registry
    draining: anyio.Event = field(default_factory=anyio.Event)


Keep = Callable[[Address | None], Awaitable[Kept]]


@pytest.fixture
def namespace() -> Namespace:
    return Namespace(f"ns-{uuid4().hex[:8]}")


@pytest.fixture
async def keep(one: Front, namespace: Namespace) -> AsyncIterator[Keep]:
    """Opens a registry for an address, and keeps it until the test ends."""
    async with anyio.create_task_group() as tasks:

        async def start(address: Address | None) -> Kept:
            kept = Kept(registry=Registry(namespace, one.store, address))
            await kept.registry.open(Outages(one.store))
            tasks.start_soon(kept.registry.keep, kept.draining)
            return kept

        yield start
        tasks.cancel_scope.cancel()


async def call(store: Store, namespace: Namespace, command: str, *args: str) -> None:
    await store.call(Purpose.COORDINATE, namespace.frontends, command, namespace.frontends, *args)


def complaints(lines: list[EventDict]) -> int:
    return sum("registry of front-ends cannot be used" in line["event"] for line in lines)


async def test_front_ends_know_of_each_other_until_one_leaves(keep: Keep) -> None:
    first, second = await keep(A), await keep(C)
    nobody = await keep(None)
    assert (first.registry.own_id, second.registry.own_id, nobody.registry.own_id) == (1, 2, -1)
    assert second.registry.live == ((1, A), (2, C))
    await until(lambda: first.registry.live == ((1, A), (2, C)))
    assert nobody.registry.live == ()
    first.draining.set()
    await until(lambda: second.registry.live == ((2, C),))


async def test_front_end_that_died_is_forgotten_and_comes_back_as_the_same(
    keep: Keep, one: Front, namespace: Namespace
) -> None:
    died = Registry(namespace, one.store, A)
    await died.open(Outages(one.store))
    other = await keep(B)
    assert other.registry.live == ((1, A), (2, B))
    await until(lambda: other.registry.live == ((2, B),))
    again = await keep(A)
    assert again.registry.own_id == 1
    await until(lambda: other.registry.live == ((1, A), (2, B)))


async def test_loopback_is_told_to_nobody_who_is_elsewhere(keep: Keep) -> None:
    here, there = await keep(Address("127.0.0.1", 9092)), await keep(A)
    too = await keep(Address("localhost", 9093))
    assert there.registry.live == ((2, A),)
    assert [node_id for node_id, _ in too.registry.live] == [1, 3]
    await until(lambda: len(here.registry.live) == 2)


async def test_fields_that_are_no_addresses_are_passed_over(keep: Keep, one: Front, namespace: Namespace) -> None:
    kept = await keep(A)
    seconds, _ = await one.store.call(Purpose.COORDINATE, namespace.frontends, "TIME")
    lease = f"9 {int(seconds) * 1000 + 2500}"
    for text in ("no address", "host:", "host:0", "host:70000", ":9092", "host:port", "a.example:9092 "):
        await call(one.store, namespace, "HSET", text, lease)
    await call(one.store, namespace, "HSET", "b.example:9092", f"1 {lease.split()[1]}")
    await call(one.store, namespace, "HSET", "[fd00::1]:9093", lease)
    await until(lambda: kept.registry.live == ((1, A), (9, C)))


async def test_front_end_shows_itself_alone_where_the_registry_is_spoiled_and_says_so_once(
    keep: Keep, one: Front, namespace: Namespace
) -> None:
    await call(one.store, namespace, "SET", "mine")
    with structlog.testing.capture_logs() as lines:
        stranded, other = await keep(A), await keep(B)
        assert stranded.registry.live == ((stranded.registry.own_id, A),)
        assert stranded.registry.own_id != other.registry.own_id
        assert complaints(lines) == 2
        await call(one.store, namespace, "DEL")
        await until(lambda: len(stranded.registry.live) == len(other.registry.live) == 2)
        own_id = stranded.registry.own_id
        assert {own_id, other.registry.own_id} == {1, 2}
        await call(one.store, namespace, "SET", "mine")
        await until(lambda: stranded.registry.live == ((own_id, A),))
        await until(lambda: complaints(lines) == 4)
        stranded.draining.set()
        await until(lambda: any("lease was not ended" in line["event"] for line in lines))
        assert complaints(lines) == 4


async def test_last_known_front_ends_are_kept_while_redis_is_away() -> None:
    with running_server("valkey") as server:
        async with open_store(server.url) as store, anyio.create_task_group() as tasks:
            await functions.ensure(store)
            namespace, draining = Namespace("away"), anyio.Event()
            first, second = (Registry(namespace, store, address) for address in (A, B))
            for registry in (first, second):
                await registry.open(Outages(store))
                tasks.start_soon(registry.keep, draining)
            await until(lambda: first.live == second.live == ((1, A), (2, B)))
            known = first.live
            server.kill()
            await until(lambda: not store.is_connected())
            # Time enough for a renewal to fail.
            await anyio.sleep(1.5)
            assert first.live is known
            server.start()
            await until(store.is_connected)
            await until(lambda: len(first.live) == len(second.live) == 2, within_s=20)
            tasks.cancel_scope.cancel()


async def test_groups_are_told_of_the_time_when_no_front_end_was_served(one: Front, namespace: Namespace) -> None:
    first = Outages(one.store)
    await Registry(namespace, one.store, None).open(first)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.watch)
        await until(lambda: first.known_at(namespace.catalog.meta) != "")
        tasks.cancel_scope.cancel()
    assert "-" not in first.known_at(namespace.catalog.meta)
    await call(one.store, namespace, "HSET", "", "1700000000000")
    second = Outages(one.store)
    await Registry(namespace, one.store, A).open(second)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second.watch)
        await until(lambda: " 1700000000000-" in second.known_at(namespace.catalog.meta))
        tasks.cancel_scope.cancel()
