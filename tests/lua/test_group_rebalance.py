"""Rebalances: their members, end, leader and protocol; and the function korvet_group_await."""

from __future__ import annotations

import pytest
import redis

from tests.lua.group import (
    MEMBER_ID_REQUIRED,
    NONE,
    RANGE,
    REBALANCE_IN_PROGRESS,
    ROUND_ROBIN,
    UNKNOWN_MEMBER_ID,
    Group,
)
from tests.lua.group_scenes import BOTH, asking, completing, with_pending
from tests.lua.log import listening
from tests.support.ported import kafka

CHANGED = (("range", b"changed"),)


@kafka("ClassicGroupTest.testCanRebalanceWhenStable")
def test_new_member_makes_all_others_rejoin(group: Group) -> None:
    first, second = group.stable(2)
    third = group.entered()
    assert third.is_parked and group.state == "PreparingRebalance"
    assert group.join(first).is_parked
    joined = group.join(second)
    assert (joined.status, joined.generation, joined.leader) == ("ready", 3, first)
    answers = group.settle(first, third.member)
    assert {member for member, _, _ in answers[first].members} == {first, second, third.member}
    assert answers[third.member].members == ()
    assert {answer.leader for answer in answers.values()} == {first}


@kafka("GroupMetadataManagerTest.testJoinGroupCompletionWhenPendingMemberJoins")
@kafka("GroupCoordinatorTest.testJoinGroupCompletionWhenPendingMemberJoins")
def test_rebalance_waits_for_handed_out_ids(group: Group) -> None:
    first, second = group.stable(2)
    pending = group.known()
    assert group.join(first).is_parked
    assert group.join(second).is_parked
    assert group.join(pending).generation == 3


@kafka("GroupMetadataManagerTest.testJoinGroupCompletionWhenPendingMemberTimesOut")
@kafka("GroupCoordinatorTest.testJoinGroupCompletionWhenPendingMemberTimesOut")
def test_rebalance_goes_on_without_an_unused_id(group: Group) -> None:
    first, second = group.stable(2, session_s=30)
    group.known(session_s=10)
    assert group.join(first, session_s=30).is_parked
    parked = group.join(second, session_s=30)
    assert (parked.status, parked.wait_ms) == ("parked", 10_000)
    group.pass_time(10)
    assert group.settle(first, second)[first].generation == 3


def test_first_rebalance_is_cut_short_when_an_unused_id_expires(group: Group) -> None:
    """The members that joined go on. Source: GroupMetadataManager.removePendingMemberAndUpdateClassicGroup"""
    group.initial_delay_ms = 9000
    group.known(session_s=6)
    joined = group.entered(session_s=30)
    group.pass_time(6)
    assert group.wait(joined.member).generation == 1


@kafka("GroupMetadataManagerTest.testCompleteJoinRemoveNotYetRejoinedDynamicMembers")
def test_members_that_do_not_rejoin_in_time_are_taken_out(group: Group) -> None:
    members = group.stable(3, session_s=60, rebalance_s=20)
    assert group.join(members[0], CHANGED, session_s=60, rebalance_s=20).code == NONE
    assert group.join(members[1], session_s=60, rebalance_s=20).wait_ms == 20_000
    group.pass_time(19.999)
    assert group.heartbeat(members[2], 3) == REBALANCE_IN_PROGRESS
    assert group.wait(members[0]).is_parked
    group.pass_time(0.001)
    assert group.settle(*members[:2])[members[0]].generation == 4
    assert group.heartbeat(members[2], 3) == UNKNOWN_MEMBER_ID
    assert group.join(members[2]).code == UNKNOWN_MEMBER_ID


def test_rebalance_timeout_is_the_longest_of_the_members(group: Group) -> None:
    (first,) = group.stable(session_s=100, rebalance_s=10)
    second = group.entered(session_s=100, rebalance_s=30)
    assert second.wait_ms == 30_000
    group.join(first, session_s=100, rebalance_s=10)
    leader = group.settle(first)[first]
    group.assign(leader)
    group.leave((second.member, ""))
    group.join(first, session_s=100, rebalance_s=10)
    assert group.entered(session_s=100, rebalance_s=20).wait_ms == 20_000


def test_leader_keeps_leading_while_it_lives(group: Group) -> None:
    first, second = group.stable(2)
    for generation in (3, 4):
        group.join(second, ((("range", b"%d" % generation)),))
        leader = group.join(first)
        assert (leader.leader, leader.generation) == (first, generation)
        group.assign(leader)


def test_another_member_leads_if_the_leader_did_not_rejoin(group: Group) -> None:
    first, second = group.stable(2, session_s=60, rebalance_s=10)
    group.join(second, CHANGED, session_s=60, rebalance_s=10)
    group.pass_time(10)
    leader = group.settle(second)[second]
    assert leader.is_leader
    assert leader.members == ((second, "", b"changed"),)
    assert group.heartbeat(first, 3) == UNKNOWN_MEMBER_ID


def test_another_member_leads_if_the_leader_left(group: Group) -> None:
    """ClassicGroup.remove."""
    first, second, third = group.stable(3)
    assert group.leave((first, "")) == [NONE]
    assert group.join(second).is_parked
    assert group.join(third).generation == 4
    leaders = {answer.leader for answer in group.settle(second, third).values()}
    assert leaders <= {second, third} and len(leaders) == 1


def test_votes_choose_among_the_protocols_of_all_members(group: Group) -> None:
    answers = group.gathered(ROUND_ROBIN + RANGE, BOTH, BOTH, (("sticky", b""), *RANGE, *ROUND_ROBIN))
    assert {answer.protocol for answer in answers} == {"range"}
    assert {metadata for _, _, metadata in answers[0].members} == {b"range-metadata"}


@kafka("ClassicGroupTest.testSelectProtocolChoosesCompatibleProtocol")
def test_protocol_with_most_votes_loses_if_one_member_lacks_it(group: Group) -> None:
    assert group.gathered(BOTH, BOTH, ROUND_ROBIN)[0].protocol == "roundrobin"


def test_protocol_counts_again_after_the_only_member_without_it_left(group: Group) -> None:
    first, second = group.gathered(BOTH, RANGE)
    group.assign(first)
    group.leave((second.member, ""))
    group.join(first.member, BOTH)
    assert group.join(protocols=ROUND_ROBIN).code == MEMBER_ID_REQUIRED


@kafka("GroupMetadataManagerTest.testJoinGroupAsExistingLeaderTriggersRebalanceInStableState")
@kafka("GroupMetadataManagerTest.testJoinGroupFromUnchangedLeaderShouldRebalance")
@kafka("GroupCoordinatorTest.testJoinGroupFromUnchangedLeaderShouldRebalance")
def test_leader_that_rejoins_a_stable_group_rebalances_it(group: Group) -> None:
    leader, follower = group.stable(2)
    assert group.join(leader).is_parked
    assert group.heartbeat(follower, 2) == REBALANCE_IN_PROGRESS


@kafka("GroupMetadataManagerTest.testJoinGroupExistingMemberDoesNotTriggerRebalanceInStableState")
@kafka("GroupMetadataManagerTest.testJoinGroupFromUnchangedFollowerDoesNotRebalance")
@kafka("GroupCoordinatorTest.testJoinGroupFromUnchangedFollowerDoesNotRebalance")
def test_unchanged_follower_of_a_stable_group_gets_its_generation_again(group: Group) -> None:
    leader, follower = group.stable(2)
    joined = group.join(follower)
    assert (joined.status, joined.generation, joined.leader, joined.members) == ("ready", 2, leader, ())
    assert group.state == "Stable"


@kafka("GroupMetadataManagerTest.testJoinGroupAsExistingMemberWithUpdatedMetadataTriggersRebalanceInStableState")
def test_changed_follower_of_a_stable_group_rebalances_it(group: Group) -> None:
    _, follower = group.stable(2)
    assert group.join(follower, CHANGED).is_parked
    assert group.state == "PreparingRebalance"


def test_member_with_its_protocols_in_another_order_rebalances(group: Group) -> None:
    _, follower = group.stable(2, protocols=BOTH)
    assert group.join(follower, ROUND_ROBIN + RANGE).is_parked


@pytest.mark.parametrize("is_leader", [True, False])
def test_unchanged_member_may_repeat_its_join_before_the_assignment(group: Group, is_leader: bool) -> None:
    """The first answer may have been lost."""
    first, second = group.stable(2)
    group.join(first)
    group.join(second)
    assert group.state == "CompletingRebalance"
    joined = group.join(first if is_leader else second)
    assert (joined.status, joined.generation, len(joined.members)) == ("ready", 3, 2 if is_leader else 0)


def test_changed_member_begins_a_rebalance_before_the_assignment(group: Group) -> None:
    """A member's metadata changes in CompletingRebalance."""
    first, second = group.stable(2)
    group.join(first)
    group.join(second)
    assert group.join(second, CHANGED).is_parked
    assert group.sync(first, 3, {first: b"a"}).code == REBALANCE_IN_PROGRESS


def test_generation_grows_by_one_and_never_goes_back(group: Group) -> None:
    """An Empty group keeps its generation too."""
    (member,) = group.stable()
    assert group.join(member).generation == 2
    group.leave((member, ""))
    assert (group.state, group.generation) == ("Empty", 3)
    assert group.entered().generation == 4


def test_parked_join_learns_when_to_call_again(group: Group) -> None:
    """The time is the group's next deadline, or a third of the shortest session, which the question holds."""
    (first,) = group.stable(session_s=30, rebalance_s=60)
    second = group.entered(session_s=60, rebalance_s=60)
    assert second.wait_ms == 10_000
    group.pass_time(9)
    assert group.wait(second.member).wait_ms == 10_000
    group.pass_time(12)
    assert group.wait(second.member).wait_ms == 9_000
    group.pass_time(9)
    assert group.wait(second.member).members == ((second.member, "", b"range-metadata"),)
    assert group.heartbeat(first, 1) == UNKNOWN_MEMBER_ID


def test_parked_member_expires_if_no_front_end_asks_for_it(group: Group) -> None:
    """The front-end died with its connections. The member expires after a session; Kafka waits for five minutes."""
    (first,) = group.stable(session_s=30)
    group.entered(session_s=10)
    group.join(first, session_s=30)
    group.assign(group.settle(first)[first])
    group.pass_time(5)
    assert group.heartbeat(first, 2) == NONE
    group.pass_time(5)
    assert group.heartbeat(first, 2) == REBALANCE_IN_PROGRESS
    assert group.join(first, session_s=30).members == ((first, "", b"range-metadata"),)


def test_parked_member_takes_part_in_the_next_rebalance(group: Group) -> None:
    """No front-end asked for it while one rebalance ended and the next began. It counts as rejoined at once."""
    first, second = group.stable(2)
    third = group.entered()
    group.join(first)
    group.join(second)
    group.join(second, CHANGED)
    assert group.wait(third.member).is_parked
    assert group.join(first).generation == 4
    assert group.wait(third.member).generation == 4


def test_await_of_an_unknown_member_is_refused(group: Group) -> None:
    assert group.wait("nobody").code == UNKNOWN_MEMBER_ID
    group.stable()
    assert group.wait("nobody").code == UNKNOWN_MEMBER_ID


def test_group_is_empty_after_all_its_members_expired(group: Group) -> None:
    group.stable(3)
    group.pass_time(10)
    assert group.state == "Empty"
    assert group.describe().members == ()
    assert group.describe().generation == 4


def test_channel_announces_every_change_of_state(server: redis.Redis, group: Group) -> None:
    """The group's key is the channel; parked members ask again after a message."""
    group.initial_delay_ms = 1000
    with listening(server, group.keys[0]) as heard:
        joined = group.entered(session_s=30)
        assert heard() == b"PreparingRebalance 0"
        group.pass_time(1)
        group.assign(group.wait(joined.member))
        assert [heard(), heard()] == [b"CompletingRebalance 1", b"Stable 1"]
        group.heartbeat(joined.member, 1)
        group.leave((joined.member, ""))
        assert heard() == b"Empty 2"


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


@kafka("GroupMetadataManagerTest.testGenerationIdIncrementsOnRebalance")
@kafka("GroupCoordinatorTest.testGenerationIdIncrementsOnRebalance")
def test_each_rebalance_adds_one_to_the_generation(group: Group) -> None:
    (leader,) = group.stable()
    assert group.join(leader).generation == 2
    group.sync(leader, 2, {})
    assert group.join(leader).generation == 3


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
def test_heartbeat_reports_a_rebalance_that_a_new_member_began(group: Group) -> None:
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
