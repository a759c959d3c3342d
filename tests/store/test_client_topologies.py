"""The store client on a cluster and behind Sentinel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from korvet.errors import ConfigError, SlotMoving, StoreFull, StoreUnavailable
from korvet.redis import discovery, slot_migration
from korvet.redis.address import Address, RedisUrl, parse_redis_url
from korvet.redis.client import Purpose
from korvet.redis.discovery import find_primary, read_slots
from korvet.redis.error_replies import redirection
from korvet.redis.opening import open_as
from korvet.redis.primary import Primary
from korvet.redis.topology import slot_of
from korvet.redis.wakeup import Wakeups
from korvet.store import library
from korvet.store.keys import Namespace
from korvet.store.library import open_store
from korvet.store.log import tier
from korvet.store.log.tier import Upload
from tests.store.logs import LARGE, batch, front, header, until
from tests.store.sealed import index_at
from tests.support.topologies import Cluster, running_cluster, running_sentinel

pytestmark = pytest.mark.anyio

KEYS = [f"korvet:{{default:topic:{number}}}:log" for number in range(40)]
CATALOG = Namespace("topologies").catalog


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


async def eventually(ask: Callable[[], Any], within_s: float = 20.0) -> Any:
    """Ask until Redis answers, as a client that retries does."""
    with anyio.fail_after(within_s):
        while True:
            try:
                return await ask()
            except (StoreUnavailable, StoreFull):
                await anyio.sleep(0.01)


async def test_commands_go_to_the_node_of_their_key(cluster: Cluster) -> None:
    async with open_store(cluster.url) as store:
        assert len(store.primaries) == 3
        for key in KEYS:
            assert await store.call(Purpose.APPEND, key, "SET", key, key) == b"OK"
        assert [await store.call(Purpose.READ, key, "GET", key) for key in KEYS] == [key.encode() for key in KEYS]
        assert len({store.run_id(key) for key in KEYS}) == 3


async def test_functions_and_placed_values_work_on_every_node(cluster: Cluster) -> None:
    async with open_store(cluster.url) as store:
        await library.ensure(store)
        for number in range(6):
            catalog = Namespace(f"n{number}").catalog
            assert (await store.fcall(Purpose.COORDINATE, "korvet_catalog_init", catalog, "abc"))[0] == 0
        for key in KEYS:
            store.fcall_placed("korvet_version", (key,), [b"placed ", memoryview(key.encode())], 60_000)
            assert await store.call(Purpose.APPEND, key, "GET", key) == b"placed " + key.encode()


async def test_node_without_the_library_gets_it_at_the_first_call(cluster: Cluster) -> None:
    for node in cluster.nodes:
        cluster.ask(node, "FUNCTION", "FLUSH")
    async with open_store(cluster.url) as store:
        for number in range(6):
            catalog = Namespace(f"m{number}").catalog
            assert (await store.fcall(Purpose.COORDINATE, "korvet_catalog_init", catalog, "abc"))[0] == 0


async def test_wake_ups_come_from_every_node(cluster: Cluster) -> None:
    async with open_store(cluster.url) as store:
        wakeups = Wakeups(store)
        with wakeups.listen(KEYS) as listening:
            await listening.ready()
            moved: set[str] = set()
            for key in KEYS:
                await store.call(Purpose.APPEND, key, "SPUBLISH", key, "1 2")
            while moved != set(KEYS):
                moved |= await listening.wait(10)


async def test_commands_and_wake_ups_follow_a_moved_slot_in_order(cluster: Cluster) -> None:
    key = "korvet:{moving}:list"
    slot = slot_of(key)
    async with open_store(cluster.url) as store:
        wakeups = Wakeups(store)
        told: list[None] = []
        store.on_history_change(lambda: told.append(None))
        source = next(node for node in cluster.nodes if node.port == _port_of(store.run_id(key), cluster))
        target = next(node for node in cluster.nodes if node is not source)
        with wakeups.listen([key]) as listening:
            await listening.ready()
            await store.call(Purpose.APPEND, key, "DEL", key)
            await store.call(Purpose.APPEND, key, "RPUSH", key, "first")
            cluster.move_slot(slot, source, target)
            lengths = [store.call(Purpose.APPEND, key, "RPUSH", key, number) for number in range(50)]
            assert [await length for length in lengths] == list(range(2, 52))
            assert store.run_id(key) == _run_id(cluster, target)
            await until(lambda: bool(told))
            await listening.wait(5)
            await listening.ready()
            await store.call(Purpose.APPEND, key, "SPUBLISH", key, "moved")
            assert await listening.wait(10) == {key}


async def test_cancelled_append_reaches_the_new_owner_before_the_next(cluster: Cluster) -> None:
    key = "korvet:{left}:list"
    async with open_store(cluster.url) as store:
        source = next(node for node in cluster.nodes if node.port == _port_of(store.run_id(key), cluster))
        target = next(node for node in cluster.nodes if node is not source)
        await store.call(Purpose.APPEND, key, "RPUSH", key, "first")
        cluster.move_slot(slot_of(key), source, target)
        lengths = [store.call(Purpose.APPEND, key, "RPUSH", key, number) for number in range(3)]
        lengths[0].cancel()
        assert [await length for length in lengths[1:]] == [3, 4]
        assert await store.call(Purpose.READ, key, "LRANGE", key, 0, -1) == [b"first", b"0", b"1", b"2"]


async def test_slot_is_followed_if_nodes_do_not_know_their_own_address(cluster: Cluster) -> None:
    assert redirection("MOVED 3999 :6381", Address("::1", 6380)) == (3999, Address("::1", 6381))
    key = "korvet:{endpoint}:list"
    for node in cluster.nodes:
        cluster.ask(node, "CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
    try:
        async with open_store(cluster.url) as store:
            source = next(node for node in cluster.nodes if node.port == _port_of(store.run_id(key), cluster))
            target = next(node for node in cluster.nodes if node is not source)
            await store.call(Purpose.APPEND, key, "RPUSH", key, "first")
            cluster.move_slot(slot_of(key), source, target)
            assert await store.call(Purpose.APPEND, key, "RPUSH", key, "second") == 2
            assert store.run_id(key) == _run_id(cluster, target)
    finally:
        for node in cluster.nodes:
            cluster.ask(node, "CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


async def test_key_at_the_importing_node_is_found_there(cluster: Cluster) -> None:
    key = "korvet:{asking}:list"
    slot = slot_of(key)
    async with open_store(cluster.url) as store:
        source = next(node for node in cluster.nodes if node.port == _port_of(store.run_id(key), cluster))
        target = next(node for node in cluster.nodes if node is not source)
        await store.call(Purpose.APPEND, key, "SET", key, "here")
        cluster.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.node_id(source))
        cluster.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.node_id(target))
        try:
            cluster.move_keys(slot, source, target)
            assert await store.call(Purpose.READ, key, "GET", key) == b"here"
            assert store.run_id(key) == _run_id(cluster, source)
        finally:
            cluster.ask(source, "CLUSTER", "SETSLOT", slot, "STABLE")
            cluster.move_keys(slot, target, source)
            for node in cluster.nodes:
                cluster.ask(node, "CLUSTER", "SETSLOT", slot, "NODE", cluster.node_id(source))


async def test_commands_wait_for_an_open_slot_and_keep_their_order(cluster: Cluster) -> None:
    key = "korvet:{open}:list"
    async with open_store(cluster.url) as store:
        source = next(node for node in cluster.nodes if node.port == _port_of(store.run_id(key), cluster))
        target = next(node for node in cluster.nodes if node is not source)
        await store.call(Purpose.APPEND, key, "DEL", key, f"{key}:2")
        await store.call(Purpose.APPEND, key, "RPUSH", key, 0)
        with cluster.open_slot(slot_of(key), source, target):
            await store.call(Purpose.APPEND, key, "RPUSH", key, 1)
            both = store.call(Purpose.APPEND, key, "EXISTS", key, f"{key}:2")
            lengths = [store.call(Purpose.APPEND, key, "RPUSH", key, number) for number in range(2, 20)]
            await until(lambda: store.is_open(key))
            lengths += [store.call(Purpose.APPEND, key, "RPUSH", key, number) for number in range(20, 40)]
            assert not both.done()
            cluster.move_keys(slot_of(key), source, target)
            await anyio.sleep(0.05)
        assert await both == 1
        # The node served the commands behind this one at once; later commands waited.
        assert [await length for length in lengths] == list(range(3, 41))
        items = await store.call(Purpose.READ, key, "LRANGE", key, 0, -1)
        assert [int(item) for item in items] == list(range(40))


@pytest.mark.parametrize("before", [0, 1])
async def test_batch_of_a_producer_does_not_pass_one_that_a_moving_slot_refused(cluster: Cluster, before: int) -> None:
    """A log at its next server takes the first gap in a producer's sequences, as after a loss. A large batch is refused
    while its slot is open, and clients count it as written if a later one is.

    :param before: the batches that the producer wrote before the slot was opened.
    """
    async with front(cluster.url) as one:
        partition = await one.partition()
        batches = [batch(1, size, producer=7, sequence=number) for number, size in enumerate((10, LARGE, 10, 10))]
        for number in range(before):
            assert await one.append(partition, batches[number]) == (0, number)
        key = partition.keys.log
        source = next(node for node in cluster.nodes if node.port == _port_of(one.store.run_id(key), cluster))
        target = next(node for node in cluster.nodes if node is not source)
        with cluster.open_slot(slot_of(key), source, target):
            cluster.move_keys(slot_of(key), source, target)
            pipelined = [(one.log.append(partition, header(data), data), data) for data in batches[1:]]
            answers = [await appending for appending, _ in pipelined]
        assert [(appended.code, appended.base_offset - before) for appended in answers] == [(0, 0), (0, 1), (0, 2)]


async def test_slot_that_stays_open_fails_waiting_commands_and_lets_the_next_try(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_migration, "PATIENCE_S", 0.2)
    key = "korvet:{ajar}:list"
    async with open_store(cluster.url) as store:
        source = next(node for node in cluster.nodes if node.port == _port_of(store.run_id(key), cluster))
        target = next(node for node in cluster.nodes if node is not source)
        await library.ensure(store)
        await store.call(Purpose.APPEND, key, "DEL", key)
        await store.call(Purpose.APPEND, key, "RPUSH", key, 0)
        with cluster.open_slot(slot_of(key), source, target):
            both = store.call(Purpose.APPEND, key, "EXISTS", key, f"{key}:2")
            with pytest.raises(SlotMoving, match="TRYAGAIN"):
                await both
            placed = store.fcall_placed("korvet_version", (key, f"{key}:3"), [b"x"], 60_000)
            behind = store.call(Purpose.APPEND, key, "RPUSH", key, 1)
            with pytest.raises(SlotMoving):
                await placed
            assert await behind == 2
            cluster.move_keys(slot_of(key), source, target)
        assert await store.call(Purpose.APPEND, key, "EXISTS", key, f"{key}:2") == 1


async def test_idle_subscriber_follows_a_slot_that_moves(cluster: Cluster) -> None:
    key = "korvet:{idle}:log"
    async with open_store(cluster.url) as store:
        wakeups = Wakeups(store)
        source = next(node for node in cluster.nodes if node.port == _port_of(store.run_id(key), cluster))
        target = next(node for node in cluster.nodes if node is not source)
        with wakeups.listen([key]) as listening:
            await listening.ready()
            before = wakeups.since(key)
            cluster.move_slot(slot_of(key), source, target)
            # No command tells this store of the move; the server of its subscription does.
            assert await listening.wait(10) == {key}
            await listening.ready()
            assert wakeups.since(key) != before
            await until(lambda: store.run_id(key) == _run_id(cluster, target))
            await listening.ready()
            assert cluster.ask(target, "SPUBLISH", key, "moved") == 1
            assert await listening.wait(10) == {key}
            assert wakeups.latest(key) == b"moved"


async def test_lost_node_does_not_disturb_the_others(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("of a user without one")
    with running_cluster() as own:
        async with open_store(own.url) as store:
            for node in own.nodes:
                own.ask(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
            lost = own.nodes[2]
            lost_run_id = _run_id(own, lost)
            there = next(key for key in KEYS if store.run_id(key) != lost_run_id)
            away = next(key for key in KEYS if store.run_id(key) == lost_run_id)
            lost.kill()
            await until(lambda: not store.is_connected())
            with pytest.raises(StoreUnavailable):
                await store.call(Purpose.APPEND, away, "SET", away, "x")
            assert await store.call(Purpose.APPEND, there, "SET", there, "x") == b"OK"
            async with open_as(store, "default", password, connect_timeout_s=0.5) as further:
                assert await further.call(Purpose.APPEND, there, "SET", there, "x") == b"OK"
            lost.start()
            assert await eventually(lambda: store.call(Purpose.APPEND, away, "SET", away, "x")) == b"OK"


async def test_cluster_url_of_a_server_without_a_cluster_is_refused_in_time() -> None:
    with pytest.raises(StoreUnavailable, match="cluster"):
        async with open_store("redis+cluster://127.0.0.1:1", connect_timeout_s=0.3):
            pass


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_failover_is_followed_and_changes_the_history(kind: Any, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("of a user without one")
    with running_sentinel(kind) as sentinel:
        async with (
            open_store(sentinel.url) as store,
            open_as(store, "default", password, connect_timeout_s=20) as further,
        ):
            await library.ensure(store)
            before = store.run_id("x")
            told: list[None] = []
            store.on_history_change(lambda: told.append(None))
            await store.call(Purpose.APPEND, "x", "SET", "x", "1")
            await store.call(Purpose.APPEND, "x", "WAIT", 1, 5000)
            sentinel.fail_over()
            await until(lambda: bool(told) and store.is_connected())
            assert store.run_id("x") != before
            await until(lambda: further.is_connected() and further.run_id("x") == store.run_id("x"))
            assert await eventually(lambda: store.call(Purpose.READ, "x", "GET", "x")) == b"1"
            assert (await eventually(lambda: store.fcall(Purpose.COORDINATE, "korvet_catalog_init", CATALOG, "abc")))[
                0
            ] == 0


async def test_unknown_service_is_one_error_in_time() -> None:
    with pytest.raises(StoreUnavailable, match="'nobody'"):
        async with open_store("redis+sentinel://127.0.0.1:1/nobody", connect_timeout_s=0.3):
            pass


async def test_links_that_look_up_the_primary_at_once_share_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RedisUrl] = []

    async def find(url: RedisUrl) -> Address:
        asked.append(url)
        if len(asked) == 1:
            await anyio.sleep_forever()
        return await find_primary(url)

    monkeypatch.setattr(discovery, "find_primary", find)
    url = parse_redis_url("redis+sentinel://127.0.0.1:1/nobody")
    primary, refused = Primary(url), []

    async def ask() -> None:
        with pytest.raises(StoreUnavailable, match="'nobody'"):
            await primary.find()
        refused.append(1)

    async with anyio.create_task_group() as others, anyio.create_task_group() as first:
        first.start_soon(primary.find)
        await until(lambda: bool(asked))
        for _ in range(50):
            others.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert (len(asked), refused) == (1, [])
        # The first one gives up while the others wait for it.
        first.cancel_scope.cancel()
    assert len(refused) == 50
    assert asked == [url, url]
    await ask()
    assert len(asked) == 3


def test_urls_are_parsed() -> None:
    assert parse_redis_url("redis://").addresses == (Address("127.0.0.1", 6379),)
    assert parse_redis_url("redis://:p@h:1/2").login == ("p",)
    assert parse_redis_url("redis://u:p%40@[::1]:7").login == ("u", "p@")
    assert parse_redis_url("unix:///run/r.sock?db=4").db == 4
    assert parse_redis_url("rediss://h?verify=no").tls is not None
    sentinel = parse_redis_url("redis+sentinel://a,b:7/main/3")
    assert (sentinel.addresses, sentinel.service, sentinel.db) == ((Address("a", 26379), Address("b", 7)), "main", 3)
    assert parse_redis_url("redis+cluster://a,b:7").addresses == (Address("a", 6379), Address("b", 7))
    assert str(parse_redis_url("redis://u:secret@h:1/2")) == "redis://u@h:1/2"


@pytest.mark.parametrize(
    "url",
    [
        "http://h", "redis://a,b", "redis://h:x", "redis://h:99999", "redis://h/x", "unix://", "redis+sentinel://h",
        "redis+cluster://", "redis+cluster://h/1", "redis://h?nonsense=1", "rediss://h?ca=/does/not/exist",
    ],
)  # fmt: skip
def test_wrong_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_redis_url(url)


def _run_id(cluster: Cluster, node: Any) -> str:
    with node.client() as client:
        return str(client.info("server")["run_id"])


def _port_of(run_id: str, cluster: Cluster) -> int:
    return next(node.port for node in cluster.nodes if _run_id(cluster, node) == run_id)


async def test_cancelled_reading_of_slots_leaves_no_connection() -> None:
    with running_cluster() as cluster, cluster.nodes[0].client() as client:
        url = parse_redis_url(f"redis+cluster://127.0.0.1:{cluster.nodes[0].port}")
        before, received = client.info()["connected_clients"], client.info()["total_connections_received"]
        for turns in range(80):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read_slots, url, list(url.addresses))
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(10):
                while client.info("clients")["connected_clients"] > before:
                    await anyio.sleep(0.01)
        assert client.info()["total_connections_received"] > received + 10


async def test_partition_with_segments_moves_while_it_is_trimmed(cluster: Cluster) -> None:
    """Its list of segments moves first, and one trim does not name that key."""
    async with front(cluster.url) as one:
        partition = await one.partition()
        for _ in range(4):
            await one.append(partition, batch(3))
        indexes = [await index_at(one, partition, at) for at in (3, 9)]
        assert await tier.add(one.log, partition, Upload("segment", 0, 9, 300, 77, 99, 1000, *indexes), "token")
        key, list_key = partition.keys.log, one.log.tier_keys(partition).tier
        slot = slot_of(key)
        source = next(node for node in cluster.nodes if node.port == _port_of(one.store.run_id(key), cluster))
        target = next(node for node in cluster.nodes if node is not source)
        with cluster.open_slot(slot, source, target):
            cluster.ask(source, "MIGRATE", "127.0.0.1", target.port, list_key, 0, 60_000)
            moving = [one.log.trim(partition, 4), tier.trim(one.log, partition, 6, partition.epoch)]
            trims = [asyncio.ensure_future(trim) for trim in moving]
            await anyio.sleep(0.1)
            cluster.move_keys(slot, source, target)
        assert [await trim for trim in trims] == [(0, 4), (0, 6)]
        meta = await one.log.meta(partition)
        assert meta is not None
        assert (meta.start, meta.local_start, meta.tier_end, meta.tier) == (4, 6, 9, b"token")
