"""The sweep of groups: what it tends, and that it looks twice."""

from __future__ import annotations

from uuid import uuid4

import anyio
import pytest

from korvet.store.catalog import Catalog
from korvet.store.client import Purpose
from korvet.store.group_sweep import sweep
from korvet.store.groups import Groups, JoinRequest
from korvet.store.keys import GROUP_INDEX_SHARDS
from korvet.store.outages import Outages
from tests.store.logs import NAMESPACE, Front

pytestmark = pytest.mark.anyio

NOBODY: frozenset[str] = frozenset()


@pytest.fixture
async def groups(one: Front) -> Groups:
    """The groups of a namespace in which there are none, and a new one waits for nobody."""
    for shard in range(GROUP_INDEX_SHARDS):
        key = NAMESPACE.group_index(shard)
        await one.store.call(Purpose.COORDINATE, key, "DEL", key)
    catalog = Catalog(NAMESPACE, one.store, one.wakeups, {"group.initial.rebalance.delay.ms": "0"})
    await catalog.open()
    return Groups(NAMESPACE, one.store, catalog, one.wakeups, Outages(one.store))


async def call(one: Front, key: str, command: str, *args: str | int) -> object:
    return await one.store.call(Purpose.COORDINATE, key, command, key, *args)


async def joined(groups: Groups) -> tuple[str, str]:
    """A group of one member, and that member."""
    group_id = f"g-{uuid4().hex[:8]}"
    request = JoinRequest(
        group_id=group_id,
        member_id="",
        instance_id=None,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=0,
        protocol_type="consumer",
        protocols=[("range", b"")],
        version=3,
    )
    return group_id, (await groups.join(request, anyio.Event())).member_id


async def test_group_whose_members_died_becomes_empty_and_expires(one: Front, groups: Groups) -> None:
    group_id, member_id = await joined(groups)
    keys = NAMESPACE.group(group_id)
    assert await call(one, keys.sessions, "ZADD", 1, member_id) == 0
    suspects = await sweep(groups, NOBODY)
    assert suspects == {group_id}
    assert await call(one, keys.group, "HGET", "state") != b"Empty"
    assert await sweep(groups, suspects) == set()
    assert await call(one, keys.group, "HGET", "state") == b"Empty"
    assert await call(one, keys.group, "PTTL") != -1
    assert await groups.neglected() == set()


async def test_entry_of_the_index_without_a_group_goes(one: Front, groups: Groups) -> None:
    index = NAMESPACE.group_index_of("nothing")
    assert await call(one, index, "SADD", "nothing") == 1
    suspects = await sweep(groups, NOBODY)
    assert suspects == {"nothing"}
    assert await call(one, index, "SISMEMBER", "nothing") == 1
    assert await sweep(groups, suspects) == set()
    assert await call(one, index, "SISMEMBER", "nothing") == 0


async def test_group_that_was_heard_again_between_two_sweeps_is_left_alone(one: Front, groups: Groups) -> None:
    """So an outage ends: the sweep may come before the members do."""
    group_id, member_id = await joined(groups)
    keys = NAMESPACE.group(group_id)
    await call(one, keys.sessions, "ZADD", 1, member_id)
    await call(one, keys.group, "HSET", "touched", 1)
    suspects = await sweep(groups, NOBODY)
    assert await groups.heartbeat(group_id, member_id, None, 1) == 0
    assert await sweep(groups, suspects) == set()
    described = await groups.describe(group_id)
    assert described is not None and [member.id for member in described.members] == [member_id]
