"""Transactions that a sweep cannot end completely: the work that this holds up, and the work that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.errors import StoreError, StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.activity import Activity
from korvet.store.background import transaction_sweep
from korvet.store.background.transaction_sweep import keep_swept, sweep
from korvet.store.catalog.topic import Topic
from korvet.store.groups.groups import Groups
from korvet.store.groups.types import CommitRequest, Offset
from korvet.store.keys import TRANSACTION_SHARDS
from korvet.store.log.memory.room import Want
from korvet.store.log.state.partition import Meta
from korvet.store.outages import Outages
from korvet.store.transactions import hanging
from korvet.store.transactions.transactions import Member, Transactions
from tests.api.data import records
from tests.store.groups import new_group, open_groups
from tests.store.logs import EVERYTHING, NAMESPACE, Front, header, offsets, until
from tests.store.turns import Always, Never
from tests.support.ported import kafka
from tests.support.topologies import Cluster

pytestmark = pytest.mark.anyio

CONCURRENT = 51
TRANSACTIONAL = 0x10


class Scene:
    """A transaction over the partitions of a topic and a group, at one front-end."""

    def __init__(self, front: Front, groups: Groups, topic: Topic) -> None:
        self.front, self.groups, self.topic = front, groups, topic
        self.transactions = Transactions(NAMESPACE, front.store, front.catalog, front.log, groups)
        self.group_id = new_group()

    async def opened(self, timeout_ms: int = 60_000) -> tuple[str, int, int]:
        """A new transactional id whose transaction wrote to every partition and committed an offset of the group."""
        name = f"txn-{uuid4().hex[:8]}"
        _, producer_id, epoch = await self.transactions.init(name, timeout_ms, -1, -1)
        member = Member(self.transactions, name, producer_id, epoch, True)
        data = records(1, producer_id=producer_id, producer_epoch=epoch, sequence=0, attributes=TRANSACTIONAL)
        for index in range(self.topic.partitions):
            partition = self.front.log.partition(self.topic, index)
            assert (await self.front.log.append(partition, header(data), data, member)).code == 0
        request = CommitRequest(
            group_id=self.group_id, member_id="", instance_id=None, generation=-1, version=5,
            offsets=[((self.topic.name, 0), Offset(5, -1, self.topic.id, ""))],
        )  # fmt: skip
        assert await self.transactions.commit_offsets(request, name, producer_id, epoch, joins=True) == 0
        return name, producer_id, epoch

    async def ended(self, *, commit: bool = True) -> str:
        """A new transaction with a decision, carried out as far as that is possible."""
        name, producer_id, epoch = await self.opened()
        told = await self.transactions.end(name, producer_id, epoch, is_commit=commit, version=2)
        assert told == (0, producer_id, epoch + 1)
        return name

    async def left(self) -> str:
        """A new transactional id whose transaction has passed its timeout and still is open."""
        name = f"txn-{uuid4().hex[:8]}"
        _, producer_id, epoch = await self.transactions.init(name, 1, -1, -1)
        partitions = [self.front.log.partition(self.topic, index) for index in range(self.topic.partitions)]
        assert (await self.transactions.add(name, producer_id, epoch, partitions)).code == 0
        return name

    async def until_aborted(self, name: str) -> None:
        with anyio.fail_after(30):
            while await self.state(name) != "CompleteAbort":
                await anyio.sleep(0.005)

    async def state(self, name: str) -> str:
        described = await self.transactions.describe(name)
        return "" if described is None else described.state

    async def stable(self, index: int) -> int:
        """The last stable offset of a partition."""
        want = Want(self.front.log.partition(self.topic, index), 0, EVERYTHING, is_committed=True)
        (found,) = await self.front.log.read([want], EVERYTHING)
        assert offsets(found) == list(range(found.last_stable))
        return found.last_stable

    async def spoil(self, key: str) -> None:
        await self.front.store.call(Purpose.COORDINATE, key, "SET", key, "text")

    async def delete(self, key: str) -> None:
        await self.front.store.call(Purpose.COORDINATE, key, "DEL", key)

    async def make_due(self) -> None:
        """Make every decision due."""
        for shard in range(TRANSACTION_SHARDS):
            key = NAMESPACE.transaction_deadlines(shard)
            for name in await self.front.store.call(Purpose.COORDINATE, key, "ZRANGE", key, 0, -1):
                if name:
                    await self.front.store.call(Purpose.COORDINATE, key, "ZADD", key, 0, name)


@pytest.fixture
async def scene(one: Front) -> Scene:
    return Scene(one, await open_groups(one, Outages(one.store)), await one.topic(3))


@kafka("TransactionMarkerRequestCompletionHandlerTest.shouldRetryPartitionWhenKafkaStorageError")
@pytest.mark.parametrize("commit", [True, False])
async def test_partition_that_cannot_be_written_holds_up_nothing_else(scene: Scene, commit: bool) -> None:
    name, producer_id, epoch = await scene.opened()
    spoilt = NAMESPACE.transaction_log(scene.topic.name, 1).aborted
    await scene.delete(spoilt)
    await scene.spoil(spoilt)
    with capture_logs() as lines:
        told = await scene.transactions.end(name, producer_id, epoch, is_commit=commit, version=2)
        assert told.code == 0
        assert [await scene.stable(index) for index in (0, 2)] == [2, 2]
        committed = await scene.groups.offsets.fetch(scene.group_id, None)
        assert [offset.offset for offset in committed.values()] == ([5] if commit else [])
        for _ in range(3):
            await scene.make_due()
            await sweep(scene.transactions)
        assert (await scene.transactions.init(name, 60_000, -1, -1)).code == CONCURRENT
    assert [line["transactional_id"] for line in lines if "transactional_id" in line] == [name]
    assert "WRONGTYPE" in str(lines)
    await scene.delete(spoilt)
    await scene.make_due()
    await sweep(scene.transactions)
    assert await scene.state(name) == ("CompleteCommit" if commit else "CompleteAbort")
    assert await scene.stable(1) == 2
    assert (await scene.transactions.init(name, 60_000, -1, -1)).code == 0


async def test_group_that_cannot_be_written_holds_up_no_partition(scene: Scene) -> None:
    name, producer_id, epoch = await scene.opened()
    pending = NAMESPACE.group(scene.group_id).pending
    await scene.delete(pending)
    await scene.spoil(pending)
    assert (await scene.transactions.end(name, producer_id, epoch, is_commit=True, version=2)).code == 0
    assert [await scene.stable(index) for index in range(3)] == [2, 2, 2]
    scene.group_id = new_group()
    assert await scene.state(await scene.ended()) == "CompleteCommit"
    assert await scene.state(name) == "PrepareCommit"
    await scene.delete(pending)
    await scene.make_due()
    await sweep(scene.transactions)
    assert await scene.state(name) == "CompleteCommit"


async def test_shard_and_id_that_cannot_be_read_hold_up_no_others(scene: Scene) -> None:
    name = (await scene.opened())[0]
    shard = NAMESPACE.transaction(name).deadlines
    others = [await scene.opened() for _ in range(8)]
    others = [one for one in others if NAMESPACE.transaction(one[0]).deadlines != shard]
    spoilt_id = NAMESPACE.transaction(others[0][0]).id
    for producer in others:
        name_, producer_id, epoch = producer
        await scene.transactions._call(
            "korvet_txn_end",
            name_,
            producer_id=producer_id,
            producer_epoch=epoch,
            decision="commit",
            version=2,
            fresh_id=-1,
        )
    await scene.make_due()
    await scene.delete(shard)
    await scene.spoil(shard)
    await scene.delete(spoilt_id)
    await scene.spoil(spoilt_id)
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await sweep(scene.transactions)
    await scene.delete(shard)
    states = {one[0]: await scene.state(one[0]) for one in others[1:]}
    assert set(states.values()) == {"CompleteCommit"}
    listed = {one.transactional_id for one in await scene.transactions.all()}
    assert listed >= set(states)
    assert others[0][0] not in listed

    async def wanted(some: Sequence[str]) -> Sequence[str]:
        return [one for one in some if one == others[1][0]]

    assert [one.transactional_id for one in await scene.transactions.all(wanted)] == [others[1][0]]
    await scene.delete(spoilt_id)


async def test_partition_that_cannot_be_read_holds_up_no_other_partition(scene: Scene) -> None:
    name, _, _ = await scene.opened()
    spoilt = NAMESPACE.partition(scene.topic.name, 1).meta
    await scene.delete(spoilt)
    await scene.spoil(spoilt)
    await scene.delete(NAMESPACE.transaction(name).id)
    with capture_logs() as lines:
        await scene.transactions.close_hanging()
    assert [await scene.stable(index) for index in (0, 2)] == [2, 2]
    assert [line["unreadable"] for line in lines if "unreadable" in line] == [1]
    await scene.delete(spoilt)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INTERVAL_S", "UNUSED_INTERVAL_S"):
        monkeypatch.setattr(transaction_sweep, name, 0.01)


@pytest.mark.usefixtures("soon")
async def test_transaction_is_aborted_by_the_front_end_that_has_the_turn(scene: Scene, other: Front) -> None:
    name = await scene.left()
    elsewhere = Transactions(NAMESPACE, other.store, other.catalog, other.log, scene.groups)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_swept, elsewhere, Never(), Activity())
        await anyio.sleep(0.2)
        assert await scene.state(name) == "Ongoing"
        tasks.start_soon(keep_swept, scene.transactions, Always(), Activity())
        await scene.until_aborted(name)
        tasks.cancel_scope.cancel()


@pytest.mark.usefixtures("soon")
async def test_transaction_is_aborted_once_if_two_front_ends_have_the_turn(scene: Scene, other: Front) -> None:
    await other.catalog.refresh()
    elsewhere = Transactions(NAMESPACE, other.store, other.catalog, other.log, scene.groups)
    names = [await scene.left() for _ in range(5)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_swept, scene.transactions, Always(), Activity())
        tasks.start_soon(keep_swept, elsewhere, Always(), Activity())
        for name in names:
            await scene.until_aborted(name)
        tasks.cancel_scope.cancel()
    metas = await scene.front.log.metas([scene.front.log.partition(scene.topic, index) for index in range(3)])
    # Each transaction has one marker.
    assert [meta.end for meta in metas if isinstance(meta, Meta)] == [5, 5, 5]


@pytest.mark.usefixtures("soon")
async def test_shard_is_swept_after_its_first_id_comes(scene: Scene) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_swept, scene.transactions, Always(), Activity())
        await anyio.sleep(0.05)
        await scene.until_aborted(await scene.left())
        tasks.cancel_scope.cancel()


async def test_node_that_is_away_keeps_no_partition_of_another_node_open(
    cluster: Cluster, one_of_cluster: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = one_of_cluster
    monkeypatch.setattr(hanging, "_AT_ONCE", 5)
    topic = await one.topic(12)
    scene = Scene(one, await open_groups(one, Outages(one.store)), topic)
    name, _, _ = await scene.opened()
    id_key = NAMESPACE.transaction(name).id
    needed = {one.port_of(NAMESPACE.catalog.meta), one.port_of(id_key)}
    away = next(node for node in cluster.nodes if node.port not in needed)
    ports = [one.port_of(NAMESPACE.partition(topic.name, index).meta) for index in range(12)]
    served = [index for index in range(12) if ports[index] != away.port]
    assert 0 < len(served) < 12
    # As if the id's shard lost it.
    await scene.delete(id_key)
    away.kill()
    await until(lambda: not one.store.is_connected())
    with pytest.raises(StoreUnavailable):
        await scene.transactions.close_hanging()
    assert [await scene.stable(index) for index in served] == [2] * len(served)


@pytest.mark.usefixtures("soon")
async def test_node_that_is_away_holds_up_no_shard_of_another_node(cluster: Cluster, one_of_cluster: Front) -> None:
    one = one_of_cluster
    away = cluster.nodes[-1]

    def is_here(key: str) -> bool:
        link = one.store.coordination(key)
        return link is not None and link.address is not None and link.address.port != away.port

    topic = await one.topic()
    while not is_here(one.log.partition(topic, 0).keys.meta):
        topic = await one.topic()
    scene = Scene(one, await open_groups(one, Outages(one.store)), topic)
    left = [await scene.left() for _ in range(30)]
    served = [name for name in left if is_here(NAMESPACE.transaction(name).id)]
    assert 0 < len(served) < len(left)
    away.kill()
    await until(lambda: not one.store.is_connected())
    with capture_logs() as lines:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_swept, scene.transactions, Always(), Activity())
            for name in served:
                await scene.until_aborted(name)
            tasks.cancel_scope.cancel()
    assert [line for line in lines if "cut short" in line["event"]] == []


async def test_sweep_of_an_idle_namespace_rests_until_the_first_deadline(scene: Scene) -> None:
    """A sweep that sees no deadline rests for ten minutes."""
    idle, turn = Activity(), Always()
    idle.note(is_idle=True)
    name = f"txn-{uuid4().hex[:8]}"
    _, producer_id, epoch = await scene.transactions.init(name, 10_000, -1, -1)
    partitions = [scene.front.log.partition(scene.topic, index) for index in range(scene.topic.partitions)]
    assert (await scene.transactions.add(name, producer_id, epoch, partitions)).code == 0
    shards = await scene.transactions.shards_in_use()
    assert 0 < await scene.transactions.next_due_s(shards) <= 10
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_swept, scene.transactions, turn, idle)
        await scene.until_aborted(name)
        tasks.cancel_scope.cancel()


async def test_sweep_that_rests_goes_on_as_soon_as_its_namespace_is_active(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_sweep, "UNUSED_INTERVAL_S", 0.1)
    rests, idle = anyio.Event(), Activity()
    idle.note(is_idle=True)
    for key in map(NAMESPACE.transaction_deadlines, range(TRANSACTION_SHARDS)):
        await scene.delete(key)
    asked = scene.transactions.next_due_s

    async def told(shards: Sequence[int]) -> float:
        due_s = await asked(shards)
        rests.set()
        return due_s

    monkeypatch.setattr(scene.transactions, "next_due_s", told)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_swept, scene.transactions, Always(), idle)
        await rests.wait()
        name = await scene.left()
        await anyio.sleep(20 * transaction_sweep.UNUSED_INTERVAL_S)
        assert await scene.state(name) == "Ongoing"
        idle.note(is_idle=False)
        await scene.until_aborted(name)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("is_restarted", [False, True], ids=["same sweep", "after a restart"])
async def test_sweep_aborts_an_overdue_transaction_although_the_clock_went_back(
    scene: Scene, is_restarted: bool
) -> None:
    """The clock goes back as the test moves all that was noted an hour ahead."""
    name = f"txn-{uuid4().hex[:8]}"
    _, producer_id, epoch = await scene.transactions.init(name, 500, -1, -1)
    partitions = [scene.front.log.partition(scene.topic, 0)]
    keys = NAMESPACE.transaction(name)

    async def ahead(key: str, *command: str) -> None:
        await scene.front.store.call(Purpose.COORDINATE, key, *command)

    await sweep(scene.transactions)
    assert (await scene.transactions.add(name, producer_id, epoch, partitions)).code == 0
    for field in ("started_ms", "updated_ms"):
        await ahead(keys.id, "HINCRBY", keys.id, field, "3600000")
    await ahead(keys.deadlines, "ZINCRBY", keys.deadlines, "3600000", name)
    await ahead(keys.deadlines, "ZINCRBY", keys.deadlines, "3600000000", "")
    if is_restarted:
        scene = Scene(scene.front, scene.groups, scene.topic)
    else:
        scene.transactions.seen_us = {key: seen + 3.6e9 for key, seen in scene.transactions.seen_us.items()}
    with anyio.fail_after(30):
        while await scene.state(name) != "CompleteAbort":
            await sweep(scene.transactions)


async def test_transaction_whose_deadline_somebody_deleted_is_aborted_in_time(scene: Scene) -> None:
    """The look for open transactions finds it in its partitions, and gives its id a deadline again."""
    name, _, _ = await scene.opened(timeout_ms=1)
    await scene.delete(NAMESPACE.transaction(name).deadlines)
    await sweep(scene.transactions)
    assert await scene.state(name) == "Ongoing"
    await scene.transactions.close_hanging()
    await sweep(scene.transactions)
    await scene.until_aborted(name)


async def test_transaction_of_a_group_alone_is_aborted_in_time_without_its_deadline(scene: Scene) -> None:
    name = f"txn-{uuid4().hex[:8]}"
    _, producer_id, epoch = await scene.transactions.init(name, 1, -1, -1)
    request = CommitRequest(
        group_id=scene.group_id, member_id="", instance_id=None, generation=-1, version=5,
        offsets=[((scene.topic.name, 0), Offset(5, -1, scene.topic.id, ""))],
    )  # fmt: skip
    assert await scene.transactions.commit_offsets(request, name, producer_id, epoch, joins=True) == 0
    await scene.delete(NAMESPACE.transaction(name).deadlines)
    await scene.transactions.close_hanging()
    await sweep(scene.transactions)
    await scene.until_aborted(name)
