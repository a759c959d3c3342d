"""Redis groups follow the Kafka groups of several front-ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import pytest

from korvet.store.groups import redis_mirror, redis_mirror_deletion, redis_mirror_portions, redis_mirror_readers
from korvet.store.outages import Outages
from korvet.store.topics import create_topic, delete_topic
from tests.store.groups import new_group, open_groups
from tests.store.logs import front, until
from tests.store.redis_groups import ODD_IDS, Side
from tests.support.redis import KINDS, Kind, Server, ServerUnavailable, running_server, unavailable

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_reader")]

NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 68, 69


@pytest.mark.parametrize("group_id", [*ODD_IDS, ""])
async def test_redis_groups_follow_commits_and_end_with_the_group(a: Side, group_id: str) -> None:
    topic = await a.topic(2)
    await a.commit_and_follow(group_id, topic, 4, 9)
    assert [await a.positions(topic, 0), await a.positions(topic, 1)] == [{group_id: 4}, {group_id: 9}]
    await a.commit_and_follow(group_id, topic, 0, 6)
    assert [await a.positions(topic, 0), await a.positions(topic, 1)] == [{group_id: 0}, {group_id: 6}]
    assert await a.delete(group_id) == [0]
    assert [await a.positions(topic, 0), await a.positions(topic, 1)] == [{}, {}]
    assert await a.left(group_id) == []
    assert await a.delete(group_id) == [GROUP_ID_NOT_FOUND]


async def test_several_front_ends_agree_on_the_committed_offset(a: Side, b: Side) -> None:
    """The front-ends agree even if one commits its former offset again after the other's commit."""
    topic, group_id = await a.topic(), new_group()
    for side, offset in ((a, 3), (b, 6), (a, 3), (b, 9), (b, 6), (a, 3), (a, 6), (b, 6)):
        await side.commit_and_follow(group_id, topic, offset)
        assert await b.positions(topic) == {group_id: offset}


async def test_late_mirror_moves_to_the_last_committed_offset(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit(group_id, topic, 3)
    await b.commit(group_id, topic, 6)
    await b.mirror.flush()
    await a.mirror.flush()
    assert await a.positions(topic) == {group_id: 6}


async def test_mirrors_that_work_at_once_agree(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    for offset in range(1, 10):
        await a.commit(group_id, topic, offset - 1)
        await b.commit(group_id, topic, offset)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.mirror.flush)
            tasks.start_soon(b.mirror.flush)
        # One more flush settles the rest, as a flush in the next second would.
        await a.mirror.flush()
        await b.mirror.flush()
        assert await a.positions(topic) == {group_id: offset}


async def test_redis_group_is_not_moved_again_for_an_unchanged_position(a: Side, b: Side) -> None:
    """Otherwise clients that commit on a timer would cost a call for each partition."""
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    await a.move_by_hand(topic, group_id, 1)
    await a.commit_and_follow(group_id, topic, 3)
    assert await a.positions(topic) == {group_id: 1}
    await b.commit_and_follow(group_id, topic, 3)
    assert await a.positions(topic) == {group_id: 3}


async def test_task_mirrors_commits_and_drain_mirrors_the_last_ones(a: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.mirror.run)
        for offset in (3, 6):
            await a.commit(group_id, topic, offset)
            with anyio.fail_after(10):
                while await a.positions(topic) != {group_id: offset}:
                    await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    await a.commit(group_id, topic, 9)
    await a.mirror.drain()
    assert await a.positions(topic) == {group_id: 9}


async def test_group_deleted_before_it_is_mirrored_leaves_nothing(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit(group_id, topic, 3)
    assert await b.delete(group_id) == [0]
    # As if the front-end had made the group while the other front-end deleted it.
    await a.make_by_hand(topic, 0, group_id)
    await a.mirror.flush()
    assert await a.positions(topic) == {}
    assert await a.left(group_id) == []


async def test_group_made_again_while_it_is_detached_is_mirrored(
    a: Side, b: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit(group_id, topic, 3)
    assert await b.delete(group_id) == [0]
    detach_gone = a.mirror.detach_gone

    async def committing(units: Any) -> None:
        if units:
            await b.commit_and_follow(group_id, topic, 6)
        await detach_gone(units)

    monkeypatch.setattr(a.mirror, "detach_gone", committing)
    await a.mirror.flush()
    await a.mirror.flush()
    assert await a.positions(topic) == {group_id: 6}


async def test_oldest_is_dropped_if_too_many_partitions_wait(a: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_mirror, "MOST_PENDING", 2)
    topic, group_id = await a.topic(3), new_group()
    await a.commit_and_follow(group_id, topic, 3, 3, 3)
    assert [await a.positions(topic, index) for index in range(3)] == [{}, {group_id: 3}, {group_id: 3}]
    await a.commit_and_follow(group_id, topic, 6)
    assert await a.positions(topic, 0) == {group_id: 6}


async def test_mirror_flushes_more_partitions_than_one_call_takes(a: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (redis_mirror, redis_mirror_deletion, redis_mirror_portions, redis_mirror_readers):
        monkeypatch.setattr(module, "AT_ONCE", 3)
    topic, groups = await a.topic(5), [new_group() for _ in range(4)]
    for offset in (3, 6):
        for group_id in groups:
            await a.commit(group_id, topic, *[offset] * 5)
        await a.mirror.flush()
        for index in range(5):
            assert await a.positions(topic, index) == dict.fromkeys(groups, offset)
    assert await a.delete(*groups) == [0] * 4
    assert [await a.positions(topic, index) for index in range(5)] == [{}] * 5


async def test_group_is_attached_anew_to_a_topic_made_again(a: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    assert await delete_topic(a.front.catalog, a.front.log, topic) == 0
    await a.mirror.flush()
    _, again = await create_topic(a.front.catalog, a.front.log, topic.name, 1, {})
    assert again is not None and again.id != topic.id
    await a.make_by_hand(again, 0, group_id)
    # The group was attached to the former topic only.
    assert await a.delete(group_id) == [0]
    assert await a.positions(again) == {group_id: 0}
    await a.commit_and_follow(group_id, again, 2)
    assert await a.positions(again) == {group_id: 2}
    assert await a.delete(group_id) == [0]
    assert await a.positions(again) == {}


async def test_late_mirror_of_a_former_topic_leaves_the_present_one_attached(a: Side, b: Side) -> None:
    """Therefore the Redis group on the present topic ends with the Kafka group."""
    topic, group_id = await a.topic(), new_group()
    await a.commit(group_id, topic, 3)
    assert await delete_topic(a.front.catalog, a.front.log, topic) == 0
    _, again = await create_topic(a.front.catalog, a.front.log, topic.name, 1, {})
    assert again is not None and again.id != topic.id
    await b.commit_and_follow(group_id, again, 0)
    await a.mirror.flush()
    assert await b.delete(group_id) == [0]
    assert await b.positions(again) == {}


@pytest.fixture(params=KINDS)
async def durable(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Server, Side]]:
    """A server that keeps all writes over a crash, and a front-end."""
    kind: Kind = request.param
    options: Mapping[str, str] = {"appendonly": "yes", "appendfsync": "always"}
    try:
        with running_server(kind, options=options) as server:
            async with front(server.url) as opened:
                yield server, Side(opened, await open_groups(opened, Outages(opened.store)))
    except ServerUnavailable as error:
        unavailable(error)


async def test_commit_is_mirrored_when_redis_is_back(durable: tuple[Server, Side]) -> None:
    server, side = durable
    topic, group_id = await side.topic(), new_group()
    await side.commit(group_id, topic, 3)
    server.kill()
    await until(lambda: not side.front.store.is_connected())
    await side.mirror.flush()
    assert not await side.fetched(topic, 3)
    server.start()
    await until(side.front.store.is_connected)
    await side.mirror.flush()
    assert await side.positions(topic) == {group_id: 3}
