"""The tierer moves sealed batches into segments, whoever dies, comes twice, or went back, and deletes what is over."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from korvet.codes import KAFKA_STORAGE_ERROR
from korvet.errors import LostTier
from korvet.redis.client import Purpose
from korvet.store.activity import Activity
from korvet.store.log import tier as calls
from korvet.store.log.appending.markers import Ending
from korvet.store.log.memory.room import Want
from korvet.store.log.partitions import replicas
from korvet.store.log.state.entries import CorruptEntry
from korvet.store.log.state.partition import Meta, Partition
from korvet.store.memory import UNLIMITED, Reserve, ServerMemory
from korvet.store.topics import create_topic, delete_topic
from korvet.tier import ownership, publishing, removal, tierer
from korvet.tier.blocks import Stored
from korvet.tier.building import Gone
from korvet.tier.manifest import Manifest, folder_of
from korvet.tier.objects import Objects, OtherTier, TierAway
from korvet.tier.publishing import WentBack, manifest
from korvet.tier.segment import batches
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot, TieredTopic, Topics, topics_folder
from korvet.tier.survey import verify
from korvet.tier.tier import Tier
from korvet.tier.tierer import Tierer
from korvet.wire.record_entries import arguments, split
from tests.store.logs import EVERYTHING, LARGE, NAMESPACE, Front, batch
from tests.store.test_log_transactions import Coordinator, append, transactional
from tests.tier.test_blocks import Store
from tests.wire.whole import Whole, built, read

pytestmark = pytest.mark.anyio

TIERED = {"remote.storage.enable": "true", "retention.ms": "-1"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are small, and nothing waits for readers."""
    monkeypatch.setattr(tierer, "SEGMENT_BYTES", 1000)
    monkeypatch.setattr(replicas, "_AGE_S", 0.0)
    monkeypatch.setattr(tierer, "_PUT_PAUSES_S", ())
    for module in (tierer, removal):
        monkeypatch.setattr(module, "GRACE_S", 0.0)


@asynccontextmanager
async def tiering(one: Front, objects: Objects) -> AsyncIterator[Tierer]:
    """A front-end's tierer, which owns the namespace's objects, if it may."""
    async with anyio.create_task_group() as tasks:
        tier = Tier(objects, tasks)
        found = Tierer(tier, NAMESPACE, one.catalog, one.log, Activity(), Reserve(one.store))
        one.log.tier = tier.cold.of(NAMESPACE.name, one.catalog, one.log)
        await found.own()
        yield found
        one.log.tier = None
        tasks.cancel_scope.cancel()


async def tiered(one: Front, configs: Mapping[str, str] = TIERED) -> Partition:
    """The partition of a new topic in the tier."""
    _, topic = await create_topic(one.catalog, one.log, f"t-{uuid4().hex[:8]}", 1, configs)
    assert topic is not None
    return one.log.partition(topic, 0)


async def filled(one: Front, count: int = 20, size: int = 100) -> Partition:
    """A partition with so many batches of three records; every fifth one is placed beside its entry."""
    partition = await tiered(one)
    for number in range(count):
        assert (await one.append(partition, batch(3, LARGE if number % 5 == 4 else size)))[0] == 0
    return partition


async def read_all(one: Front, partition: Partition, offset: int = 0, *, is_committed: bool = False) -> bytes:
    """The bytes of all batches from an offset on, as Fetches serve them."""
    found = b""
    with anyio.fail_after(30):
        while True:
            want = Want(partition, offset, EVERYTHING, is_committed=is_committed)
            (read,) = await one.log.read([want], EVERYTHING)
            if read.pending is not None:
                await read.pending
                continue
            assert read.code == 0
            if not (data := b"".join(map(bytes, read.records))):
                return found
            found += data
            offset = max(each.base_offset + each.last_offset_delta + 1 for each, _ in batches(data))


async def listed(one: Front, partition: Partition) -> Manifest:
    found = await manifest(one.log, partition)
    assert found is not None
    return found[1]


async def paths_of(objects: Objects) -> set[str]:
    """The objects below the namespace, but for snapshots and owners."""
    return {path for path in await objects.names(NAMESPACE.name) if path.endswith((".segment", ".shelf"))}


async def meta_of(one: Front, partition: Partition) -> Meta:
    found = await one.log.meta(partition)
    assert found is not None
    return found


async def trim_locally(one: Front, partition: Partition) -> None:
    meta = await one.log.meta(partition)
    assert meta is not None
    assert await calls.trim(one.log, partition, meta.tier_end, meta.epoch) == (0, meta.tier_end)


# ---------------------------------------------------------------------- sealing


async def test_sealed_batches_are_read_as_they_were_before(one: Front) -> None:
    partition = await filled(one)
    before = await read_all(one, partition)
    async with tiering(one, objects := Store()) as tiering_:
        while (meta := await one.log.meta(partition)) is not None and meta.tier_end < 57:
            await tiering_.tend(partition)
        await trim_locally(one, partition)
        one.log.forget()
        assert await read_all(one, partition) == before
    members = (await listed(one, partition)).members
    assert [one.first_offset for one in members[1:]] == [one.next_offset for one in members[:-1]]
    assert {one.path(folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0)) for one in members} == (
        await paths_of(objects)
    )


async def test_few_batches_stay_until_they_are_older_than_redis_keeps_them(one: Front) -> None:
    async with tiering(one, Store()) as tiering_:
        young = await tiered(one, {**TIERED, "local.retention.ms": "3600000"})
        old = await tiered(one, {**TIERED, "local.retention.ms": "1"})
        for partition in (young, old):
            await one.append(partition, batch(3, timestamp=10**15 if partition is young else 1000))
            await tiering_.tend(partition)
        assert (await listed(one, young)).members == ()
        ((member,)) = (await listed(one, old)).members
        assert (member.first_offset, member.next_offset) == (0, 3)


@pytest.mark.parametrize(
    ("memory", "is_moved"),
    [
        (ServerMemory(UNLIMITED, UNLIMITED), False), (ServerMemory(1000, 300), False), (ServerMemory(1000, 200), True),
        (ServerMemory(1000, 0), True),
    ],
)  # fmt: skip
async def test_few_batches_move_while_memory_is_short(one: Front, memory: ServerMemory, is_moved: bool) -> None:
    partition = await tiered(one)
    await one.append(partition, batch(3))
    link = one.store.link(Purpose.COORDINATE, partition.keys.log)
    async with tiering(one, Store()) as tiering_:
        assert link is not None
        tiering_._reserve.by_server[link] = memory
        await tiering_.tend(partition)
        meta = await one.log.meta(partition)
        assert meta is not None
        assert (meta.tier_end, meta.local_start) == ((3, 3) if is_moved else (-1, 0))
        await one.append(partition, batch(3))
        await tiering_.tend(partition)
        assert len((await listed(one, partition)).members) == is_moved


async def test_many_small_segments_are_not_made_while_memory_is_short(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tierer, "SEGMENT_BYTES", 32 << 20)
    monkeypatch.setattr(Tierer, "_is_short", lambda *_: True)
    partition = await tiered(one)
    async with tiering(one, Store()) as tiering_:
        for _ in range(5):
            await one.append(partition, batch(1))
            await tiering_.tend(partition)
        assert len((await listed(one, partition)).members) == 1
        await one.append(partition, batch(1, tierer.LEAST_BYTES))
        await tiering_.tend(partition)
        assert len((await listed(one, partition)).members) == 2


async def test_segments_are_not_listed_again_before_another_one_comes(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, lists = await filled(one), 0
    async with tiering(one, Store()) as tiering_, anyio.create_task_group() as tasks:
        await tiering_.tend(partition)

        async def counted(*args: Any) -> Any:
            nonlocal lists
            lists += 1
            return await manifest(*args)

        monkeypatch.setattr(publishing, "manifest", counted)
        for _ in range(5):
            await one.append(partition, batch(1))
            await tiering_._give_turns([partition.topic], tasks)
        await anyio.wait_all_tasks_blocked()
    assert lists == 0


async def test_snapshot_waits_for_the_footer_of_its_last_segment(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await filled(one, 4)
    series = Series(
        objects := Store(), folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0), Snapshot.decoded
    )
    async with tiering(one, objects) as tiering_:
        work = tiering_._work(partition)
        await tiering_._move(partition, work)

        async def during_the_next_one(*args: Any) -> Any:
            monkeypatch.setattr(publishing, "manifest", manifest)
            await one.append(partition, batch(3, 2000))
            await tiering_._move(partition, work)
            return await manifest(*args)

        monkeypatch.setattr(publishing, "manifest", during_the_next_one)
        await tiering_._settle(partition, work)
        assert await series.newest() is None
        await tiering_._settle(partition, work)
        assert (newest := await series.newest()) is not None
        assert work.footer is not None
        assert (newest[1].tier_end, (await verify(objects, newest[1])).problems) == (work.footer.next_offset, [])


async def test_open_transactions_stay_and_aborted_ones_are_noted(one: Front) -> None:
    partition, coordinator = await tiered(one), Coordinator()
    await append(one, partition, transactional(0, size=800), coordinator)
    await one.append(partition, batch(3, 800))
    ending = Ending(7, 5, 1, is_commit=False)
    assert await one.log.mark(partition, ending) == 0
    stable = 5
    async with tiering(one, Store()) as tiering_:
        await append(one, partition, transactional(1, size=2000), Coordinator(ordinal_=8))
        before = await read_all(one, partition, is_committed=True)
        await tiering_.tend(partition)
        await tiering_.tend(partition)
        meta = await one.log.meta(partition)
        assert meta is not None
        assert meta.tier_end <= meta.stable == stable
        await trim_locally(one, partition)
        one.log.forget()
        assert await read_all(one, partition, is_committed=True) == before


async def test_single_records_become_the_batches_that_readers_get(one: Front) -> None:
    partition = await tiered(one, {**TIERED, "korvet.storage": "record"})
    for number in range(40):
        sent = [Whole(key=b"%d" % number, value=b"v" * (number * 20), headers=(("h", b"x"),)) for _ in range(3)]
        data_of, data = built(*sent)
        entries = arguments(data_of, split(data_of, data, is_json=False))
        assert (await one.log.append(partition, data_of, data, None, entries)).code == 0
    before = read(await read_all(one, partition))
    async with tiering(one, Store()) as tiering_:
        meta = await one.log.meta(partition)
        while meta is not None and meta.tier_end < 100:
            await tiering_.tend(partition)
            meta = await one.log.meta(partition)
        await trim_locally(one, partition)
        one.log.forget()
        sealed = await read_all(one, partition)
        assert read(sealed) == before
        # Whoever begins anywhere gets the same batches now.
        one.log.forget()
        assert (await read_all(one, partition, 50)) in sealed


async def test_oldest_segments_of_a_long_list_are_shelved_and_go_with_their_shelf(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tierer, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(tierer, "_SEGMENTS_OF_A_TURN", 2000)
    partition = await tiered(one)
    for _ in range(1030):
        await one.append(partition, batch(1))
    before = await read_all(one, partition)
    async with tiering(one, objects := Store()) as tiering_:
        await tiering_.tend(partition)
        members = (await listed(one, partition)).members
        assert [members[0].kind, members[0].next_offset, len(members)] == ["shelf", 512, 519]
        await trim_locally(one, partition)
        one.log.forget()
        assert await read_all(one, partition) == before
        await one.log.trim(partition, 1025)
        while (await listed(one, partition)).members[0].next_offset <= 1025:
            await tiering_.tend(partition)
        folder = folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0)
        assert await paths_of(objects) == {each.path(folder) for each in (await listed(one, partition)).members}
        assert await read_all(one, partition, 1025) in before


async def test_small_segments_are_merged_and_their_objects_go_after_the_quarantine(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await filled(one, 12, 400)
    before = await read_all(one, partition)
    async with tiering(one, objects := Store()) as tiering_:
        await tiering_.tend(partition)
        await tiering_.tend(partition)
        small = (await listed(one, partition)).members
        monkeypatch.setattr(tierer, "SEGMENT_BYTES", 200_000)
        monkeypatch.setattr(tierer, "_MERGE_EVERY_S", 0.0)
        for work in tiering_._works.values():
            work.merge_at = 0.0
        await tiering_.tend(partition)
        members = (await listed(one, partition)).members
        assert len(members) == 1 < len(small)
        assert len(await paths_of(objects)) == len(small) + 1
        await trim_locally(one, partition)
        one.log.forget()
        assert await read_all(one, partition) == before
        await _expire_doomed(one)
        await tiering_.sweep()
        # The newest snapshot still has them.
        assert len(await paths_of(objects)) == len(small) + 1
        await tiering_.tend(partition)
        await _expire_doomed(one)
        await tiering_.sweep()
        folder = folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0)
        assert await paths_of(objects) == {members[0].path(folder)}
        # The next segment follows the merged one.
        monkeypatch.setattr(tierer, "SEGMENT_BYTES", 1)
        await one.append(partition, batch(3, LARGE))
        await tiering_.tend(partition)
        first, second = (await listed(one, partition)).members
        where = (
            Stored(tiering_._tier.gets, first.path(folder), first),
            Stored(tiering_._tier.gets, second.path(folder), second),
        )
        footers = [await tiering_._tier.blocks.footer(each) for each in where]
        assert footers[1].chain_before == footers[0].chain != 0


async def test_segment_is_not_listed_after_the_machine_slept(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await filled(one)
    async with tiering(one, objects := Store()) as tiering_:
        put, slept_s = objects.put, 0.0

        async def put_and_sleep(path: str, parts: Sequence[bytes | memoryview]) -> None:
            nonlocal slept_s
            await put(path, parts)
            slept_s += 8 * 86_400 if path.endswith(".segment") else 0

        awake = ownership.clock
        for module in (ownership, tierer):
            monkeypatch.setattr(module, "clock", lambda: awake() + slept_s)
        monkeypatch.setattr(objects, "put", put_and_sleep)
        with pytest.raises(Gone, match="too late"):
            await tiering_.tend(partition)
        assert (await listed(one, partition)).members == ()
        assert not tiering_._ownership.is_sure


async def test_segments_behind_an_unreadable_footer_are_merged_by_themselves(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(*_: Any) -> None:
        return None

    partition = await filled(one, 4, 400)
    async with tiering(one, Store()) as tiering_:
        await tiering_.tend(partition)
        tiering_._works.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Tierer, "_last_footer", unreadable)
            for _ in range(9):
                await one.append(partition, batch(3, 400))
                await tiering_.tend(partition)
        before = await read_all(one, partition)
        monkeypatch.setattr(tierer, "SEGMENT_BYTES", 200_000)
        monkeypatch.setattr(tierer, "_MERGE_EVERY_S", 0.0)
        tiering_._work(partition).merge_at = 0.0
        for _ in range(3):
            await tiering_.tend(partition)
        assert [(one.first_offset, one.next_offset) for one in (await listed(one, partition)).members] == [
            (0, 12), (12, 39),
        ]  # fmt: skip
        await trim_locally(one, partition)
        one.log.forget()
        assert await read_all(one, partition) == before


# ---------------------------------------------------------------------- deaths


class Died(BaseException):
    """The tierer's process was killed."""


class Mortal:
    """Counts the calls that change something outside, and kills the caller before or after one of them."""

    def __init__(self) -> None:
        self.calls = 0
        self.dies_at = -1
        self.is_after = False

    def wrap(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def mortal(*args: Any, **named: Any) -> Any:
            self.calls += 1
            is_due = self.calls == self.dies_at
            if is_due and not self.is_after:
                raise Died
            found = await call(*args, **named)
            if is_due:
                raise Died
            return found

        return mortal


@pytest.fixture
def mortal(one: Front, monkeypatch: pytest.MonkeyPatch) -> Mortal:
    found = Mortal()
    for name in ("add", "shelve", "forget", "trim"):
        monkeypatch.setattr(calls, name, found.wrap(getattr(calls, name)))
    monkeypatch.setattr(removal.Removal, "_doom", found.wrap(removal.Removal._doom))
    monkeypatch.setattr(Objects, "put", found.wrap(Objects.put))
    monkeypatch.setattr(Objects, "delete", found.wrap(Objects.delete))
    return found


@pytest.mark.parametrize("is_after", [False, True])
async def test_tierer_may_die_between_any_two_steps(one: Front, mortal: Mortal, is_after: bool) -> None:
    mortal.is_after = is_after
    objects = Store()
    for step in itertools.count(1):
        partition = await filled(one, 10, 400)
        before = await read_all(one, partition)
        async with tiering(one, objects) as first:
            mortal.calls, mortal.dies_at = 0, step
            has_died = False
            try:
                await first.tend(partition)
                await trim_locally(one, partition)
                await one.log.trim(partition, 6)
                await first.tend(partition)
                await first.tend(partition)
            except Died:
                has_died = True
            mortal.dies_at = -1
        async with tiering(one, objects) as second:
            second._token = first._token
            await second.tend(partition)
            await trim_locally(one, partition)
            one.log.forget()
            start = (await one.log.trim(partition, 6))[1]
            await second.tend(partition)
            await second.tend(partition)
            assert await read_all(one, partition, start) == before[-len(await read_all(one, partition, start)) :]
            assert len(await read_all(one, partition, start)) == sum(
                len(data) for each, data in batches(before) if each.base_offset + each.last_offset_delta >= start
            )
            await _expire_doomed(one)
            await second.sweep()
        folder = folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0)
        there = {path for path in await paths_of(objects) if path.startswith(folder)}
        assert there == {each.path(folder) for each in (await listed(one, partition)).members}
        if not has_died:
            break
    assert step > 10


async def _expire_doomed(one: Front) -> None:
    """Let the quarantine of all doomed objects end."""

    key = NAMESPACE.doomed
    for text in await one.store.call(Purpose.COORDINATE, key, "ZRANGE", key, 0, -1):
        await one.store.call(Purpose.COORDINATE, key, "ZADD", key, 1, text)


# ---------------------------------------------------------------------- rivals


async def test_two_tierers_at_once_list_each_batch_once(one: Front, other: Front) -> None:
    partition = await filled(one, 20, 400)
    before = await read_all(one, partition)
    async with tiering(one, objects := Store()) as first, tiering(other, objects) as second:
        await other.catalog.refresh()
        theirs = other.known(partition)
        # Both believe that they have the lease.
        second._token = first._token

        async def tend(tiering_: Tierer, mine: Partition) -> None:
            for _ in range(10):
                try:
                    await tiering_.tend(mine)
                except Gone:
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tend, first, partition)
            tasks.start_soon(tend, second, theirs)
        await trim_locally(one, partition)
        one.log.forget()
        assert await read_all(one, partition) == before
        await _expire_doomed(one)
        await first.sweep()
        members = (await listed(one, partition)).members
        folder = folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0)
        assert await paths_of(objects) == {each.path(folder) for each in members}


async def test_leased_partition_is_left_to_the_one_who_has_it(one: Front, other: Front) -> None:
    partition = await filled(one)
    async with tiering(one, objects := Store()) as first, tiering(other, objects) as second:
        await other.catalog.refresh()
        assert await first._lease(partition)
        await second.tend(other.known(partition))
        assert (await listed(one, partition)).members == ()


async def test_other_redis_only_reads(one: Front) -> None:
    objects = Store()
    await objects.claim(NAMESPACE.name, "another cluster", "run", None)
    partition = await filled(one)
    async with tiering(one, objects) as tiering_:
        assert not await tiering_.own()
        await tiering_.tend(partition)
        assert await one.catalog.tier() == ""
    assert await paths_of(objects) == set()


async def test_front_end_with_another_tier_neither_writes_nor_reads_there(one: Front, other: Front) -> None:
    """Two machines, each with a directory of the same name on a disk of its own; or a bucket that was emptied."""
    partition = await filled(one)
    async with tiering(one, Store()) as first, tiering(other, wrong := Store()) as second:
        await first.tend(partition)
        await trim_locally(one, partition)
        await other.catalog.refresh()
        assert not await second.own()
        there = other.known(partition)
        want = Want(there, 0, EVERYTHING, is_committed=False)
        with anyio.fail_after(30):
            while (read := (await other.log.read([want], EVERYTHING))[0]).pending is not None:
                await read.pending
        assert read.code == KAFKA_STORAGE_ERROR
        assert other.log.tier is not None
        with pytest.raises(LostTier, match="is another tier"):
            await other.log.tier.offset_for_time(there, await meta_of(other, there), 0)
        assert await other.log.tier.holds(there)
        assert await wrong.names(NAMESPACE.name) == ()
        assert await first.own()


async def test_two_tiers_at_the_first_start_leave_one(one: Front, other: Front) -> None:
    async with tiering(one, Store()) as first, tiering(other, Store()) as second:
        # Without a topic there the later one counts. The former one last looked before it knew of the other.
        assert await one.catalog.tier() == second._ownership._identity != first._ownership._identity
        partition = await filled(one)
        with pytest.raises(OtherTier):
            await first.tend(partition)
        assert not await first.own()
        assert await second.own()


async def test_front_ends_that_start_at_once_have_one_tier(one: Front, other: Front) -> None:
    objects, ids = Store(), []
    async with tiering(one, Store()) as first, tiering(other, Store()) as second:
        for each in (first, second):
            each._ownership._objects, each._ownership._identity = objects, ""
            each._ownership._owner = None
        async with anyio.create_task_group() as tasks:
            for each in (first, second):
                tasks.start_soon(each.own)
        ids = [each._ownership._identity for each in (first, second)]
        assert [await each.own() for each in (first, second)] == [True, True]
    assert ids == [await one.catalog.tier()] * 2 == [await objects.identity(NAMESPACE.name)] * 2


async def test_copied_tier_is_the_same_one_at_another_address(one: Front) -> None:
    partition = await filled(one)
    async with tiering(one, objects := Store()) as tiering_:
        await tiering_.tend(partition)
    copy = Store()
    for path in await objects.names(NAMESPACE.name):
        await copy.put(path, [bytes(await objects.read(path, 0, 1 << 20))])
    async with tiering(one, copy) as tiering_:
        await tiering_.tend(partition)
        assert await read_all(one, partition)
        assert await tiering_.own()


async def test_copy_of_a_running_redis_never_becomes_the_owner(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "WAIT_S", 0.05)
    async with tiering(one, objects := Store()) as owner:
        copied = await objects.owner(NAMESPACE.name)
        assert copied is not None
        # The copy has the same cluster id, and another run.
        monkeypatch.setattr(one.store, "run_id", lambda _: "copy")
        async with tiering(one, objects) as copy:
            assert not await copy.own()
            monkeypatch.undo()
            monkeypatch.setattr(ownership, "WAIT_S", 0.05)
            assert await owner.own()
            await anyio.sleep(0.1)
            monkeypatch.setattr(one.store, "run_id", lambda _: "copy")
            assert not await copy.own()
        monkeypatch.undo()
        assert await owner.own()


async def test_next_run_of_redis_becomes_the_owner_if_the_former_one_is_silent(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "WAIT_S", 0.05)
    objects = Store()
    async with tiering(one, objects):
        pass
    monkeypatch.setattr(one.store, "run_id", lambda _: "next")
    async with tiering(one, objects) as tiering_:
        assert not await tiering_.own()
        await anyio.sleep(0.1)
        assert await tiering_.own()


# ---------------------------------------------------------------------- what goes wrong


async def test_redis_that_went_back_behind_a_snapshot_writes_and_deletes_nothing(one: Front) -> None:
    partition = await filled(one)
    async with tiering(one, objects := Store()) as tiering_:
        await tiering_.tend(partition)
        series = Series(objects, folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0), _decoded)
        newest = await series.newest()
        assert newest is not None
        ahead = newest[1]

        last = ahead.members[-1]
        more = last._replace(first_offset=last.next_offset, next_offset=last.next_offset + 9, name="more")
        await series.add(newest[0], replace(ahead, tier_end=more.next_offset, members=[*ahead.members, more]).encoded())
    there = await paths_of(objects)
    await one.append(partition, batch(3, LARGE))
    async with tiering(one, objects) as later:
        later._token = tiering_._token
        with pytest.raises(WentBack, match="Redis went back to an older state"):
            await later.tend(partition)
    assert await paths_of(objects) == there


def _decoded(data: bytes | memoryview) -> Snapshot:
    return Snapshot.decoded(data)


async def test_lost_history_is_refused_and_its_object_goes_after_the_quarantine(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await filled(one, 3, 600)
    async with tiering(one, objects := Store()) as tiering_:
        real = calls.add

        async def late(log: Any, at: Partition, upload: calls.Upload, token: str) -> calls.Added | None:
            # Redis lost the batches, and others were appended.
            return await real(log, at, upload._replace(first_index=upload.first_index[:-1] + b"0"), token)

        monkeypatch.setattr(calls, "add", late)
        with pytest.raises(Gone, match="was refused"):
            await tiering_.tend(partition)
        assert len(await paths_of(objects)) == 1
        await tiering_.sweep()
        assert len(await paths_of(objects)) == 1
        await _expire_doomed(one)
        await tiering_.sweep()
        assert await paths_of(objects) == set()


async def test_store_that_refuses_leaves_records_in_redis(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await filled(one)
    async with tiering(one, objects := Store()) as tiering_:

        async def refuse(*_: Any) -> None:
            raise TierAway("memory: AccessDenied")

        with monkeypatch.context() as refusing:
            refusing.setattr(objects, "put", refuse)
            with pytest.raises(TierAway, match="AccessDenied"):
                await tiering_.tend(partition)
        assert (await listed(one, partition)).members == ()
        await tiering_.tend(partition)
        assert (await listed(one, partition)).members != ()


@pytest.mark.parametrize("at", [16, 20, 26], ids=["magic", "checksum", "last offset"])
async def test_changed_batch_stays_and_what_comes_before_it_moves(one: Front, at: int) -> None:
    partition = await tiered(one)
    for number in range(2):
        await one.append(partition, batch(3, LARGE + number))
    placed = f"{partition.keys.log}:6"
    data = await one.store.call(Purpose.READ, placed, "GET", placed)
    broken = bytes(data[:at]) + bytes([data[at] ^ 1]) + bytes(data[at + 1 :])
    await one.store.call(Purpose.APPEND, placed, "SET", placed, broken)
    async with tiering(one, Store()) as tiering_:
        with pytest.raises(CorruptEntry):
            await tiering_.tend(partition)
        meta = await one.log.meta(partition)
        assert meta is not None
        assert meta.tier_end == 3


async def test_slow_store_delays_only_the_partition_that_waits_for_it(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = await filled(one), await filled(one)
    monkeypatch.setattr(tierer, "_LOOK_S", 0.01)
    async with tiering(one, objects := Store()) as tiering_, anyio.create_task_group() as tasks:
        real = objects.put

        async def put(path: str, parts: Sequence[Any]) -> None:
            if slow.topic.name in path:
                await anyio.sleep_forever()
            await real(path, parts)

        monkeypatch.setattr(objects, "put", put)
        tiering_._tier.usable.set()
        tasks.start_soon(tiering_.run)
        with anyio.fail_after(20):
            while not (await listed(one, quick)).members:
                await anyio.sleep(0.01)
        assert (await listed(one, slow)).members == ()
        tasks.cancel_scope.cancel()


async def test_line_of_the_log_names_an_object_that_is_long_on_its_way(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await filled(one)
    monkeypatch.setattr(tierer, "_SLOW_PUT_S", 0.0)

    async def put(*_: Any) -> None:
        await anyio.sleep_forever()

    async with tiering(one, objects := Store()) as tiering_, anyio.create_task_group() as tasks:
        monkeypatch.setattr(objects, "put", put)
        with capture_logs() as lines, anyio.fail_after(20):
            tasks.start_soon(tiering_.tend, partition)
            while not (found := [line for line in lines if "object" in line]):
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert found[0]["log_level"] == "warning"
    assert found[0]["object"].startswith(f"memory/{NAMESPACE.name}/{partition.topic.name}/")


# ---------------------------------------------------------------------- removal


async def test_objects_of_a_deleted_topic_go_and_no_others(one: Front) -> None:
    gone, kept = await filled(one), await filled(one)
    async with tiering(one, objects := Store()) as tiering_:
        await tiering_.tend(gone)
        await tiering_.tend(kept)
        foreign = f"{NAMESPACE.name}/foreign/{uuid4().hex}/0/x.segment"
        await objects.put(foreign, [b"x"])
        before = await paths_of(objects)
        await delete_topic(one.catalog, one.log, gone.topic)
        for _ in range(2):
            await tiering_.sweep()
        assert {path for path in before if gone.topic_id not in path} == await paths_of(objects)
        assert foreign in await paths_of(objects)
        assert await one.catalog.deleted() == []


async def test_start_that_rises_all_the_time_puts_no_removal_off(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tierer, "GRACE_S", 1000.0)
    partition = await filled(one, 8, 400)
    async with tiering(one, Store()) as tiering_:
        await tiering_.tend(partition)
        for start, kept_from in ((6, 0), (12, 6), (15, 12)):
            await one.log.trim(partition, start)
            for _ in range(3):
                await tiering_.tend(partition)
            assert (await listed(one, partition)).members[0].first_offset == kept_from
            # The time that readers have goes by.
            tiering_._work(partition).start_since -= 1001.0


async def test_doomed_objects_of_a_deleted_topic_leave_and_those_of_a_lost_one_stay(one: Front) -> None:
    gone, kept = await filled(one), await filled(one)
    async with tiering(one, objects := Store()) as tiering_:
        late, lost = (f"{NAMESPACE.name}/{name}/{uuid4().hex}/0/x.segment" for name in ("late", "lost"))
        await tiering_._removal.doom(gone, [late])
        await delete_topic(one.catalog, one.log, gone.topic)
        await tiering_.sweep()
        # Its upload was still under way.
        await objects.put(late, [b"x"])
        await objects.put(lost, [b"x"])
        lost_id = uuid4().hex
        series = Series(objects, topics_folder(NAMESPACE.name), Topics.decoded)
        number, topics = await series.newest() or (0, None)
        assert topics is not None
        there = replace(topics, topics=[*topics.topics, TieredTopic("lost", lost_id, 1, {})])
        assert await series.add(number, there.encoded()) is not None
        await tiering_._removal._doom([f"{lost_id} 0 {lost}"], 0)
        await _expire_doomed(one)
        # The catalog changes, so the snapshot of topics is looked at.
        await filled(one, 1)
        await tiering_.sweep()
        assert await paths_of(objects) == {lost}
        key = NAMESPACE.doomed
        assert await one.store.call(Purpose.COORDINATE, key, "ZRANGE", key, 0, -1) == [f"{lost_id} 0 {lost}".encode()]
    assert kept.topic in one.catalog.topics()


async def test_nothing_is_deleted_once_the_owner_is_not_certain(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await filled(one)
    async with tiering(one, objects := Store()) as tiering_:
        await tiering_.tend(partition)
        before = await paths_of(objects)
        await delete_topic(one.catalog, one.log, partition.topic)
        monkeypatch.setattr(tiering_._ownership, "_sure_until", 0.0)
        await tiering_.sweep()
    assert await paths_of(objects) == before


# ---------------------------------------------------------------------- stale listings


class Stale(Store):
    """A store whose listings lack some objects."""

    def __init__(self) -> None:
        super().__init__()
        self.unlisted: Callable[[str], bool] = lambda _: False

    async def names(self, folder: str) -> Sequence[str]:
        return [path for path in await super().names(folder) if not self.unlisted(path)]


async def test_objects_that_a_listing_lacks_go_by_the_next_one(one: Front) -> None:
    partition = await filled(one)
    async with tiering(one, objects := Stale()) as tiering_:
        await tiering_.tend(partition)
        await delete_topic(one.catalog, one.log, partition.topic)
        objects.unlisted = lambda path: path.endswith(".segment")
        await tiering_.sweep()
        objects.unlisted = lambda _: False
        assert await paths_of(objects) != set()
        for _ in range(2):
            await tiering_.sweep()
        assert await paths_of(objects) == set()
        assert await one.catalog.deleted() == []


async def test_partition_that_a_listing_lacks_never_begins_at_0_again(one: Front) -> None:
    partition = await filled(one)
    keys = partition.transaction_keys
    async with tiering(one, objects := Stale()) as tiering_:
        await tiering_.tend(partition)
        objects.unlisted = lambda _: True
        await one.store.call(Purpose.APPEND, keys.log, "DEL", *keys, *one.log.tier_keys(partition))
        with pytest.raises(LostTier, match="run korvet tier recover"):
            await one.append(partition, batch())
