"""Redis groups end with their Kafka groups."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from korvet.errors import StoreError
from korvet.redis.client import Purpose
from korvet.store.topics import delete_topic
from tests.store.groups import new_group, stable
from tests.store.logs import NAMESPACE
from tests.store.redis_groups import Side

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_reader")]

NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 68, 69


async def test_deletion_destroys_only_redis_groups_that_the_group_attached(a: Side) -> None:
    topic, group_id = await a.topic(3), new_group()
    await a.make_by_hand(topic, 0, "users-own")
    await a.make_by_hand(topic, 2, group_id)
    await a.commit_and_follow(group_id, topic, 3, 6)
    assert await a.delete(group_id) == [0]
    left = [await a.positions(topic, index) for index in range(3)]
    assert left == [{"users-own": 0}, {}, {group_id: 0}]


async def test_groups_are_deleted_together_each_with_its_own_outcome(a: Side, b: Side) -> None:
    topic = await a.topic()
    groups = [new_group() for _ in range(50)]
    for group_id in groups:
        await a.commit(group_id, topic, 3)
    await a.mirror.flush()
    living, _ = await stable(a.groups)
    broken = new_group()
    await a.commit_and_follow(broken, topic, 3)
    attached = NAMESPACE.group(broken).attached
    await a.call(attached, "DEL")
    await a.call(attached, "SET", "mine")
    outcomes = await b.delete("unknown", *groups, living, broken)
    assert outcomes[:-1] == [GROUP_ID_NOT_FOUND, *[0] * 50, NON_EMPTY_GROUP]
    assert isinstance(outcomes[-1], StoreError) and "WRONGTYPE" in str(outcomes[-1])
    assert await a.positions(topic) == {broken: 3}
    await a.call(attached, "DEL")
    await a.commit_and_follow(broken, topic, 6)
    assert await a.delete(broken) == [0]
    assert await a.positions(topic) == {}


async def test_interrupted_deletion_is_finished_from_any_step(a: Side, b: Side) -> None:
    """The steps are: ask for the attached partitions, detach each, delete the group, remove it from the index."""
    topic = await a.topic(2)
    for steps in range(4):
        group_id = new_group()
        keys = NAMESPACE.group(group_id)
        await a.commit_and_follow(group_id, topic, 3, 3)
        for index in range(min(steps, 2)):
            partition = NAMESPACE.partition(topic.name, index)
            detached = a.front.store.fcall(Purpose.COORDINATE, "korvet_log_detach", partition, topic.id.hex, group_id)
            assert await detached == [0]
        if steps == 3:
            partitions = [part for index in range(2) for part in (f"{topic.name}:{index}", topic.id.hex)]
            deleted = a.front.store.fcall(Purpose.COORDINATE, "korvet_group_delete", keys, "", "any", *partitions)
            assert await deleted == 0
        assert await b.delete(group_id) == [GROUP_ID_NOT_FOUND if steps == 3 else 0]
        assert [await a.positions(topic, 0), await a.positions(topic, 1)] == [{}, {}]
        assert await a.left(group_id) == []
        assert [listed.group_id for listed in await a.groups.administration.list()] == []


async def test_group_that_is_not_deleted_after_all_gets_its_redis_groups_back(
    a: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member joins between the steps of the deletion."""
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    detach_all = a.groups.administration._deletion._detach_all

    async def joining(attached: Any) -> Any:
        failures = await detach_all(attached)
        await a.call(NAMESPACE.group(group_id).group, "HSET", "state", "Stable", "generation", 1)
        return failures

    monkeypatch.setattr(a.groups.administration._deletion, "_detach_all", joining)
    assert await a.delete(group_id) == [NON_EMPTY_GROUP]
    assert await a.positions(topic) == {}
    await a.mirror.flush()
    assert await a.positions(topic) == {group_id: 3}


async def test_group_attached_again_during_its_deletion_is_deleted(
    a: Side, b: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group_id = await a.topic(2), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    detach_all = a.groups.administration._deletion._detach_all
    turns = iter([True])

    async def committing(attached: Any) -> Any:
        failures = await detach_all(attached)
        if next(turns, False):
            await b.commit_and_follow(group_id, topic, 3, 6)
        return failures

    monkeypatch.setattr(a.groups.administration._deletion, "_detach_all", committing)
    assert await a.delete(group_id) == [0]
    assert [await a.positions(topic, 0), await a.positions(topic, 1)] == [{}, {}]
    assert await a.left(group_id) == []


async def test_group_made_again_during_its_deletion_is_listed(
    a: Side, b: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    await b.front.catalog.refresh()
    call, leaving = a.front.store.call, anyio.CancelScope()

    async def committing(purpose: Purpose, key: str, *command: Any) -> Any:
        if command[0] == "SREM":
            await b.commit(group_id, topic, 3)
        reply = await call(purpose, key, *command)
        leaving.cancel()
        return reply

    with monkeypatch.context() as patch, leaving:
        patch.setattr(a.front.store, "call", committing)
        await a.delete(group_id)
    assert [listed.group_id for listed in await b.groups.administration.list()] == [group_id]


async def test_expired_group_is_detached_before_its_remains_go(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    await a.call(NAMESPACE.group(group_id).group, "HSET", "expires_at", 1)
    await b.groups.administration.tend(group_id)
    assert await a.positions(topic) == {}
    assert await a.left(group_id) == []
    index = NAMESPACE.group_index_of(group_id)
    assert await a.call(index, "SISMEMBER", group_id) == 0


async def test_group_is_deleted_after_its_topic(a: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    assert await delete_topic(a.front.catalog, a.front.log, topic) == 0
    assert await a.delete(group_id) == [0]
    assert await a.left(group_id) == []
