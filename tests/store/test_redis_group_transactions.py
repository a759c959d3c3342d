"""Redis groups follow what transactions commit, and end with offsets that are deleted."""

from __future__ import annotations

import pytest

from korvet.store.catalog import Topic
from korvet.store.group_types import CommitRequest, Offset
from tests.store.groups import new_group
from tests.store.test_redis_groups import Side, a, b

__all__ = ["a", "b"]

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
    assert await side.groups.hold(request, "txn", producer_id, 0, 100) == 0


@pytest.mark.parametrize("is_commit", [True, False])
async def test_redis_group_follows_whoever_ends_the_transaction(a: Side, b: Side, is_commit: bool) -> None:
    topic, group_id = await a.topic(), new_group()
    await hold(a, group_id, topic, 3)
    await a.redis_groups.flush()
    assert await a.positions(topic) == {}
    await b.groups.release(group_id, 7, 100, is_commit=is_commit)
    await b.redis_groups.flush()
    assert await b.positions(topic) == ({group_id: 3} if is_commit else {})
    await a.groups.release(group_id, 7, 100, is_commit=is_commit)
    await a.redis_groups.flush()
    assert await a.positions(topic) == ({group_id: 3} if is_commit else {})


async def test_redis_group_goes_with_its_deleted_offset(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(2), new_group()
    await a.commit_and_follow(group_id, topic, 3, 6)
    places = [((topic.name, index), topic.id.hex) for index in (0, 1, 5)]
    assert await b.groups.delete_offsets(group_id, places) == (0, [0, 0, 0])
    await b.redis_groups.flush()
    assert [await a.positions(topic, partition) for partition in range(2)] == [{}, {}]
    await a.commit_and_follow(group_id, topic, 6)
    assert [await a.positions(topic, partition) for partition in range(2)] == [{group_id: 6}, {}]
    assert await a.delete(group_id) == [0]
    assert await a.positions(topic) == {}


async def test_deleted_offset_is_not_committed_by_the_transaction_that_holds_it(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    await hold(a, group_id, topic, 6)
    assert await b.groups.delete_offsets(group_id, [((topic.name, 0), topic.id.hex)]) == (0, [0])
    await a.groups.release(group_id, 7, 100, is_commit=True)
    await a.redis_groups.flush()
    assert await a.groups.fetch(group_id, None) == {}
    assert await a.positions(topic) == {}
