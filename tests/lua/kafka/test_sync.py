"""SyncGroup: the assignments of members, and the end of members that do not ask."""

from __future__ import annotations

import pytest

from tests.lua.group import (
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    Group,
)
from tests.lua.kafka.scenes import Options, completing
from tests.support.ported import kafka

TIMES: Options = {"session_s": 10, "rebalance_s": 6}


@pytest.mark.parametrize(
    ("protocol", "code"),
    [
        pytest.param(
            ("connect", "range"),
            INCONSISTENT_GROUP_PROTOCOL,
            marks=[
                kafka("GroupMetadataManagerTest.testSyncGroupReturnsAnErrorWhenProtocolTypeIsInconsistent"),
                kafka("GroupCoordinatorTest.testSyncGroupReturnsAnErrorWhenProtocolTypeIsInconsistent"),
            ],
        ),
        pytest.param(
            ("consumer", "roundrobin"),
            INCONSISTENT_GROUP_PROTOCOL,
            marks=[
                kafka("GroupMetadataManagerTest.testSyncGroupReturnsAnErrorWhenProtocolNameIsInconsistent"),
                kafka("GroupCoordinatorTest.testSyncGroupReturnsAnErrorWhenProtocolNameIsInconsistent"),
            ],
        ),
        pytest.param(
            None,
            NONE,
            marks=[
                kafka("GroupMetadataManagerTest.testSyncGroupSucceedWhenProtocolTypeAndNameAreNotProvided"),
                kafka("GroupCoordinatorTest.testSyncGroupSucceedWhenProtocolTypeAndNameAreNotProvided"),
            ],
        ),
        pytest.param(
            ("consumer", "range"),
            NONE,
            marks=[
                kafka("GroupMetadataManagerTest.testSyncGroupSucceedWhenProtocolTypeAndNameAreConsistent"),
                kafka("GroupCoordinatorTest.testSyncGroupSucceedWhenProtocolTypeAndNameAreConsistent"),
            ],
        ),
    ],
)
def test_sync_must_name_the_groups_protocol(group: Group, protocol: tuple[str, str] | None, code: int) -> None:
    leader, follower = completing(group, 2)
    answers = [
        group.sync(leader.member, 1, {leader.member: b"L"}, protocol=protocol),
        group.sync(follower.member, 1, protocol=protocol),
    ]
    assert [one.code for one in answers] == [code, code]
    expected = ("consumer", "range") if code == NONE else ("", "")
    assert {(one.protocol_type, one.protocol) for one in answers} == {expected}


@kafka("GroupMetadataManagerTest.testSyncGroupFromUnknownGroup")
@kafka("GroupCoordinatorTest.testSyncGroupFromUnknownGroup")
def test_sync_with_an_unknown_group_is_refused(group: Group) -> None:
    assert group.sync("member-id", 1).code == UNKNOWN_MEMBER_ID
    assert group.exists() == []


@kafka("GroupMetadataManagerTest.testSyncGroupFromUnknownMember")
@kafka("GroupCoordinatorTest.testSyncGroupFromUnknownMember")
def test_sync_by_an_unknown_member_is_refused(group: Group) -> None:
    group.stable()
    synced = group.sync("unknown-member-id", 1)
    assert (synced.code, synced.assignment) == (UNKNOWN_MEMBER_ID, b"")


@kafka("GroupMetadataManagerTest.testSyncGroupFromIllegalGeneration")
@kafka("GroupCoordinatorTest.testSyncGroupFromIllegalGeneration")
def test_sync_of_a_future_generation_is_refused(group: Group) -> None:
    (leader,) = completing(group)
    assert group.sync(leader.member, 2, {}).code == ILLEGAL_GENERATION
    assert group.state == "CompletingRebalance"


@kafka("GroupMetadataManagerTest.testSyncGroupFollowerAfterLeader")
@kafka("GroupCoordinatorTest.testSyncGroupFollowerAfterLeader")
def test_follower_gets_its_assignment_after_the_leader(group: Group) -> None:
    leader, follower = completing(group, 2)
    assignments = {leader.member: b"\0", follower.member: b"\1"}
    assert group.sync(leader.member, 1, assignments).assignment == b"\0"
    assert group.sync(follower.member, 1).assignment == b"\1"
    assert group.state == "Stable"


@kafka("GroupMetadataManagerTest.testSyncGroupLeaderAfterFollower")
@kafka("GroupCoordinatorTest.testSyncGroupLeaderAfterFollower")
def test_follower_waits_for_the_leader(group: Group) -> None:
    leader, follower = completing(group, 2)
    assert group.sync(follower.member, 1).is_parked
    assert group.sync(leader.member, 1, {leader.member: b"\0", follower.member: b"\1"}).assignment == b"\0"
    assert group.sync(follower.member, 1).assignment == b"\1"
    assert group.state == "Stable"


@kafka("GroupMetadataManagerTest.testSyncGroupEmptyAssignment")
@kafka("GroupCoordinatorTest.testSyncGroupEmptyAssignment")
def test_leader_that_assigns_nothing_makes_the_group_stable(group: Group) -> None:
    (leader,) = completing(group)
    assert group.sync(leader.member, 1, {}).assignment == b""
    assert group.heartbeat(leader.member, 1) == NONE
    assert group.state == "Stable"


@kafka("GroupMetadataManagerTest.testLeaderFailureInSyncGroup")
@kafka("GroupCoordinatorTest.testLeaderFailureInSyncGroup")
def test_follower_must_rejoin_if_the_leader_expired_before_it_assigned(group: Group) -> None:
    leader, follower = group.stable(2, session_s=6)
    assert group.join(follower, (("range", b"changed"),), session_s=6).is_parked
    group.join(leader, session_s=6)
    assert group.wait(follower).generation == 3
    assert group.sync(follower, 3).is_parked
    for _ in range(2):
        group.pass_time(2)
        assert group.sync(follower, 3).is_parked
    group.pass_time(2)
    assert group.sync(follower, 3).code == REBALANCE_IN_PROGRESS
    assert (group.state, group.describe().member_ids) == ("PreparingRebalance", {follower})


@kafka("GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceived")
@kafka("GroupCoordinatorTest.testRebalanceTimesOutWhenSyncRequestIsNotReceived")
def test_group_is_empty_if_no_member_synced_in_time(group: Group) -> None:
    members = [one.member for one in completing(group, 3, **TIMES)]
    group.pass_time(3)
    assert [group.heartbeat(member, 1) for member in members] == [NONE] * 3
    group.pass_time(3)
    assert group.state == "Empty"
    assert [group.heartbeat(member, 1) for member in members] == [UNKNOWN_MEMBER_ID] * 3


@kafka("GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromFollowers")
@kafka("GroupCoordinatorTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromFollowers")
def test_followers_that_did_not_sync_in_time_are_taken_out(group: Group) -> None:
    leader, *followers = [one.member for one in completing(group, 3, **TIMES)]
    group.pass_time(3)
    assert group.sync(leader, 1, {}).code == NONE
    assert [group.heartbeat(member, 1) for member in (leader, *followers)] == [NONE] * 3
    assert group.state == "Stable"
    group.pass_time(3)
    assert group.heartbeat(leader, 1) == REBALANCE_IN_PROGRESS
    assert [group.heartbeat(member, 1) for member in followers] == [UNKNOWN_MEMBER_ID] * 2
    assert group.state == "PreparingRebalance"


@kafka("GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromLeaders")
@kafka("GroupCoordinatorTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromLeaders")
def test_leader_that_does_not_assign_in_time_is_taken_out(group: Group) -> None:
    leader, *followers = [one.member for one in completing(group, 3, **TIMES)]
    group.pass_time(3)
    assert group.heartbeat(leader, 1) == NONE
    assert all(group.sync(member, 1).is_parked for member in followers)
    group.pass_time(3)
    assert [group.sync(member, 1).code for member in followers] == [REBALANCE_IN_PROGRESS] * 2
    assert group.heartbeat(leader, 1) == UNKNOWN_MEMBER_ID
    assert [group.heartbeat(member, 1) for member in followers] == [REBALANCE_IN_PROGRESS] * 2
    assert group.state == "PreparingRebalance"


@kafka("GroupMetadataManagerTest.testRebalanceDoesNotTimeOutWhenAllSyncAreReceived")
@kafka("GroupCoordinatorTest.testRebalanceDoesNotTimeOutWhenAllSyncAreReceived")
@kafka("ClassicGroupTest.testCanAddAndRemovePendingSyncMember")
def test_no_member_is_taken_out_if_all_synced_in_time(group: Group) -> None:
    leader, *followers = [one.member for one in completing(group, 3, **TIMES)]
    assert group.field("sync_deadline") is not None
    group.pass_time(3)
    assert group.sync(leader, 1, {}).code == NONE
    assert [group.sync(member, 1).code for member in followers] == [NONE] * 2
    assert group.field("sync_deadline") is None
    for _ in range(3):
        group.pass_time(3)
        assert [group.heartbeat(member, 1) for member in (leader, *followers)] == [NONE] * 3
    assert group.state == "Stable"


@kafka("ClassicGroupTest.testRemovalFromPendingSyncWhenMemberIsRemoved")
def test_group_does_not_wait_for_a_member_that_left(group: Group) -> None:
    leader, follower = [one.member for one in completing(group, 2, **TIMES)]
    group.sync(leader, 1, {})
    assert group.leave((follower, "")) == [NONE]
    assert group.join(leader, **TIMES).generation == 2
    group.sync(leader, 2, {})
    assert group.field("sync_deadline") is None


@kafka("ClassicGroupTest.testNewGenerationClearsPendingSyncMembers")
def test_next_generation_waits_for_all_members_again(group: Group) -> None:
    leader, follower = [one.member for one in completing(group, 2, **TIMES)]
    group.sync(follower, 1)
    assert group.field("synced") == "1"
    group.join(follower, (("range", b"changed"),), **TIMES)
    group.join(leader, **TIMES)
    assert (group.generation, group.field("synced")) == (2, "0")
    assert group.field("sync_deadline") == str(round((group.now + 6) * 1000))


@kafka("ClassicGroupTest.testCompleteAllSyncFutures")
def test_members_that_wait_for_an_assignment_are_told_to_rejoin(group: Group) -> None:
    _, *followers = [one.member for one in completing(group, 4)]
    assert all(group.sync(member, 1).is_parked for member in followers)
    group.entered()
    assert [group.sync(member, 1).code for member in followers] == [REBALANCE_IN_PROGRESS] * 3
