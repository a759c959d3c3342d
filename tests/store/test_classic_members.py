"""Classic members of a group of the consumer protocol, as a front-end serves them."""

from __future__ import annotations

from uuid import uuid4

import anyio
import pytest

from korvet.codes import REBALANCE_IN_PROGRESS
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.groups import Groups
from korvet.store.groups.types import SyncRequest
from korvet.store.outages import Outages
from tests.lua.mixed import assignment, subscription
from tests.store.groups import RUNNING, join, new_group, open_groups
from tests.store.logs import NAMESPACE, Front
from tests.store.test_consumer_groups import request, topic

pytestmark = pytest.mark.anyio
SECONDS = 20.0


async def joined(groups: Groups, group_id: str, name: str, member_id: str = "") -> tuple[str, int]:
    """A classic member that subscribes to a topic joins; returns its id and generation."""
    answer = await join(groups, group_id, member_id, metadata=subscription([name]))
    assert answer.code == 0
    return answer.member_id, answer.generation


async def synced(groups: Groups, group_id: str, member_id: str, generation: int) -> bytes:
    answer = await groups.classic.sync(
        SyncRequest(
            group_id=group_id,
            member_id=member_id,
            instance_id=None,
            generation=generation,
            protocol=None,
            assignments=(),
        ),
        RUNNING,
    )
    assert answer.code == 0
    return answer.assignment


async def test_heartbeat_reports_added_partitions_to_classic_members(one: Front, other: Front) -> None:
    """The other front-end's catalog knows of the partitions before this front-end's does."""
    groups = await open_groups(one, Outages(one.store))
    group_id, name = new_group(), await topic(other, 1, f"t-{uuid4().hex[:8]}")
    with anyio.fail_after(SECONDS):
        await groups.consumers.heartbeat(request(group_id, "new", names=[name]))
        member_id, generation = await joined(groups, group_id, name)
        await synced(groups, group_id, member_id, generation)
        assert await groups.classic.heartbeat(group_id, member_id, None, generation) == 0
        await _grow(other, name)
        elsewhere = Groups(
            NAMESPACE, other.store, await _catalog(other), other.wakeups, Outages(other.store), other.log
        )
        assert await elsewhere.classic.heartbeat(group_id, member_id, None, generation) == REBALANCE_IN_PROGRESS
        assert await groups.classic.heartbeat(group_id, member_id, None, generation) == REBALANCE_IN_PROGRESS
        member_id, generation = await joined(groups, group_id, name, member_id)
        assert await groups.classic.heartbeat(group_id, member_id, None, generation) == 0
        told = await synced(groups, group_id, member_id, generation)
    assert told in [assignment({name: partitions}) for partitions in ([1], [2], [1, 2])]


async def _catalog(front: Front) -> Catalog:
    catalog = Catalog(NAMESPACE, front.store, front.wakeups)
    await catalog.open()
    return catalog


async def _grow(front: Front, name: str) -> None:
    catalog = await _catalog(front)
    found = catalog.topic(name)
    assert found is not None
    await catalog.grow(found, 3)
