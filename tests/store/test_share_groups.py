"""Share groups as a front-end serves them: `korvet.store.groups.share` over a real store."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.codes import GROUP_ID_NOT_FOUND, INVALID_REQUEST, NON_EMPTY_GROUP, UNKNOWN_MEMBER_ID
from korvet.redis.client import Purpose
from korvet.store.capacity import stored_bytes
from korvet.store.catalog.topic import Topic
from korvet.store.groups.consumer import MOST_NAMES
from korvet.store.groups.consumer_types import Heartbeaten, ShareHeartbeatRequest
from korvet.store.shares.types import Acquirer, Limits, SharePartition
from korvet.store.topics import delete_topic, grow_topic
from tests.store.groups import new_group
from tests.store.logs import NAMESPACE
from tests.store.redis_groups import Side
from tests.support.ported import kafka

pytestmark = pytest.mark.anyio

LIMITS = Limits(lock_ms=30_000, deliveries=5, window=2000)


async def beat(side: Side, group_id: str, member_id: str, epoch: int, *names: str) -> Heartbeaten:
    return await side.groups.shares.heartbeat(
        ShareHeartbeatRequest(
            group_id=group_id, member_id=member_id, member_epoch=epoch, rack=None, names=names or None,
            client_id="client", client_host="/127.0.0.1",
        )
    )  # fmt: skip


async def starts(side: Side, group_id: str, topic: Topic, partitions: int) -> list[int | None]:
    """The start offset of each share partition, None if there is none."""
    described = await side.groups.shares.describe(group_id, [(topic, range(partitions))])
    return [found.start if isinstance(found, SharePartition) else None for _, found in described]


async def left(side: Side, group_id: str, member_id: str) -> None:
    assert (await beat(side, group_id, member_id, -1)).code == 0


@kafka("GroupMetadataManagerTest.testShareGroupHeartbeatPersisterRequestWithInitializing")
@kafka("ShareGroupTest.testAsDescribedGroup")
async def test_member_gets_partitions_whose_share_partitions_have_begun(a: Side) -> None:
    topic, group_id = await a.topic(3), new_group()
    answer = await beat(a, group_id, "m", 0, topic.name)
    assert (answer.code, answer.member_epoch, answer.assignment) == (0, 1, {topic.id: (0, 1, 2)})
    assert await starts(a, group_id, topic, 3) == [-1, -1, -1]
    found = await a.groups.shares.topics(group_id)
    assert found is not None
    assert (found.state, found.topics) == ("Stable", {topic.name: f"{topic.id.hex} 3"})
    assert await a.groups.shares.beat(group_id, "m", 1) == 1
    assert await a.groups.shares.beat(group_id, "m", 2) == 0
    described = await a.groups.administration.describe(group_id)
    assert described is not None and described.consumer is not None
    assert (described.type, described.state, described.consumer.members[0].owned) == (
        "share", "Stable", {topic.id: (0, 1, 2)},
    )  # fmt: skip
    listed = [one for one in await a.groups.administration.list() if one.group_id == group_id]
    assert [(one.state, one.protocol_type, one.type) for one in listed] == [("Stable", "share", "share")]


async def test_share_partition_whose_keys_were_lost_begins_again(a: Side) -> None:
    topic, group_id = await a.topic(1), new_group()
    await beat(a, group_id, "m", 0, topic.name)
    partition = a.front.log.partition(topic, 0)
    assert await a.call(a.groups.share_partitions.channel(partition), "DEL") == 1
    shares, me = a.groups.share_partitions, Acquirer("m", "1")
    found = await shares.acquire(partition, group_id, me, LIMITS, 1, reset="earliest")
    assert (found.code, found.start) == (0, 0)
    assert (await shares.acquire(partition, "unknown", me, LIMITS, 1)).code == GROUP_ID_NOT_FOUND
    other = a.front.log.partition(await a.topic(1), 0)
    assert (await shares.acquire(other, group_id, me, LIMITS, 1)).code == GROUP_ID_NOT_FOUND


async def test_ranges_in_flight_count_as_state_of_the_namespace(a: Side) -> None:
    partition = a.front.log.partition(await a.topic(1), 0)
    shares, me = a.groups.share_partitions, Acquirer("m" * 36, "1")

    async def state_bytes() -> int:
        _, other_bytes, _ = await stored_bytes(NAMESPACE, a.front.catalog, a.front.log, a.groups)
        return other_bytes

    await state_bytes()
    before = await state_bytes()
    for number in range(150):
        group_id = f"g{number}"
        assert await shares.begin(partition, group_id, "cgp_1") == 0
        for _ in range(3):
            assert (await shares.acquire(partition, group_id, me, LIMITS, 1, mode="records", reset="earliest")).ranges
    assert await state_bytes() - before > 150 * 3 * 50
    await a.call(shares.channel(partition), "HSET", b"a worker's \xff", "")
    assert await state_bytes() - before > 150 * 3 * 50
    await a.call(shares.channel(partition), "SET", "foreign")
    await state_bytes()


async def test_members_of_two_front_ends_share_a_partition(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(1), new_group()
    assert (await beat(a, group_id, "m", 0, topic.name)).assignment == {topic.id: (0,)}
    assert (await beat(b, group_id, "n", 0, topic.name)).assignment == {topic.id: (0,)}
    answer = await beat(a, group_id, "m", 1)
    assert (answer.member_epoch, answer.assignment) == (2, None)


@kafka("GroupMetadataManagerTest.testShareGroupHeartbeatInitializeOnPartitionUpdate testShareGroupPendingAssignments")
@kafka("ShareGroupHeartbeatRequestTest.testPartitionAssignmentWithChangingTopics")
async def test_added_partitions_begin_and_are_assigned(a: Side) -> None:
    topic, group_id = await a.topic(1), new_group()
    await beat(a, group_id, "m", 0, topic.name)
    await grow_topic(a.front.catalog, a.front.log, topic, 3)
    await a.groups.consumers._catalog.refresh()
    answer = await beat(a, group_id, "m", 1)
    assert (answer.member_epoch, answer.assignment) == (2, {topic.id: (0, 1, 2)})
    assert await starts(a, group_id, topic, 1) == [-1]
    found = await a.groups.shares.topics(group_id)
    assert found is not None and found.topics == {topic.name: f"{topic.id.hex} 3"}


@kafka("ShareGroupHeartbeatRequestTest.testGroupCoordinatorChange")
async def test_target_is_not_installed_before_its_share_partitions_have_begun(
    a: Side, b: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front-end that dies between the two leaves the rest to the next heartbeat."""
    topic, group_id = await a.topic(2), new_group()

    async def dies(*_: Any) -> None:
        raise ConnectionAbortedError

    with monkeypatch.context() as patch:
        patch.setattr(a.groups.share_partitions, "begin", dies)
        with pytest.raises(ConnectionAbortedError):
            await beat(a, group_id, "m", 0, topic.name)
    assert await starts(a, group_id, topic, 2) == [None, None]
    assert (await beat(b, group_id, "m", 0, topic.name)).assignment == {topic.id: (0, 1)}
    assert await starts(a, group_id, topic, 2) == [-1, -1]


async def test_names_of_topics_are_bounded(a: Side) -> None:
    answer = await beat(a, new_group(), "m", 0, *(f"t{number}" for number in range(MOST_NAMES + 1)))
    assert answer.code == INVALID_REQUEST
    assert (await beat(a, new_group(), "m", 3)).code == UNKNOWN_MEMBER_ID


@kafka("GroupCoordinatorServiceTest.testPersisterInitializeForAlterShareGroupOffsetsResponseSuccess")
@kafka("GroupCoordinatorServiceTest.testAlterShareGroupOffsetsRequestReturnsGroupNotEmpty")
async def test_start_moves_only_while_the_group_has_no_members(a: Side) -> None:
    topic, group_id = await a.topic(2), new_group()
    moved = await a.groups.shares.move(group_id, [(topic, {0: 5, 1: 100})])
    assert not isinstance(moved, int)
    assert [(one.index, code) for one, code in moved] == [(0, 0), (1, 0)]
    assert await starts(a, group_id, topic, 2) == [5, 9]
    await beat(a, group_id, "m", 0, topic.name)
    assert await starts(a, group_id, topic, 2) == [5, 9]
    assert await a.groups.shares.move(group_id, [(topic, {0: 0})]) == NON_EMPTY_GROUP
    assert await a.groups.shares.forget(group_id) == NON_EMPTY_GROUP
    await a.commit("classic", topic, 1)
    assert await a.groups.shares.move("classic", [(topic, {0: 0})]) == GROUP_ID_NOT_FOUND
    assert await a.groups.shares.forget("classic") == GROUP_ID_NOT_FOUND


@kafka("GroupMetadataManagerTest.testSharePartitionsEligibleForOffsetDeletionSuccess")
@kafka("GroupMetadataManagerTest.testShareGroupInitializingClearsCommonDeleting")
@kafka("GroupMetadataManagerTest.testCompleteDeleteShareGroupOffsets")
async def test_forgotten_topic_begins_again_with_the_next_member(a: Side) -> None:
    topic, other, group_id = await a.topic(2), await a.topic(1), new_group()
    await a.groups.shares.move(group_id, [(topic, {0: 5}), (other, {0: 5})])
    await beat(a, group_id, "m", 0, topic.name, other.name)
    await left(a, group_id, "m")
    assert await a.groups.shares.forget(group_id, [topic.name, "unknown"]) == 0
    assert await starts(a, group_id, topic, 2) == [None, None]
    assert await starts(a, group_id, other, 1) == [5]
    answer = await beat(a, group_id, "m", 0, topic.name, other.name)
    assert answer.assignment == {topic.id: (0, 1), other.id: (0,)}
    assert await starts(a, group_id, topic, 2) == [-1, -1]
    assert await starts(a, group_id, other, 1) == [5]


@kafka("GroupMetadataManagerTest.testShareGroupDeleteRequestNoDeletingTopics testShareGroupDeleteTombstones")
@kafka("GroupCoordinatorServiceTest.testDeleteWithShareGroups testDeleteShareGroupNotEmptyError")
async def test_deleted_group_leaves_no_share_partition(a: Side) -> None:
    topic, gone, group_id = await a.topic(3), await a.topic(1), new_group()
    await beat(a, group_id, "m", 0, topic.name, gone.name)
    assert await a.groups.administration.delete([group_id]) == [NON_EMPTY_GROUP]
    assert await starts(a, group_id, topic, 3) == [-1, -1, -1]
    await left(a, group_id, "m")
    await delete_topic(a.front.catalog, a.front.log, gone)
    assert await a.groups.administration.delete([group_id, "nobody"]) == [0, GROUP_ID_NOT_FOUND]
    assert await starts(a, group_id, topic, 3) == [None, None, None]
    keys = a.front.log.partition(topic, 0).keys
    names = [await a.call(keys.log.removesuffix("log") + name, "EXISTS") for name in ("shares", f"share:{group_id}")]
    assert names == [0, 0]
    unit = a.groups.administration._calls.keys(group_id)
    assert [await a.call(key, "EXISTS") for key in unit] == [0] * len(unit)


async def test_group_that_is_made_anew_does_not_go_on_where_the_former_one_was(a: Side) -> None:
    """Somebody removed the former group by hand, so its share partitions stayed."""
    topic, group_id = await a.topic(1), new_group()
    await a.groups.shares.move(group_id, [(topic, {0: 5})])
    for key in a.groups.administration._calls.keys(group_id):
        await a.front.store.call(Purpose.COORDINATE, key, "DEL", key)
    await beat(a, group_id, "m", 0, topic.name)
    assert await starts(a, group_id, topic, 1) == [-1]


async def test_sweep_leaves_a_share_group_without_members(a: Side) -> None:
    topic, group_id = await a.topic(1), new_group()
    await beat(a, group_id, "m", 0, topic.name)
    await left(a, group_id, "m")
    neglected = await a.groups.administration.neglected([])
    assert group_id not in neglected.dead | neglected.missing
    found = await a.groups.shares.topics(group_id)
    assert found is not None and found.state == "Empty"


async def test_share_partition_takes_acquisitions_after_the_first_heartbeat(a: Side) -> None:
    topic, group_id = await a.topic(1), new_group()
    partition, member = a.front.log.partition(topic, 0), Acquirer("m", "1")
    shares = a.groups.share_partitions
    assert (await shares.acquire(partition, group_id, member, LIMITS, 5, reset="earliest")).code == GROUP_ID_NOT_FOUND
    await beat(a, group_id, "m", 0, topic.name)
    assert (await shares.acquire(partition, group_id, member, LIMITS, 5, reset="earliest")).code == 0
