"""Static members (KIP-345, KIP-814): they come back without a rebalance, and each instance id has one member."""

from __future__ import annotations

import pytest

from tests.lua.group import (
    FENCED_INSTANCE_ID,
    MEMBER_ID_REQUIRED,
    NONE,
    RANGE,
    REBALANCE_IN_PROGRESS,
    ROUND_ROBIN,
    UNKNOWN_MEMBER_ID,
    Group,
    Joined,
    Protocols,
)
from tests.lua.group_scenes import BOTH, FOLLOWER, LEADER, Options, asking, static_pair
from tests.support.ported import kafka

CHANGED = (("range", b"changed"),)


def stable(group: Group, *instances: str, session_s: float = 30, rebalance_s: float = 60) -> list[str]:
    """Member ids of a Stable group of static members, the leader's first, at generation 1."""
    group.initial_delay_ms = 1000
    members = [
        group.join(instance=instance, session_s=session_s, rebalance_s=rebalance_s).member for instance in instances
    ]
    for _ in range(2):
        group.pass_time(1)
        group.wait(members[0], instances[0])
    by_member = dict(zip(members, instances, strict=True))
    leader = group.settle(*members, instances=by_member)[members[0]]
    assignments = {member: instance.encode() for member, instance in by_member.items()}
    assert group.sync(leader.member, 1, assignments, instance=instances[0]).code == NONE
    for member, instance in list(by_member.items())[1:]:
        assert group.sync(member, 1, instance=instance).assignment == instance.encode()
    return members


def rejoin(group: Group, instance: str, protocols: Protocols = RANGE, version: int = 9) -> Joined:
    return group.join(instance=instance, protocols=protocols, session_s=30, version=version)


@kafka(
    "GroupMetadataManagerTest.testStaticMemberJoinAsFirstMember", "GroupCoordinatorTest.staticMemberJoinAsFirstMember"
)
def test_static_member_joins_at_once_and_its_id_begins_with_its_instance_id(group: Group) -> None:
    """The group does not answer MEMBER_ID_REQUIRED."""
    joined = group.join(instance="i")
    assert (joined.code, joined.status, joined.generation, joined.is_leader) == (NONE, "ready", 1, True)
    assert joined.member.startswith("i-")
    assert joined.members == ((joined.member, "i", b"range-metadata"),)
    assert not joined.skips_assignment


def test_follower_that_restarts_keeps_its_assignment_without_a_rebalance(group: Group) -> None:
    leader, follower = stable(group, "L", "F")
    joined = rejoin(group, "F")
    assert (joined.status, joined.generation, joined.leader) == ("ready", 1, leader)
    assert joined.member != follower and joined.members == () and not joined.skips_assignment
    assert group.sync(joined.member, 1, instance="F").assignment == b"F"
    assert group.state == "Stable"
    assert group.describe().member_ids == {leader, joined.member}


def test_restarted_leader_has_nothing_to_assign(group: Group) -> None:
    """KIP-814."""
    old, follower = stable(group, "L", "F")
    joined = rejoin(group, "L")
    assert joined.is_leader and joined.skips_assignment and joined.generation == 1
    assert {(member, instance) for member, instance, _ in joined.members} == {(joined.member, "L"), (follower, "F")}
    assert group.sync(joined.member, 1, instance="L").assignment == b"L"
    assert group.heartbeat(old, 1, "L") == FENCED_INSTANCE_ID


def test_restarted_leader_learns_the_old_leader_before_version_9(group: Group) -> None:
    old, _ = stable(group, "L", "F")
    joined = rejoin(group, "L", version=8)
    assert (joined.leader, joined.members, joined.skips_assignment) == (old, (), False)
    assert group.describe().leader == joined.member


@kafka("GroupMetadataManagerTest.testStaticMemberSyncAsLeaderWithInvalidMemberId")
@kafka("GroupCoordinatorTest.staticMemberSyncAsLeaderWithInvalidMemberId")
@kafka("GroupMetadataManagerTest.testStaticMemberHeartbeatLeaderWithInvalidMemberId")
@kafka("GroupCoordinatorTest.staticMemberHeartbeatLeaderWithInvalidMemberId")
@kafka("GroupCoordinatorTest.staticMemberCommitOffsetWithInvalidMemberId")
@kafka(
    "GroupMetadataManagerTest.testStaticMemberRejoinWithExplicitUnknownMemberId",
    "GroupCoordinatorTest.staticMemberReJoinWithExplicitUnknownMemberId",
)
def test_every_call_of_an_instance_ids_old_holder_is_fenced(group: Group) -> None:
    """KIP-345."""
    _, old = stable(group, "L", "F")
    new = rejoin(group, "F").member
    assert group.heartbeat(old, 1, "F") == FENCED_INSTANCE_ID
    assert group.join(old, instance="F").refusal == (FENCED_INSTANCE_ID, old)
    assert group.wait(old, "F").code == FENCED_INSTANCE_ID
    assert group.sync(old, 1, instance="F").code == FENCED_INSTANCE_ID
    assert group.commit({"t:0": "1 -1 aa "}, old, 1, instance="F") == FENCED_INSTANCE_ID
    assert group.leave((old, "F")) == [FENCED_INSTANCE_ID]
    assert group.fetch() == {}
    assert group.heartbeat(new, 1, "F") == NONE


def test_old_member_id_without_the_instance_id_is_unknown(group: Group) -> None:
    _, old = stable(group, "L", "F")
    rejoin(group, "F")
    assert group.heartbeat(old, 1) == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testStaticMemberJoinWithUnknownInstanceIdAndKnownMemberId")
@kafka("GroupCoordinatorTest.staticMemberJoinWithUnknownInstanceIdAndKnownMemberId")
def test_unused_instance_id_is_unknown(group: Group) -> None:
    leader, _ = stable(group, "L", "F")
    assert group.join(leader, instance="X").refusal == (UNKNOWN_MEMBER_ID, leader)
    assert group.heartbeat(leader, 1, "X") == UNKNOWN_MEMBER_ID


def test_static_member_rejoins_with_its_member_id(group: Group) -> None:
    """A leader's join rebalances, a follower's does not."""
    leader, follower = stable(group, "L", "F")
    assert group.join(follower, instance="F").generation == 1
    assert group.join(leader, instance="L").is_parked
    assert group.heartbeat(follower, 1, "F") == REBALANCE_IN_PROGRESS


def test_changed_metadata_alone_does_not_rebalance(group: Group) -> None:
    """The protocol chosen stays the same."""
    stable(group, "L", "F")
    joined = rejoin(group, "F", protocols=CHANGED)
    assert (joined.status, group.state) == ("ready", "Stable")
    metadata = {member.id: member.metadata for member in group.describe().members}
    assert metadata[joined.member] == b"changed"


def test_restart_that_changes_the_chosen_protocol_begins_a_rebalance(group: Group) -> None:
    group.initial_delay_ms = 1000
    both = RANGE + ROUND_ROBIN
    first, second = group.join(instance="L", protocols=both), group.join(instance="F", protocols=both)
    for _ in range(2):
        group.pass_time(1)
        group.wait(first.member, "L")
    group.wait(second.member, "F")
    group.sync(first.member, 1, {}, instance="L")
    joined = rejoin(group, "F", protocols=ROUND_ROBIN)
    assert joined.is_parked
    assert group.join(first.member, both, instance="L").protocol == "roundrobin"


def test_restart_before_the_assignment_begins_a_rebalance(group: Group) -> None:
    """The leader knows an id that no longer exists."""
    group.initial_delay_ms = 1000
    first, second = group.join(instance="L"), group.join(instance="F")
    for _ in range(2):
        group.pass_time(1)
        group.wait(first.member, "L")
    assert group.wait(second.member, "F").generation == 1
    assert group.sync(second.member, 1, instance="F").is_parked
    assert rejoin(group, "F").is_parked
    assert group.sync(second.member, 1, instance="F").code == FENCED_INSTANCE_ID
    assert group.sync(first.member, 1, {}, instance="L").code == REBALANCE_IN_PROGRESS


def test_member_that_restarts_in_a_rebalance_replaces_the_parked_one(group: Group) -> None:
    leader, old = stable(group, "L", "F")
    group.join(old, CHANGED, instance="F")
    assert group.wait(old, "F").is_parked
    new = rejoin(group, "F")
    assert new.is_parked
    assert group.wait(old, "F").code == FENCED_INSTANCE_ID
    answer = group.join(leader, instance="L")
    assert {member for member, _, _ in answer.members} == {leader, new.member}


def test_static_member_that_does_not_rejoin_stays(group: Group) -> None:
    """Only the end of its session removes a static member."""
    leader, away = stable(group, "L", "F", session_s=60, rebalance_s=10)
    group.join(leader, instance="L", session_s=60, rebalance_s=10)
    group.pass_time(10)
    answer = group.wait(leader, "L")
    assert {member for member, _, _ in answer.members} == {leader, away}
    assert group.heartbeat(away, 2, "F") == NONE


def test_static_leader_that_does_not_rejoin_stays_and_another_leads(group: Group) -> None:
    away, follower = stable(group, "L", "F", session_s=60, rebalance_s=10)
    group.join(follower, CHANGED, instance="F", session_s=60, rebalance_s=10)
    group.pass_time(10)
    answer = group.wait(follower, "F")
    assert answer.is_leader and len(answer.members) == 2
    assert group.describe().member_ids == {away, follower}


def test_rebalance_without_any_join_waits_until_a_session_ends(group: Group) -> None:
    """The group has only static members that are away."""
    first, second = stable(group, "L", "F", session_s=20, rebalance_s=8)
    third = group.entered(session_s=20, rebalance_s=8)
    assert group.leave((third.member, "")) == [NONE]
    for _ in range(2):
        group.pass_time(8)
        assert group.heartbeat(first, 1, "L") == REBALANCE_IN_PROGRESS
        assert group.heartbeat(second, 1, "F") == REBALANCE_IN_PROGRESS
    assert group.join(first, instance="L", session_s=20, rebalance_s=8).is_parked
    group.pass_time(8)
    assert group.wait(first, "L").generation == 2


def test_static_member_leaves_by_its_session_or_by_an_administrator(group: Group) -> None:
    """KIP-345: its own close does not send LeaveGroup."""
    leader, follower = stable(group, "L", "F", session_s=10)
    group.pass_time(5)
    group.heartbeat(leader, 1, "L")
    group.pass_time(5)
    assert group.heartbeat(leader, 1, "L") == REBALANCE_IN_PROGRESS
    assert group.heartbeat(follower, 1, "F") == UNKNOWN_MEMBER_ID
    assert group.leave(("", "L")) == [NONE]
    assert group.state == "Empty"
    assert group.exists() == ["group"]


def test_instance_id_is_free_after_its_member_left(group: Group) -> None:
    leader, follower = stable(group, "L", "F")
    assert group.leave((follower, "F")) == [NONE]
    joined = rejoin(group, "F")
    assert joined.is_parked
    assert group.join(leader, instance="L").generation == 2


INSTANCE = "group-instance-id"
SKIPS = [pytest.param(9, id="skips"), pytest.param(8, id="does not skip")]
"""Versions of JoinGroup: with and without a leader that may skip the assignment (KIP-814)."""
LONG: Options = {"session_s": 15, "rebalance_s": 10}
"""A session that outlives a rebalance."""


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
