"""Cases of Kafka's own tests of its group coordinator whose behaviour the front-end has, by raw requests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from korvet.store.keys import Namespace
from tests.api.groups import (
    commit,
    committed,
    deleted,
    described,
    entered,
    heartbeat,
    join,
    leave,
    stable,
    sync,
)
from tests.api.raw import ask, created, unique
from tests.api.rdkafka import until
from tests.support.broker import KorvetServer
from tests.support.ported import kafka

UNKNOWN = "UNKNOWN_MEMBER_ID"


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """A thread for a request that waits."""
    with ThreadPoolExecutor(1) as threads:
        yield threads


def states(port: int, states: list[str], types: list[str], *groups: str) -> set[str]:
    """The groups among the given ones that ListGroups shows for states and types."""
    answer = ask(port, "list_groups", 5, states_filter=states, types_filter=types)
    assert answer["error_code"] == "NONE", answer
    return {one["group_id"] for one in answer["groups"]} & set(groups)


@kafka("GroupCoordinatorServiceTest.testJoinGroupInvalidGroupId")
@kafka("GroupCoordinatorTest.testInvalidGroupId")
def test_join_without_a_group_id_is_refused(broker: KorvetServer) -> None:
    answer = join(broker.port, "")
    assert (answer["error_code"], answer["member_id"]) == ("INVALID_GROUP_ID", "")


@kafka("GroupCoordinatorServiceTest.testSyncGroupInvalidGroupId")
def test_sync_without_a_group_id_is_refused(broker: KorvetServer) -> None:
    assert sync(broker.port, "", "", 1)["error_code"] == "INVALID_GROUP_ID"


@kafka("GroupMetadataManagerTest.testJoinGroupProtocolTypeIsNotProvidedWhenAnErrorOccurs")
@kafka("GroupCoordinatorTest.testJoinGroupProtocolTypeIsNotProvidedWhenAnErrorOccurs")
def test_refused_join_names_no_protocol_type(broker: KorvetServer) -> None:
    answer = join(broker.port, unique("g"), "member-id")
    assert (answer["error_code"], answer["protocol_type"]) == (UNKNOWN, None)


@kafka("GroupCoordinatorServiceTest.testJoinGroup")
@kafka("GroupCoordinatorServiceTest.testHeartbeatCoordinatorException")
def test_join_is_not_answered_before_the_others_rejoin(broker: KorvetServer, aside: ThreadPoolExecutor) -> None:
    group = unique("g")
    first = stable(broker.port, group)
    joining = aside.submit(entered, broker.port, group)
    until(lambda: heartbeat(broker.port, group, first) == "REBALANCE_IN_PROGRESS")
    assert not joining.done()
    assert leave(broker.port, group, first)["error_code"] == "NONE"
    assert joining.result(20)["generation_id"] == 2


@kafka("GroupCoordinatorServiceTest.testSyncGroup")
def test_sync_is_not_answered_before_the_leader_assigned(broker: KorvetServer, aside: ThreadPoolExecutor) -> None:
    group = unique("g")
    first = stable(broker.port, group)
    joining = aside.submit(entered, broker.port, group)
    until(lambda: heartbeat(broker.port, group, first) == "REBALANCE_IN_PROGRESS")
    assert join(broker.port, group, first)["generation_id"] == 2
    second = joining.result(20)["member_id"]
    syncing = aside.submit(sync, broker.port, group, second, 2)
    assert heartbeat(broker.port, group, second, 2) == "NONE"
    assert not syncing.done()
    sync(broker.port, group, first, 2, {second: b"second"})
    assert syncing.result(20)["assignment"] == b"second"


@kafka("GroupCoordinatorServiceTest.testHeartbeat")
def test_heartbeat_is_answered_at_once(broker: KorvetServer) -> None:
    group = unique("g")
    assert heartbeat(broker.port, group, stable(broker.port, group)) == "NONE"


@kafka("GroupCoordinatorServiceTest.testJoinGroupWithException")
@kafka("GroupCoordinatorServiceTest.testSyncGroupWithException")
def test_corrupt_group_is_an_error_of_the_server(broker: KorvetServer) -> None:
    group = unique("g")
    with broker.redis() as client:
        client.set(Namespace().group(group).group, "not a hash")
        try:
            assert join(broker.port, group)["error_code"] == "UNKNOWN_SERVER_ERROR"
            assert sync(broker.port, group, "member-id", 1)["error_code"] == "UNKNOWN_SERVER_ERROR"
        finally:
            client.delete(Namespace().group(group).group)


@kafka("GroupCoordinatorServiceTest.testLeaveGroup")
def test_each_member_that_leaves_an_unknown_group_is_unknown(broker: KorvetServer) -> None:
    members = [{"member_id": f"member-{at}", "group_instance_id": f"instance-{at}"} for at in (1, 2)]
    answer = ask(broker.port, "leave_group", 5, group_id=unique("g"), members=members)
    assert answer["error_code"] == "NONE"
    assert [(one["member_id"], one["group_instance_id"], one["error_code"]) for one in answer["members"]] == [
        ("member-1", "instance-1", UNKNOWN),
        ("member-2", "instance-2", UNKNOWN),
    ]


@kafka("GroupMetadataManagerTest.testListGroups")
@kafka("ClassicGroupTest.testIsInStates")
@kafka("GroupCoordinatorTest.testListGroupsWithTypes")
def test_groups_are_listed_by_state_and_type_whatever_their_case(broker: KorvetServer) -> None:
    empty, full = unique("g"), unique("g")
    commit(broker.port, empty, created(broker.port), 1)
    stable(broker.port, full)
    port, both = broker.port, {empty, full}
    assert states(port, [], [], *both) == both
    assert states(port, ["empty"], [], *both) == states(port, ["Empty"], [], *both) == {empty}
    assert states(port, ["empty", "Stable"], [], *both) == both
    assert states(port, [], ["Classic"], *both) == both
    assert states(port, [], ["Consumer"], *both) == states(port, [], ["Invalid"], *both) == set()
    assert states(port, ["Invalid"], [], *both) == states(port, ["assigning"], [], *both) == set()


@kafka("GroupCoordinatorTest.testListGroupsWithStates")
def test_group_is_listed_under_the_state_that_it_is_in(broker: KorvetServer) -> None:
    group, port = unique("g"), broker.port
    every = ["PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty"]

    def is_in(state: str) -> bool:
        others = [other for other in every if other != state]
        return states(port, [state], [], group) == {group} and states(port, others, [], group) == set()

    member = entered(port, group)["member_id"]
    assert is_in("CompletingRebalance")
    sync(port, group, member, 1, {})
    assert is_in("Stable")
    leave(port, group, member)
    assert is_in("Empty")


@kafka("GroupCoordinatorServiceTest.testListGroups")
def test_list_tells_state_and_protocol_type_of_each_group(broker: KorvetServer) -> None:
    simple, full = unique("g"), unique("g")
    commit(broker.port, simple, created(broker.port), 1)
    stable(broker.port, full)
    answer = ask(broker.port, "list_groups", 5, states_filter=[], types_filter=[])
    found = {one["group_id"]: one for one in answer["groups"]}
    assert (found[simple]["group_state"], found[simple]["protocol_type"]) == ("Empty", "")
    assert (found[full]["group_state"], found[full]["protocol_type"]) == ("Stable", "consumer")
    assert {found[simple]["group_type"], found[full]["group_type"]} == {"classic"}


@kafka("GroupCoordinatorServiceTest.testDescribeGroups")
def test_several_groups_are_described_in_order(broker: KorvetServer) -> None:
    groups = [unique("g"), unique("g")]
    members = [stable(broker.port, group) for group in groups]
    answer = ask(broker.port, "describe_groups", 6, groups=groups)
    assert [one["group_id"] for one in answer["groups"]] == groups
    assert [[member["member_id"] for member in one["members"]] for one in answer["groups"]] == [
        [one] for one in members
    ]


@kafka("GroupCoordinatorServiceTest.testDescribeGroupsInvalidGroupId")
def test_group_of_the_empty_name_may_be_described(broker: KorvetServer) -> None:
    (answer,) = ask(broker.port, "describe_groups", 5, groups=[""])["groups"]
    assert (answer["group_id"], answer["error_code"], answer["group_state"]) == ("", "NONE", "Dead")


@pytest.mark.parametrize("version", [0, 5])
@kafka("GroupMetadataManagerTest.testDescribeGroupsBeforeV6GroupIdNotFoundException")
@kafka("GroupCoordinatorTest.testDescribeGroupInactiveGroup")
def test_unknown_group_is_dead_to_old_clients(broker: KorvetServer, version: int) -> None:
    (answer,) = ask(broker.port, "describe_groups", version, groups=[unique("g")])["groups"]
    assert (answer["error_code"], answer["group_state"], answer["members"]) == ("NONE", "Dead", [])


@kafka("GroupCoordinatorServiceTest.testDeleteGroups")
def test_each_group_of_a_deletion_has_its_own_outcome(broker: KorvetServer) -> None:
    simple, full, unknown = unique("g"), unique("g"), unique("g")
    commit(broker.port, simple, created(broker.port), 1)
    stable(broker.port, full)
    assert deleted(broker.port, simple, full, unknown) == ["NONE", "NON_EMPTY_GROUP", "GROUP_ID_NOT_FOUND"]


def offsets_deleted(port: int, group: str, topic: str) -> Any:
    """The answer to an OffsetDelete of the topic's partition 0."""
    return ask(
        port, "offset_delete", 0, group_id=group, topics=[{"name": topic, "partitions": [{"partition_index": 0}]}]
    )


@kafka("GroupCoordinatorServiceTest.testDeleteOffsets")
def test_deleted_offset_is_gone(broker: KorvetServer) -> None:
    group, topic = unique("g"), created(broker.port)
    commit(broker.port, group, topic, 100)
    answer = offsets_deleted(broker.port, group, topic)
    assert (answer["error_code"], answer["topics"][0]["partitions"][0]["error_code"]) == ("NONE", "NONE")
    assert committed(broker.port, group, topic, 0) == [-1]


@kafka("GroupCoordinatorServiceTest.testDeleteOffsetsInvalidGroupId")
def test_offsets_without_a_group_id_cannot_be_deleted(broker: KorvetServer) -> None:
    assert offsets_deleted(broker.port, "", created(broker.port))["error_code"] == "INVALID_GROUP_ID"


@pytest.mark.parametrize("is_stable_required", [True, False])
@pytest.mark.parametrize(
    "asks_for_all",
    [
        pytest.param(False, marks=kafka("GroupCoordinatorServiceTest.testFetchOffsets")),
        pytest.param(True, marks=kafka("GroupCoordinatorServiceTest.testFetchAllOffsets")),
    ],
)
def test_committed_offset_is_fetched(broker: KorvetServer, is_stable_required: bool, asks_for_all: bool) -> None:
    group, topic = unique("g"), created(broker.port)
    commit(broker.port, group, topic, 100)
    topics = None if asks_for_all else [{"name": topic, "partition_indexes": [0]}]
    groups = [{"group_id": group, "topics": topics}]
    (answer,) = ask(broker.port, "offset_fetch", 9, groups=groups, require_stable=is_stable_required)["groups"]
    (found,) = answer["topics"]
    assert (answer["group_id"], found["name"]) == (group, topic)
    assert [(one["partition_index"], one["committed_offset"]) for one in found["partitions"]] == [(0, 100)]


@kafka("GroupCoordinatorTest.testCommitAndFetchOffsetsWithEmptyGroup")
def test_group_of_the_empty_name_may_keep_offsets(broker: KorvetServer) -> None:
    port, topic = broker.port, created(broker.port)
    assert commit(port, "", topic, 0) == ["NONE"]
    assert committed(port, "", topic, 0) == [0]
    assert described(port, "")["group_state"] == "Empty"
    assert deleted(port, "") == ["NONE"]
    assert committed(port, "", topic, 0) == [-1]


@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetCommitWithOffsetMetadataTooLarge")
def test_offset_with_too_large_metadata_is_refused_alone(broker: KorvetServer) -> None:
    """Kafka has this case for its newer groups alone, and does the same for classic ones."""
    group, topic = unique("g"), created(broker.port, partitions=2)
    parts = [
        {"partition_index": index, "committed_offset": 100, "committed_metadata": metadata}
        for index, metadata in enumerate(("x" * 4097, "small"))
    ]
    values = {"member_id": "", "generation_id_or_member_epoch": -1, "topics": [{"name": topic, "partitions": parts}]}
    answer = ask(broker.port, "offset_commit", 9, group_id=group, **values)
    outcomes = [one["error_code"] for one in answer["topics"][0]["partitions"]]
    assert outcomes == ["OFFSET_METADATA_TOO_LARGE", "NONE"]
    assert committed(broker.port, group, topic, 0, 1) == [-1, 100]


@pytest.mark.parametrize("version", [2, 3, 4])
@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithRetentionTime")
def test_commit_with_a_retention_time_is_taken(broker: KorvetServer, version: int) -> None:
    """Korvet ignores the time itself; see docs/compatibility.md."""
    group, topic = unique("g"), created(broker.port)
    member = stable(broker.port, group)
    parts = [{"partition_index": 0, "committed_offset": 100, "committed_metadata": ""}]
    values = {"member_id": member, "generation_id_or_member_epoch": 1, "retention_time": 1234}
    topics = [{"name": topic, "partitions": parts}]
    answer = ask(broker.port, "offset_commit", version, group_id=group, topics=topics, **values)
    assert answer["topics"][0]["partitions"][0]["error_code"] == "NONE"
    assert committed(broker.port, group, topic, 0) == [100]


@kafka("OffsetMetadataManagerTest.testOnPartitionsDeleted")
def test_offsets_of_a_deleted_topic_are_gone_and_others_stay(broker: KorvetServer) -> None:
    group, gone, kept = unique("g"), created(broker.port), created(broker.port)
    commit(broker.port, group, gone, 100)
    commit(broker.port, group, kept, 200)
    ask(broker.port, "delete_topics", 5, topic_names=[gone], timeout=10_000)
    assert committed(broker.port, group, gone, 0) == [-1]
    created(broker.port, gone)
    assert committed(broker.port, group, gone, 0) == [-1]
    assert committed(broker.port, group, kept, 0) == [200]
