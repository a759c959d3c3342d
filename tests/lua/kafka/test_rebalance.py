"""Rebalances: their beginning, the members that they wait for, and their end."""

from __future__ import annotations

from tests.lua.group import (
    MEMBER_ID_REQUIRED,
    NONE,
    RANGE,
    REBALANCE_IN_PROGRESS,
    ROUND_ROBIN,
    UNKNOWN_MEMBER_ID,
    Group,
)
from tests.lua.kafka.scenes import BOTH, asking, completing, with_pending
from tests.support.ported import kafka

OLD = 3
"""The last version of JoinGroup that joins without a member id."""


@kafka(
    "GroupMetadataManagerTest.testDelayInitialRebalanceByGroupInitialRebalanceDelayOnEmptyGroup",
    "GroupCoordinatorTest.shouldDelayInitialRebalanceByGroupInitialRebalanceDelayOnEmptyGroup",
)
def test_first_rebalance_waits_for_the_initial_delay(group: Group) -> None:
    group.initial_delay_ms = 3000
    member = group.join(version=OLD).member
    group.pass_time(1.5)
    assert group.wait(member).is_parked
    group.pass_time(1.5)
    assert group.wait(member).generation == 1


@kafka(
    "GroupMetadataManagerTest.testResetRebalanceDelayWhenNewMemberJoinsGroupDuringInitialRebalance",
    "GroupCoordinatorTest.shouldResetRebalanceDelayWhenNewMemberJoinsGroupInInitialRebalance",
)
def test_initial_delay_begins_anew_if_a_member_came(group: Group) -> None:
    group.initial_delay_ms = 3000
    first = group.join(version=OLD, rebalance_s=9).member
    group.pass_time(2.999)
    second = group.join(version=OLD, rebalance_s=9).member
    for seconds in (0.002, 1.501):
        group.pass_time(seconds)
        assert group.wait(first).is_parked and group.wait(second).is_parked
    group.pass_time(1.5)
    assert {one.generation for one in group.settle(first, second).values()} == {1}


@kafka(
    "GroupMetadataManagerTest.testDelayRebalanceUptoRebalanceTimeout",
    "GroupCoordinatorTest.shouldDelayRebalanceUptoRebalanceTimeout",
)
def test_initial_delay_is_extended_up_to_the_rebalance_timeout(group: Group) -> None:
    group.initial_delay_ms = 3000
    members = [group.join(version=OLD, rebalance_s=6).member for _ in range(2)]
    group.pass_time(3.001)
    members.append(group.join(version=OLD, rebalance_s=6).member)
    group.pass_time(2.999)
    assert all(group.wait(member).is_parked for member in members)
    group.pass_time(0.001)
    assert {one.generation for one in group.settle(*members).values()} == {1}


@kafka("GroupMetadataManagerTest.testJoinGroupExistingMemberUpdatedMetadataTriggersRebalance")
def test_change_before_the_assignment_begins_another_generation(group: Group) -> None:
    first = group.entered()
    changed = group.join(first.member, BOTH)
    assert (changed.code, changed.generation, group.state) == (NONE, 2, "CompletingRebalance")
    assert group.join(protocols=ROUND_ROBIN).code == MEMBER_ID_REQUIRED


@kafka("GroupMetadataManagerTest.testJoinGroupAsExistingLeaderTriggersRebalanceInStableState")
@kafka("GroupMetadataManagerTest.testJoinGroupFromUnchangedLeaderShouldRebalance")
@kafka("GroupCoordinatorTest.testJoinGroupFromUnchangedLeaderShouldRebalance")
def test_unchanged_leader_that_rejoins_begins_a_rebalance(group: Group) -> None:
    (leader,) = group.stable()
    again = group.join(leader)
    assert (again.code, again.is_leader, group.state) == (NONE, True, "CompletingRebalance")


@kafka("GroupMetadataManagerTest.testGenerationIdIncrementsOnRebalance")
@kafka("GroupCoordinatorTest.testGenerationIdIncrementsOnRebalance")
def test_each_rebalance_adds_one_to_the_generation(group: Group) -> None:
    (leader,) = group.stable()
    assert group.join(leader).generation == 2
    group.sync(leader, 2, {})
    assert group.join(leader).generation == 3


@kafka("GroupMetadataManagerTest.testJoinGroupAsExistingMemberWithUpdatedMetadataTriggersRebalanceInStableState")
def test_follower_with_new_metadata_begins_a_rebalance(group: Group) -> None:
    leader, follower = group.stable(2)
    assert group.join(follower, BOTH).is_parked
    assert group.join(leader).generation == 3
    assert group.wait(follower).code == NONE
    assert (group.state, len(group.describe().members)) == ("CompletingRebalance", 2)


@kafka("GroupMetadataManagerTest.testJoinGroupExistingMemberDoesNotTriggerRebalanceInStableState")
@kafka("GroupMetadataManagerTest.testJoinGroupFromUnchangedFollowerDoesNotRebalance")
@kafka("GroupCoordinatorTest.testJoinGroupFromUnchangedFollowerDoesNotRebalance")
def test_unchanged_follower_that_rejoins_begins_no_rebalance(group: Group) -> None:
    leader, follower = group.stable(2)
    again = group.join(follower)
    assert (again.code, again.generation, again.leader, group.state) == (NONE, 2, leader, "Stable")


@kafka("GroupMetadataManagerTest.testCompleteJoinRemoveNotYetRejoinedDynamicMembers")
def test_dynamic_member_that_does_not_rejoin_in_time_is_taken_out(group: Group) -> None:
    group.stable(session_s=30, rebalance_s=10)
    second = group.entered(session_s=30, rebalance_s=10)
    assert second.is_parked and len(group.describe().members) == 2
    answer = asking(group, 10, {second.member: ""})[second.member]
    assert (answer.generation, answer.is_leader) == (2, True)
    assert group.describe().member_ids == {second.member}


@kafka("GroupMetadataManagerTest.testJoinGroupCompletionWhenPendingMemberJoins")
@kafka("GroupCoordinatorTest.testJoinGroupCompletionWhenPendingMemberJoins")
def test_rebalance_is_complete_when_the_pending_member_joins(group: Group) -> None:
    pending = with_pending(group)
    assert group.join(pending.pending).generation == 3
    assert (group.state, group.describe().member_ids) == ("CompletingRebalance", set(pending))


@kafka("GroupMetadataManagerTest.testJoinGroupCompletionWhenPendingMemberTimesOut")
@kafka("GroupCoordinatorTest.testJoinGroupCompletionWhenPendingMemberTimesOut")
def test_rebalance_is_complete_when_the_pending_member_is_too_late(group: Group) -> None:
    leader, follower, pending = with_pending(group)
    asking(group, 10, {leader: "", follower: ""})
    assert (group.state, group.describe().member_ids) == ("CompletingRebalance", {leader, follower})
    assert group.join(pending).code == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testSecondMemberPartiallyJoinAndTimeout")
@kafka("GroupCoordinatorTest.testSecondMemberPartiallyJoinAndTimeout")
def test_unused_id_does_not_disturb_a_stable_group(group: Group) -> None:
    (member,) = group.stable()
    pending = group.known()
    for _ in range(4):
        assert group.state == "Stable"
        group.pass_time(3)
        assert group.heartbeat(member, 1) == NONE
    assert group.join(pending).code == UNKNOWN_MEMBER_ID
    described = group.describe()
    assert (described.state, described.generation, described.member_ids) == ("Stable", 1, {member})


@kafka("GroupMetadataManagerTest.testHeartbeatDuringRebalanceCausesRebalanceInProgress")
@kafka("GroupCoordinatorTest.testHeartbeatDuringRebalanceCausesRebalanceInProgress")
def test_heartbeat_tells_of_a_rebalance_that_a_new_member_began(group: Group) -> None:
    first = group.entered()
    assert group.join(version=OLD).is_parked
    assert group.heartbeat(first.member, 1) == REBALANCE_IN_PROGRESS


@kafka("ClassicGroupTest.testSelectProtocol")
def test_most_votes_choose_the_protocol(group: Group) -> None:
    reverse = (*ROUND_ROBIN, *RANGE)
    even = group.gathered(BOTH, reverse)
    assert even[0].protocol in ("range", "roundrobin")
    group.assign(even[0])
    third = group.entered(reverse)
    group.join(even[0].member, BOTH)
    assert group.join(even[1].member, reverse).protocol == "roundrobin"
    assert group.wait(third.member).protocol == "roundrobin"


@kafka("ClassicGroupTest.testSelectProtocolChoosesCompatibleProtocol")
def test_group_does_not_choose_a_protocol_that_one_member_lacks(group: Group) -> None:
    answers = group.gathered(BOTH, (*ROUND_ROBIN, ("foo", b"")))
    assert [one.protocol for one in answers] == ["roundrobin", "roundrobin"]


@kafka("ClassicGroupTest.testInitNextGeneration")
def test_first_generation_has_number_1_and_a_protocol(group: Group) -> None:
    group.known()
    assert (group.generation, group.describe().protocol) == (0, "")
    assert group.entered(ROUND_ROBIN).generation == 1
    assert (group.generation, group.describe().protocol) == (1, "roundrobin")


@kafka("ClassicGroupTest.testInitNextGenerationEmptyGroup")
def test_generation_without_members_has_no_protocol(group: Group) -> None:
    group.initial_delay_ms = 3000
    joined = group.entered()
    assert (group.state, group.generation) == ("PreparingRebalance", 0)
    assert group.leave((joined.member, "")) == [NONE]
    group.pass_time(3)
    described = group.describe()
    assert (described.state, described.generation, described.protocol) == ("Empty", 1, "")


@kafka("ClassicGroupTest.testUpdateMember")
def test_member_that_rejoins_brings_timeouts_and_protocols(group: Group) -> None:
    (member,) = group.stable(session_s=10, rebalance_s=60)
    again = group.join(member, (*ROUND_ROBIN, *RANGE), session_s=20, rebalance_s=120)
    assert again.protocol == "roundrobin"
    assert (group.field("rebalance_timeout"), group.field("session_timeout")) == ("120000", "20000")


@kafka("ClassicGroupTest.testRemovalFromPendingAfterMemberIsStable")
def test_rebalance_no_longer_waits_for_a_member_that_joined(group: Group) -> None:
    leader, follower, pending = with_pending(group)
    group.join(pending)
    assert {one.generation for one in group.settle(leader, follower, pending).values()} == {3}


@kafka("ClassicGroupTest.testRemovalFromPendingWhenMemberIsRemoved")
def test_rebalance_no_longer_waits_for_an_id_that_left(group: Group) -> None:
    leader, follower, pending = with_pending(group)
    assert group.leave((pending, "")) == [NONE]
    assert set(group.settle(leader, follower)) == {leader, follower}
    assert group.join(pending).code == UNKNOWN_MEMBER_ID


@kafka("ClassicGroupTest.testElectNewJoinedLeader")
def test_member_that_joined_leads_if_the_leader_did_not_join(group: Group) -> None:
    _, second, third = group.stable(3, session_s=30, rebalance_s=10)
    assert group.join(second, BOTH, session_s=30, rebalance_s=10).is_parked
    answer = asking(group, 10, {second: ""})[second]
    assert answer.is_leader
    assert third not in group.describe().member_ids


@kafka("ClassicGroupTest.testMaybeElectNewJoinedLeaderChooseExisting")
def test_leader_that_joined_goes_on_leading(group: Group) -> None:
    leader, second = group.stable(2, session_s=30, rebalance_s=10)
    new = group.entered(session_s=30, rebalance_s=10)
    assert group.join(leader, session_s=30, rebalance_s=10).is_parked
    answers = asking(group, 10, {leader: "", new.member: ""})
    assert {one.leader for one in answers.values()} == {leader}
    assert second not in group.describe().member_ids


@kafka("ClassicGroupTest.testCanRebalanceWhenStable")
def test_new_member_rebalances_a_stable_group(group: Group) -> None:
    group.stable()
    assert group.entered().is_parked
    assert group.state == "PreparingRebalance"


@kafka("ClassicGroupTest.testCanRebalanceWhenCompletingRebalance")
def test_new_member_rebalances_a_group_without_assignments(group: Group) -> None:
    completing(group)
    assert group.entered().is_parked
    assert group.state == "PreparingRebalance"


@kafka("ClassicGroupTest.testCannotRebalanceWhenPreparingRebalance")
def test_new_member_joins_the_present_rebalance(group: Group) -> None:
    (member,) = group.stable(rebalance_s=20)
    group.entered(rebalance_s=20)
    attempt, deadline = group.field("attempt"), group.field("join_deadline")
    group.pass_time(1)
    group.entered(rebalance_s=20)
    assert (group.field("attempt"), group.field("join_deadline")) == (attempt, deadline)
    assert group.heartbeat(member, 1) == REBALANCE_IN_PROGRESS
