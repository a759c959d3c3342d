"""Outages that a front-end learns of: servers that freeze, die or are replaced, all of them real."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import anyio
import pytest

from korvet.errors import StoreFull, StoreUnavailable
from korvet.redis.client import Purpose, Store
from korvet.redis.topology import slot_of
from korvet.store import outages as module
from korvet.store.keys import Namespace
from korvet.store.library import open_store
from korvet.store.outages import TAKEN_BACK_MS, Outages
from tests.store.logs import until
from tests.support.redis import Server, running_server
from tests.support.topologies import Cluster, running_cluster, running_sentinel

pytestmark = pytest.mark.anyio

KEY = "korvet:{default:@group:g}:group"
LIMIT_MS = 2000
"""A silence that counts as an outage here. A busy machine may be silent as long of its own accord, so tests look for
the outage that they made."""
SILENCE_S = 2.4
"""Longer than that, and shorter than the silence that the library counts."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the servers often."""
    monkeypatch.setattr(module, "_INTERVAL_S", 0.02)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a shorter silence as an outage."""
    monkeypatch.setattr(module, "LIMIT_MS", LIMIT_MS)


@asynccontextmanager
async def watched(url: str, namespace: Namespace | None = None) -> AsyncIterator[tuple[Store, Outages]]:
    """A store and its outages, once all servers have answered."""
    async with open_store(url) as store:
        outages = Outages(store, namespace or Namespace(f"ns-{uuid4().hex[:8]}"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outages.watch)
            await until(lambda: len(outages._servers) == len(store.primaries))
            yield store, outages
            tasks.cancel_scope.cancel()


async def redis_now_ms(store: Store, key: str = KEY) -> int:
    seconds, microseconds = await store.call(Purpose.READ, key, "TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


def spans(text: str) -> list[tuple[int, int]]:
    return [tuple(map(int, span.split("-"))) for span in text.split()[1:]]  # type: ignore[misc]


def served_until(text: str) -> int:
    return int(text.split()[0])


def is_outage(text: str, began: int, ended: int) -> bool:
    """Whether one outage lasts from the one time to the other."""
    return any(start <= began and ended <= end for start, end in spans(text))


async def test_nothing_is_known_before_the_first_answer_and_no_outage_after_it(redis_server: Server) -> None:
    async with open_store(redis_server.url) as store:
        outages = Outages(store, Namespace(f"ns-{uuid4().hex[:8]}"))
        assert outages.known_at(KEY) == ""
    async with watched(redis_server.url) as (store, outages):
        before = await redis_now_ms(store)
        await until(lambda: served_until(outages.known_at(KEY)) >= before)
        assert spans(outages.known_at(KEY)) == []


@pytest.mark.usefixtures("impatient")
async def test_frozen_server_is_an_outage_from_its_last_answer_to_its_next(own_server: Server) -> None:
    async with watched(own_server.url) as (store, outages):
        began = await redis_now_ms(store)
        with own_server.paused():
            # What the server answered before it froze may be on its way.
            await anyio.sleep(0.2)
            heard = outages.known_at(KEY)
            await anyio.sleep(SILENCE_S)
            assert outages.known_at(KEY) == heard
        await until(lambda: spans(outages.known_at(KEY)) != spans(heard))
        start, end = spans(outages.known_at(KEY))[-1]
        assert began - LIMIT_MS < start <= end - LIMIT_MS
        assert end <= served_until(outages.known_at(KEY))


REFUSALS = {"NOREPLICAS": ("min-replicas-to-write", "1", "0"), "MISCONF": ("save", "3600 1", "")}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_server_that_answers_but_refuses_writes_is_an_outage(own_server: Server, refusal: str) -> None:
    setting, refusing, taking = REFUSALS[refusal]
    async with watched(own_server.url) as (store, outages):
        if refusal == "MISCONF":
            _fail_to_save(own_server)
        await store.call(Purpose.READ, KEY, "CONFIG", "SET", setting, refusing)
        with pytest.raises(StoreUnavailable, match=refusal):
            await store.call(Purpose.COORDINATE, KEY, "SET", KEY, "")
        began = await redis_now_ms(store)
        await anyio.sleep(SILENCE_S)
        known = outages.known_at(KEY)
        assert served_until(known) <= began
        await store.call(Purpose.READ, KEY, "CONFIG", "SET", setting, taking)
        await until(lambda: spans(outages.known_at(KEY)) != spans(known))
        start, end = spans(outages.known_at(KEY))[-1]
        assert start <= began < end - LIMIT_MS


def _fail_to_save(server: Server) -> None:
    """Make the server fail to write a snapshot."""
    with server.client() as client:
        (server.directory / "dump.rdb").mkdir()
        client.bgsave()
        while client.info("persistence")["rdb_bgsave_in_progress"]:
            time.sleep(0.01)


@pytest.mark.usefixtures("impatient")
async def test_server_at_maxmemory_is_no_outage(own_server: Server) -> None:
    """Group functions still run on a full server, so members' sessions count."""
    async with watched(own_server.url) as (store, outages):
        await store.call(Purpose.READ, KEY, "CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreFull):
            await store.call(Purpose.COORDINATE, KEY, "SET", KEY, "")
        began = await redis_now_ms(store)
        await anyio.sleep(SILENCE_S)
        now_ms = await redis_now_ms(store)
        await until(lambda: served_until(outages.known_at(KEY)) >= now_ms)
        assert not is_outage(outages.known_at(KEY), began, now_ms)


@pytest.mark.usefixtures("impatient")
async def test_front_end_that_hangs_prolongs_no_session_while_others_are_served(own_server: Server) -> None:
    async with open_store(own_server.url) as hung_store:
        hung = Outages(hung_store)
        async with watched(own_server.url, Namespace()) as (_, others):
            await hung.catch_up(KEY)
            began = served_until(hung.known_at(KEY))
            await anyio.sleep(SILENCE_S)
            assert hung.known_recently(KEY) is None
            await until(lambda: others.known_recently(KEY) is not None)
            await hung.catch_up(KEY)
            assert hung.known_recently(KEY) is not None
            ended = served_until(hung.known_at(KEY))
            assert ended > began + LIMIT_MS
            assert not is_outage(hung.known_at(KEY), began, ended)
        left = await redis_now_ms(hung_store)
        await anyio.sleep(SILENCE_S)
        await hung.catch_up(KEY)
        assert is_outage(hung.known_at(KEY), left, left + LIMIT_MS), "nobody was served"


async def test_front_end_learns_of_an_outage_that_it_slept_through(own_server: Server) -> None:
    async with open_store(own_server.url) as hung_store:
        hung = Outages(hung_store)
        await hung.catch_up(KEY)
        await anyio.sleep(2.6)
        async with watched(own_server.url, Namespace()) as (_, others):
            (span,) = spans(others.known_at(KEY))
            await hung.catch_up(KEY)
            assert spans(hung.known_at(KEY)) == [span]


async def test_server_that_was_killed_may_have_lost_the_last_seconds(own_server: Server) -> None:
    async with watched(own_server.url) as (store, outages):
        told: list[str] = []
        store.on_history_change(lambda: told.append(outages.known_at(KEY)))
        own_server.kill()
        await until(lambda: not store.is_connected())
        heard = served_until(outages.known_at(KEY))
        own_server.start()
        await until(lambda: bool(spans(outages.known_at(KEY))))
        (span,) = spans(outages.known_at(KEY))
        assert span[0] == heard - TAKEN_BACK_MS
        assert span[1] > heard
        # Until the new server has told its time, the served time may already lack the seconds taken back.
        assert served_until(told[-1]) in (heard, heard - TAKEN_BACK_MS)
        assert all(served_until(text) <= heard for text in told)


async def test_link_that_breaks_for_a_moment_is_no_outage(redis_server: Server) -> None:
    async with watched(redis_server.url) as (store, outages):
        link = store.coordination(KEY)
        assert link is not None
        former = link.live
        link.break_off()
        await until(lambda: link.live is not former and store.is_connected())
        back = await redis_now_ms(store)
        await until(lambda: served_until(outages.known_at(KEY)) >= back)
        assert spans(outages.known_at(KEY)) == []


async def test_time_before_the_front_ends_start_is_an_outage(redis_server: Server) -> None:
    async with open_store(redis_server.url) as store:
        outages = Outages(store, Namespace(f"ns-{uuid4().hex[:8]}"))
        now_ms = await redis_now_ms(store)
        outages.began(f"{now_ms - 90_000}-{now_ms - 80_000} {now_ms - 60_000}-{now_ms}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outages.watch)
            await until(lambda: outages.known_at(KEY) != "")
            assert spans(outages.known_at(KEY)) == [(now_ms - 90_000, now_ms - 80_000), (now_ms - 60_000, now_ms)]
            tasks.cancel_scope.cancel()


async def test_namespaces_of_one_front_end_do_not_forget_each_others_past(redis_server: Server) -> None:
    """Each registry tells its own outages. The front-end passes over a broken span, which group functions refuse."""
    async with open_store(redis_server.url) as store:
        outages = Outages(store, Namespace(f"ns-{uuid4().hex[:8]}"))
        now_ms = await redis_now_ms(store)
        outages.began(f"{now_ms - 60_000}-{now_ms}")
        outages.began(f"5-4 {now_ms - 5_000}-{now_ms} {now_ms}-{'9' * 400}")
        outages.began("")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outages.watch)
            await until(lambda: outages.known_at(KEY) != "")
            assert spans(outages.known_at(KEY)) == [(now_ms - 60_000, now_ms)]
            tasks.cancel_scope.cancel()


async def test_eight_outages_of_the_last_hour_are_kept_and_overlapping_ones_merge() -> None:
    server = module._Server(10_000_000, ())
    server.add(module.Outage(start, start + 3_000) for start in range(20_000_000, 20_080_000, 10_000))
    assert spans(server.text) == [(start, start + 3_000) for start in range(20_000_000, 20_080_000, 10_000)]
    server.add([module.Outage(20_070_000, 20_085_000)])
    assert spans(server.text)[-2:] == [(20_060_000, 20_063_000), (20_070_000, 20_085_000)]
    server.add([module.Outage(23_680_000, 23_683_000)])
    assert spans(server.text) == [(20_070_000, 20_085_000), (23_680_000, 23_683_000)]


async def test_closest_of_more_than_eight_outages_merge() -> None:
    """No outage may be forgotten: a member whose session ended in the first may not have been served since."""
    server = module._Server(10_000_000, ())
    for start in range(20_000_000, 20_100_000, 5_000):
        server.add([module.Outage(start, start + 4_000)])
    server.add([module.Outage(20_200_000, 20_203_000)])
    told = spans(server.text)
    assert len(told) == 8
    assert (told[0][0], told[-1]) == (20_000_000, (20_200_000, 20_203_000))
    assert sum(end - start for start, end in told) == 20 * 4_000 + 3_000


async def test_outages_of_a_clock_that_went_back_hide_no_later_one() -> None:
    """All that is left of them is what Redis tells: they end after now, and an hour before them everything is old."""
    now_ms, later_ms = 10_000_000, 20_000_000
    told = f"{later_ms}-{later_ms + 4_000}"
    server = module._Server(later_ms + 5_000, [module.Outage(later_ms, later_ms + 4_000)])
    server.served(now_ms, "same", f"{later_ms + 5_000} {told}")
    server.served(now_ms + 5_000, "same", f"{now_ms} {told} {now_ms}-{now_ms + 5_000}")
    assert spans(server.text) == [(now_ms, now_ms + 5_000)]


async def test_standing_connections_learn_of_another_replication_id(redis_server: Server) -> None:
    """A server that is demoted and promoted again keeps its run id. It keeps its connections unless asked for more."""
    with running_server(redis_server.kind, options={"enable-debug-command": "yes"}) as server:
        async with watched(server.url) as (store, outages):
            before, told = store.history(KEY), []
            store.on_history_change(lambda: told.append(store.history(KEY)))
            with server.client() as client:
                client.execute_command("DEBUG", "CHANGE-REPL-ID")
                replid = client.info("replication")["master_replid"]
            await until(lambda: bool(told))
            assert (set(told), store.replid(KEY)) == ({store.history(KEY)}, replid)
            assert before != store.history(KEY)
            # The server may have lost the last acknowledged writes, deadlines among them.
            ((start, end),) = spans(outages.known_at(KEY))
            assert end - start >= TAKEN_BACK_MS


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_failover_is_an_outage_at_the_server_that_sentinel_names(kind: Any) -> None:
    with running_sentinel(kind) as sentinel:
        async with watched(sentinel.url) as (store, outages):
            before = await redis_now_ms(store)
            sentinel.fail_over()
            await until(lambda: bool(spans(outages.known_at(KEY))))
            (span,) = spans(outages.known_at(KEY))
            assert before - TAKEN_BACK_MS - 2000 < span[0] < before < span[1]


async def test_restart_of_a_cluster_node_is_an_outage_for_a_later_front_end() -> None:
    """The registry lies on another node, which knows nothing of the restart."""
    with running_cluster() as cluster:
        async with open_store(cluster.url) as store:
            key = next(key for key in map("k{}".format, range(100)) if _holds(cluster, store, key, 1))
        cluster.nodes[1].restart(crash=True)
        async with watched(cluster.url) as (store, outages):
            now_ms = await redis_now_ms(store, key)
            ((start, end),) = spans(outages.known_at(key))
            assert start < now_ms - 3_600_000 < now_ms - 20_000 < end <= now_ms


@pytest.mark.usefixtures("impatient")
async def test_cluster_that_is_down_is_an_outage_though_its_nodes_answer() -> None:
    with running_cluster(size=1) as cluster:
        (node,) = cluster.nodes
        async with watched(cluster.url) as (store, outages):
            known = spans(outages.known_at(KEY))
            missing = (slot_of(KEY) + 1) % 16384
            cluster.ask(node, "CLUSTER", "DELSLOTS", missing)
            with pytest.raises(StoreUnavailable, match="CLUSTERDOWN"):
                while True:
                    await store.call(Purpose.COORDINATE, KEY, "EXISTS", KEY)
            await anyio.sleep(SILENCE_S)
            assert spans(outages.known_at(KEY)) == known
            cluster.ask(node, "CLUSTER", "ADDSLOTS", missing)
            await until(lambda: spans(outages.known_at(KEY)) != known)
            start, end = spans(outages.known_at(KEY))[-1]
            assert end - start >= LIMIT_MS


@pytest.mark.usefixtures("impatient")
async def test_node_that_takes_slots_over_has_the_outages_of_their_former_node() -> None:
    with running_cluster() as cluster:
        async with watched(cluster.url) as (store, outages):
            key = next(key for key in map("k{}".format, range(100)) if _holds(cluster, store, key, 0))
            elsewhere = next(key for key in map("k{}".format, range(100)) if _holds(cluster, store, key, 1))
            before = spans(outages.known_at(key))
            for node in cluster.nodes:
                # The other nodes must not give the silent one up.
                cluster.ask(node, "CONFIG", "SET", "cluster-node-timeout", 15_000)
            with cluster.nodes[0].paused():
                await anyio.sleep(SILENCE_S)
            await until(lambda: spans(outages.known_at(key)) != before)
            began, ended = spans(outages.known_at(key))[-1]
            assert not is_outage(outages.known_at(elsewhere), began, ended)
            slot = slot_of(key)
            cluster.move_slot(slot, cluster.nodes[0], cluster.nodes[1])
            await store.call(Purpose.COORDINATE, key, "EXISTS", key)
            assert is_outage(outages.known_at(key), began, ended)


def _holds(cluster: Cluster, store: Store, key: str, number: int) -> bool:
    with cluster.nodes[number].client() as client:
        return store.run_id(key) == str(client.info("server")["run_id"])


async def test_outage_that_redis_still_reports_is_not_merged_twice() -> None:
    """Reported again after it was merged, it would swallow the time in which members were served."""
    server = module._Server(10_000_000, ())
    starts = [*range(20_000_000, 20_800_000, 100_000), 20_705_000]
    outages = [module.Outage(start, start + 4_000) for start in starts]
    server.add(outages)
    server.add(outages[-4:])
    assert sum(end - start for start, end in spans(server.text)) == 9 * 4_000
