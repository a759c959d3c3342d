"""Commits in the queue of a frozen Redis: made if the client still waits, and not made if it left."""

from __future__ import annotations

from uuid import UUID

import anyio
import pytest

from korvet.store.groups.groups import Groups
from korvet.store.groups.types import CommitRequest, Offset
from korvet.store.outages import LIMIT_MS, Outages
from tests.store.groups import open_groups, stable
from tests.store.logs import front
from tests.support.redis import Kind, running_server

pytestmark = pytest.mark.anyio

PARTITION = ("t", 0)


def _commit(group_id: str, member_id: str, offset: int) -> CommitRequest:
    position = Offset(offset=offset, leader_epoch=-1, topic_id=UUID(int=1), metadata="")
    return CommitRequest(
        group_id=group_id, member_id=member_id, instance_id=None, generation=1, version=9,
        offsets=[(PARTITION, position)],
    )  # fmt: skip


async def _committed(groups: Groups, group_id: str) -> int:
    offsets = await groups.offsets.fetch(group_id, [PARTITION])
    return offsets[PARTITION].offset if PARTITION in offsets else -1


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_commit_queued_at_a_frozen_redis_is_made_only_if_its_client_waits(kind: Kind) -> None:
    """Either front-end's calls may run first afterwards; the call whose client left may not undo the other one."""
    with running_server(kind) as server:
        async with front(server.url) as one, anyio.create_task_group() as tasks:
            outages = Outages(one.store)
            tasks.start_soon(outages.watch)
            groups = await open_groups(one, outages)
            left, waits = await stable(groups), await stable(groups)
            for group in (left, waits):
                assert await groups.offsets.commit(_commit(*group, 1)) == 0
            codes: list[int] = []
            leaving = anyio.CancelScope()

            async def leave() -> None:
                with leaving:
                    await groups.offsets.commit(_commit(*left, 2))

            async def wait() -> None:
                codes.append(await groups.offsets.commit(_commit(*waits, 2)))

            with server.paused():
                tasks.start_soon(leave)
                tasks.start_soon(wait)
                await anyio.sleep(0.2)
                leaving.cancel()
                await anyio.sleep(LIMIT_MS / 1000 + 1)
            with anyio.fail_after(20):
                while not codes:
                    await anyio.sleep(0.01)
            assert codes == [0]
            assert await _committed(groups, waits[0]) == 2
            assert await _committed(groups, left[0]) == 1
            tasks.cancel_scope.cancel()
