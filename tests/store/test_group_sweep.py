"""The sweep of groups: what it tends, and where it looks twice."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.store.client import Purpose
from korvet.store.group_sweep import sweep, sweep_offsets
from korvet.store.group_types import CommitRequest, Offset
from korvet.store.groups import Groups
from korvet.store.outages import Outages
from korvet.store.topics import delete_topic
from tests.store.groups import new_group, open_groups, stable
from tests.store.logs import NAMESPACE, Front, until

pytestmark = pytest.mark.anyio

NOBODY: frozenset[str] = frozenset()


@pytest.fixture
async def outages(one: Front) -> Outages:
    return Outages(one.store)


@pytest.fixture
async def groups(one: Front, outages: Outages) -> Groups:
    return await open_groups(one, outages)


async def call(one: Front, key: str, command: str, *args: str | int) -> Any:
    return await one.store.call(Purpose.COORDINATE, key, command, key, *args)


async def test_group_whose_members_died_becomes_empty_and_expires(one: Front, groups: Groups) -> None:
    group_id, member_id = await stable(groups)
    keys = NAMESPACE.group(group_id)
    assert await call(one, keys.sessions, "ZADD", 1, member_id) == 0
    assert await groups.neglected() == ({group_id}, set())
    assert await call(one, keys.group, "HGET", "state") != b"Empty"
    assert await sweep(groups, NOBODY) == set()
    assert await call(one, keys.group, "HGET", "state") == b"Empty"
    assert await call(one, keys.group, "PTTL") != -1
    assert await groups.neglected() == (set(), set())


async def test_entry_of_the_index_without_a_group_goes(one: Front, groups: Groups) -> None:
    index = NAMESPACE.group_index_of("nothing")
    assert await call(one, index, "SADD", "nothing") == 1
    suspects = await sweep(groups, NOBODY)
    assert suspects == {"nothing"}
    assert await call(one, index, "SISMEMBER", "nothing") == 1
    assert await sweep(groups, suspects) == set()
    assert await call(one, index, "SISMEMBER", "nothing") == 0


async def test_group_whose_members_an_outage_kept_silent_is_left_alone(
    one: Front, groups: Groups, outages: Outages
) -> None:
    group_id, member_id = await stable(groups)
    keys = NAMESPACE.group(group_id)
    now_ms = int((await call(one, keys.group, "HGET", "state_since")).decode())
    assert await call(one, keys.sessions, "ZADD", now_ms - 1000, member_id) == 0
    assert await groups.neglected() == ({group_id}, set())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outages.watch)
        await until(lambda: outages.known_at(keys.group) != "")
        tasks.cancel_scope.cancel()
    outages.began(f"{now_ms - 5000}-{now_ms - 500}")
    assert await groups.neglected() == (set(), set())
    assert await sweep(groups, NOBODY) == set()
    described = await groups.describe(group_id)
    assert described is not None and [member.id for member in described.members] == [member_id]


async def test_group_whose_keys_cannot_be_read_is_left_out(one: Front, groups: Groups) -> None:
    """One line says so, and the others are listed and swept."""
    group_id, _ = await stable(groups)
    broken = f"broken-{group_id}"
    index = NAMESPACE.group_index_of(broken)
    await call(one, index, "SADD", broken)
    await call(one, NAMESPACE.group(broken).group, "SET", "not a hash")
    with capture_logs() as lines:
        assert [listed.group_id for listed in await groups.list()] == [group_id]
    assert [(line["groups"], line["first"]) for line in lines] == [(1, broken)]
    assert await sweep(groups, NOBODY) == set()
    assert await call(one, index, "SISMEMBER", broken) == 1


async def test_group_that_cannot_be_swept_keeps_no_other(one: Front, groups: Groups) -> None:
    """Whatever their order is."""
    group_id, member_id = await stable(groups)
    assert await call(one, NAMESPACE.group(group_id).sessions, "ZADD", 1, member_id) == 0
    broken = [f"broken-{number}" for number in range(5)]
    for name in broken:
        await call(one, NAMESPACE.group_index_of(name), "SADD", name)
        await call(one, NAMESPACE.attached_group(name).attached, "SET", "not a hash")
    with capture_logs() as lines:
        assert await sweep(groups, {*broken, "missing"}) == set()
    assert sorted(line["group"] for line in lines if line["log_level"] == "error") == broken
    assert await groups.neglected() == (set(), set(broken))


async def test_offsets_of_topics_that_are_gone_are_forgotten(one: Front, other: Front, outages: Outages) -> None:
    """Not those of a topic that another front-end has just made, nor of one that took the name of a former one."""
    groups = await open_groups(one, outages)
    group_id, topic, newer = new_group(), await one.topic(2), await other.topic()
    positions = {
        (topic.name, 0): topic.id, (topic.name, 1): uuid4(), ("gone", 0): uuid4(), (newer.name, 0): newer.id,
    }  # fmt: skip
    request = CommitRequest(
        group_id=group_id,
        member_id="",
        instance_id=None,
        generation=-1,
        version=9,
        offsets=[(place, Offset(7, -1, id, "some words")) for place, id in positions.items()],
    )
    assert await groups.commit(request) == 0
    swept = await sweep_offsets(groups, None)
    assert set(await groups.fetch(group_id, None)) == {(topic.name, 0), (newer.name, 0)}
    assert {topic.id, newer.id} <= await sweep_offsets(groups, swept)
    await delete_topic(one.catalog, one.log, topic)
    await sweep_offsets(groups, swept)
    assert set(await groups.fetch(group_id, None)) == {(newer.name, 0)}
