"""Offsets by the thousand: the calls that carry them have a bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from korvet.redis.client import Purpose
from korvet.store import contract
from korvet.store.groups.groups import Groups
from korvet.store.groups.types import CommitRequest, Offset
from korvet.store.outages import Outages
from tests.store.groups import join, new_group, open_groups, stable
from tests.store.logs import NAMESPACE, Front

pytestmark = pytest.mark.anyio

TOPIC = UUID(int=1)


@pytest.fixture
async def groups(one: Front) -> Groups:
    return await open_groups(one, Outages(one.store))


@pytest.fixture
def sizes(one: Front, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The counts of arguments in calls of functions that take a bounded list of arguments, by function."""
    noted: dict[str, list[int]] = {}
    fcall = one.store.fcall

    def noting(purpose: Purpose, function: str, keys: Sequence[str], *args: Any) -> Any:
        if contract.FUNCTIONS[function].args[-1].endswith("..."):
            noted.setdefault(function, []).append(len(args) - len(contract.FUNCTIONS[function].args) + 1)
        return fcall(purpose, function, keys, *args)

    monkeypatch.setattr(one.store, "fcall", noting)
    return noted


def at(offset: int) -> Offset:
    return Offset(offset=offset, leader_epoch=-1, topic_id=TOPIC, metadata="")


def commit(group_id: str, offsets: Sequence[tuple[tuple[str, int], Offset]], member: str = "") -> CommitRequest:
    generation = 1 if member else -1
    return CommitRequest(
        group_id=group_id, member_id=member, instance_id=None, generation=generation, version=9, offsets=offsets
    )


async def test_thousands_of_offsets_take_calls_of_bounded_size(groups: Groups, sizes: dict[str, list[int]]) -> None:
    group_id = new_group()
    partitions = [("t", number) for number in range(2500)]
    offsets = {partition: at(partition[1]) for partition in partitions}
    assert await groups.offsets.commit(commit(group_id, list(offsets.items()))) == 0
    assert await groups.offsets.fetch(group_id, partitions) == offsets
    assert await groups.offsets.fetch(group_id, None) == offsets
    assert (await groups.offsets.fetch_stable(group_id, None))[0].keys() == set(partitions)
    # The first call is refused because the group is not in the index yet, and repeated.
    assert sizes["korvet_group_commit"] == [2000, 2000, 2000, 1000]
    assert sizes["korvet_group_fetch"] == [1000, 1000, 500]
    code, codes = await groups.offsets.delete(group_id, [(partition, TOPIC.hex) for partition in partitions])
    assert (code, len(codes), sizes["korvet_group_offset_delete"]) == (0, 2500, [1000, 1000, 500])
    assert await groups.offsets.fetch(group_id, None) == {}


async def test_partition_named_many_times_is_read_once_and_its_last_offset_committed(
    groups: Groups, sizes: dict[str, list[int]]
) -> None:
    group_id, member = await stable(groups)
    assert (
        await groups.offsets.commit(commit(group_id, [(("t", 0), at(number)) for number in range(3000)], member)) == 0
    )
    assert await groups.offsets.fetch(group_id, [("t", 0)] * 3000) == {("t", 0): at(2999)}
    assert (sizes["korvet_group_commit"], sizes["korvet_group_fetch"]) == ([2], [1])


async def test_transaction_with_offsets_by_the_thousand_is_held_and_ended_whole(
    groups: Groups, sizes: dict[str, list[int]]
) -> None:
    group_id = new_group()
    offsets = [(("t", number), at(number)) for number in range(2500)]
    assert await groups.held_offsets.hold(commit(group_id, offsets), "app", 7, 0, 1) == 0
    found, unstable = await groups.offsets.fetch_stable(group_id, [("t", 0), ("t", 2499)])
    assert (found, unstable) == ({}, {("t", 0), ("t", 2499)})
    await groups.held_offsets.release(group_id, 7, 1, is_commit=True)
    assert await groups.offsets.fetch(group_id, None) == dict(offsets)
    assert max(sizes["korvet_group_txn_commit"]) == 2000


async def test_members_by_the_hundred_leave_in_calls_of_bounded_size(
    groups: Groups, sizes: dict[str, list[int]]
) -> None:
    group_id = new_group()
    joined = await join(groups, group_id)
    assert await groups.classic.leave(group_id, [("nobody", None)] * 500 + [(joined.member_id, None)]) == [25] * 500 + [
        0
    ]
    assert sizes["korvet_group_leave"] == [400, 400, 202]


async def test_group_with_redis_groups_by_the_thousand_is_deleted(
    one: Front, groups: Groups, sizes: dict[str, list[int]]
) -> None:
    group_id = new_group()
    assert await groups.offsets.commit(commit(group_id, [(("t", 0), at(1))])) == 0
    attached = NAMESPACE.group(group_id).attached
    flat = [part for number in range(2500) for part in (f"gone-{uuid4().hex[:8]}:{number}", TOPIC.hex)]
    await one.store.call(Purpose.COORDINATE, attached, "HSET", attached, *flat)
    assert await groups.administration.delete([group_id]) == [0]
    assert max(sizes["korvet_group_detach"]) <= 1000
    assert await one.store.call(Purpose.COORDINATE, attached, "EXISTS", attached) == 0
