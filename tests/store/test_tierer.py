"""The tierer moves sealed batches into segments, and what goes wrong with them stays in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from korvet.errors import KorvetError
from korvet.redis.client import Purpose
from korvet.store.log import tier as calls
from korvet.store.log.appending.markers import Ending
from korvet.store.log.state.entries import CorruptEntry
from korvet.store.log.state.partition import Partition
from korvet.store.memory import UNLIMITED, ServerMemory
from korvet.tier import ownership, publishing, tierer
from korvet.tier.blocks import Stored
from korvet.tier.building import Gone
from korvet.tier.manifest import folder_of
from korvet.tier.objects import TierAway
from korvet.tier.publishing import WentBack, manifest
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot
from korvet.tier.survey import verify
from korvet.tier.tierer import Tierer
from korvet.wire.record_entries import arguments, split
from tests.store.logs import LARGE, NAMESPACE, Front, batch
from tests.store.test_log_transactions import Coordinator, append, transactional
from tests.store.tierers import TIERED, expire_doomed, filled, listed, paths_of, read_all, tiered, tiering, trim_locally
from tests.store.tierers import small as small
from tests.tier.test_blocks import Store
from tests.wire.whole import Whole, built, read

pytestmark = pytest.mark.anyio


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


async def test_list_that_is_full_of_shelves_is_named(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await filled(one)

    async def full(*_: Any) -> calls.Added:
        return calls.Added("full", 0, 1024)

    monkeypatch.setattr(calls, "add", full)
    async with tiering(one, Store()) as tiering_:
        with pytest.raises(KorvetError, match="list of segments is full") as refused:
            await tiering_.tend(partition)
        assert not isinstance(refused.value, Gone)


async def test_small_segments_are_merged_and_their_objects_go_after_the_quarantine(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However little Redis keeps.
    monkeypatch.setattr(tierer, "LEAST_BYTES", 1)
    partition = await filled(one, 12, 400, TIERED | {"local.retention.bytes": "1000"})
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
        await expire_doomed(one)
        await tiering_.sweep()
        # The newest snapshot still has them.
        assert len(await paths_of(objects)) == len(small) + 1
        await tiering_.tend(partition)
        await expire_doomed(one)
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
        await expire_doomed(one)
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


async def test_segments_that_are_refused_again_and_again_are_sent_seldom_and_named(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def conflict(*_: Any) -> calls.Added:
        return calls.Added("conflict", 7, 1)

    partition = await filled(one)
    monkeypatch.setattr(calls, "add", conflict)
    async with tiering(one, Store()) as tiering_:
        work = tiering_._work(partition)
        with capture_logs() as lines:
            for _ in range(5):
                began = anyio.current_time()
                await tiering_._turn(partition, work)
    assert work.look_at >= began + 16
    assert [f"{line['reason']}"[-50:] for line in lines] == ["Added(status='conflict', next_first=7, segments=1)"]


async def test_segments_that_arrive_too_late_are_made_smaller(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tierer, "SEGMENT_BYTES", 200_000)
    monkeypatch.setattr(tierer, "LEAST_BYTES", 1)
    monkeypatch.setattr(tierer, "_PUT_WITHIN_S", 0.05)
    partition = await filled(one)
    async with tiering(one, objects := Store()) as tiering_:
        real, tried = objects.put, []

        async def put(path: str, parts: Sequence[Any]) -> None:
            if path.endswith(".segment"):
                tried.append(sum(map(len, parts)))
                if tried[-1] > 130_000:
                    await anyio.sleep_forever()
            await real(path, parts)

        monkeypatch.setattr(objects, "put", put)
        for _ in range(4):
            await tiering_._turn(partition, tiering_._work(partition))
        assert (await listed(one, partition)).members
        assert tried[0] > 130_000 >= tried[-1]


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
