"""Recovery of a namespace from its objects, and their check, over a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import pytest

from korvet.redis.client import Purpose, Store
from korvet.redis.topology import slot_of
from korvet.store.catalog.settings import ConfigChange
from korvet.store.keys import Namespace
from korvet.store.library import open_store
from korvet.store.log.state.partition import Meta, Partition
from korvet.store.topics import delete_topic
from korvet.tier.adoption import adopted
from korvet.tier.objects import Directory, OtherTier
from korvet.tier.publishing import PublishedTopics
from korvet.tier.recovery import Done, Recovery
from korvet.tier.segment import Footer, Writer, read_footer
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot
from korvet.tier.survey import newest_topics, survey, verify, verify_newest
from korvet.tier.tier import Tier
from tests.store.logs import NAMESPACE, Front, batch, front
from tests.store.published import publish, tiered
from tests.store.sealed import seal
from tests.support.redis import Server
from tests.support.topologies import Cluster, running_cluster
from tests.tier.segments import batch as segment_batch

pytestmark = pytest.mark.anyio


@pytest.fixture
def objects(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "tier")


async def recover(server: Server | Cluster, objects: Directory, *, only_looks: bool = False) -> list[Done]:
    """As ``korvet tier recover``."""
    found = await survey(objects, NAMESPACE.name)
    async with open_store(server.url) as store:
        recovery = Recovery(store, NAMESPACE, found, objects, only_looks=only_looks)
        await recovery.open()
        return list(await recovery.run())


def empty(server: Server) -> None:
    with server.client() as client:
        client.flushall()


def dump(server: Server) -> dict[bytes, bytes]:
    with server.client() as client:
        return {key: client.dump(key) for key in client.keys("*")}


def go_back(server: Server, saved: dict[bytes, bytes]) -> None:
    """Let the server have what `dump` returned."""
    empty(server)
    with server.client() as client:
        for key, value in saved.items():
            client.restore(key, 0, value)


def statuses(done: list[Done]) -> list[tuple[int | None, str]]:
    return [(one.partition, one.status) for one in done]


async def test_emptied_redis_gets_topic_ids_settings_and_offsets_back(server: Server, objects: Directory) -> None:
    async with front(server.url) as one:
        first, second, third = await tiered(one, 3)
        await seal(one, objects, first, [0, 6, 12], local_start=3)
        await seal(one, objects, second, [0, 9])
        await one.log.trim(second, 4)
        await publish(one, objects, first, second)
        cluster_id = one.catalog.cluster_id
    empty(server)
    before = dump(server)
    looked = await recover(server, objects, only_looks=True)
    assert statuses(looked) == [(0, "create"), (1, "create"), (None, "enter")]
    assert dump(server) == before
    assert statuses(await recover(server, objects)) == statuses(looked)
    async with front(server.url) as one:
        assert one.catalog.cluster_id == cluster_id
        topic = one.catalog.topic("orders")
        assert topic is not None
        assert (topic.id, topic.partitions) == (first.topic.id, 3)
        assert dict(topic.configs) == {"remote.storage.enable": "true", "retention.ms": "-1"}
        metas = [await one.log.meta(one.log.partition(topic, number)) for number in range(3)]
        assert [(m.start, m.local_start, m.end, m.tier_end) for m in metas if m] == [
            (0, 12, 12, 12), (4, 9, 9, 9), (0, 0, 0, -1),
        ]  # fmt: skip
        assert [m.epoch > 0 for m in metas if m] == [True, True, False]
        assert await one.append(one.log.partition(topic, 0), batch(3)) == (0, 12)
        assert third.topic.id == topic.id
    again = dump(server)
    assert statuses(await recover(server, objects)) == [(0, "whole"), (1, "whole")]
    assert {key for key, value in dump(server).items() if again.get(key) != value} == {
        key for key in again if key.endswith(b"@catalog}:meta")
    }


@pytest.mark.all
async def test_each_emptied_server_of_a_cluster_gets_its_partitions_back(objects: Directory) -> None:
    with running_cluster() as cluster:
        async with front(cluster.url) as one:
            partitions = await tiered(one, 9)
            for partition in partitions:
                await seal(one, objects, partition, [0, 6, 12])
                await one.append(partition, batch(3))
            await publish(one, objects, *partitions)
        emptied = [len(_of(partitions, cluster, node)) for node in cluster.nodes]
        assert 0 not in emptied
        ends = {one.index: 18 for one in partitions}
        for nodes in (*([node] for node in cluster.nodes), cluster.nodes):
            gone = {one.index for node in nodes for one in _of(partitions, cluster, node)}
            for node in nodes:
                empty(node)
            done = {one.partition: one.status for one in await recover(cluster, objects)}
            assert {number for number, status in done.items() if status == "create"} == gone
            assert {number for number, status in done.items() if status == "whole"} == ends.keys() - gone
            ends |= dict.fromkeys(gone, 12)
            async with front(cluster.url) as one:
                topic = one.catalog.topic("orders")
                assert topic is not None
                assert topic.id == partitions[0].topic.id
                metas = await one.log.metas([one.log.partition(topic, number) for number in range(9)])
                assert {number: meta.end for number, meta in enumerate(metas) if isinstance(meta, Meta)} == ends
                await publish(one, objects, *(one.log.partition(topic, number) for number in range(9)))
        for snapshot in (await survey(objects, NAMESPACE.name)).partitions.values():
            assert (await verify_newest(objects, snapshot)).problems == []


def _of(partitions: Sequence[Partition], cluster: Cluster, node: Server) -> list[Partition]:
    """The partitions whose keys a node has."""
    return [one for one in partitions if cluster.owner(slot_of(one.keys.log)) is node]


async def test_redis_with_topics_in_another_tier_is_not_recovered_from_this_one(
    server: Server, objects: Directory
) -> None:
    async with front(server.url) as one:
        (partition,) = await tiered(one)
        await seal(one, objects, partition, [0, 6])
        await publish(one, objects, partition)
        await one.catalog.name_tier("", "other")
    found = await survey(objects, NAMESPACE.name)
    async with open_store(server.url) as store:
        recovery = Recovery(store, NAMESPACE, found, objects, only_looks=False)
        await recovery.open()
        assert "is another tier than the one that holds" in (await recovery.hindrance() or "")
        with pytest.raises(OtherTier):
            await recovery.own(takes_over=False)
        assert await objects.identity(NAMESPACE.name) == ""
        # The operator says that it is the same one, and lost its owners.
        await recovery.own(takes_over=True)
        assert await objects.identity(NAMESPACE.name) == "other"
        assert await objects.identity("another namespace") == ""
        assert await recovery.hindrance() is None


async def test_redis_that_went_back_loses_no_tiered_record_and_no_deletion(server: Server, objects: Directory) -> None:
    async with front(server.url) as one:
        (kept,) = await tiered(one)
        (doomed,) = await tiered(one, name="doomed")
        await seal(one, objects, kept, [0, 6])
        await seal(one, objects, doomed, [0, 6])
        saved = dump(server)
        for _ in range(3):
            await one.append(kept, batch(3))
        await seal(one, objects, kept, [6, 24])
        await one.log.trim(kept, 7)
        await one.catalog.configure(kept.topic, ConfigChange(set={"retention.ms": "5"}))
        await delete_topic(one.catalog, one.log, doomed.topic)
        topic = one.catalog.topic("orders")
        assert topic is not None
        await publish(one, objects, one.log.partition(topic, 0))
    go_back(server, saved)
    done = await recover(server, objects)
    assert statuses(done) == [(0, "move"), (None, "update"), (None, "delete")]
    async with front(server.url) as one:
        topic = one.catalog.topic("orders")
        assert topic is not None
        assert topic.configs["retention.ms"] == "5"
        assert one.catalog.topic("doomed") is None
        meta = await one.log.meta(one.log.partition(topic, 0))
        assert meta is not None
        assert (meta.start, meta.local_start, meta.end) == (7, 24, 24)


async def test_topic_that_is_made_after_a_recovery_is_published_and_outlives_the_next_one(
    server: Server, objects: Directory
) -> None:
    async with front(server.url) as one:
        (partition,) = await tiered(one)
        await seal(one, objects, partition, [0, 6])
        saved = dump(server)
        for number in range(9):
            await one.catalog.configure(partition.topic, ConfigChange(set={"retention.ms": f"{number}"}))
        await publish(one, objects, partition)
    go_back(server, saved)
    assert statuses(await recover(server, objects)) == [(0, "whole"), (None, "update")]
    async with front(server.url) as one:
        await tiered(one, name="new")
        assert await _published(one, objects) == {"orders", "new"}
    assert statuses(await recover(server, objects)) == [(0, "whole")]
    async with front(server.url) as one:
        assert {topic.name for topic in one.catalog.topics()} == {"orders", "new"}


async def test_topic_that_was_deleted_since_the_last_snapshot_stays_deleted(server: Server, objects: Directory) -> None:
    async with front(server.url) as one:
        (partition,) = await tiered(one)
        await seal(one, objects, partition, [0, 6])
        await publish(one, objects, partition)
        await delete_topic(one.catalog, one.log, partition.topic)
    assert await recover(server, objects) == []
    async with front(server.url) as one:
        assert list(one.catalog.topics()) == []


async def test_name_that_another_topic_has_by_now_is_left_to_the_operator(server: Server, objects: Directory) -> None:
    async with front(server.url) as one:
        (partition,) = await tiered(one)
        await seal(one, objects, partition, [0, 6])
        await publish(one, objects, partition)
    empty(server)
    async with front(server.url) as one:
        await tiered(one)
        before = dump(server)
    (done,) = await recover(server, objects)
    assert (done.status, done.is_refused) == ("taken", True)
    changed = {key for key, value in dump(server).items() if before.get(key) != value}
    assert all(b"@catalog" in key for key in changed)


async def test_recovery_that_ends_after_any_call_is_finished_by_the_next(server: Server, objects: Directory) -> None:
    async with front(server.url) as one:
        parts = await tiered(one, 2)
        for partition in parts:
            await seal(one, objects, partition, [0, 6])
        await publish(one, objects, *parts)
    for calls_before_the_end in range(40):
        empty(server)
        found = await survey(objects, NAMESPACE.name)
        async with open_store(server.url) as store:
            recovery = Recovery(store, NAMESPACE, found, objects, only_looks=False)
            with _ending(store, calls_before_the_end) as ended:
                try:
                    await recovery.open()
                    await recovery.run()
                except ConnectionAbortedError:
                    ended.append(True)
        await recover(server, objects)
        async with front(server.url) as one:
            topic = one.catalog.topic("orders")
            assert topic is not None
            metas = [await one.log.meta(one.log.partition(topic, number)) for number in range(2)]
            assert [(m.start, m.end, m.tier_end) for m in metas if m] == [(0, 6, 6)] * 2
        if not ended:
            return
    pytest.fail("a recovery has more calls than that")


class _ending:
    """Calls of a front-end's store fail after a number of them."""

    def __init__(self, store: Store, count: int) -> None:
        self._store, self._left = store, count
        self._call: Callable[..., Any] = store.call_function

    def __enter__(self) -> list[bool]:
        def call(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise ConnectionAbortedError
            return self._call(*args, **named)

        self._store.call_function = call  # type: ignore[method-assign]
        return []

    def __exit__(self, *_: object) -> None:
        self._store.call_function = self._call  # type: ignore[method-assign]


async def test_producer_ids_go_on_above_those_in_the_tier(server: Server, objects: Directory) -> None:
    async with front(server.url) as one:
        (partition,) = await tiered(one)
        await seal(one, objects, partition, [0, 6])
        await publish(one, objects, partition)
        found = await survey(objects, NAMESPACE.name)
        ((key, snapshot),) = found.partitions.items()
        largest = 1 << 52
        changed = {name: getattr(snapshot, name) for name in Snapshot.__slots__} | {"max_producer_id": largest}
        found.partitions = {key: Snapshot(**changed)}
        await Recovery(one.store, NAMESPACE, found, objects, only_looks=False).run()
        catalog = Namespace(NAMESPACE.name).catalog
        _, producer_id = await one.store.call_function(Purpose.COORDINATE, "korvet_producer_id", catalog)
        assert producer_id == largest + 2


async def _publish_less(objects: Directory, count: int) -> Snapshot:
    """A newer snapshot with the first segments only, as if Redis had been lost before the next one."""
    whole = (await survey(objects, NAMESPACE.name)).partitions["orders", 0]
    last = whole.members[count - 1]
    end = await objects.read(last.path(whole.folder), last.size_bytes, last.object_bytes)
    chain = read_footer(bytes(end)).chain
    less = replace(whole, members=whole.members[:count], tier_end=last.next_offset, chain=chain)
    assert await Series(objects, whole.folder, Snapshot.decoded).add(1, less.encoded()) == 2
    return less


async def test_segments_that_no_snapshot_lists_are_adopted_if_they_follow(
    server: Server, objects: Directory, tmp_path: Path
) -> None:
    async with front(server.url) as one:
        (partition,) = await tiered(one)
        paths = await seal(one, objects, partition, [0, 6, 9, 15])
        await publish(one, objects, partition)
    less = await _publish_less(objects, 1)
    found = await adopted(objects, less)
    assert (found.tier_end, len(found.members)) == (15, 3)
    assert (await verify(objects, found)).problems == []
    assert found.members == (await adopted(objects, less)).members
    # A later leader epoch began within it, so it is of a history that was lost before.
    assert (await adopted(objects, replace(less, epochs="0:0,5:12"))).tier_end == 9
    assert (await adopted(objects, replace(less, chain=less.chain + 1))).tier_end == 6
    empty(server)
    (done, _) = await recover(server, objects)
    assert done.text == "offsets 0 to 15 are in the tier; the log goes on at 15"
    assert [one.status for one in await recover(server, objects)] == ["whole"]
    whole = tmp_path / "tier" / paths[2]
    whole.write_bytes(whole.read_bytes()[:5] + b"x" + whole.read_bytes()[6:])
    assert (await adopted(objects, less)).tier_end == 9
    (tmp_path / "tier" / paths[1]).write_bytes(b"")
    assert await adopted(objects, less) == less


async def test_longer_segment_of_the_latest_history_is_adopted(server: Server, objects: Directory) -> None:
    async with front(server.url) as one:
        (partition,) = await tiered(one)
        await seal(one, objects, partition, [0, 6, 9])
        await publish(one, objects, partition)
    less = await _publish_less(objects, 1)
    writers = [_follower(less, 9, epoch=0), _follower(less, 12, epoch=3), _follower(less, 15, epoch=3)]
    for number, (parts, _) in enumerate(writers):
        await objects.put(f"{less.folder}/{6:020d}-other{number}.segment", parts)
    await objects.put(f"{less.folder}/{6:020d}-other.shelf", [b"x"])
    found = await adopted(objects, less)
    assert (found.tier_end, found.leader_epoch, found.epochs) == (15, 3, "0:0,3:6")
    assert found.members[-1].name == "other2"
    empty(server)
    await recover(server, objects)
    async with front(server.url) as one:
        catalog = Namespace(NAMESPACE.name).catalog
        _, producer_id = await one.store.call_function(Purpose.COORDINATE, "korvet_producer_id", catalog)
        assert producer_id > _PRODUCER


_PRODUCER = 1 << 52
"""Larger than the microseconds since 1970."""


def _follower(after: Snapshot, end: int, *, epoch: int) -> tuple[list[bytes | memoryview], Footer]:
    """A segment from a snapshot's end on."""
    writer = Writer(UUID(hex=after.topic_id), after.partition, after.tier_end, chain=after.chain)
    for offset in range(after.tier_end, end, 3):
        writer.add([segment_batch(offset, 3, 50, epoch=epoch, producer=_PRODUCER)], 0)
    return writer.finish([])


async def _published(one: Front, objects: Directory) -> set[str]:
    """The names of topics that a tierer publishes."""
    async with anyio.create_task_group() as tasks:
        await PublishedTopics(Tier(objects, tasks), NAMESPACE, one.catalog).publish()
        tasks.cancel_scope.cancel()
    return {topic.name for topic in (await newest_topics(objects, NAMESPACE.name)).topics}


async def test_topic_that_redis_lost_stays_published_and_a_deleted_one_does_not(
    server: Server, objects: Directory
) -> None:
    async with front(server.url) as one:
        await tiered(one)
        (doomed,) = await tiered(one, name="doomed")
        assert await _published(one, objects) == {"orders", "doomed"}
        await delete_topic(one.catalog, one.log, doomed.topic)
        assert await _published(one, objects) == {"orders"}
        with server.client() as client:
            client.flushall()
        await one.catalog.refresh()
        await tiered(one, name="new")
        assert await _published(one, objects) == {"orders", "new"}
        await tiered(one)
        found = await newest_topics(objects, NAMESPACE.name)
        assert await _published(one, objects) == {"orders", "new"}
        assert (await newest_topics(objects, NAMESPACE.name)).named("orders") == found.named("orders")


async def test_catalog_that_went_back_publishes_nothing(server: Server, objects: Directory) -> None:
    async with front(server.url) as one:
        await tiered(one)
        saved = dump(server)
        await tiered(one, name="later")
        await _published(one, objects)
    go_back(server, saved)
    async with front(server.url) as one:
        assert await _published(one, objects) == {"orders", "later"}
        assert (await newest_topics(objects, NAMESPACE.name)).version > one.catalog.version


async def test_verify_reads_all_and_names_what_is_damaged(server: Server, objects: Directory, tmp_path: Path) -> None:
    async with front(server.url) as one:
        (partition,) = await tiered(one)
        paths = await seal(one, objects, partition, [0, 6, 12, 15])
        await publish(one, objects, partition)
    snapshot = (await survey(objects, NAMESPACE.name)).partitions["orders", 0]
    found = await verify(objects, snapshot)
    assert (found.segments, found.problems) == (3, [])
    assert found.size_bytes == sum((tmp_path / "tier" / path).stat().st_size for path in paths)
    file = tmp_path / "tier" / paths[1]
    whole = file.read_bytes()
    for damaged in (
        whole[:70] + bytes([whole[70] ^ 1]) + whole[71:],
        whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:],
        whole[:-1],
        whole + b"x",
        (tmp_path / "tier" / paths[0]).read_bytes(),
    ):
        file.write_bytes(damaged)
        found = await verify(objects, snapshot)
        assert found.segments == 2
        assert [paths[1] in problem for problem in found.problems] == [True]
    file.unlink()
    assert [paths[1] in problem for problem in (await verify_newest(objects, snapshot)).problems] == [True]
    # Retention deleted it meanwhile.
    less = replace(snapshot, log_start=12, members=snapshot.members[2:])
    assert await Series(objects, snapshot.folder, Snapshot.decoded).add(1, less.encoded()) == 2
    found = await verify_newest(objects, snapshot)
    assert (found.segments, found.problems) == (1, [])
