"""The function korvet_group_sync: assignments, and members that do not ask for them in time."""

from __future__ import annotations

import pytest

from tests.lua.group import (
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    NONE,
    RANGE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    Group,
)
from tests.lua.group_scenes import Options, completing
from tests.support.ported import kafka


@kafka("GroupMetadataManagerTest.testSyncGroupFollowerAfterLeader")
@kafka("GroupCoordinatorTest.testSyncGroupFollowerAfterLeader")
@kafka("GroupMetadataManagerTest.testSyncGroupLeaderAfterFollower")
@kafka("GroupCoordinatorTest.testSyncGroupLeaderAfterFollower")
def test_leader_hands_out_assignments(group: Group) -> None:
    leader, early, late = group.gathered(RANGE, RANGE, RANGE)
    assert group.sync(early.member, 1).is_parked
    assignments = {leader.member: b"L", early.member: b"E", late.member: b"\xff" * 10_000}
    synced = group.sync(leader.member, 1, assignments)
    assert (synced.status, synced.protocol_type, synced.protocol, synced.assignment) == (
        "ready", "consumer", "range", b"L",
    )  # fmt: skip
    assert group.sync(early.member, 1).assignment == b"E"
    assert group.sync(late.member, 1).assignment == b"\xff" * 10_000
    assert group.state == "Stable"


def test_member_without_an_assignment_gets_an_empty_one(group: Group) -> None:
    """Source: GroupMetadataManager, membersWithMissingAssignment"""
    leader, follower = group.gathered(RANGE, RANGE)
    group.sync(leader.member, 1, {leader.member: b"L", "nobody": b"N"})
    assert group.sync(follower.member, 1).assignment == b""
    assert group.describe().member_ids == {leader.member, follower.member}


@kafka("GroupMetadataManagerTest.testSyncGroupEmptyAssignment")
@kafka("GroupCoordinatorTest.testSyncGroupEmptyAssignment")
def test_leader_may_assign_nothing(group: Group) -> None:
    (leader,) = group.gathered(RANGE)
    assert group.sync(leader.member, 1) == (NONE, "ready", 0, "consumer", "range", b"")
    assert group.state == "Stable"


def test_assignments_from_a_follower_are_ignored(group: Group) -> None:
    leader, follower = group.gathered(RANGE, RANGE)
    assert group.sync(follower.member, 1, {follower.member: b"mine"}).is_parked
    group.assign(leader)
    assert group.sync(follower.member, 1).assignment == follower.member.encode()


def test_repeated_sync_in_a_stable_group_changes_nothing(group: Group) -> None:
    leader, _ = group.stable(2)
    assert group.sync(leader, 2, {leader: b"other"}).assignment == leader.encode()


@kafka("GroupMetadataManagerTest.testSyncGroupFromIllegalGeneration")
@kafka("GroupCoordinatorTest.testSyncGroupFromIllegalGeneration")
def test_sync_of_a_past_or_future_generation_is_refused(group: Group) -> None:
    (member,) = group.stable()
    assert [group.sync(member, generation).code for generation in (-1, 0, 2)] == [ILLEGAL_GENERATION] * 3


@kafka("GroupMetadataManagerTest.testSyncGroupFromUnknownMember")
@kafka("GroupCoordinatorTest.testSyncGroupFromUnknownMember")
@kafka("GroupMetadataManagerTest.testSyncGroupFromUnknownGroup")
@kafka("GroupCoordinatorTest.testSyncGroupFromUnknownGroup")
def test_sync_by_an_unknown_member_is_refused(group: Group) -> None:
    assert group.sync("nobody", 1).code == UNKNOWN_MEMBER_ID
    assert group.exists() == []
    (member,) = group.stable()
    assert group.sync("nobody", 1).code == UNKNOWN_MEMBER_ID
    group.leave((member, ""))
    assert group.sync(member, 2).code == UNKNOWN_MEMBER_ID


def test_sync_checks_member_generation_protocol_and_rebalance_in_order(group: Group) -> None:
    """GroupMetadataManager.validateSyncGroup."""
    leader, follower = group.stable(2)
    wrong = ("connect", "range")
    assert group.sync("nobody", 9, protocol=wrong).code == UNKNOWN_MEMBER_ID
    assert group.sync(leader, 9, protocol=wrong).code == ILLEGAL_GENERATION
    group.join(leader)
    assert group.sync(follower, 2, protocol=wrong).code == INCONSISTENT_GROUP_PROTOCOL
    assert group.sync(follower, 2).code == REBALANCE_IN_PROGRESS


def test_sync_of_a_static_member_must_come_from_the_holder_of_the_id(group: Group) -> None:
    member = group.join(instance="i").member
    assert group.sync("other", 1, instance="i").code == FENCED_INSTANCE_ID
    assert group.sync(member, 1, instance="j").code == UNKNOWN_MEMBER_ID
    assert group.sync(member, 1, instance="i").code == NONE


@kafka("GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromFollowers")
@kafka("GroupCoordinatorTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromFollowers")
def test_members_that_do_not_sync_in_time_are_taken_out(group: Group) -> None:
    leader, punctual, late = group.gathered(RANGE, RANGE, RANGE, session_s=60, rebalance_s=20)
    group.sync(punctual.member, 1)
    group.pass_time(10)
    group.assign(leader)
    assert group.sync(punctual.member, 1).assignment == punctual.member.encode()
    assert group.state == "Stable"
    group.pass_time(10)
    assert group.heartbeat(late.member, 1) == UNKNOWN_MEMBER_ID
    assert group.heartbeat(punctual.member, 1) == REBALANCE_IN_PROGRESS


@kafka("GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromLeaders")
@kafka("GroupCoordinatorTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromLeaders")
def test_leader_that_assigns_nothing_in_time_is_out_and_the_others_rejoin(group: Group) -> None:
    leader, follower = group.gathered(RANGE, RANGE, session_s=60, rebalance_s=20)
    assert group.sync(follower.member, 1).wait_ms == 20_000
    group.pass_time(20)
    assert group.sync(follower.member, 1).code == REBALANCE_IN_PROGRESS
    assert group.sync(leader.member, 1).code == UNKNOWN_MEMBER_ID
    assert group.join(follower.member, session_s=60, rebalance_s=20).is_leader


@kafka("GroupMetadataManagerTest.testRebalanceDoesNotTimeOutWhenAllSyncAreReceived")
@kafka("GroupCoordinatorTest.testRebalanceDoesNotTimeOutWhenAllSyncAreReceived")
@kafka("ClassicGroupTest.testCanAddAndRemovePendingSyncMember")
def test_no_member_is_late_after_all_have_synced(group: Group) -> None:
    """The group has no deadline any more."""
    leader, follower = group.gathered(RANGE, RANGE, session_s=60, rebalance_s=20)
    group.sync(follower.member, 1)
    group.assign(leader)
    group.pass_time(21)
    assert group.heartbeat(leader.member, 1) == NONE
    assert group.field("sync_deadline") is None


def test_session_counts_while_a_member_waits_for_its_assignment(group: Group) -> None:
    """A member that asks again holds its session: it asks 4 times in 20 s, with a session of 10 s."""
    leader, follower = group.gathered(RANGE, RANGE, session_s=10, rebalance_s=60)
    for _ in range(4):
        group.pass_time(5)
        assert group.sync(follower.member, 1).is_parked
        assert group.heartbeat(leader.member, 1) == NONE
    group.assign(leader)
    assert group.sync(follower.member, 1).assignment == follower.member.encode()


@kafka("GroupMetadataManagerTest.testLeaderFailureInSyncGroup")
@kafka("GroupCoordinatorTest.testLeaderFailureInSyncGroup")
def test_wait_for_an_assignment_ends_when_the_leader_expires(group: Group) -> None:
    _, follower = group.gathered(RANGE, RANGE, session_s=10, rebalance_s=60)
    group.pass_time(5)
    assert group.sync(follower.member, 1).wait_ms == 3334
    group.pass_time(3.334)
    assert group.sync(follower.member, 1).wait_ms == 1666
    group.pass_time(1.666)
    assert group.sync(follower.member, 1).code == REBALANCE_IN_PROGRESS


def test_follower_must_rejoin_after_its_generation_was_broken_off(group: Group) -> None:
    leader, follower = group.gathered(RANGE, RANGE)
    assert group.sync(follower.member, 1).is_parked
    group.entered()
    assert group.sync(follower.member, 1).code == REBALANCE_IN_PROGRESS
    assert group.sync(leader.member, 1, {leader.member: b"L"}).code == REBALANCE_IN_PROGRESS


def test_sync_may_name_any_protocol_before_the_first_is_chosen(group: Group) -> None:
    """GroupMetadataManager.isProtocolInconsistent compares with nothing."""
    group.initial_delay_ms = 3000
    first = group.entered(session_s=30)
    assert group.sync(first.member, 0, protocol=("consumer", "range")).code == REBALANCE_IN_PROGRESS
    assert group.sync(first.member, 0, protocol=("connect", "range")).code == INCONSISTENT_GROUP_PROTOCOL


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
        (("", ""), INCONSISTENT_GROUP_PROTOCOL),
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


@kafka("GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceived")
@kafka("GroupCoordinatorTest.testRebalanceTimesOutWhenSyncRequestIsNotReceived")
def test_group_is_empty_if_no_member_synced_in_time(group: Group) -> None:
    members = [one.member for one in completing(group, 3, **TIMES)]
    group.pass_time(3)
    assert [group.heartbeat(member, 1) for member in members] == [NONE] * 3
    group.pass_time(3)
    assert group.state == "Empty"
    assert [group.heartbeat(member, 1) for member in members] == [UNKNOWN_MEMBER_ID] * 3


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
def test_members_that_wait_for_an_assignment_have_to_rejoin(group: Group) -> None:
    _, *followers = [one.member for one in completing(group, 4)]
    assert all(group.sync(member, 1).is_parked for member in followers)
    group.entered()
    assert [group.sync(member, 1).code for member in followers] == [REBALANCE_IN_PROGRESS] * 3
