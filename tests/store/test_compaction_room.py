"""Compaction takes memory before it frees any: if memory is short, it harms no other client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from korvet.errors import StoreFull
from korvet.redis.client import Purpose
from korvet.store.background.compaction.due import Compaction
from korvet.store.background.compaction.headroom import NoRoom
from korvet.store.background.compaction.run import compact
from korvet.store.background.maintenance import compact_all
from korvet.store.log.state.partition import Partition
from korvet.store.topics import create_topic
from korvet.wire.record_entries import arguments, split
from tests.api.raw import unique
from tests.store.keyed import all_values, keyed, records
from tests.store.logs import NAMESPACE, Front, header
from tests.support.redis import Server

pytestmark = pytest.mark.anyio
NOW_MS = 1_700_000_000_000
SETTINGS = Compaction(min_lag_ms=0, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=1000)
COUNT = 300


@pytest.fixture
def server(redis_server: Server) -> Iterator[redis.Redis]:
    """A client of the server; afterwards the server's memory has no limit again."""
    with redis_server.client() as client:
        yield client
        client.config_set("maxmemory", 0)


def leave(server: redis.Redis, free_bytes: int) -> None:
    """Set maxmemory to the used memory and ``free_bytes`` more, after all pending frees."""
    for _ in range(1000):
        info: Any = server.info("memory")
        if info["lazyfree_pending_objects"] == 0:
            server.config_set("maxmemory", info["used_memory"] + free_bytes)
            return
    raise AssertionError("memory is freed without end")


def fill(server: redis.Redis) -> None:
    """Make the server full."""
    server.config_set("maxmemory", 1)


async def compacted_topic(front: Front, count: int, **configs: str) -> Partition:
    """A partition of a topic that is compacted at every check; half of its records may go."""
    configs |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    _, topic = await create_topic(front.catalog, front.log, unique(), 1, configs)
    assert topic is not None
    partition = front.log.partition(topic, 0)
    for number in range(count):
        data = keyed((b"%d" % (number // 2), b"%d" % number * 1000))
        is_record = front.log.limits(partition).is_record
        entries = arguments(header(data), split(header(data), data, is_json=False)) if is_record else None
        assert (await front.log.append(partition, header(data), data, None, entries)).code == 0
    return partition


async def length(front: Front, partition: Partition) -> int:
    name = partition.keys.log
    return int(await front.store.call(Purpose.READ, name, "XLEN", name))


async def has_spare(front: Front, partition: Partition) -> bool:
    name = f"{partition.keys.log}:spare"
    return bool(await front.store.call(Purpose.READ, name, "EXISTS", name))


@pytest.mark.parametrize("storage", ["batch", "record"])
async def test_compaction_without_room_takes_no_memory_and_names_a_remedy(
    one: Front, server: redis.Redis, storage: str
) -> None:
    partition = await compacted_topic(one, COUNT, **{"korvet.storage": storage})
    before = all_values(records(await one.read(partition, 0)))
    # Half of the log stays, some 450 kB. Meanwhile the server itself frees far less than the missing bytes.
    leave(server, 50_000)
    with pytest.raises(NoRoom, match=r"compaction takes \d+ bytes while it runs, .*: raise maxmemory, or"):
        await compact(one.log, partition, SETTINGS, NOW_MS)
    assert (await length(one, partition), await has_spare(one, partition)) == (COUNT, False)
    leave(server, 2_000_000)
    assert (await one.append(partition, keyed((b"new", b""))))[0] == 0
    fill(server)
    with pytest.raises(NoRoom):
        await compact(one.log, partition, SETTINGS, NOW_MS)
    assert all_values(records(await one.read(partition, 0))) == {**before, b"new": b""}
    leave(server, 2_000_000)
    assert await compact(one.log, partition, SETTINGS, NOW_MS)
    assert all_values(records(await one.read(partition, 0))) == {**before, b"new": b""}
    assert (await length(one, partition), await has_spare(one, partition)) == (COUNT // 2 + 1, False)


async def test_server_that_fills_up_during_compaction_gets_its_memory_back(
    one: Front, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await compacted_topic(one, COUNT)
    fcall, copies = one.store.fcall, 0

    def filling(purpose: Purpose, function: str, *args: Any) -> Any:
        nonlocal copies
        copies += function == "korvet_log_compaction_copy"
        if copies == 2:
            fill(server)
        return fcall(purpose, function, *args)

    with monkeypatch.context() as patched:
        patched.setattr(one.store, "fcall", filling)
        with pytest.raises(StoreFull):
            await compact(one.log, partition, SETTINGS, NOW_MS)
    assert copies == 2
    assert (await length(one, partition), await has_spare(one, partition)) == (COUNT, False)
    server.config_set("maxmemory", 0)
    assert await compact(one.log, partition, SETTINGS, NOW_MS)
    assert await length(one, partition) == COUNT // 2 + 1


async def test_partition_without_room_does_not_hold_up_the_others(one: Front, server: redis.Redis) -> None:
    large, small = await compacted_topic(one, COUNT), await compacted_topic(one, 10)
    leave(server, 300_000)
    resting: dict[Partition, float] = {}
    await compact_all(NAMESPACE, one.catalog, one.log, resting)
    assert list(resting) == [large]
    assert (await length(one, large), await length(one, small)) == (COUNT, 6)
    server.config_set("maxmemory", 0)
    await compact_all(NAMESPACE, one.catalog, one.log, resting)
    assert await length(one, large) == COUNT
    resting[large] = 0.0
    await compact_all(NAMESPACE, one.catalog, one.log, resting)
    assert (await length(one, large), resting) == (COUNT // 2 + 1, {})
