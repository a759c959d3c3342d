"""Members of groups over a real store, for the tests of groups below the requests."""

from __future__ import annotations

from collections.abc import Sequence, Set
from uuid import uuid4

import anyio

from korvet.redis.client import Purpose
from korvet.store.background.group_sweep import sweep
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.groups import Groups
from korvet.store.groups.types import Joined, JoinRequest, Synced, SyncRequest
from korvet.store.keys import GROUP_INDEX_SHARDS
from korvet.store.outages import Outages
from korvet.store.outcomes import Failures
from tests.store.logs import NAMESPACE, Front

RUNNING = anyio.Event()
"""The event of a front-end that does not drain."""


async def open_groups(front: Front, outages: Outages) -> Groups:
    """The groups of an empty namespace; the first rebalance of a new group waits for no further members."""
    for shard in range(GROUP_INDEX_SHARDS):
        key = NAMESPACE.group_index(shard)
        await front.store.call(Purpose.COORDINATE, key, "DEL", key)
    catalog = Catalog(NAMESPACE, front.store, front.wakeups, {"group.initial.rebalance.delay.ms": "0"})
    await catalog.open()
    return Groups(NAMESPACE, front.store, catalog, front.wakeups, outages, front.log)


def new_group() -> str:
    return f"g-{uuid4().hex[:8]}"


async def join(
    groups: Groups, group_id: str, member_id: str = "", draining: anyio.Event = RUNNING, metadata: bytes = b"metadata"
) -> Joined:
    """Join a member, by a version that requires no member id first, and wait for the answer."""
    request = JoinRequest(
        group_id=group_id,
        member_id=member_id,
        instance_id=None,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[("range", metadata)],
        version=3,
    )
    return await groups.classic.join(request, draining)


async def sync(groups: Groups, group_id: str, joined: Joined, assigned: Sequence[str] = ()) -> Synced:
    """Sync a member and wait. The leader assigns to each member that member's own id."""
    request = SyncRequest(
        group_id=group_id,
        member_id=joined.member_id,
        instance_id=None,
        generation=joined.generation,
        protocol=None,
        assignments=[(member_id, member_id.encode()) for member_id in assigned],
    )
    return await groups.classic.sync(request, RUNNING)


async def stable(groups: Groups) -> tuple[str, str]:
    """A Stable group of one member, and the member's id."""
    group_id = new_group()
    joined = await join(groups, group_id)
    assert (joined.code, joined.generation) == (0, 1)
    await sync(groups, group_id, joined, [joined.member_id])
    return group_id, joined.member_id


async def swept(groups: Groups, suspects: Set[str]) -> Set[str]:
    """The result of a sweep in which no server fails."""
    failures: Failures = []
    found = await sweep(groups, suspects, failures)
    assert failures == []
    return found
