"""The registry as front-ends see it: leases that begin and end, an absent Redis, and damaged keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol
from uuid import uuid4

import anyio
import pytest
import structlog
from structlog.typing import EventDict

from korvet.errors import UnknownArguments
from korvet.redis.address import Address
from korvet.redis.client import Purpose, Store
from korvet.redis.wakeup import Wakeups
from korvet.store import activity, library
from korvet.store import registry as registries
from korvet.store.activity import Activity
from korvet.store.background.transaction_sweep import keep_swept
from korvet.store.keys import Namespace
from korvet.store.library import open_store
from korvet.store.outages import Outages
from korvet.store.registry import Registry
from korvet.store.transactions.transactions import Transactions
from tests.store.groups import open_groups
from tests.store.logs import NAMESPACE, Front, front, until
from tests.support.redis import running_server
from tests.support.topologies import running_cluster

pytestmark = pytest.mark.anyio

A, B, C = Address("a.example", 9092), Address("b.example", 9092), Address("fd00::1", 9093)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A registry that runs, the clients of its front-end, and the event that ends its lease."""

    registry: Registry
    activity: Activity
    wakeups: Wakeups
    draining: anyio.Event = field(default_factory=anyio.Event)

    def drain(self) -> None:
        self.draining.set()
        self.wakeups.wake_all()


class Keep(Protocol):
    """Opens a registry for an address, and runs it."""

    async def __call__(self, address: Address | None, *, clients: int = 1) -> Kept: ...


def opening(namespace: Namespace, front: Front, address: Address | None = None, *, clients: int = 1) -> Registry:
    """A registry of a front-end with ``clients`` clients."""
    return Registry(namespace.frontends, front.store, front.wakeups, named(address), with_clients(clients))


def named(address: Address | None) -> dict[str, Address]:
    """The addresses of a front-end with one listener, or without an address of its own."""
    return {} if address is None else {"default": address}


def with_clients(clients: int) -> Activity:
    activity = Activity()
    for _ in range(clients):
        activity.came()
    return activity


@pytest.fixture
def namespace() -> Namespace:
    return Namespace(f"ns-{uuid4().hex[:8]}")


@pytest.fixture
async def keep(one: Front, namespace: Namespace) -> AsyncIterator[Keep]:
    """Opens a registry for an address, and runs it until the test ends."""
    async with anyio.create_task_group() as tasks:

        async def start(address: Address | None, *, clients: int = 1) -> Kept:
            activity = with_clients(clients)
            registry = Registry(namespace.frontends, one.store, one.wakeups, named(address), activity)
            kept = Kept(registry=registry, activity=activity, wakeups=one.wakeups)
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
    assert second.registry.live_at() == ((1, A), (2, C))
    await until(lambda: first.registry.live_at() == ((1, A), (2, C)))
    assert nobody.registry.live_at() == ()
    first.drain()
    await until(lambda: second.registry.live_at() == ((2, C),))


async def test_front_end_that_died_is_forgotten_and_returns_with_its_id(
    keep: Keep, one: Front, namespace: Namespace
) -> None:
    died = opening(namespace, one, A)
    await died.open(Outages(one.store))
    other = await keep(B)
    assert other.registry.live_at() == ((1, A), (2, B))
    await until(lambda: other.registry.live_at() == ((2, B),))
    again = await keep(A)
    assert again.registry.own_id == 1
    await until(lambda: other.registry.live_at() == ((1, A), (2, B)))


async def test_loopback_address_is_hidden_from_front_ends_elsewhere(keep: Keep) -> None:
    here, there = await keep(Address("127.0.0.1", 9092)), await keep(A)
    too = await keep(Address("localhost", 9093))
    assert there.registry.live_at() == ((2, A),)
    assert [node_id for node_id, _ in too.registry.live_at()] == [1, 3]
    await until(lambda: len(here.registry.live_at()) == 2)


async def test_registry_passes_over_fields_that_are_no_addresses(keep: Keep, one: Front, namespace: Namespace) -> None:
    kept = await keep(A)
    broken = ("no address", "host:", "host:0", "host:70000", ":9092", "host:port", "a.example:9092 ")

    async def lease() -> None:
        seconds, _ = await one.store.call(Purpose.COORDINATE, namespace.frontends, "TIME")
        lease_end = int(seconds) * 1000 + 2500
        for text in broken:
            await call(one.store, namespace, "HSET", text, f"9 {lease_end}")
        await call(one.store, namespace, "HSET", "b.example:9092", f"1 {lease_end}")
        await call(one.store, namespace, "HSET", "[fd00::1]:9093", f"9 {lease_end}")

    # The leases may end before the front-end's next renewal, which reads them.
    with anyio.fail_after(10):
        while kept.registry.live_at() != ((1, A), (9, C)):
            await lease()
            await anyio.sleep(0.1)


async def test_front_end_with_a_damaged_registry_shows_itself_alone_and_logs_it_once(
    keep: Keep, one: Front, namespace: Namespace
) -> None:
    await call(one.store, namespace, "SET", "mine")
    with structlog.testing.capture_logs() as lines:
        stranded, other = await keep(A), await keep(B)
        assert stranded.registry.live_at() == ((stranded.registry.own_id, A),)
        assert stranded.registry.own_id != other.registry.own_id
        assert complaints(lines) == 2
        await call(one.store, namespace, "DEL")
        await until(lambda: len(stranded.registry.live_at()) == len(other.registry.live_at()) == 2)
        own_id = stranded.registry.own_id
        assert {own_id, other.registry.own_id} == {1, 2}
        await call(one.store, namespace, "SET", "mine")
        await until(lambda: stranded.registry.live_at() == ((own_id, A),))
        await until(lambda: complaints(lines) == 4)
        stranded.drain()
        await until(lambda: any("lease was not ended" in line["event"] for line in lines))
        assert complaints(lines) == 4


async def test_last_known_front_ends_are_kept_while_redis_is_away() -> None:
    with running_server("valkey") as server:
        async with open_store(server.url) as store, anyio.create_task_group() as tasks:
            await library.ensure(store)
            namespace, draining = Namespace("away"), anyio.Event()
            wakeups = Wakeups(store)
            first, second = (
                Registry(namespace.frontends, store, wakeups, named(address), with_clients(1)) for address in (A, B)
            )
            for registry in (first, second):
                await registry.open(Outages(store))
                tasks.start_soon(registry.keep, draining)
            await until(lambda: first.live_at() == second.live_at() == ((1, A), (2, B)))
            known = first.live_at()
            server.kill()
            await until(lambda: not store.is_connected())
            # This lasts long enough for a renewal to fail.
            await anyio.sleep(1.5)
            assert first.live_at() is known
            server.start()
            await until(store.is_connected)
            await until(lambda: len(first.live_at()) == len(second.live_at()) == 2, within_s=20)
            tasks.cancel_scope.cancel()


async def test_outages_hold_the_time_in_which_no_front_end_was_served(one: Front, namespace: Namespace) -> None:
    first = Outages(one.store, namespace)
    await opening(namespace, one).open(first)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.watch)
        await until(lambda: first.known_at(namespace.catalog.meta) != "")
        tasks.cancel_scope.cancel()
    assert "-" not in first.known_at(namespace.catalog.meta)
    await call(one.store, namespace, "HSET", "", "1700000000000")
    second = Outages(one.store, namespace)
    await opening(namespace, one, A).open(second)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second.watch)
        await until(lambda: " 1700000000000-" in second.known_at(namespace.catalog.meta))
        tasks.cancel_scope.cancel()


def has_turn(*kept: Kept) -> list[bool]:
    return [one.registry.has_turn for one in kept]


async def test_one_front_end_has_the_turn_to_sweep_and_hands_it_on_when_it_drains(keep: Keep) -> None:
    first, second = await keep(None), await keep(A)
    assert has_turn(first, second) == [True, False]
    first.drain()
    with anyio.fail_after(10):
        await second.registry.turn()
    await until(lambda: has_turn(first, second) == [False, True])


async def test_turn_of_a_front_end_that_died_passes_to_another(keep: Keep, one: Front, namespace: Namespace) -> None:
    dead = opening(namespace, one)
    await dead.open(Outages(one.store))
    kept = await keep(None)
    assert (dead.has_turn, kept.registry.has_turn) == (True, False)
    with anyio.fail_after(10):
        await kept.registry.turn()
    # A front-end that only hung loses its turn at its next renewal.
    await dead.open(Outages(one.store))
    assert not dead.has_turn


async def test_turn_that_redis_lost_goes_to_one_front_end_again(keep: Keep, one: Front, namespace: Namespace) -> None:
    first, second = await keep(None), await keep(None)
    assert has_turn(first, second) == [True, False]
    # As if Redis lost its last seconds and another front-end renewed first, right behind the loss.
    lost = one.store.call(Purpose.COORDINATE, namespace.frontends, "HDEL", namespace.frontends, "@sweep")
    await second.registry.open(Outages(one.store))
    assert await lost == 1
    assert second.registry.has_turn
    await until(lambda: has_turn(first, second) == [False, True])


async def test_front_end_sweeps_if_the_registry_is_damaged(keep: Keep, one: Front, namespace: Namespace) -> None:
    first, second = await keep(None), await keep(A)
    await call(one.store, namespace, "DEL")
    await call(one.store, namespace, "SET", "text")
    await until(lambda: has_turn(first, second) == [True, True])
    await call(one.store, namespace, "DEL")
    await until(lambda: sum(has_turn(first, second)) == 1)


async def test_front_end_sweeps_while_the_registry_hangs_or_is_away() -> None:
    with running_server("valkey") as server:
        async with open_store(server.url) as store, anyio.create_task_group() as tasks:
            await library.ensure(store)
            namespace, draining = Namespace("away"), anyio.Event()
            wakeups = Wakeups(store)
            first, second = (Registry(namespace.frontends, store, wakeups, {}, with_clients(1)) for _ in range(2))
            for registry in (first, second):
                await registry.open(Outages(store))
                tasks.start_soon(registry.keep, draining)
            assert (first.has_turn, second.has_turn) == (True, False)
            with server.paused():
                await until(lambda: first.has_turn and second.has_turn, within_s=20)
            await until(lambda: first.has_turn != second.has_turn, within_s=20)
            server.kill()
            await until(lambda: first.has_turn and second.has_turn, within_s=20)
            server.start()
            await until(lambda: first.has_turn != second.has_turn, within_s=20)
            tasks.cancel_scope.cancel()


async def test_front_end_takes_the_turn_if_an_older_library_knows_none(
    one: Front, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = opening(namespace, one)
    called = one.store.call_function

    async def older(*args: Any, sweeper: str, clients: str, listeners: str | None = None, **named: Any) -> Any:
        if listeners is not None:
            raise UnknownArguments("korvet_frontend_renew takes the arguments address lease:int; the call has 5")
        return await called(*args, **named)

    monkeypatch.setattr(one.store, "call_function", older)
    await registry.open(Outages(one.store))
    assert registry.has_turn


async def test_namespace_is_idle_without_clients_and_active_at_once_with_one(keep: Keep) -> None:
    first, second = await keep(A, clients=0), await keep(B, clients=0)
    third = await keep(C, clients=0)
    await until(lambda: first.activity.is_idle and second.activity.is_idle and third.activity.is_idle)
    second.activity.came()
    # No front-end's next renewal is due within a minute.
    await until(lambda: not (first.activity.is_idle or second.activity.is_idle or third.activity.is_idle))
    await until(
        lambda: (
            first.registry.live_at()
            == second.registry.live_at()
            == third.registry.live_at()
            == ((1, A), (2, B), (3, C))
        )
    )
    second.activity.left()
    assert second.activity.has_clients


async def test_front_end_dead_in_an_idle_namespace_is_forgotten_after_a_client_came(
    keep: Keep, one: Front, namespace: Namespace
) -> None:
    died = opening(namespace, one, A, clients=0)
    await died.open(Outages(one.store))
    assert died.has_turn
    kept = await keep(B, clients=0)
    assert kept.registry.live_at() == ((1, A), (2, B))
    assert not kept.registry.has_turn
    kept.activity.came()
    await until(lambda: kept.registry.live_at() == ((2, B),))
    await until(lambda: kept.registry.has_turn)


async def test_namespace_is_idle_again_a_minute_after_its_last_client_left(
    keep: Keep, one: Front, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, other = await keep(A), await keep(B, clients=0)
    await until(lambda: not other.activity.is_idle)
    monkeypatch.setattr(activity, "_LATELY_S", 0.0)
    kept.activity.left()
    # This lasts long enough for a renewal without clients.
    await anyio.sleep(1.5)
    assert not (kept.activity.is_idle or other.activity.is_idle)
    # As if the minute had passed.
    await call(one.store, namespace, "HSET", "@active", "1")
    await until(lambda: kept.activity.is_idle and other.activity.is_idle)
    assert other.registry.live_at() == ((1, A), (2, B))


async def is_resting(registry: Registry, activity: Activity) -> None:
    """Return when a front-end without clients has made its second renewal, and the next one is a minute away."""
    # A coarse clock may show one time for both renewals.
    registry._renewed_at = -inf
    await until(lambda: registry._renewed_at > -inf and activity.is_idle)
    await anyio.sleep(0.2)


class ClientBehindQuestion(Activity):
    """Activity in which a client comes right behind the registry's next question, if the question is due."""

    is_due = False

    @property
    def has_clients(self) -> bool:
        had_clients = super().has_clients
        if self.is_due:
            self.is_due = False
            self.came()
        return had_clients


async def test_client_that_comes_during_a_renewal_without_clients_counts(one: Front, namespace: Namespace) -> None:
    async with anyio.create_task_group() as tasks:
        activity = ClientBehindQuestion()
        registry = Registry(namespace.frontends, one.store, one.wakeups, named(A), activity)
        await registry.open(Outages(one.store))
        tasks.start_soon(registry.keep, anyio.Event())
        await is_resting(registry, activity)
        activity.note(is_idle=False)
        activity.is_due = True
        one.wakeups.wake_all()
        await until(lambda: activity.is_idle)
        assert not activity.is_due
        await until(lambda: not activity.is_idle)
        tasks.cancel_scope.cancel()


async def test_namespace_is_active_if_its_client_came_while_redis_refused_writes() -> None:
    with running_server("valkey") as server, server.client() as client:
        async with front(server.url) as one, anyio.create_task_group() as tasks:
            activity = with_clients(0)
            registry = Registry(Namespace("refused").frontends, one.store, one.wakeups, named(A), activity)
            await registry.open(Outages(one.store))
            tasks.start_soon(registry.keep, anyio.Event())
            await is_resting(registry, activity)
            client.config_set("min-replicas-to-write", 1)
            activity.came()
            # This lasts long enough for a renewal to fail.
            await anyio.sleep(1.5)
            assert activity.is_idle
            client.config_set("min-replicas-to-write", 0)
            await until(lambda: not activity.is_idle, within_s=20)
            tasks.cancel_scope.cancel()


async def test_idle_front_end_whose_renewal_had_no_answer_renews_again_soon() -> None:
    with running_server("valkey") as server:
        async with front(server.url) as one, anyio.create_task_group() as tasks:
            activity = with_clients(0)
            registry = Registry(Namespace("unanswered").frontends, one.store, one.wakeups, named(A), activity)
            await registry.open(Outages(one.store))
            tasks.start_soon(registry.keep, anyio.Event())
            await is_resting(registry, activity)
            with server.paused():
                one.wakeups.wake_all()
                # The renewal that this begins ends without an answer.
                await anyio.sleep(registries.LEASE_MS / 1000 + 0.5)
                paused_at = anyio.current_time()
            await until(lambda: registry._renewed_at > paused_at)
            tasks.cancel_scope.cancel()


async def test_idle_front_end_that_stops_while_redis_is_away_does_not_rest_first() -> None:
    with running_server("valkey") as server:
        async with open_store(server.url) as store:
            await library.ensure(store)
            wakeups, activity, draining = Wakeups(store), with_clients(0), anyio.Event()
            registry = Registry(Namespace("away").frontends, store, wakeups, named(A), activity)
            await registry.open(Outages(store))
            with anyio.fail_after(40):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(registry.keep, draining)
                    await is_resting(registry, activity)
                    server.kill()
                    await until(lambda: not store.is_connected())
                    # The lost connection woke it. It waits a second for its subscription, and is to stop meanwhile.
                    await anyio.sleep(0.2)
                    draining.set()
                    wakeups.wake_all()


async def test_turn_passes_for_a_while_and_at_most_once_a_minute() -> None:
    with running_cluster() as cluster:
        async with front(cluster.url) as one, anyio.create_task_group() as tasks:
            namespace, draining = Namespace("passed"), anyio.Event()
            first, second = (opening(namespace, one) for _ in range(2))
            for registry in (first, second):
                await registry.open(Outages(one.store))
                tasks.start_soon(registry.keep, draining)
            assert [first.has_turn, second.has_turn] == [True, False]
            first.pass_turn()
            assert [first.has_turn, second.has_turn] == [False, False]
            await until(lambda: second.has_turn)
            await anyio.sleep(registries._PASS_S + 2)
            assert [first.has_turn, second.has_turn] == [False, True]
            second.pass_turn()
            await until(lambda: first.has_turn)
            first.pass_turn()
            assert [first.has_turn, second.has_turn] == [True, False]
            tasks.cancel_scope.cancel()


async def test_turn_passed_on_in_an_idle_namespace_returns_soon_after_a_client_came() -> None:
    """The namespace has no other front-end that could take the turn."""
    with running_cluster() as cluster:
        async with front(cluster.url) as one, anyio.create_task_group() as tasks:
            activity = with_clients(0)
            registry = Registry(Namespace("alone").frontends, one.store, one.wakeups, {}, activity)
            await registry.open(Outages(one.store))
            tasks.start_soon(registry.keep, anyio.Event())
            await until(lambda: activity.is_idle and registry.has_turn)
            registry.pass_turn()
            assert not registry.has_turn
            activity.came()
            await until(lambda: not activity.is_idle)
            await until(lambda: registry.has_turn, within_s=20)
            tasks.cancel_scope.cancel()


async def test_turn_passes_to_a_front_end_that_reaches_the_holders_missing_node() -> None:
    """One of the cluster's nodes refuses the holder's login."""
    with running_cluster() as cluster:
        for node in cluster.nodes:
            cluster.ask(node, "ACL", "SETUSER", "held", "on", ">secret", "~*", "&*", "+@all")
        url = cluster.url.replace("://", "://held:secret@")
        async with front(url) as one, front(cluster.url) as other, anyio.create_task_group() as tasks:
            held, free = opening(NAMESPACE, one), opening(NAMESPACE, other)
            for registry, each in ((held, one), (free, other)):
                await registry.open(Outages(each.store))
                tasks.start_soon(registry.keep, anyio.Event())
            groups = await open_groups(one, Outages(one.store))
            transactions = Transactions(NAMESPACE, one.store, one.catalog, one.log, groups)
            tasks.start_soon(keep_swept, transactions, held, Activity())
            assert [held.has_turn, free.has_turn] == [True, False]
            registry_at = one.store.coordination(NAMESPACE.frontends)
            assert registry_at is not None
            assert registry_at.address is not None
            away = next(node for node in cluster.nodes if node.port != registry_at.address.port)
            cluster.ask(away, "ACL", "SETUSER", "held", "off")
            cluster.ask(away, "CLIENT", "KILL", "USER", "held")
            await until(lambda: [held.has_turn, free.has_turn] == [False, True], within_s=20)
            tasks.cancel_scope.cancel()


async def test_client_gets_only_addresses_of_the_listener_that_it_came_through(
    one: Front, namespace: Namespace
) -> None:
    """The front-end of an older korvet, which tells no names, has one listener called ``default``."""
    inside, outside = Address("10.0.0.1", 9092), Address("kafka.example", 9093)
    both, older = (
        Registry(namespace.frontends, one.store, one.wakeups, addresses, with_clients(1))
        for addresses in ({"default": inside, "outside": outside}, named(B))
    )
    for registry in (both, older, both):
        await registry.open(Outages(one.store))
    assert both.live_at() == ((1, inside), (2, B))
    assert both.live_at("outside") == ((1, outside),)
    assert older.live_at() == ((1, inside), (2, B))
    assert both.live_at("other") == ()


async def test_front_end_that_drops_a_listener_is_shown_without_it(one: Front, namespace: Namespace) -> None:
    before, after, other = (
        Registry(namespace.frontends, one.store, one.wakeups, addresses, with_clients(1))
        for addresses in ({"default": A, "outside": B}, named(A), {"default": C, "outside": Address("d", 4)})
    )
    for registry in (before, after, other):
        await registry.open(Outages(one.store))
    assert other.live_at() == ((1, A), (2, C))
    assert other.live_at("outside") == ((2, Address("d", 4)),)
