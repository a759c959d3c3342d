"""Redis groups follow the commits of transactions, and end with deleted offsets."""

from __future__ import annotations

import pytest

from korvet.store.catalog.topic import Topic
from korvet.store.groups.types import CommitRequest, Offset
from tests.store.groups import new_group
from tests.store.redis_groups import Side

pytestmark = pytest.mark.anyio


async def hold(side: Side, group_id: str, topic: Topic, offset: int, *, producer_id: int = 7) -> None:
    """Commit an offset of partition 0 in a transaction."""
    request = CommitRequest(
        group_id=group_id,
        member_id="",
        instance_id=None,
        generation=-1,
        version=5,
        offsets=[((topic.name, 0), Offset(offset, -1, topic.id, ""))],
    )
    assert await side.groups.held_offsets.hold(request, "txn", producer_id, 0, 100) == 0


@pytest.mark.parametrize("is_commit", [True, False])
async def test_redis_group_follows_a_transaction_that_any_front_end_ends(a: Side, b: Side, is_commit: bool) -> None:
    topic, group_id = await a.topic(), new_group()
    await hold(a, group_id, topic, 3)
    await a.mirror.flush()
    assert await a.positions(topic) == {}
    await b.groups.held_offsets.release(group_id, 7, 100, is_commit=is_commit)
    await b.mirror.flush()
    assert await b.positions(topic) == ({group_id: 3} if is_commit else {})
    await a.groups.held_offsets.release(group_id, 7, 100, is_commit=is_commit)
    await a.mirror.flush()
    assert await a.positions(topic) == ({group_id: 3} if is_commit else {})


async def test_redis_group_is_deleted_with_its_offset(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(2), new_group()
    await a.commit_and_follow(group_id, topic, 3, 6)
    partitions = [((topic.name, index), topic.id.hex) for index in (0, 1, 5)]
    assert await b.groups.offsets.delete(group_id, partitions) == (0, [0, 0, 0])
    await b.mirror.flush()
    assert [await a.positions(topic, partition) for partition in range(2)] == [{}, {}]
    await a.commit_and_follow(group_id, topic, 6)
    assert [await a.positions(topic, partition) for partition in range(2)] == [{group_id: 6}, {}]
    assert await a.delete(group_id) == [0]
    assert await a.positions(topic) == {}


async def test_deleted_offset_is_not_committed_by_the_transaction_that_holds_it(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    await hold(a, group_id, topic, 6)
    assert await b.groups.offsets.delete(group_id, [((topic.name, 0), topic.id.hex)]) == (0, [0])
    await a.groups.held_offsets.release(group_id, 7, 100, is_commit=True)
    await a.mirror.flush()
    assert await a.groups.offsets.fetch(group_id, None) == {}
    assert await a.positions(topic) == {}
