"""Compaction that is interrupted, that two front-ends run at once, or that meets writers, trims and readers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.errors import StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.background.compaction import lease as lease_module
from korvet.store.background.compaction import run
from korvet.store.background.compaction.due import Compaction
from korvet.store.background.compaction.run import clear_leftover, compact
from korvet.store.log.memory.room import PartitionRead
from korvet.store.log.state.partition import Partition
from tests.store.keyed import Read, all_values, keyed, records
from tests.store.logs import LARGE, Front, front
from tests.support.redis import KINDS, Kind, Server, running_server

pytestmark = pytest.mark.anyio
NOT_LEADER_OR_FOLLOWER = 6
NOW_MS = 1_700_000_000_000
SETTINGS = Compaction(min_lag_ms=0, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=1000)


async def read_all(front: Front, partition: Partition, offset: int = 0) -> list[Read]:
    """All records from an offset on, read from Redis.

    :raises StoreUnavailable: if Redis is away.
    """
    front.log.cache.clear()
    front.log.forget()
    found: PartitionRead = await front.read(partition, offset)
    if found.code == NOT_LEADER_OR_FOLLOWER:
        raise StoreUnavailable("away")
    assert found.code == 0
    return [record for record in records(found) if record[0] >= offset]


async def filled(front: Front, count: int = 230) -> tuple[Partition, dict[bytes | None, bytes | None]]:
    """A partition with small and large values of a few keys, and the last value of each key."""
    partition = await front.partition()
    for number in range(count):
        size = LARGE if number % 50 < 3 else 10
        pairs = [(b"%d" % (number % 7), b"%d" % number * size), (b"own %d" % number, b"")]
        assert (await front.append(partition, keyed(*pairs)))[0] == 0
    return partition, all_values(await read_all(front, partition))


async def left_over(front: Front, partition: Partition) -> list[bytes]:
    """Keys beside the log that neither belong to an entry nor expire."""
    prefix = f"{partition.keys.log}:"
    name = partition.keys.log
    entries = await front.store.call(Purpose.READ, name, "XRANGE", name, "-", "+")
    own = {
        b"%s%s" % (prefix.encode(), fields[3] if fields[2:3] == [b"p"] else entry[:-2])
        for entry, fields in entries
        if fields[2:3] != [b"b"]
    }
    cursor, names = b"0", []
    while True:
        cursor, found = await front.store.call(Purpose.READ, name, "SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", 1000)
        names += [key for key in found if key not in own]
        if cursor == b"0":
            break
    return [key for key in names if await front.store.call(Purpose.READ, key.decode(), "PTTL", key) < 0]


class Killed(Exception):
    """The end of a front-end."""


def dying(front: Front, after: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Kill the front-end at the call with the given number; returns a function that tells the number of calls made."""
    call, made = front.store.fcall, 0

    def fcall(purpose: Purpose, function: str, *args: Any) -> Any:
        nonlocal made
        if "compaction" in function:
            made += 1
            if made > after:
                raise Killed
        return call(purpose, function, *args)

    monkeypatch.setattr(front.store, "fcall", fcall)
    return lambda: made


async def test_run_that_dies_at_any_call_harms_nothing_and_is_repaired(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "LEASE_MS", 0)
    for after in range(40):
        partition, values = await filled(one)
        with monkeypatch.context() as patched:
            made = dying(one, after, patched)
            is_dead = False
            try:
                await compact(one.log, partition, SETTINGS, NOW_MS)
            except Killed:
                is_dead = True
        assert all_values(await read_all(one, partition)) == values
        await other.catalog.refresh()
        known = other.known(partition)
        await other.append(known, keyed((b"0", b"new"), (b"1", None)))
        await other.append(known, keyed((b"end", b"")))
        assert await compact(other.log, known, SETTINGS, NOW_MS)
        now = await read_all(other, known)
        assert all_values(now) == {**values, b"0": b"new", b"1": None, b"end": b""}
        assert len(now) == len({key for _, key, _ in now})
        assert await left_over(other, known) == []
        if not is_dead:
            assert made() > 5
            return
    raise AssertionError("no end of calls")


async def test_leftovers_of_a_dead_run_are_removed_when_its_lease_is_over(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run may have died at any call; the removal does not wait for the next run."""
    monkeypatch.setattr(lease_module, "LEASE_MS", 0)
    for after in range(40):
        partition, values = await filled(one)
        await other.catalog.refresh()
        known, meta = other.known(partition), partition.keys.meta
        with monkeypatch.context() as patched:
            made = dying(one, after, patched)
            is_dead = False
            try:
                await compact(one.log, partition, SETTINGS, NOW_MS)
            except Killed:
                is_dead = True
        lease = await one.store.call(Purpose.READ, meta, "HGET", meta, "compaction")
        assert (lease is not None) == (is_dead and after > 0)
        just_before = int(lease.split()[1]) - 1 if lease else NOW_MS
        await clear_leftover(other.log, known, just_before)
        assert await one.store.call(Purpose.READ, meta, "HGET", meta, "compaction") == lease
        await clear_leftover(other.log, known, 2**52)
        assert await one.store.call(Purpose.READ, meta, "HGET", meta, "compaction") is None
        assert await left_over(other, known) == []
        assert all_values(await read_all(other, known)) == values
        if not is_dead:
            assert made() > 5
            return
    raise AssertionError("no end of calls")


async def test_lease_keeps_others_away_and_a_former_owner_does_no_harm(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, values = await filled(one)
    await other.catalog.refresh()
    known = other.known(partition)
    with monkeypatch.context() as patched:
        dying(one, 2, patched)
        with pytest.raises(Killed):
            await compact(one.log, partition, SETTINGS, NOW_MS)
    assert not await compact(other.log, known, SETTINGS, NOW_MS)
    # Both front-ends take the lease from each other all the time.
    monkeypatch.setattr(lease_module, "LEASE_MS", 0)
    monkeypatch.setattr(lease_module, "_RENEW_S", 0.0)
    await other.store.call(Purpose.APPEND, known.keys.meta, "HDEL", known.keys.meta, "compaction")
    for _ in range(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact, one.log, partition, SETTINGS, NOW_MS)
            tasks.start_soon(compact, other.log, known, SETTINGS, NOW_MS)
        assert all_values(await read_all(one, partition)) == values
    monkeypatch.undo()
    await one.store.call(Purpose.APPEND, known.keys.meta, "HDEL", known.keys.meta, "compaction")
    await one.append(partition, keyed((b"end", b"")))
    assert await compact(one.log, partition, SETTINGS, NOW_MS)
    assert await left_over(one, partition) == []


async def test_run_that_was_overtaken_gives_up(one: Front, other: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's lease ended and another run went through, so this run's plan would count in the totals twice."""
    partition, values = await filled(one)
    await other.catalog.refresh()
    known, meta = other.known(partition), partition.keys.meta
    runs = []

    async def overtaken(*_: Any) -> None:
        runs.append("check")
        if len(runs) == 1:
            await one.store.call(Purpose.APPEND, meta, "HDEL", meta, "compaction")
            assert await compact(other.log, known, SETTINGS, NOW_MS)

    monkeypatch.setattr(lease_module, "_RENEW_S", 0.0)
    monkeypatch.setattr(run, "check_room", overtaken)
    assert not await compact(one.log, partition, SETTINGS, NOW_MS)
    assert runs == ["check", "check"]
    assert all_values(await read_all(one, partition)) == values
    entries = await one.store.call(Purpose.READ, partition.keys.log, "XRANGE", partition.keys.log, "-", "+")
    indexes = [list(map(int, fields[1].split())) for _, fields in entries]
    running = [index[4] for index in indexes]
    assert [after - before for before, after in pairwise(running)] == [index[1] for index in indexes[1:]]
    assert await left_over(one, partition) == []


async def test_writers_trims_and_readers_go_on_during_compaction(one: Front, other: Front) -> None:
    partition, values = await filled(one)
    await other.catalog.refresh()
    known = other.known(partition)
    is_done = False
    runs = 0

    async def write() -> None:
        nonlocal is_done
        for number in takewhile(lambda number: number < 600 or runs < 2, range(20_000)):
            key, value = b"%d" % (number % 5), b"new %d" % number * (2000 if number % 40 == 0 else 1)
            assert (await other.append(known, keyed((key, value))))[0] == 0
            values[key] = value
            if number == 300:
                assert (await other.log.trim(known, 2))[0] == 0
                del values[b"own 0"]
        is_done = True

    async def read() -> None:
        """Read: offsets rise, and in the end each key has its last value."""
        at, seen = 0, dict[bytes | None, bytes | None]()
        while not is_done or at < (await other.log.meta(known)).end:  # type: ignore[union-attr]
            found = await other.read(known, at, 5000)
            if found.code != 0:
                at = 2
                continue
            for offset, key, value in records(found):
                if offset >= at:
                    at, seen[key] = offset + 1, value
            await anyio.lowlevel.checkpoint()
        assert {key: value for key, value in seen.items() if key in values} == values

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        tasks.start_soon(read)
        while not is_done:
            runs += await compact(one.log, partition, SETTINGS, NOW_MS)
    assert runs > 1
    assert all_values(await read_all(one, partition, 2)) == values
    await compact(one.log, partition, SETTINGS, NOW_MS)
    assert await left_over(one, partition) == []
    assert (await one.log.trim(partition, -1))[0] == 0
    assert await left_over(one, partition) == []


async def test_topic_that_is_deleted_meanwhile_leaves_nothing(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition, _ = await filled(one)
    with monkeypatch.context() as patched:
        dying(one, 3, patched)
        with pytest.raises(Killed):
            await compact(one.log, partition, SETTINGS, NOW_MS)
    await one.log.delete_partitions(partition.topic)
    assert await left_over(one, partition) == []
    assert await one.store.call(Purpose.READ, partition.keys.log, "EXISTS", *partition.keys) == 0


# ---------------------------------------------------------------------- servers that die


def torn(server: Server) -> None:
    """Cut off the end of the server's file, which loses the last call as a whole."""
    (path,) = (server.directory / "appendonlydir").glob("*.incr.aof")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5)


@pytest.mark.parametrize("kind", KINDS)
async def test_server_may_die_at_any_call_and_forget_its_last_step(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step is lost in a crash, or to a replica that takes over without it."""
    options = {"appendonly": "yes", "appendfsync": "no"}
    with running_server(kind, options=options) as server:
        async with front(server.url) as one:
            for after in range(1, 40):
                partition, values = await filled(one, 130)
                await one.store.fcall(
                    Purpose.APPEND, "korvet_log_attach", partition.keys, partition.topic_id, "group", 9, "keep"
                )
                with monkeypatch.context() as patched:
                    is_dead = killed_before(one, server, after, patched)
                    with suppress(StoreUnavailable):
                        await compact(one.log, partition, SETTINGS, NOW_MS)
                if not is_dead():
                    assert after > 5
                    return
                torn(server)
                server.start()
                await check_and_repair(one, partition, values)
    raise AssertionError("no end of calls")


def killed_before(front: Front, server: Server, number: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Kill the server before a later call of a run; returns a function that tells whether it was killed."""
    call, made = front.store.fcall, 0

    def fcall(purpose: Purpose, function: str, *args: Any) -> Any:
        nonlocal made
        if "compaction" in function:
            made += 1
            if made == number + 1:
                server.kill()
        return call(purpose, function, *args)

    monkeypatch.setattr(front.store, "fcall", fcall)
    return lambda: not server.is_running


async def check_and_repair(one: Front, partition: Partition, values: dict[bytes | None, bytes | None]) -> None:
    with anyio.fail_after(30):
        while True:
            try:
                assert all_values(await read_all(one, partition)) == values
                break
            except StoreUnavailable:
                await anyio.sleep(0.01)
    await one.append(partition, keyed((b"0", b"new")))
    await one.append(partition, keyed((b"end", b"")))
    await one.store.call(Purpose.APPEND, partition.keys.meta, "HDEL", partition.keys.meta, "compaction")
    assert await compact(one.log, partition, SETTINGS, NOW_MS)
    now = await read_all(one, partition)
    assert all_values(now) == {**values, b"0": b"new", b"end": b""}
    assert len(now) == len({key for _, key, _ in now})
    assert await left_over(one, partition) == []
    name = partition.keys.log
    (group,) = await one.store.call(Purpose.READ, name, "XINFO", "GROUPS", name)
    told = dict(zip(group[::2], group[1::2], strict=True))
    behind = await one.store.call(Purpose.READ, name, "XRANGE", name, "(9-0", "+")
    assert (told[b"last-delivered-id"], told[b"lag"]) == (b"9-0", len(behind))


# ---------------------------------------------------------------------- a model

KEYS = st.sampled_from([b"a", b"b", b"c", b"a key that is longer than its digest would be"])
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.sampled_from([b"", b"x", b"y" * 9000])), min_size=1, max_size=4)
STEPS = st.lists(
    st.tuples(st.just("append"), PAIRS, st.sampled_from([0, 0, 0, 1, 2, 3, 4]))
    | st.tuples(st.just("compact"), st.sampled_from([0, 500, 2000]), st.booleans())
    | st.tuples(st.just("trim"), st.integers(0, 9), st.none()),
    max_size=25,
)


class Model:
    """A partition's batches as (offset just past it, records, delete horizon)."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.now_ms = NOW_MS
        self.batches: list[tuple[int, list[Read], int | None]] = []

    def append(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        read: list[Read] = [(self.end + at, key, value) for at, (key, value) in enumerate(pairs)]
        self.end += len(pairs)
        self.batches.append((self.end, read, None))

    def trim(self, offset: int) -> None:
        self.start = max(self.start, offset)
        self.batches = [one for one in self.batches if one[0] > self.start]

    def compact(self, delete_retention_ms: int) -> None:
        *within, last = self.batches
        newest = {key: offset for _, read, _ in within for offset, key, _ in read}
        left = []
        for end, read, horizon in within:
            may_go = horizon is not None and horizon <= self.now_ms
            kept = [one for one in read if newest[one[1]] == one[0] and (one[2] is not None or not may_go)]
            if horizon is None and any(value is None for _, _, value in kept):
                horizon = self.now_ms + delete_retention_ms
            if kept:
                left.append((end, kept, horizon))
        self.batches = [*left, last]

    def read(self, offset: int) -> list[Read]:
        return [one for _, read, _ in self.batches for one in read if one[0] >= max(offset, self.start)]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
async def test_partition_behaves_as_its_model(one: Front, steps: list[tuple[str, Any, Any]]) -> None:
    partition, model = await one.partition(), Model()
    for step, what, how in steps:
        if step == "append":
            assert await one.append(partition, keyed(*what, codec=how)) == (0, model.end)
            model.append(what)
        elif step == "trim":
            offset = min(model.end, model.start + what)
            assert await one.log.trim(partition, offset) == (0, offset)
            model.trim(offset)
        else:
            model.now_ms += what
            rules = replace(SETTINGS, delete_retention_ms=1000, most_keys=1 if how else 100)
            is_first = True
            while await compact(one.log, partition, rules, model.now_ms):
                if is_first and not how:
                    model.compact(1000)
                is_first = False
            if how:
                # With room for one key, compaction takes several runs, whose horizons differ from the model's.
                break
        for offset in range(model.start, model.end + 1):
            assert await read_all(one, partition, offset) == model.read(offset)
    assert await left_over(one, partition) == []
    expected = all_values(model.read(0))
    found = all_values(await read_all(one, partition, model.start))
    assert {k: v for k, v in found.items() if v is not None} == {k: v for k, v in expected.items() if v is not None}
