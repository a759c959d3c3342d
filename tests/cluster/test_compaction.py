"""Compaction while the partition's slot moves: no record is lost or doubled, and no useless key is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.redis.client import Purpose
from korvet.redis.topology import slot_of
from korvet.store.background.compaction.due import Compaction
from korvet.store.background.compaction.run import compact
from korvet.store.log.state.partition import Partition
from tests.store.keyed import all_values, keyed, records
from tests.store.logs import LARGE, Front, front
from tests.support.redis import Kind
from tests.support.topologies import Cluster, running_cluster

pytestmark = pytest.mark.anyio
NOW_MS = 1_700_000_000_000
SETTINGS = Compaction(min_lag_ms=0, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=1000)
ROUNDS = 3
MOST_RUNS = 2000
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    kind: Kind = request.param
    with running_cluster(kind) as running:
        yield running


class Writer:
    """An idempotent producer of few keys that repeats each batch until it is taken."""

    def __init__(self, front: Front, partition: Partition) -> None:
        self.values: dict[bytes | None, bytes | None] = {}
        self._front = front
        self._partition = partition
        self._count = 0

    async def write(self) -> None:
        number = self._count
        self._count += 2
        size = LARGE if number % 20 == 0 else 1
        pairs = [(b"%d" % (number % 7), b"%d " % number * size), (b"own %d" % (number // 60), b"")]
        data = keyed(*pairs, producer=(1, 0, number))
        while True:
            with suppress(StoreUnavailable):
                assert await self._front.append(self._partition, data) == (0, number)
                break
            await anyio.sleep(0.01)
        self.values.update(pairs)


def move(cluster: Cluster, slot: int, is_at_once: bool, is_done: threading.Event) -> None:
    """Move the slot from node to node; a move key by key leaves keys on both nodes for a while."""
    try:
        for _ in range(ROUNDS):
            source = cluster.owner(slot)
            target = cluster.nodes[(cluster.nodes.index(source) + 1) % len(cluster.nodes)]
            if is_at_once:
                cluster.migrate_at_once(slot, source, target)
                continue
            with cluster.open_slot(slot, source, target):
                is_done.wait(0.2)
                keys = cluster.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 3)
                assert isinstance(keys, list)
                cluster.ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, "KEYS", *keys)
                is_done.wait(0.2)
                cluster.move_keys(slot, source, target)
    finally:
        is_done.set()


@pytest.mark.parametrize(
    ("cluster", "is_at_once"),
    [("valkey", False), ("valkey", True), ("redis", False)],
    indirect=["cluster"],
    ids=["valkey, key by key", "valkey, at once", "redis, key by key"],
)
async def test_compaction_survives_a_move_of_its_slot(cluster: Cluster, is_at_once: bool) -> None:
    async with front(cluster.url) as one:
        partition = await one.partition()
        slot, writer, is_done = slot_of(partition.keys.log), Writer(one, partition), threading.Event()
        for _ in range(150):
            await writer.write()
        group = (partition.topic_id, "group", 40, "keep")
        assert await one.store.fcall(Purpose.APPEND, "korvet_log_attach", partition.keys, *group) == [0]
        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.to_thread.run_sync, move, cluster, slot, is_at_once, is_done)
                while not is_done.is_set():
                    await writer.write()
                    with suppress(StoreUnavailable):
                        await compact(one.log, partition, SETTINGS, NOW_MS)
                        await end_lease(one, partition)
        await end_lease(one, partition)
        await settle(one, partition, writer)
        await check(cluster, one, partition, writer)


async def end_lease(one: Front, partition: Partition) -> None:
    """End the lease of an interrupted run; otherwise it would end after half a minute."""
    await one.store.call(Purpose.APPEND, partition.keys.meta, "HDEL", partition.keys.meta, "compaction")


async def settle(one: Front, partition: Partition, writer: Writer) -> None:
    """Compact everything, also after an interrupted run."""
    await writer.write()
    for _ in range(MOST_RUNS):
        if not await compact(one.log, partition, SETTINGS, NOW_MS):
            return
    raise AssertionError("no end of what is to be compacted")


async def check(cluster: Cluster, one: Front, partition: Partition, writer: Writer) -> None:
    one.log.cache.clear()
    one.log.forget()
    read = records(await one.read(partition, 0))
    assert all_values(read) == writer.values
    offsets = [offset for offset, _, _ in read]
    assert offsets == sorted(set(offsets))
    # Each key is there once, except in the last batch.
    assert len(read) <= len(writer.values) + 2
    name = partition.keys.log
    entries = await one.store.call(Purpose.READ, name, "XRANGE", name, "-", "+")
    placed = {
        f"{name}:{fields[3].decode() if fields[2:3] == [b'p'] else entry[:-2].decode()}"
        for entry, fields in entries
        if fields[2:3] != [b"b"]
    }
    slot = slot_of(name)
    for node in cluster.nodes:
        keys: Any = cluster.ask(node, "CLUSTER", "GETKEYSINSLOT", slot, 10_000)
        lasting = {key.decode() for key in keys if int(str(cluster.ask(node, "PTTL", key))) == -1}
        assert lasting == ({*partition.transaction_keys, *placed} if node is cluster.owner(slot) else set())
    groups = await one.store.call(Purpose.READ, name, "XINFO", "GROUPS", name)
    (told,) = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in groups]
    behind = [entry for entry, _ in entries if int(entry.split(b"-")[0]) > 40]
    assert (told[b"name"], told[b"last-delivered-id"], told[b"lag"]) == (b"group", b"40-0", len(behind))
