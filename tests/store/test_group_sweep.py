"""The sweep of groups: expired members, entries without a group, and offsets of deleted topics."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any
from uuid import UUID, uuid4

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.errors import StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.background.group_sweep import sweep, sweep_offsets
from korvet.store.groups.consumer_types import ShareHeartbeatRequest
from korvet.store.groups.groups import Groups
from korvet.store.groups.types import CommitRequest, Offset, TopicPartition
from korvet.store.outages import Outages
from korvet.store.outcomes import Failures
from korvet.store.topics import delete_topic
from tests.store.groups import new_group, open_groups, stable, swept
from tests.store.logs import NAMESPACE, Front, until
from tests.support.topologies import Cluster

pytestmark = pytest.mark.anyio

NOBODY: frozenset[str] = frozenset()


@pytest.fixture
async def outages(one: Front) -> Outages:
    return Outages(one.store)


@pytest.fixture
async def groups(one: Front, outages: Outages) -> Groups:
    return await open_groups(one, outages)


async def offsets_swept(groups: Groups, swept: Set[UUID] | None) -> Set[UUID]:
    """The topics that have no offset left after a sweep in which no server fails."""
    failures: Failures = []
    there = await sweep_offsets(groups, swept, failures)
    assert failures == [] and there is not None
    return there


async def committed(groups: Groups, group_id: str, positions: Mapping[TopicPartition, UUID]) -> None:
    """Commit an offset for each partition, as a consumer without a group protocol."""
    request = CommitRequest(
        group_id=group_id,
        member_id="",
        instance_id=None,
        generation=-1,
        version=9,
        offsets=[(partition, Offset(7, -1, id, "some words")) for partition, id in positions.items()],
    )
    assert await groups.offsets.commit(request) == 0


async def call(one: Front, key: str, command: str, *args: str | int) -> Any:
    return await one.store.call(Purpose.COORDINATE, key, command, key, *args)


async def test_group_whose_members_all_expired_becomes_empty_and_expires(one: Front, groups: Groups) -> None:
    group_id, member_id = await stable(groups)
    keys = NAMESPACE.group(group_id)
    assert await call(one, keys.sessions, "ZADD", 1, member_id) == 0
    assert await groups.administration.neglected([]) == ({group_id}, set())
    assert await call(one, keys.group, "HGET", "state") != b"Empty"
    assert await swept(groups, NOBODY) == set()
    assert await call(one, keys.group, "HGET", "state") == b"Empty"
    assert await call(one, keys.group, "PTTL") != -1
    assert await groups.administration.neglected([]) == (set(), set())


async def test_share_group_whose_members_all_expired_keeps_none_and_stays(one: Front, groups: Groups) -> None:
    group_id = new_group()
    request = ShareHeartbeatRequest(
        group_id=group_id, member_id="m", member_epoch=0, rack=None, names=["t"], client_id="", client_host="",
    )  # fmt: skip
    assert (await groups.shares.heartbeat(request)).code == 0
    keys = NAMESPACE.group(group_id)
    assert await groups.administration.neglected([]) == (set(), set())
    assert await call(one, keys.sessions, "ZADD", 1, "m") == 0
    assert await groups.administration.neglected([]) == ({group_id}, set())
    assert await swept(groups, NOBODY) == set()
    assert await call(one, keys.members, "EXISTS") == 0
    assert await call(one, keys.group, "HGET", "state") == b"Empty"
    assert await groups.administration.neglected([]) == (set(), set())


async def test_entry_of_the_index_without_a_group_goes(one: Front, groups: Groups) -> None:
    index = NAMESPACE.group_index_of("nothing")
    assert await call(one, index, "SADD", "nothing") == 1
    suspects = await swept(groups, NOBODY)
    assert suspects == {"nothing"}
    assert await call(one, index, "SISMEMBER", "nothing") == 1
    assert await swept(groups, suspects) == set()
    assert await call(one, index, "SISMEMBER", "nothing") == 0


async def test_group_whose_members_an_outage_kept_silent_is_left_alone(
    one: Front, groups: Groups, outages: Outages
) -> None:
    group_id, member_id = await stable(groups)
    keys = NAMESPACE.group(group_id)
    now_ms = int((await call(one, keys.group, "HGET", "state_since")).decode())
    assert await call(one, keys.sessions, "ZADD", now_ms - 1000, member_id) == 0
    assert await groups.administration.neglected([]) == ({group_id}, set())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outages.watch)
        await until(lambda: outages.known_at(keys.group) != "")
        tasks.cancel_scope.cancel()
    outages.began(f"{now_ms - 5000}-{now_ms - 500}")
    assert await groups.administration.neglected([]) == (set(), set())
    assert await swept(groups, NOBODY) == set()
    described = await groups.administration.describe(group_id)
    assert described is not None and [member.id for member in described.members] == [member_id]


async def test_group_whose_keys_cannot_be_read_is_left_out_of_list_and_sweep(one: Front, groups: Groups) -> None:
    """One log line names the group; the sweep goes on, and the other groups are listed."""
    group_id, _ = await stable(groups)
    broken = f"broken-{group_id}"
    index = NAMESPACE.group_index_of(broken)
    await call(one, index, "SADD", broken)
    await call(one, NAMESPACE.group(broken).group, "SET", "not a hash")
    with capture_logs() as lines:
        assert [listed.group_id for listed in await groups.administration.list()] == [group_id]
    assert [(line["groups"], line["first"]) for line in lines] == [(1, broken)]
    assert await swept(groups, NOBODY) == set()
    assert await call(one, index, "SISMEMBER", broken) == 1


async def test_group_that_cannot_be_swept_holds_up_no_other_group(one: Front, groups: Groups) -> None:
    """The order of the groups does not matter."""
    group_id, member_id = await stable(groups)
    assert await call(one, NAMESPACE.group(group_id).sessions, "ZADD", 1, member_id) == 0
    broken = [f"broken-{number}" for number in range(5)]
    for name in broken:
        await call(one, NAMESPACE.group_index_of(name), "SADD", name)
        await call(one, NAMESPACE.group(name).attached, "SET", "not a hash")
    with capture_logs() as lines:
        assert await swept(groups, {*broken, "missing"}) == set()
    assert sorted(line["group"] for line in lines if line["log_level"] == "error") == broken
    assert await groups.administration.neglected([]) == (set(), set(broken))


async def test_offsets_of_topics_that_are_gone_are_forgotten(one: Front, other: Front, outages: Outages) -> None:
    """The sweep keeps offsets of a topic that another front-end has just made, and of one that took a former name."""
    groups = await open_groups(one, outages)
    group_id, topic, newer = new_group(), await one.topic(2), await other.topic()
    positions = {
        (topic.name, 0): topic.id, (topic.name, 1): uuid4(), ("gone", 0): uuid4(), (newer.name, 0): newer.id,
    }  # fmt: skip
    await committed(groups, group_id, positions)
    there = await offsets_swept(groups, None)
    assert set(await groups.offsets.fetch(group_id, None)) == {(topic.name, 0), (newer.name, 0)}
    assert {topic.id, newer.id} <= await offsets_swept(groups, there)
    await delete_topic(one.catalog, one.log, topic)
    await offsets_swept(groups, there)
    assert set(await groups.offsets.fetch(group_id, None)) == {(newer.name, 0)}


async def test_node_that_is_away_holds_up_no_sweep_of_other_nodes_groups(
    cluster: Cluster, one_of_cluster: Front
) -> None:
    one = one_of_cluster
    groups = await open_groups(one, Outages(one.store))
    catalog_port = one.port_of(NAMESPACE.catalog.meta)
    away = next(node for node in cluster.nodes if node.port != catalog_port)
    members = [await stable(groups) for _ in range(40)]
    keys = {group_id: NAMESPACE.group(group_id) for group_id, _ in members}
    served = [group_id for group_id, _ in members if one.port_of(keys[group_id].group) != away.port]
    assert 0 < len(served) < len(members)
    for group_id, member_id in members:
        await call(one, keys[group_id].sessions, "ZADD", 1, member_id)
        await call(one, keys[group_id].offsets, "HSET", "gone:0", f"7 -1 {uuid4().hex} ")
    away.kill()
    await until(lambda: not one.store.is_connected())
    failures: Failures = []
    assert await sweep(groups, NOBODY, failures) == set()
    assert await sweep_offsets(groups, None, failures) is None
    for group_id in served:
        assert await call(one, keys[group_id].group, "HGET", "state") == b"Empty"
        assert await call(one, keys[group_id].offsets, "EXISTS") == 0
    assert len(failures) == 2 * (len(members) - len(served))
    assert {type(failure) for failure in failures} == {StoreUnavailable}
    with pytest.raises(StoreUnavailable):
        await groups.administration.list()
