"""Static members that come back to a Stable group: replacements, fencing and rebalances."""

from __future__ import annotations

import pytest

from tests.lua.group import FENCED_INSTANCE_ID, MEMBER_ID_REQUIRED, NONE, RANGE, ROUND_ROBIN, UNKNOWN_MEMBER_ID, Group
from tests.lua.kafka.scenes import BOTH, FOLLOWER, LEADER, Options, asking, static_pair
from tests.support.ported import kafka

INSTANCE = "group-instance-id"
SKIPS = [pytest.param(9, id="skips"), pytest.param(8, id="does not skip")]
"""Versions of JoinGroup: with and without a leader that may skip the assignment (KIP-814)."""
LONG: Options = {"session_s": 15, "rebalance_s": 10}
"""A session that outlives a rebalance."""


@kafka(
    "GroupMetadataManagerTest.testStaticMemberJoinAsFirstMember",
    "GroupCoordinatorTest.staticMemberJoinAsFirstMember",
)
def test_static_member_may_be_the_first_member(group: Group) -> None:
    joined = group.join(instance=INSTANCE)
    assert (joined.code, joined.generation, joined.is_leader) == (NONE, 1, True)


@kafka(
    "GroupMetadataManagerTest.testStaticMemberRejoinWithExplicitUnknownMemberId",
    "GroupCoordinatorTest.staticMemberReJoinWithExplicitUnknownMemberId",
)
def test_rejoin_with_a_wrong_member_id_for_the_instance_is_fenced(group: Group) -> None:
    group.join(instance=INSTANCE)
    assert group.join("unknown-member-id", instance=INSTANCE).refusal == (FENCED_INSTANCE_ID, "unknown-member-id")


@pytest.mark.parametrize("version", SKIPS)
@kafka("GroupMetadataManagerTest.testReplaceStaticMemberInStableStateNoError")
def test_only_member_is_replaced_without_a_rebalance(group: Group, version: int) -> None:
    old = group.join(instance=INSTANCE)
    group.sync(old.member, 1, {}, instance=INSTANCE)
    new = group.join(instance=INSTANCE, protocols=BOTH, session_s=7, rebalance_s=4.5, version=version)
    skips = version == 9
    assert (new.code, new.generation, new.protocol_type, new.protocol) == (NONE, 1, "consumer", "range")
    assert (new.leader, new.skips_assignment) == (new.member if skips else old.member, skips)
    assert new.members == (((new.member, INSTANCE, b"range-metadata"),) if skips else ())
    assert (group.state, group.describe().member_ids) == ("Stable", {new.member})


@pytest.mark.parametrize("version", SKIPS)
@kafka("GroupMetadataManagerTest.testReplaceStaticMemberInStableStateSucceeds")
def test_returning_member_brings_its_timeouts_and_protocols(group: Group, version: int) -> None:
    old = group.join(instance=INSTANCE)
    group.sync(old.member, 1, {}, instance=INSTANCE)
    new = group.join(instance=INSTANCE, protocols=BOTH, session_s=7, rebalance_s=90, version=version)
    assert new.member != old.member
    assert (group.field("rebalance_timeout"), group.field("session_timeout")) == ("90000", "7000")
    assert group.join(protocols=ROUND_ROBIN).code == MEMBER_ID_REQUIRED
    group.pass_time(7)
    assert group.describe().members == ()


@kafka("GroupMetadataManagerTest.testReplaceStaticMemberInStableStateWithUpdatedProtocolTriggersRebalance")
def test_only_member_without_the_groups_protocol_rebalances(group: Group) -> None:
    old = group.join(instance=INSTANCE, protocols=BOTH)
    group.sync(old.member, 1, {}, instance=INSTANCE)
    new = group.join(instance=INSTANCE, protocols=ROUND_ROBIN)
    assert (new.code, new.generation, new.protocol) == (NONE, 2, "roundrobin")
    assert (group.state, len(group.describe().members)) == ("CompletingRebalance", 1)


@kafka("GroupMetadataManagerTest.testStaticMemberRejoinWithKnownMemberId")
@kafka("GroupCoordinatorTest.staticMemberRejoinWithKnownMemberId")
def test_static_rejoin_before_the_assignment_repeats_the_answer(group: Group) -> None:
    first = group.join(instance=INSTANCE)
    again = group.join(first.member, instance=INSTANCE)
    assert (again.code, again.generation, group.state) == (NONE, 1, "CompletingRebalance")
    assert group.sync(first.member, 1, {}, instance=INSTANCE).code == NONE
    assert group.state == "Stable"


@pytest.mark.parametrize("version", SKIPS)
@kafka("GroupMetadataManagerTest.testStaticMemberRejoinWithLeaderIdAndUnknownMemberId")
@kafka("GroupCoordinatorTest.staticMemberRejoinWithLeaderIdAndUnknownMemberId")
def test_returning_leader_begins_no_rebalance_and_fences_its_old_id(group: Group, version: int) -> None:
    pair = static_pair(group)
    new = group.join(instance=LEADER, protocols=BOTH, version=version)
    skips = version == 9
    assert (new.code, new.generation, new.protocol) == (NONE, 1, "range")
    assert (new.leader, new.skips_assignment) == (new.member if skips else pair.leader, skips)
    assert {instance for _, instance, _ in new.members} == ({LEADER, FOLLOWER} if skips else set())
    assert group.state == "Stable"
    assert group.join(pair.leader, BOTH, instance=LEADER, version=version).code == FENCED_INSTANCE_ID
    assert group.sync(pair.leader, 1, instance=LEADER).code == FENCED_INSTANCE_ID
    assert group.sync(pair.leader, 1).code == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testStaticMemberRejoinWithLeaderIdAndKnownMemberId")
@kafka("GroupCoordinatorTest.staticMemberRejoinWithLeaderIdAndKnownMemberId")
def test_leaders_rejoin_by_its_own_id_drops_expired_members(group: Group) -> None:
    pair = static_pair(group, session_s=6)
    assert group.join(pair.leader, BOTH, instance=LEADER, session_s=6, rebalance_s=10).is_parked
    answer = asking(group, 10, {pair.leader: LEADER})[pair.leader]
    assert (answer.generation, answer.leader, answer.protocol) == (2, pair.leader, "range")
    assert [instance for _, instance, _ in answer.members] == [LEADER]
    assert group.describe().member_ids == {pair.leader}


@kafka("GroupMetadataManagerTest.testStaticMemberRejoinWithLeaderIdAndUnexpectedEmptyGroup")
@kafka("GroupCoordinatorTest.staticMemberRejoinWithLeaderIdAndUnexpectedEmptyGroup")
def test_former_leader_is_unknown_to_an_empty_group(group: Group) -> None:
    pair = static_pair(group)
    assert group.leave(("", LEADER), ("", FOLLOWER)) == [NONE, NONE]
    assert group.state == "Empty"
    assert group.join(pair.leader, BOTH, instance=LEADER).code == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testStaticMemberRejoinWithFollowerIdAndChangeOfProtocol")
@kafka("GroupCoordinatorTest.staticMemberRejoinWithFollowerIdAndChangeOfProtocol")
def test_changed_follower_leads_if_the_leader_does_not_rejoin(group: Group) -> None:
    pair = static_pair(group, **LONG)
    assert group.join(pair.follower, ROUND_ROBIN, instance=FOLLOWER, **LONG).is_parked
    answer = asking(group, 10, {pair.follower: FOLLOWER})[pair.follower]
    assert (answer.generation, answer.leader, answer.protocol) == (2, pair.follower, "roundrobin")
    assert {instance for _, instance, _ in answer.members} == {LEADER, FOLLOWER}
    assert group.state == "CompletingRebalance"


@kafka(
    "GroupMetadataManagerTest.testStaticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWithSelectedProtocolChanged",
    "GroupCoordinatorTest.staticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWithSelectedProtocolChanged",
)
def test_returning_follower_without_the_groups_protocol_rebalances(group: Group) -> None:
    pair = static_pair(group, **LONG)
    assert group.describe().protocol == "range"
    new = group.join(instance=FOLLOWER, protocols=ROUND_ROBIN, **LONG)
    assert new.is_parked
    answer = asking(group, 10, {new.member: FOLLOWER})[new.member]
    assert (answer.generation, answer.leader, answer.protocol) == (2, new.member, "roundrobin")
    assert {member for member, _, _ in answer.members} == {pair.leader, new.member}


@kafka(
    "GroupMetadataManagerTest.testStaticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWhileSelectProtocolUnchanged",
    "GroupCoordinatorTest.staticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWhileSelectProtocolUnchanged",
)
def test_returning_follower_with_fewer_protocols_begins_no_rebalance(group: Group) -> None:
    pair = static_pair(group)
    new = group.join(instance=FOLLOWER, protocols=RANGE)
    assert (new.code, new.generation, new.leader) == (NONE, 1, pair.leader)
    assert (new.skips_assignment, new.members, group.state) == (False, (), "Stable")
    assert new.member != pair.follower
    assert group.join(pair.follower, RANGE, instance=FOLLOWER).code == FENCED_INSTANCE_ID
    assert group.sync(pair.follower, 1, instance=FOLLOWER).code == FENCED_INSTANCE_ID
    assert group.sync(new.member, 1, instance=FOLLOWER).assignment == FOLLOWER.encode()


@kafka(
    "GroupMetadataManagerTest.testStaticMemberRejoinWithKnownLeaderIdToTriggerRebalanceAndFollowerWithChangeOfProtocol",
    "GroupCoordinatorTest.staticMemberRejoinWithKnownLeaderIdToTriggerRebalanceAndFollowerWithChangeofProtocol",
)
def test_leaders_rejoin_and_a_followers_change_are_two_rebalances(group: Group) -> None:
    times: Options = {"session_s": 6, "rebalance_s": 10}
    pair = static_pair(group, **times)
    assert group.join(pair.leader, BOTH, instance=LEADER, **times).is_parked
    follower = group.join(pair.follower, BOTH, instance=FOLLOWER, **times)
    leader = group.wait(pair.leader, LEADER)
    assert {one.generation for one in (leader, follower)} == {2}
    assert {one.leader for one in (leader, follower)} == {pair.leader}
    assert (len(leader.members), len(follower.members)) == (2, 0)
    assert group.join(pair.follower, RANGE, instance=FOLLOWER, **times).is_parked
    assert group.state == "PreparingRebalance"
    answer = asking(group, 6, {pair.follower: FOLLOWER})[pair.follower]
    assert (answer.generation, answer.leader) == (3, pair.follower)
    assert [instance for _, instance, _ in answer.members] == [FOLLOWER]


@kafka("GroupMetadataManagerTest.testStaticMemberRejoinAsFollowerWithUnknownMemberId")
@kafka("GroupCoordinatorTest.staticMemberRejoinAsFollowerWithUnknownMemberId")
def test_returning_follower_keeps_its_assignment(group: Group) -> None:
    pair = static_pair(group)
    new = group.join(instance=FOLLOWER, protocols=BOTH)
    assert (new.code, new.generation, new.leader) == (NONE, 1, pair.leader)
    assert (new.skips_assignment, new.members, group.state) == (False, (), "Stable")
    assert new.member != pair.follower
    assert group.sync(new.member, 1, instance=FOLLOWER).assignment == FOLLOWER.encode()


@kafka("GroupMetadataManagerTest.testStaticMemberRejoinAsFollowerWithKnownMemberIdAndNoProtocolChange")
@kafka("GroupCoordinatorTest.staticMemberRejoinAsFollowerWithKnownMemberIdAndNoProtocolChange")
def test_followers_rejoin_by_its_own_id_begins_no_rebalance(group: Group) -> None:
    pair = static_pair(group)
    again = group.join(pair.follower, BOTH, instance=FOLLOWER, rebalance_s=10)
    assert (again.code, again.generation, again.leader) == (NONE, 1, pair.leader)
    assert (again.member, again.members, group.state) == (pair.follower, (), "Stable")


@kafka("GroupMetadataManagerTest.testStaticMemberRejoinAsFollowerWithMismatchedInstanceId")
@kafka("GroupCoordinatorTest.staticMemberRejoinAsFollowerWithMismatchedMemberId")
def test_follower_with_the_leaders_instance_id_is_fenced(group: Group) -> None:
    pair = static_pair(group)
    assert group.join(pair.follower, BOTH, instance=LEADER).code == FENCED_INSTANCE_ID


@kafka("GroupMetadataManagerTest.testStaticMemberRejoinAsLeaderWithMismatchedInstanceId")
@kafka("GroupCoordinatorTest.staticMemberRejoinAsLeaderWithMismatchedMemberId")
def test_leader_with_the_followers_instance_id_is_fenced(group: Group) -> None:
    pair = static_pair(group)
    assert group.join(pair.leader, BOTH, instance=FOLLOWER).code == FENCED_INSTANCE_ID


@kafka("GroupMetadataManagerTest.testStaticMemberJoinWithUnknownInstanceIdAndKnownMemberId")
@kafka("GroupCoordinatorTest.staticMemberJoinWithUnknownInstanceIdAndKnownMemberId")
def test_leader_with_an_unused_instance_id_is_unknown(group: Group) -> None:
    pair = static_pair(group)
    assert group.join(pair.leader, BOTH, instance="unknown-instance-id").code == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testStaticMemberSyncAsLeaderWithInvalidMemberId")
@kafka("GroupCoordinatorTest.staticMemberSyncAsLeaderWithInvalidMemberId")
def test_sync_with_a_wrong_member_id_for_the_instance_is_fenced(group: Group) -> None:
    static_pair(group)
    assert group.sync("invalid-member-id", 1, {}, instance=LEADER).code == FENCED_INSTANCE_ID


@kafka("GroupMetadataManagerTest.testStaticMemberHeartbeatLeaderWithInvalidMemberId")
@kafka("GroupCoordinatorTest.staticMemberHeartbeatLeaderWithInvalidMemberId")
def test_heartbeat_with_a_wrong_member_id_for_the_instance_is_fenced(group: Group) -> None:
    pair = static_pair(group)
    assert group.heartbeat(pair.leader, 1) == NONE
    assert group.heartbeat("invalid-member-id", 1, LEADER) == FENCED_INSTANCE_ID


@kafka("GroupCoordinatorTest.staticMemberCommitOffsetWithInvalidMemberId")
def test_commit_with_a_wrong_member_id_for_the_instance_is_fenced(group: Group) -> None:
    pair = static_pair(group)
    assert group.commit({"topic:0": "0 -1 aa "}, pair.leader, 1) == NONE
    assert group.commit({"topic:0": "1 -1 aa "}, "invalid", 1, instance=LEADER) == FENCED_INSTANCE_ID
    assert group.fetch() == {"topic:0": "0 -1 aa "}


@kafka("GroupMetadataManagerTest.testGetDifferentStaticMemberIdAfterEachRejoin")
@kafka("GroupCoordinatorTest.shouldGetDifferentStaticMemberIdAfterEachRejoin")
def test_each_returning_static_member_gets_another_member_id(group: Group) -> None:
    members = [static_pair(group).leader] + [group.join(instance=LEADER, protocols=BOTH).member for _ in range(5)]
    assert len(set(members)) == 6
    assert all(member.startswith(LEADER) for member in members)
    assert group.describe().leader == members[-1]


@kafka("GroupCoordinatorTest.staticMemberRejoinWithUpdatedSessionAndRebalanceTimeoutsAndPersistChange")
def test_returning_member_brings_its_timeouts(group: Group) -> None:
    static_pair(group, session_s=10, rebalance_s=10)
    longer: Options = {"protocols": BOTH, "session_s": 20, "rebalance_s": 20}
    follower = group.join(instance=FOLLOWER, **longer)
    leader = group.join(instance=LEADER, **longer)
    assert (follower.generation, follower.members) == (1, ())
    assert (leader.generation, leader.skips_assignment, len(leader.members)) == (1, True, 2)
    group.pass_time(19.999)
    assert group.describe().member_ids == {leader.member, follower.member}
    assert group.field("rebalance_timeout") == "20000"
    group.pass_time(0.001)
    assert group.state == "Empty"
