"""Transactions of which something cannot be ended: what is held up by that, and what is not."""

from __future__ import annotations

from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from korvet.errors import StoreError
from korvet.store.catalog import Topic
from korvet.store.client import Purpose
from korvet.store.group_types import CommitRequest, Offset
from korvet.store.groups import Groups
from korvet.store.keys import TRANSACTION_SHARDS
from korvet.store.log import Want
from korvet.store.outages import Outages
from korvet.store.transaction_sweep import sweep
from korvet.store.transactions import Member, Transactions
from tests.api.data import records
from tests.store.groups import new_group, open_groups
from tests.store.logs import EVERYTHING, NAMESPACE, Front, header, offsets
from tests.support.ported import kafka

pytestmark = pytest.mark.anyio

CONCURRENT = 51
TRANSACTIONAL = 0x10


class Scene:
    """A transaction over the partitions of a topic and a group, at one front-end."""

    def __init__(self, front: Front, groups: Groups, topic: Topic) -> None:
        self.front, self.groups, self.topic = front, groups, topic
        self.transactions = Transactions(NAMESPACE, front.store, front.catalog, front.log, groups)
        self.group_id = new_group()

    async def opened(self) -> tuple[str, int, int]:
        """A new transactional id that wrote to every partition and committed an offset of the group."""
        name = f"txn-{uuid4().hex[:8]}"
        _, producer_id, epoch = await self.transactions.init(name, 60_000, -1, -1)
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
        """A new transaction that is decided, and carried out as far as that is possible."""
        name, producer_id, epoch = await self.opened()
        told = await self.transactions.end(name, producer_id, epoch, is_commit=commit, version=2)
        assert told == (0, producer_id, epoch + 1)
        return name

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
        """Let the time of all decisions be over."""
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
        committed = await scene.groups.fetch(scene.group_id, None)
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
    pending = NAMESPACE.transaction_group(scene.group_id).pending
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
        await scene.transactions._call("korvet_txn_end", *producer, "commit", 2, -1)
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
    await scene.delete(spoilt_id)


async def test_partition_that_cannot_be_read_keeps_no_other_from_being_closed(scene: Scene) -> None:
    name, _, _ = await scene.opened()
    spoilt = NAMESPACE.partition(scene.topic.name, 1).meta
    await scene.delete(spoilt)
    await scene.spoil(spoilt)
    await scene.delete(NAMESPACE.transaction(name).id)
    with capture_logs() as lines:
        await scene.transactions.close_hanging()
    assert [await scene.stable(index) for index in (0, 2)] == [2, 2]
    assert [line["partitions"] for line in lines if line["log_level"] == "error"] == [1]
    await scene.delete(spoilt)
