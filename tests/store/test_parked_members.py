"""Parked members of one group at one front-end: one call asks for all of them, and each stays independent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from korvet.codes import COORDINATOR_NOT_AVAILABLE
from korvet.errors import StoreError
from korvet.redis.client import Purpose
from korvet.store.groups.groups import Groups
from korvet.store.groups.parked_members import Member, ParkedMembers
from korvet.store.groups.types import Joined, Synced
from korvet.store.outages import Outages
from tests.store.groups import RUNNING, join, open_groups, stable, sync
from tests.store.logs import NAMESPACE, Front

pytestmark = pytest.mark.anyio

MANY = 50


@pytest.fixture
async def groups(one: Front) -> Groups:
    return await open_groups(one, Outages(one.store))


class Waiting:
    """Members that join, each in a task of its own, and their answers."""

    def __init__(self, groups: Groups, group_id: str, draining: anyio.Event) -> None:
        self._groups = groups
        self._group_id = group_id
        self._draining = draining
        self.answers: list[Joined] = []
        self.errors: list[StoreError] = []
        self.scopes: list[anyio.CancelScope] = []

    async def join(self) -> None:
        with anyio.CancelScope() as scope:
            self.scopes.append(scope)
            try:
                self.answers.append(await join(self._groups, self._group_id, draining=self._draining))
            except StoreError as error:
                self.errors.append(error)


@asynccontextmanager
async def waiting(groups: Groups, group_id: str, count: int, draining: anyio.Event = RUNNING) -> AsyncIterator[Waiting]:
    """Some new members, parked behind the present member. The end of the block waits for all of them."""
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            members = Waiting(groups, group_id, draining)
            for _ in range(count):
                tasks.start_soon(members.join)
            while await _size(groups, group_id) < count + 1:
                await anyio.sleep(0.002)
            yield members


async def _size(groups: Groups, group_id: str) -> int:
    described = await groups.administration.describe(group_id)
    return 0 if described is None else len(described.members)


@asynccontextmanager
async def counted(one: Front) -> AsyncIterator[Callable[[], int]]:
    """A count of the calls since the block began to functions that write."""
    key = NAMESPACE.group("any").group
    stats: dict[str, int] = {}

    async def calls() -> int:
        info: Any = await one.store.call(Purpose.COORDINATE, key, "INFO", "commandstats")
        line = next(line for line in info.decode().split() if line.startswith("cmdstat_fcall:"))
        return int(line.split("calls=")[1].split(",")[0])

    before = await calls()
    yield lambda: stats["after"] - before
    stats["after"] = await calls()


async def test_one_call_asks_for_all_parked_members(one: Front, groups: Groups) -> None:
    group_id, first = await stable(groups)
    async with counted(one) as calls, waiting(groups, group_id, MANY) as members:
        leader = await join(groups, group_id, first)
    assert calls() < 3 * MANY
    assert (leader.leader, len(leader.members)) == (first, MANY + 1)
    assert {(one.code, one.generation, one.leader, len(one.members)) for one in members.answers} == {(0, 2, first, 0)}
    assert len({one.member_id for one in members.answers}) == MANY


async def test_one_call_fetches_the_assignments_of_all_parked_members(one: Front, groups: Groups) -> None:
    group_id, first = await stable(groups)
    async with waiting(groups, group_id, MANY) as members:
        leader = await join(groups, group_id, first)
    synced: dict[str, Synced] = {}

    async def follow(joined: Joined) -> None:
        synced[joined.member_id] = await sync(groups, group_id, joined)

    async with counted(one) as calls, anyio.create_task_group() as tasks:
        for joined in members.answers:
            tasks.start_soon(follow, joined)
        while await _synced(one, group_id) < MANY:
            await anyio.sleep(0.002)
        await sync(groups, group_id, leader, [member.id for member in leader.members])
    assert calls() < 3 * MANY
    assert {name: answer.assignment for name, answer in synced.items()} == {name: name.encode() for name in synced}
    assert len(synced) == MANY


async def _synced(one: Front, group_id: str) -> int:
    key = NAMESPACE.group(group_id).group
    return int(await one.store.call(Purpose.COORDINATE, key, "HGET", key, "synced") or 0)


@pytest.mark.parametrize("cancelled", [slice(0, 1), slice(1, 2), slice(0, 5)])
async def test_cancelled_member_takes_no_other_along(one: Front, groups: Groups, cancelled: slice) -> None:
    """The cancelled members include the first one, which asks for all."""
    group_id, first = await stable(groups)
    async with waiting(groups, group_id, 10) as members:
        for scope in members.scopes[cancelled]:
            scope.cancel()
        leader = await join(groups, group_id, first)
    assert len(leader.members) == 11
    assert {(one.code, one.generation) for one in members.answers} == {(0, 2)}
    assert len(members.answers) == 10 - len(members.scopes[cancelled])


async def test_round_is_gone_with_its_last_member(one: Front, groups: Groups) -> None:
    group_id, _ = await stable(groups)
    async with waiting(groups, group_id, 5) as members:
        for scope in members.scopes:
            scope.cancel()
    assert members.answers == []
    assert groups.classic._joining._rounds == {}


async def test_failed_call_fails_all_parked_members(one: Front, groups: Groups) -> None:
    group_id, _ = await stable(groups)
    keys = NAMESPACE.group(group_id)
    async with waiting(groups, group_id, 10) as members:
        await one.store.call(Purpose.COORDINATE, keys.members, "SET", keys.members, "not a hash")
        await one.store.call(Purpose.COORDINATE, keys.group, "SPUBLISH", keys.group, "")
    assert members.answers == []
    assert len(members.errors) == 10
    assert {"WRONGTYPE" in str(error) for error in members.errors} == {True}


async def test_stream_of_new_members_does_not_keep_calls_from_the_first(one: Front) -> None:
    """Each question prolongs the first member's session."""
    members, parked = ParkedMembers(one.wakeups, 0), [b"parked", 20]
    asked: list[str] = []

    async def come(name: str) -> None:
        await members.wait("channel", 1, (name, ""), parked, RUNNING, ask)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:

            async def ask(members: Sequence[Member]) -> Sequence[Any]:
                asked.extend(name for name, _ in members)
                tasks.start_soon(come, f"later-{len(asked)}")
                await anyio.sleep(0.002)
                return [parked for _ in members]

            tasks.start_soon(come, "first")
            while asked.count("first") < 3 and len(asked) < 500:
                await anyio.sleep(0.002)
            tasks.cancel_scope.cancel()
    assert asked.count("first") == 3


async def test_drain_sends_all_parked_members_elsewhere(one: Front, groups: Groups) -> None:
    group_id, _ = await stable(groups)
    draining = anyio.Event()
    async with waiting(groups, group_id, 10, draining) as members:
        draining.set()
        one.wakeups.wake_all()
    assert {answer.code for answer in members.answers} == {COORDINATOR_NOT_AVAILABLE}
    assert len({answer.member_id for answer in members.answers}) == 10


async def test_members_of_one_group_wait_at_two_front_ends(one: Front, other: Front, groups: Groups) -> None:
    elsewhere = Groups(NAMESPACE, other.store, other.catalog, other.wakeups, Outages(other.store), other.log)
    group_id, first = await stable(groups)
    async with waiting(groups, group_id, 5) as here:
        there = Waiting(elsewhere, group_id, RUNNING)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(there.join)
            while await _size(groups, group_id) < 11:
                await anyio.sleep(0.002)
            leader = await join(elsewhere, group_id, first)
    assert len(leader.members) == 11
    assert [(one.code, one.generation) for one in (*here.answers, *there.answers)] == [(0, 2)] * 10
