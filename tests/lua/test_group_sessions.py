"""The function korvet_group_heartbeat: sessions, and the members whose sessions end."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.group import (
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    NONE,
    RANGE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    Group,
)
from tests.lua.group_scenes import asking
from tests.support.ported import kafka

CHANGED = (("range", b"changed"),)


@kafka("GroupMetadataManagerTest.testClassicGroupMemberHeartbeatMaintainsSession")
@kafka("GroupCoordinatorTest.testHeartbeatMaintainsSession")
@kafka("GroupMetadataManagerTest.testValidHeartbeat")
@kafka("GroupCoordinatorTest.testValidHeartbeat")
def test_heartbeats_hold_a_session(group: Group) -> None:
    (member,) = group.stable(session_s=10)
    for _ in range(12):
        group.pass_time(3)
        assert group.heartbeat(member, 1) == NONE


def test_member_without_a_heartbeat_is_out_after_its_session_timeout(group: Group) -> None:
    alive, dead = group.stable(2, session_s=10)
    for _ in range(3):
        group.pass_time(3)
        assert group.heartbeat(alive, 2) == NONE
    assert group.state == "Stable"
    group.pass_time(1)
    assert group.state == "PreparingRebalance"
    assert group.heartbeat(dead, 2) == UNKNOWN_MEMBER_ID
    assert group.heartbeat(alive, 2) == REBALANCE_IN_PROGRESS
    assert group.join(alive).generation == 3


@kafka("GroupMetadataManagerTest.testHeartbeatUnknownGroup")
@kafka("GroupCoordinatorTest.testHeartbeatUnknownGroup")
@kafka("GroupMetadataManagerTest.testHeartbeatUnknownMemberExistingGroup")
@kafka("GroupCoordinatorTest.testHeartbeatUnknownConsumerExistingGroup")
@kafka("GroupMetadataManagerTest.testHeartbeatEmptyGroup")
@kafka("GroupCoordinatorTest.testheartbeatEmptyGroup")
def test_heartbeat_of_an_unknown_member_is_refused(group: Group) -> None:
    for generation in (-1, 1):
        assert group.heartbeat("nobody", generation) == UNKNOWN_MEMBER_ID
    assert group.exists() == []
    (member,) = group.stable()
    assert group.heartbeat("nobody", 1) == UNKNOWN_MEMBER_ID
    assert group.heartbeat("", 1) == UNKNOWN_MEMBER_ID
    group.leave((member, ""))
    assert group.heartbeat(member, 2) == UNKNOWN_MEMBER_ID


def test_heartbeat_of_an_id_that_has_yet_to_join_is_refused(group: Group) -> None:
    group.stable()
    assert group.heartbeat(group.known(), 1) == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("generation", [-1, 0, 2])
@kafka("GroupMetadataManagerTest.testHeartbeatIllegalGeneration")
@kafka("GroupCoordinatorTest.testHeartbeatIllegalGeneration")
def test_heartbeat_of_another_generation_is_refused(group: Group, generation: int) -> None:
    (member,) = group.stable()
    assert group.heartbeat(member, generation) == ILLEGAL_GENERATION


def test_heartbeat_in_a_rebalance_asks_to_rejoin_and_holds_the_session(group: Group) -> None:
    member, other = group.stable(2, session_s=10, rebalance_s=60)
    group.join(other, CHANGED, rebalance_s=60)
    for _ in range(5):
        group.pass_time(4)
        assert group.heartbeat(member, 2) == REBALANCE_IN_PROGRESS
        assert group.wait(other).is_parked


@kafka("GroupMetadataManagerTest.testHeartbeatDuringCompletingRebalance")
@kafka("GroupCoordinatorTest.testHeartbeatRebalanceInProgress")
def test_heartbeat_before_the_assignment_holds_the_session(group: Group) -> None:
    leader, follower = group.gathered(RANGE, RANGE)
    for _ in range(5):
        group.pass_time(4)
        assert group.heartbeat(leader.member, 1) == NONE
        assert group.heartbeat(follower.member, 1) == NONE


def test_heartbeat_checks_instance_member_and_generation_in_order(group: Group) -> None:
    """GroupMetadataManager.validateClassicGroupHeartbeat."""
    member = group.join(instance="i").member
    assert group.heartbeat("other", 9, "i") == FENCED_INSTANCE_ID
    assert group.heartbeat("other", 9) == UNKNOWN_MEMBER_ID
    assert group.heartbeat(member, 9, "j") == UNKNOWN_MEMBER_ID
    assert group.heartbeat(member, 9, "i") == ILLEGAL_GENERATION
    assert group.heartbeat(member, 1, "i") == NONE


def test_join_with_another_session_timeout_counts_at_once(group: Group) -> None:
    """ClassicGroup.updateMember."""
    (member,) = group.stable(session_s=10)
    group.assign(group.join(member, session_s=60))
    for _ in range(3):
        group.pass_time(25)
        assert group.heartbeat(member, 2) == NONE


def test_reader_prolongs_no_session_and_writes_nothing(group: Group, server: redis.Redis) -> None:
    group.stable(2, session_s=10)
    group.pass_time(3600)
    client: Any = server
    before = [client.dump(key) for key in group.keys]
    assert (group.state, group.describe().members) == ("Empty", ())
    assert [client.dump(key) for key in group.keys] == before


def test_heartbeat_of_a_settled_member_writes_its_session_and_nothing_else(group: Group, server: redis.Redis) -> None:
    """A group of any size: all other keys stay as they are."""
    members = group.stable(4, session_s=40)
    client: Any = server
    others = [client.dump(key) for key in (group.keys[0], group.keys[1])]
    for seconds in (5, 30):
        group.pass_time(seconds)
        assert group.heartbeat(members[2], 4) == NONE
        assert client.zscore(group.keys[2], members[2]) == (group.now + 40) * 1000
    assert [client.dump(key) for key in (group.keys[0], group.keys[1])] == others


@kafka("GroupMetadataManagerTest.testHeartbeatDuringPreparingRebalance")
def test_heartbeat_in_a_rebalance_is_answered_so(group: Group) -> None:
    group.initial_delay_ms = 3000
    member = group.entered().member
    assert group.state == "PreparingRebalance"
    assert group.heartbeat(member, 0) == REBALANCE_IN_PROGRESS


@kafka("GroupMetadataManagerTest.testClassicGroupMemberSessionTimeout")
@kafka("GroupCoordinatorTest.testSessionTimeout")
def test_member_is_taken_out_when_its_session_is_over(group: Group) -> None:
    (member,) = group.stable(session_s=6)
    group.pass_time(6)
    assert (group.state, group.describe().members) == ("Empty", ())
    assert group.heartbeat(member, 1) == UNKNOWN_MEMBER_ID


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
