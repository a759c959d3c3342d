"""Static members while a group rebalances: fencing, and members that stay without rejoining."""

from __future__ import annotations

from tests.lua.group import FENCED_INSTANCE_ID, ILLEGAL_GENERATION, NONE, RANGE, REBALANCE_IN_PROGRESS, Group
from tests.lua.group_scenes import BOTH, FOLLOWER, LEADER, Options, Pair, asking, static_pair
from tests.support.ported import kafka

INSTANCE, NEW = "group-instance-id", "new-member-instance-id"
LONG: Options = {"session_s": 15, "rebalance_s": 10}
"""A session that outlives a rebalance."""


@kafka("GroupMetadataManagerTest.testJoinGroupReplaceStaticMember")
def test_parked_member_is_fenced_by_its_successor(group: Group) -> None:
    group.initial_delay_ms = 1000
    old = group.join(instance=INSTANCE)
    new = group.join(instance=INSTANCE)
    assert old.is_parked and new.is_parked
    assert group.wait(old.member, INSTANCE).code == FENCED_INSTANCE_ID
    answer = asking(group, 2, {new.member: INSTANCE})[new.member]
    assert answer.generation == 1
    assert group.describe().member_ids == {new.member}


@kafka("ClassicGroupTest.testReplaceGroupInstance")
def test_leaders_successor_leads_and_fences_its_parked_calls(group: Group) -> None:
    pair = static_pair(group)
    assert group.join(pair.leader, BOTH, instance=LEADER, rebalance_s=10).is_parked
    new = group.join(instance=LEADER, protocols=BOTH, rebalance_s=10)
    assert group.describe().leader == new.member
    assert group.wait(pair.leader, LEADER).code == FENCED_INSTANCE_ID
    assert group.sync(pair.leader, 1, instance=LEADER).code == FENCED_INSTANCE_ID


@kafka("ClassicGroupTest.testCannotAddStaticMemberIfAlreadyPresent")
def test_instance_id_has_one_member_at_a_time(group: Group) -> None:
    members = [group.join(instance=INSTANCE).member for _ in range(3)]
    assert group.describe().member_ids == {members[-1]}


@kafka("GroupMetadataManagerTest.testReplaceStaticMemberInCompletingRebalanceStateTriggersRebalance")
def test_static_member_that_returns_before_the_assignment_rebalances(group: Group) -> None:
    old = group.join(instance=INSTANCE)
    assert group.state == "CompletingRebalance"
    new = group.join(instance=INSTANCE)
    assert (new.code, new.generation, group.state) == (NONE, 2, "CompletingRebalance")
    assert group.describe().member_ids == {new.member} != {old.member}


@kafka("GroupMetadataManagerTest.testStaticMemberFenceDuplicateRejoinedFollower")
@kafka("GroupCoordinatorTest.staticMemberFenceDuplicateRejoinedFollower")
def test_follower_that_rejoined_is_fenced_by_a_duplicate(group: Group) -> None:
    pair = static_pair(group)
    assert group.entered().is_parked
    assert group.join(pair.follower, instance=FOLLOWER).is_parked
    duplicate = group.join(instance=FOLLOWER)
    assert duplicate.is_parked
    assert group.wait(pair.follower, FOLLOWER).refusal == (FENCED_INSTANCE_ID, pair.follower)
    assert group.state == "PreparingRebalance"


@kafka("GroupMetadataManagerTest.testStaticMemberFenceDuplicateSyncingFollowerAfterMemberIdChanged")
@kafka("GroupCoordinatorTest.staticMemberFenceDuplicateSyncingFollowerAfterMemberIdChanged")
def test_follower_that_waits_for_its_assignment_is_fenced_by_a_duplicate(group: Group) -> None:
    times: Options = {"session_s": 6, "rebalance_s": 10}
    pair = static_pair(group, **times)
    assert group.join(pair.leader, BOTH, instance=LEADER, **times).is_parked
    assert group.join(pair.follower, BOTH, instance=FOLLOWER, **times).generation == 2
    assert len(group.wait(pair.leader, LEADER).members) == 2
    assert group.sync(pair.follower, 2, instance=FOLLOWER).is_parked
    duplicate = group.join(instance=FOLLOWER, protocols=BOTH, **times)
    assert duplicate.is_parked and group.state == "PreparingRebalance"
    assert group.sync(pair.follower, 2, instance=FOLLOWER).code == FENCED_INSTANCE_ID
    answer = asking(group, 10, {duplicate.member: FOLLOWER})[duplicate.member]
    assert (answer.generation, answer.leader) == (3, duplicate.member)
    assert group.describe().member_ids == {duplicate.member}


@kafka("GroupMetadataManagerTest.testStaticMemberFenceDuplicateRejoiningFollowerAfterMemberIdChanged")
@kafka("GroupCoordinatorTest.staticMemberFenceDuplicateRejoiningFollowerAfterMemberIdChanged")
def test_follower_is_fenced_if_a_duplicate_rejoined_before_it(group: Group) -> None:
    pair = static_pair(group)
    assert group.join(pair.leader, BOTH, instance=LEADER).is_parked
    duplicate = group.join(instance=FOLLOWER, protocols=BOTH)
    assert (duplicate.code, duplicate.generation, duplicate.leader) == (NONE, 2, pair.leader)
    assert group.join(pair.follower, BOTH, instance=FOLLOWER).refusal == (FENCED_INSTANCE_ID, pair.follower)
    leader = group.wait(pair.leader, LEADER)
    assert {member for member, _, _ in leader.members} == {pair.leader, duplicate.member}
    assert group.state == "CompletingRebalance"


@kafka("GroupMetadataManagerTest.testStaticMemberFollowerFailToRejoinBeforeRebalanceTimeout")
@kafka("GroupCoordinatorTest.testStaticMemberFollowerFailToRejoinBeforeRebalanceTimeout")
def test_follower_that_does_not_rejoin_in_time_stays(group: Group) -> None:
    pair = static_pair(group, **LONG)
    new = group.join(instance=NEW, protocols=BOTH, **LONG)
    assert new.is_parked and group.state == "PreparingRebalance"
    assert group.join(pair.leader, BOTH, instance=LEADER, **LONG).is_parked
    answers = asking(group, 10, {pair.leader: LEADER, new.member: NEW})
    leader = answers[pair.leader]
    assert {one.generation for one in answers.values()} == {2}
    assert {one.leader for one in answers.values()} == {pair.leader}
    assert {instance for _, instance, _ in leader.members} == {LEADER, FOLLOWER, NEW}
    assert answers[new.member].members == ()


@kafka("GroupMetadataManagerTest.testStaticMemberLeaderFailToRejoinBeforeRebalanceTimeout")
@kafka("GroupCoordinatorTest.testStaticMemberLeaderFailToRejoinBeforeRebalanceTimeout")
def test_leader_that_does_not_rejoin_in_time_stays_but_another_leads(group: Group) -> None:
    pair = static_pair(group, **LONG)
    new = group.join(instance=NEW, protocols=BOTH, **LONG)
    assert group.join(pair.follower, BOTH, instance=FOLLOWER, **LONG).is_parked
    answers = asking(group, 10, {pair.follower: FOLLOWER, new.member: NEW})
    (leads,) = [one for one in answers.values() if one.is_leader]
    (follows,) = [one for one in answers.values() if not one.is_leader]
    assert {instance for _, instance, _ in leads.members} == {LEADER, FOLLOWER, NEW}
    assert (follows.leader, follows.members) == (leads.member, ())
    assert pair.leader in group.describe().member_ids


@kafka("GroupMetadataManagerTest.testCompleteJoinPhaseNoMembersRejoinedExtendsJoinPhase")
def test_rebalance_without_any_static_join_is_extended(group: Group) -> None:
    times: Options = {"session_s": 30, "rebalance_s": 10}
    pair = static_pair(group, **times)
    assert group.leave((group.entered(**times).member, "")) == [NONE]
    for _ in range(2):
        group.pass_time(10)
        assert group.heartbeat(pair.leader, 1, LEADER) == REBALANCE_IN_PROGRESS
        assert group.heartbeat(pair.follower, 1, FOLLOWER) == REBALANCE_IN_PROGRESS
        assert group.field("join_deadline") == str(round((group.now + 10) * 1000))
    assert (group.state, group.generation) == ("PreparingRebalance", 1)
    assert group.join(pair.leader, BOTH, instance=LEADER, **times).is_parked
    assert group.join(pair.follower, BOTH, instance=FOLLOWER, **times).generation == 2
    assert group.wait(pair.leader, LEADER).generation == 2
    assert (group.state, len(group.describe().members)) == ("CompletingRebalance", 2)


def stuck(group: Group) -> Pair:
    """A rebalance at generation 2 with only one member left: a static one that does not rejoin."""
    times: Options = {"session_s": 12, "rebalance_s": 6}
    pair = static_pair(group, **times)
    dynamic = group.entered(BOTH, **times)
    group.heartbeat(pair.leader, 1, LEADER)
    group.heartbeat(pair.follower, 1, FOLLOWER)
    answer = asking(group, 6, {dynamic.member: ""})[dynamic.member]
    assert (answer.generation, answer.is_leader, len(answer.members)) == (2, True, 3)
    assert group.describe().member_ids == {*pair, dynamic.member}
    assert group.leave((pair.follower, FOLLOWER)) == [NONE]
    assert group.state == "PreparingRebalance"
    for _ in range(3):
        group.pass_time(2)
        group.heartbeat(dynamic.member, 2)
    assert group.describe().member_ids == {pair.leader}
    assert (group.state, group.generation) == ("PreparingRebalance", 2)
    return pair


@kafka("GroupMetadataManagerTest.testGroupStuckInRebalanceTimeoutDueToNonjoinedStaticMember")
def test_rebalance_waits_for_a_static_member_that_is_away(group: Group) -> None:
    stuck(group)


@kafka("GroupCoordinatorTest.testLeaderFailToRejoinBeforeFinalRebalanceTimeoutWithLongSessionTimeout")
def test_group_is_empty_after_the_awaited_static_member_expired(group: Group) -> None:
    stuck(group)
    group.pass_time(12)
    described = group.describe()
    assert (described.state, described.generation, described.leader, described.members) == ("Empty", 3, "", ())


@kafka("GroupCoordinatorTest.testLeaderRejoinBeforeFinalRebalanceTimeoutWithLongSessionTimeout")
def test_static_member_that_returns_in_time_ends_the_wait(group: Group) -> None:
    stuck(group)
    back = group.join(instance=LEADER, protocols=BOTH)
    assert (back.generation, back.is_leader, group.state) == (3, True, "CompletingRebalance")
    assert group.describe().member_ids == {back.member}


@kafka("GroupMetadataManagerTest.testRebalanceCompletesBeforeMemberJoins")
@kafka("GroupCoordinatorTest.testRebalanceCompletesBeforeMemberJoins")
def test_static_member_that_missed_a_rebalance_stays_until_its_session_ends(group: Group) -> None:
    first = group.join(instance=LEADER, session_s=10, rebalance_s=12).member
    group.sync(first, 1, {}, instance=LEADER)
    second = group.entered(RANGE, session_s=10, rebalance_s=12).member
    for _ in range(3):
        group.pass_time(3)
        assert group.heartbeat(first, 1, LEADER) == REBALANCE_IN_PROGRESS
        assert group.wait(second).is_parked
    group.pass_time(3)
    answer = group.wait(second)
    assert (answer.generation, answer.is_leader, len(answer.members)) == (2, True, 2)
    group.sync(second, 2, {})
    assert group.heartbeat(first, 1, LEADER) == ILLEGAL_GENERATION
    codes = []
    for _ in range(4):
        group.pass_time(3)
        codes.append(group.heartbeat(second, 2))
    assert codes == [NONE, NONE, NONE, REBALANCE_IN_PROGRESS]
    assert group.describe().member_ids == {second}
    assert group.join(second, session_s=10, rebalance_s=12).generation == 3
    group.sync(second, 3, {})
    for _ in range(20):
        group.pass_time(3)
        assert group.heartbeat(second, 3) == NONE
