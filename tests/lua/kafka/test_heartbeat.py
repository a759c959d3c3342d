"""Heartbeats and sessions."""

from __future__ import annotations

import pytest

from tests.lua.group import (
    ILLEGAL_GENERATION,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    Group,
)
from tests.lua.kafka.scenes import asking, completing
from tests.support.ported import kafka


@kafka("GroupMetadataManagerTest.testHeartbeatUnknownGroup")
@kafka("GroupCoordinatorTest.testHeartbeatUnknownGroup")
def test_heartbeat_to_an_unknown_group_is_refused(group: Group) -> None:
    assert group.heartbeat("member-id", -1) == UNKNOWN_MEMBER_ID
    assert group.exists() == []


@kafka("GroupMetadataManagerTest.testHeartbeatEmptyGroup")
@kafka("GroupCoordinatorTest.testheartbeatEmptyGroup")
def test_heartbeat_to_an_empty_group_is_refused(group: Group) -> None:
    (member,) = group.stable()
    group.leave((member, ""))
    assert group.heartbeat(member, 2) == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testHeartbeatUnknownMemberExistingGroup")
@kafka("GroupCoordinatorTest.testHeartbeatUnknownConsumerExistingGroup")
def test_heartbeat_by_an_unknown_member_is_refused(group: Group) -> None:
    group.stable()
    assert group.heartbeat("unknown-member-id", 1) == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testHeartbeatDuringPreparingRebalance")
def test_heartbeat_in_a_rebalance_is_told_so(group: Group) -> None:
    group.initial_delay_ms = 3000
    member = group.entered().member
    assert group.state == "PreparingRebalance"
    assert group.heartbeat(member, 0) == REBALANCE_IN_PROGRESS


@kafka("GroupMetadataManagerTest.testHeartbeatDuringCompletingRebalance")
@kafka("GroupCoordinatorTest.testHeartbeatRebalanceInProgress")
def test_heartbeat_before_the_assignment_is_accepted(group: Group) -> None:
    (leader,) = completing(group)
    assert group.heartbeat(leader.member, 1) == NONE
    assert group.state == "CompletingRebalance"


@kafka("GroupMetadataManagerTest.testHeartbeatIllegalGeneration")
@kafka("GroupCoordinatorTest.testHeartbeatIllegalGeneration")
def test_heartbeat_of_a_future_generation_is_refused(group: Group) -> None:
    (member,) = group.stable()
    assert group.heartbeat(member, 2) == ILLEGAL_GENERATION


@kafka("GroupMetadataManagerTest.testValidHeartbeat")
@kafka("GroupCoordinatorTest.testValidHeartbeat")
def test_heartbeat_of_a_settled_member_is_accepted(group: Group) -> None:
    (member,) = group.stable()
    assert group.heartbeat(member, 1) == NONE


@kafka("GroupMetadataManagerTest.testClassicGroupMemberSessionTimeout")
@kafka("GroupCoordinatorTest.testSessionTimeout")
def test_member_is_taken_out_when_its_session_is_over(group: Group) -> None:
    (member,) = group.stable(session_s=6)
    group.pass_time(6)
    assert (group.state, group.describe().members) == ("Empty", ())
    assert group.heartbeat(member, 1) == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testClassicGroupMemberHeartbeatMaintainsSession")
@kafka("GroupCoordinatorTest.testHeartbeatMaintainsSession")
def test_heartbeats_hold_a_session(group: Group) -> None:
    (member,) = group.stable(session_s=6)
    for _ in range(4):
        group.pass_time(3)
        assert group.heartbeat(member, 1) == NONE


@kafka("GroupCoordinatorTest.testCommitMaintainsSession")
def test_commits_hold_a_session(group: Group) -> None:
    (member,) = group.stable(session_s=6)
    group.pass_time(3)
    assert group.commit({"topic:0": "0 -1 aa "}, member, 1) == NONE
    group.pass_time(3)
    assert group.heartbeat(member, 1) == NONE


@kafka("GroupMetadataManagerTest.testClassicGroupMemberSessionTimeoutDuringRebalance")
@kafka("GroupCoordinatorTest.testSessionTimeoutDuringRebalance")
def test_rebalance_goes_on_without_an_expired_member(group: Group) -> None:
    (first,) = group.stable(session_s=6, rebalance_s=20)
    other = group.entered(session_s=6, rebalance_s=20).member
    asking(group, 2, {other: ""})
    assert group.heartbeat(first, 1) == REBALANCE_IN_PROGRESS
    answer = asking(group, 6, {other: ""})[other]
    assert group.heartbeat(first, 1) == UNKNOWN_MEMBER_ID
    assert (answer.generation, answer.is_leader) == (2, True)
    assert (group.state, group.describe().member_ids) == ("CompletingRebalance", {other})


@kafka("GroupMetadataManagerTest.testHeartbeatExpirationShouldRemovePendingMember")
def test_group_forgets_an_id_that_is_not_used_in_time(group: Group) -> None:
    pending = group.known(session_s=6)
    group.pass_time(6)
    assert group.join(pending).code == UNKNOWN_MEMBER_ID
    assert group.state == "Empty"


@kafka("GroupMetadataManagerTest.testHeartbeatExpirationShouldRemoveMember")
def test_member_that_expires_in_a_long_initial_delay_leaves_an_empty_group(group: Group) -> None:
    """Kafka takes a waiting member out after five minutes. Korvet does so a session after it was last asked for."""
    group.initial_delay_ms = 600_000
    joined = group.entered(rebalance_s=600)
    assert joined.is_parked
    group.pass_time(10)
    assert (group.state, group.describe().members) == ("Empty", ())
    assert group.wait(joined.member).code == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testNewMemberJoinExpiration")
@kafka("GroupCoordinatorTest.testNewMemberJoinExpiration")
def test_new_member_that_expires_in_a_long_rebalance_is_taken_out(group: Group) -> None:
    """Kafka takes a waiting member out after five minutes. Korvet does so a session after it was last asked for."""
    (first,) = group.stable(session_s=60, rebalance_s=600)
    second = group.entered(session_s=10, rebalance_s=10).member
    assert group.describe().member_ids == {first, second}
    group.pass_time(10)
    assert group.describe().member_ids == {first}
    assert group.wait(second).code == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testNewMemberTimeoutCompletion")
@kafka("GroupCoordinatorTest.testNewMemberTimeoutCompletion")
def test_new_member_has_its_session_after_it_joined(group: Group) -> None:
    group.initial_delay_ms = 3000
    joined = group.join(version=3, session_s=305)
    group.pass_time(3)
    assert group.wait(joined.member).generation == 1
    assert group.sync(joined.member, 1, {}).code == NONE
    group.pass_time(300)
    assert group.describe().member_ids == {joined.member}
    group.pass_time(5)
    described = group.describe()
    assert (described.state, described.generation, described.members) == ("Empty", 2, ())


@pytest.mark.parametrize(
    "is_synced",
    [
        pytest.param(
            False,
            marks=[
                kafka("GroupMetadataManagerTest.testNewMemberFailureAfterJoinGroupCompletion"),
                kafka("GroupCoordinatorTest.testNewMemberFailureAfterJoinGroupCompletion"),
            ],
        ),
        pytest.param(True, marks=kafka("GroupCoordinatorTest.testNewMemberFailureAfterSyncGroupCompletion")),
    ],
)
def test_all_members_expire_a_session_after_a_new_members_rebalance(group: Group, is_synced: bool) -> None:
    (first,) = group.stable(session_s=6)
    second = group.join(version=3, session_s=6).member
    assert group.join(first, session_s=6).generation == 2
    assert group.wait(second).generation == 2
    if is_synced:
        group.sync(second, 2)
        assert group.sync(first, 2, {}).code == NONE
    group.pass_time(6)
    assert (group.state, group.describe().members) == ("Empty", ())


@kafka("GroupMetadataManagerTest.testOnLoadedSchedulesClassicGroupMemberHeartbeats")
def test_sessions_begin_anew_after_an_outage(group: Group) -> None:
    """Kafka does so when a coordinator loads the group, and korvet when Redis answers again."""
    first, second = group.stable(2, session_s=10)
    group.outage(3600)
    assert group.heartbeat(first, 2) == NONE
    group.pass_time(9.999)
    assert group.describe().member_ids == {first, second}
    group.pass_time(0.001)
    assert group.state == "Empty"
