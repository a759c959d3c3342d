"""The tierer writes and deletes once, whoever dies, comes twice, or has an old listing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
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
from korvet.store.log.memory.room import Want
from korvet.store.log.state.partition import Partition
from korvet.store.memory import Reserve
from korvet.store.topics import delete_topic
from korvet.tier import ownership, publishing, removal, tier, tierer
from korvet.tier.building import Gone
from korvet.tier.manifest import Manifest, folder_of, object_path
from korvet.tier.objects import Objects, OtherTier
from korvet.tier.publishing import Published, manifest
from korvet.tier.segment import batches
from korvet.tier.series import Series
from korvet.tier.snapshot import DamagedSnapshot, TieredTopic, Topics, topics_folder
from korvet.tier.tierer import Tierer
from tests.store.logs import EVERYTHING, NAMESPACE, Front, batch
from tests.store.tierers import expire_doomed, filled, listed, meta_of, paths_of, read_all, tiering, trim_locally
from tests.store.tierers import small as small
from tests.tier.test_blocks import Store

pytestmark = pytest.mark.anyio


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
            await expire_doomed(one)
            await second.sweep()
        folder = folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0)
        there = {path for path in await paths_of(objects) if path.startswith(folder)}
        assert there == {each.path(folder) for each in (await listed(one, partition)).members}
        if not has_died:
            break
    assert step > 10


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
        await expire_doomed(one)
        await first.sweep()
        members = (await listed(one, partition)).members
        folder = folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0)
        assert await paths_of(objects) == {each.path(folder) for each in members}


async def test_tierers_of_a_process_hold_few_segments_in_memory_at_once(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each namespace has one, and thousands may be open."""
    monkeypatch.setattr(tier, "MOST_SEALED", 1)
    first, second = await filled(one), await filled(one)
    await other.catalog.refresh()
    async with tiering(one, objects := Store()) as mine:
        theirs = Tierer(mine._tier, NAMESPACE, other.catalog, other.log, Activity(), Reserve(other.store))
        await theirs.own()
        running, put = Counter[str](), objects.put

        async def counted(path: str, parts: Sequence[bytes | memoryview]) -> None:
            running["now"] += 1
            running["most"] = max(running["most"], running["now"])
            await anyio.sleep(0.05)
            await put(path, parts)
            running["now"] -= 1

        monkeypatch.setattr(objects, "put", counted)
        async with anyio.create_task_group() as tasks:
            for each, partition in (mine, first), (theirs, other.known(second)):
                tasks.start_soon(each._turn, partition, each._work(partition))
        assert [bool((await listed(one, each)).members) for each in (first, second)] == [True, True]
        assert running["most"] == 1


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


async def test_copy_of_a_running_redis_asks_less_and_less_often(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, now_s, run_id = Store(), 0.0, "first"
    monkeypatch.setattr(ownership, "clock", lambda: now_s)
    monkeypatch.setattr(one.store, "run_id", lambda _: run_id)
    first, copy = (ownership.Ownership(objects, NAMESPACE, one.catalog, one.store) for _ in range(2))
    for number in range(200):
        now_s, run_id = 10.0 * number, "first"
        await first.look()
        assert first.is_sure
        run_id = "copy"
        with pytest.raises(ownership.Succeeding):
            await copy.look()
    owner = await objects.owner(NAMESPACE.name)
    assert owner is not None
    assert (owner.incarnation, owner.generation < 15) == ("first", True)
    # The first one is gone.
    now_s += ownership.WAIT_S * 15
    for _ in range(2):
        with suppress(ownership.Succeeding):
            await copy.look()
        now_s += ownership.WAIT_S
    await copy.look()
    assert copy.is_sure


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


async def test_visits_after_a_restart_of_redis_make_it_the_owner(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "WAIT_S", 0.0)
    partition = await filled(one)
    async with tiering(one, objects := Store()) as former:
        await former.tend(partition)
        await delete_topic(one.catalog, one.log, partition.topic)
        former._tier.usable.set()
        monkeypatch.setattr(one.store, "run_id", lambda _: "next")

        async def visit() -> None:
            await Tierer(former._tier, NAMESPACE, one.catalog, one.log, Activity(), former._reserve).visit()

        # The former one may have only visits of its own to answer by.
        for _ in range(3):
            await visit()
        assert await one.catalog.deleted()
        monkeypatch.setattr(tierer, "SILENT_S", 0.05)
        with anyio.fail_after(10):
            while await one.catalog.deleted():
                await visit()
                await anyio.sleep(0.05)
        assert await paths_of(objects) == set()


# ---------------------------------------------------------------------- removal


async def test_removal_and_publishing_go_on_after_damaged_keys(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    async def damaged(_: removal.Removal) -> bool:
        raise ValueError

    gone, meta = await filled(one), NAMESPACE.catalog.meta
    async with tiering(one, objects := Store()) as tiering_, anyio.create_task_group() as tasks:
        await tiering_.tend(gone)
        await one.store.call(
            Purpose.COORDINATE, meta, "HSET", meta, "deleted:damaged", "x", f"deleted:{uuid4().hex}", "x"
        )
        await delete_topic(one.catalog, one.log, gone.topic)
        with capture_logs() as lines:
            await tiering_._topics.publish()
        assert ["deleted:" in line["reason"] for line in lines] == [True] * 2
        tiering_._tier.usable.set()
        with capture_logs() as lines, monkeypatch.context() as patched:
            patched.setattr(removal.Removal, "is_due", damaged)
            await tiering_.visit()
        assert [(one["log_level"], one["exc_info"]) for one in lines] == [("error", True)]
        monkeypatch.setattr(tierer, "GRACE_S", 0.02)
        tasks.start_soon(tiering_._keep_removing)
        with anyio.fail_after(10):
            while await one.catalog.deleted():
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
        assert await paths_of(objects) == set()


async def test_what_keeps_topics_from_being_published_is_logged_and_ends_nothing(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [DamagedSnapshot("it was changed"), ValueError()]

    async def fail(_: publishing.PublishedTopics) -> None:
        raise failures[0] if len(failures) == 1 else failures.pop(0)

    monkeypatch.setattr(publishing.PublishedTopics, "publish", fail)
    monkeypatch.setattr(tierer, "_LOOK_S", 0.01)
    partition = await filled(one)
    async with tiering(one, Store()) as tiering_, anyio.create_task_group() as tasks:
        tiering_._tier.usable.set()
        with capture_logs() as lines, anyio.fail_after(20):
            tasks.start_soon(tiering_.run)
            while len(lines) < 2 or not (await listed(one, partition)).members:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert [(line["log_level"], line.get("reason")) for line in lines][:2] == [
        ("warning", "it was changed"), ("error", None),
    ]  # fmt: skip


async def test_visit_ends_although_the_store_is_slow(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tierer, "VISIT_S", 0.2)
    partition = await filled(one)
    async with tiering(one, objects := Store()) as tiering_:
        await tiering_.tend(partition)
        await delete_topic(one.catalog, one.log, partition.topic)
        tiering_._tier.usable.set()
        monkeypatch.setattr(objects, "delete", lambda _: anyio.sleep_forever())
        with anyio.fail_after(10):
            await tiering_.visit()
        assert await one.catalog.deleted()


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


async def test_objects_of_a_deleted_topic_wait_until_no_recovery_would_restore_it(one: Front) -> None:
    partition = await filled(one)
    async with tiering(one, objects := Store()) as tiering_:
        await tiering_.tend(partition)
        await tiering_._topics.publish()
        series = Series(objects, topics_folder(NAMESPACE.name), Topics.decoded)
        number, topics = await series.newest() or (0, None)
        assert topics is not None
        # Redis lost a later change of the catalog.
        later = replace(topics, version=topics.version + 3)
        assert await series.add(number, later.encoded()) is not None
        before = await paths_of(objects)
        await delete_topic(one.catalog, one.log, partition.topic)
        for _ in range(2):
            await tiering_.sweep()
        assert await paths_of(objects) == before
        await filled(one, 1)
        for _ in range(2):
            await tiering_.sweep()
        assert (await paths_of(objects), await one.catalog.deleted()) == (set(), [])


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
        await expire_doomed(one)
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


async def test_doomed_objects_of_a_partition_go_in_one_sweep_with_few_reads(one: Front) -> None:
    partition = await filled(one)
    async with tiering(one, objects := Store()) as tiering_:
        await tiering_.tend(partition)
        kept = await paths_of(objects)
        folder = folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0)
        doomed = [object_path(folder, "segment", at, f"x{at}") for at in range(150)]
        for path in doomed:
            await objects.put(path, [b"x"])
        await tiering_._removal.doom(partition, doomed)
        await expire_doomed(one)
        objects.reads.clear()
        await tiering_.sweep()
        assert await paths_of(objects) == kept
        assert len(objects.reads) < 50


async def test_slow_sweep_sees_what_is_listed_meanwhile(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition, now_s = await filled(one, 8, 400), 0.0
    monkeypatch.setattr(removal, "clock", lambda: now_s)
    async with tiering(one, objects := Store()) as tiering_:
        await tiering_.tend(partition)
        whole = await manifest(one.log, partition)
        assert whole is not None
        folder = folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0)
        late = whole[1].members[0].path(folder)
        doomed = [object_path(folder, "segment", 0, "0"), late]
        await objects.put(doomed[0], [b"x"])
        await tiering_._removal.doom(partition, doomed)
        await expire_doomed(one)
        is_listed, delete = False, objects.delete

        async def listed_late(log: Any, of: Partition) -> Any:
            return whole if is_listed else (whole[0], Manifest(()))

        async def unpublished(*_: object) -> None:
            """No snapshot has the object yet."""

        async def slow(path: str) -> None:
            nonlocal is_listed, now_s
            await delete(path)
            is_listed, now_s = True, now_s + 60

        monkeypatch.setattr(removal, "manifest", listed_late)
        monkeypatch.setattr(Published, "check", unpublished)
        monkeypatch.setattr(objects, "delete", slow)
        await tiering_.sweep()
        assert doomed[0] not in await paths_of(objects)
        assert late in await paths_of(objects)


@pytest.mark.parametrize("is_visit", [False, True])
async def test_doomed_objects_wait_for_an_hour_after_the_clock_of_redis_jumped_ahead(
    one: Front, monkeypatch: pytest.MonkeyPatch, is_visit: bool
) -> None:
    """Those that are being put would be due, too."""
    monkeypatch.setattr(removal, "LISTED_WITHIN_S", 3600.0)
    monkeypatch.setattr(removal, "GRACE_S", 60.0)
    partition, now_s, jumped_s = await filled(one), 0.0, 8 * 86_400
    monkeypatch.setattr(removal, "clock", lambda: now_s)
    async with tiering(one, objects := Store()) as tiering_:
        for at, redis_s, is_there in (
            (0, 0, False), (30, jumped_s, True), (3620, jumped_s + 3590, True), (3640, jumped_s + 3610, False),
        ):  # fmt: skip
            path = folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, 0) + "/5-x.segment"
            await objects.put(path, [b"x"])
            await tiering_._removal.doom(partition, [path])
            await expire_doomed(one)
            now_s = at
            if is_visit:
                tiering_ = Tierer(tiering_._tier, NAMESPACE, one.catalog, one.log, Activity(), tiering_._reserve)
                await tiering_.own()
            tiering_._removal.note_time(redis_s * 1000)
            await tiering_._removal.sweep(redis_s * 1000)
            assert (path in await paths_of(objects)) == is_there


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
