"""What is known of times in which Redis could not be called: real servers that are frozen, killed and replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from korvet.store import outages as module
from korvet.store.client import Purpose, Store, open_store
from korvet.store.outages import TAKEN_BACK_MS, Outages
from korvet.store.topology import slot_of
from tests.support.redis import Server, running_server
from tests.support.topologies import Cluster, running_cluster, running_sentinel

pytestmark = pytest.mark.anyio

KEY = "korvet:{default:group:g}:group"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask often."""
    monkeypatch.setattr(module, "_INTERVAL_S", 0.02)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take less for an outage."""
    monkeypatch.setattr(module, "LIMIT_MS", 1000)


@pytest.fixture
def own_server(redis_server: Server) -> Iterator[Server]:
    with running_server(redis_server.kind) as server:
        yield server


@asynccontextmanager
async def watched(url: str) -> AsyncIterator[tuple[Store, Outages]]:
    """A store and its outages, once all nodes have answered."""
    async with open_store(url) as store:
        outages = Outages(store)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outages.watch)
            await until(lambda: len(outages._nodes) == len(store.primaries))
            yield store, outages
            tasks.cancel_scope.cancel()


async def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    with anyio.fail_after(within_s):
        while not condition():
            await anyio.sleep(0.005)


async def redis_now_ms(store: Store, key: str = KEY) -> int:
    seconds, microseconds = await store.call(Purpose.READ, key, "TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


def spans(text: str) -> list[tuple[int, int]]:
    return [tuple(map(int, span.split("-"))) for span in text.split()[1:]]  # type: ignore[misc]


def served_until(text: str) -> int:
    return int(text.split()[0])


async def test_nothing_is_known_before_the_first_answer_and_no_outage_after_it(redis_server: Server) -> None:
    async with open_store(redis_server.url) as store:
        outages = Outages(store)
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
            heard = served_until(outages.known_at(KEY))
            await anyio.sleep(1.2)
            assert served_until(outages.known_at(KEY)) == heard
            assert spans(outages.known_at(KEY)) == []
        await until(lambda: bool(spans(outages.known_at(KEY))))
        ((start, end),) = spans(outages.known_at(KEY))
        assert began - 1000 < start <= end - 1000
        assert end <= served_until(outages.known_at(KEY))


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
        # Before the new server has told its time, what was served is so much less.
        assert served_until(told[-1]) in (heard, heard - TAKEN_BACK_MS)
        assert all(served_until(text) <= heard for text in told)


async def test_link_that_breaks_for_a_moment_is_no_outage(redis_server: Server) -> None:
    async with watched(redis_server.url) as (store, outages):
        link = store.coordination(KEY)
        assert link is not None
        link.break_off()
        await until(lambda: not link.is_up)
        await until(store.is_connected)
        back = await redis_now_ms(store)
        await until(lambda: served_until(outages.known_at(KEY)) >= back)
        assert spans(outages.known_at(KEY)) == []


async def test_what_lies_before_this_front_end_is_an_outage(redis_server: Server) -> None:
    async with open_store(redis_server.url) as store:
        outages = Outages(store)
        now_ms = await redis_now_ms(store)
        outages.began(f"{now_ms - 90_000}-{now_ms - 80_000} {now_ms - 60_000}-{now_ms}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outages.watch)
            await until(lambda: outages.known_at(KEY) != "")
            assert spans(outages.known_at(KEY)) == [(now_ms - 90_000, now_ms - 80_000), (now_ms - 60_000, now_ms)]
            tasks.cancel_scope.cancel()


async def test_namespaces_of_one_front_end_do_not_forget_each_others_past(redis_server: Server) -> None:
    """Each registry tells what it knows. A broken span, which the group functions would refuse, is passed over."""
    async with open_store(redis_server.url) as store:
        outages = Outages(store)
        now_ms = await redis_now_ms(store)
        outages.began(f"{now_ms - 60_000}-{now_ms}")
        outages.began(f"5-4 {now_ms - 5_000}-{now_ms} {now_ms}-{'9' * 400}")
        outages.began("")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outages.watch)
            await until(lambda: outages.known_at(KEY) != "")
            assert spans(outages.known_at(KEY)) == [(now_ms - 60_000, now_ms)]
            tasks.cancel_scope.cancel()


async def test_eight_of_the_last_hour_are_kept_and_overlapping_ones_are_one() -> None:
    node = module._Node(10_000_000, ())
    node.add(module.Outage(start, start + 3_000) for start in range(20_000_000, 20_080_000, 10_000))
    assert spans(node.text) == [(start, start + 3_000) for start in range(20_000_000, 20_080_000, 10_000)]
    node.add([module.Outage(20_070_000, 20_085_000)])
    assert spans(node.text)[-2:] == [(20_060_000, 20_063_000), (20_070_000, 20_085_000)]
    node.add([module.Outage(23_680_000, 23_683_000)])
    assert spans(node.text) == [(20_070_000, 20_085_000), (23_680_000, 23_683_000)]


async def test_of_more_than_eight_outages_the_closest_become_one() -> None:
    """Whose session ended in the first of many short ones may not have been served since, so none may be forgotten."""
    node = module._Node(10_000_000, ())
    for start in range(20_000_000, 20_100_000, 5_000):
        node.add([module.Outage(start, start + 4_000)])
    node.add([module.Outage(20_200_000, 20_203_000)])
    told = spans(node.text)
    assert len(told) == 8
    assert (told[0][0], told[-2][1], told[-1]) == (20_000_000, 20_099_000, (20_200_000, 20_203_000))


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_failover_is_an_outage_at_the_place_that_sentinel_names(kind: Any) -> None:
    with running_sentinel(kind) as sentinel:
        async with watched(sentinel.url) as (store, outages):
            before = await redis_now_ms(store)
            sentinel.fail_over()
            await until(lambda: bool(spans(outages.known_at(KEY))))
            (span,) = spans(outages.known_at(KEY))
            assert before - TAKEN_BACK_MS - 2000 < span[0] < before < span[1]


async def test_restart_of_a_clusters_node_is_an_outage_for_who_starts_after_it() -> None:
    """The registry lies on another node, and knows nothing of it."""
    with running_cluster() as cluster:
        async with open_store(cluster.url) as store:
            key = next(key for key in map("k{}".format, range(100)) if _holds(cluster, store, key, 1))
        cluster.nodes[1].restart(crash=True)
        async with watched(cluster.url) as (store, outages):
            now_ms = await redis_now_ms(store, key)
            ((start, end),) = spans(outages.known_at(key))
            assert start < now_ms - 3_600_000 < now_ms - 20_000 < end <= now_ms


@pytest.mark.usefixtures("impatient")
async def test_node_that_takes_slots_over_knows_what_the_others_went_through() -> None:
    with running_cluster() as cluster:
        async with watched(cluster.url) as (store, outages):
            key = next(key for key in map("k{}".format, range(100)) if _holds(cluster, store, key, 0))
            elsewhere = next(key for key in map("k{}".format, range(100)) if _holds(cluster, store, key, 1))
            before, known = spans(outages.known_at(key)), spans(outages.known_at(elsewhere))
            with cluster.nodes[0].paused():
                await anyio.sleep(1.2)
            await until(lambda: spans(outages.known_at(key)) != before)
            assert spans(outages.known_at(elsewhere)) == known
            began, ended = spans(outages.known_at(key))[-1]
            slot = slot_of(key)
            cluster.move_slot(slot, cluster.nodes[0], cluster.nodes[1])
            await store.call(Purpose.COORDINATE, key, "EXISTS", key)
            assert any(start <= began and ended <= end for start, end in spans(outages.known_at(key)))


def _holds(cluster: Cluster, store: Store, key: str, number: int) -> bool:
    with cluster.nodes[number].client() as client:
        return store.run_id(key) == str(client.info("server")["run_id"])
