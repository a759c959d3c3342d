"""korvet_group_leave: one member or several, by member id or by instance id."""

from __future__ import annotations

from tests.lua.group import FENCED_INSTANCE_ID, NONE, RANGE, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, Group
from tests.lua.group_scenes import FOLLOWER, LEADER, static_pair, with_pending
from tests.support.ported import kafka


@kafka("GroupMetadataManagerTest.testValidLeaveGroup")
@kafka("GroupCoordinatorTest.testValidLeaveGroup")
def test_last_member_to_leave_leaves_an_empty_group(group: Group) -> None:
    (member,) = group.stable()
    assert group.leave((member, "")) == [NONE]
    described = group.describe()
    assert (described.state, described.generation, described.members) == ("Empty", 2, ())
    assert (described.protocol_type, described.protocol, described.leader) == ("consumer", "", "")
    assert group.exists() == ["group"]


def test_others_rebalance_when_one_leaves(group: Group) -> None:
    first, second, third = group.stable(3)
    assert group.leave((second, "")) == [NONE]
    assert group.heartbeat(first, 3) == REBALANCE_IN_PROGRESS
    assert group.join(first).is_parked
    assert group.join(third).generation == 4


def test_rebalance_completes_when_the_awaited_member_leaves(group: Group) -> None:
    first, second = group.stable(2)
    assert group.join(first).is_parked
    assert group.leave((second, "")) == [NONE]
    assert group.wait(first).members == ((first, "", b"range-metadata"),)


@kafka("GroupMetadataManagerTest.testPendingMembersLeaveGroup")
@kafka("GroupCoordinatorTest.testPendingMembersLeavesGroup")
def test_id_that_has_yet_to_join_may_leave(group: Group) -> None:
    first, second = group.stable(2)
    pending = group.known()
    group.join(first)
    group.join(second)
    assert group.leave((pending, "")) == [NONE]
    assert len(group.settle(first, second)[first].members) == 2
    assert group.join(pending).code == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testLeaveGroupUnknownMemberIdExistingGroup")
@kafka("GroupCoordinatorTest.testLeaveGroupUnknownConsumerExistingGroup")
@kafka("GroupMetadataManagerTest.testLeaveGroupInvalidGroup")
@kafka("GroupMetadataManagerTest.testLeaveGroupUnknownGroup")
@kafka("GroupCoordinatorTest.testLeaveGroupUnknownGroup")
@kafka("GroupMetadataManagerTest.testStaticMembersLeaveUnknownGroup")
@kafka("GroupCoordinatorTest.testStaticMembersUnknownGroupBatchLeaveGroup")
def test_leave_of_an_unknown_member_is_refused(group: Group) -> None:
    assert group.leave(("nobody", ""), ("", "i")) == [UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID]
    assert group.exists() == []
    (member,) = group.stable()
    assert group.leave(("nobody", ""), ("", ""), ("", "i"), (member, "i")) == [UNKNOWN_MEMBER_ID] * 4
    assert group.state == "Stable"


def test_members_leave_together_and_each_gets_its_own_code(group: Group) -> None:
    first = group.join(instance="a").member
    group.sync(first, 1, {}, instance="a")
    second = group.entered()
    group.join(first, instance="a")
    codes = group.leave((first, "b"), ("other", "a"), (second.member, ""), ("", "a"), ("", "a"))
    assert codes == [UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, NONE, NONE, UNKNOWN_MEMBER_ID]
    assert group.state == "Empty"


def test_second_leave_of_a_member_in_one_request_is_refused(group: Group) -> None:
    (member,) = group.stable()
    assert group.leave((member, ""), (member, "")) == [NONE, UNKNOWN_MEMBER_ID]


def test_parked_member_that_leaves_is_unknown(group: Group) -> None:
    """GroupMetadataManager.removeCurrentMemberFromClassicGroup."""
    group.stable()
    joined = group.entered()
    assert group.leave((joined.member, "")) == [NONE]
    assert group.wait(joined.member).code == UNKNOWN_MEMBER_ID


def test_first_rebalance_still_waits_when_one_leaves(group: Group) -> None:
    group.initial_delay_ms = 3000
    first, second = group.entered(session_s=30), group.entered(session_s=30)
    assert group.leave((second.member, "")) == [NONE]
    assert group.wait(first.member).is_parked


def test_member_that_leaves_before_the_assignment_ends_the_generation(group: Group) -> None:
    leader, follower = group.gathered(RANGE, RANGE)
    assert group.leave((follower.member, "")) == [NONE]
    assert group.sync(leader.member, 1, {}).code == REBALANCE_IN_PROGRESS


UNKNOWN_INSTANCE = "unknown-instance-id"


@kafka("GroupMetadataManagerTest.testLeaveGroupWithFencedInstanceId")
@kafka("GroupCoordinatorTest.testLeaveGroupWithFencedInstanceId")
def test_leave_of_an_instance_by_another_member_id_is_fenced(group: Group) -> None:
    member = group.join(instance=LEADER).member
    assert group.leave(("other-member-id", LEADER)) == [FENCED_INSTANCE_ID]
    assert group.describe().member_ids == {member}


@kafka("GroupMetadataManagerTest.testLeaveGroupStaticMemberWithUnknownMemberId")
@kafka("GroupCoordinatorTest.testLeaveGroupStaticMemberWithUnknownMemberId")
def test_static_member_leaves_by_its_instance_id_alone(group: Group) -> None:
    group.join(instance=LEADER)
    assert group.leave(("", LEADER)) == [NONE]
    assert group.state == "Empty"


@kafka("GroupMetadataManagerTest.testStaticMembersValidBatchLeaveGroup")
@kafka("GroupCoordinatorTest.testStaticMembersValidBatchLeaveGroup")
def test_static_members_leave_together(group: Group) -> None:
    static_pair(group)
    assert group.leave(("", LEADER), ("", FOLLOWER)) == [NONE, NONE]
    assert group.state == "Empty"


@kafka("GroupMetadataManagerTest.testStaticMembersFencedInstanceBatchLeaveGroup")
@kafka("GroupCoordinatorTest.testStaticMembersFencedInstanceBatchLeaveGroup")
def test_member_leaves_although_another_one_is_fenced(group: Group) -> None:
    pair = static_pair(group)
    assert group.leave(("", LEADER), ("invalid-member-id", FOLLOWER)) == [NONE, FENCED_INSTANCE_ID]
    assert group.describe().member_ids == {pair.follower}


@kafka("GroupMetadataManagerTest.testStaticMembersUnknownInstanceBatchLeaveGroup")
@kafka("GroupCoordinatorTest.testStaticMembersUnknownInstanceBatchLeaveGroup")
def test_member_leaves_although_another_one_is_unknown(group: Group) -> None:
    pair = static_pair(group)
    assert group.leave(("", UNKNOWN_INSTANCE), ("", FOLLOWER)) == [UNKNOWN_MEMBER_ID, NONE]
    assert group.describe().member_ids == {pair.leader}


@kafka("GroupMetadataManagerTest.testPendingMemberBatchLeaveGroup")
@kafka("GroupCoordinatorTest.testPendingMemberBatchLeaveGroup")
def test_pending_id_leaves_although_an_instance_is_unknown(group: Group) -> None:
    pending = with_pending(group).pending
    assert group.leave(("", UNKNOWN_INSTANCE), (pending, "")) == [UNKNOWN_MEMBER_ID, NONE]
    assert group.state == "CompletingRebalance"


@kafka("GroupMetadataManagerTest.testJoinedMemberPendingMemberBatchLeaveGroup")
def test_members_and_a_pending_id_leave_together(group: Group) -> None:
    assert group.leave(*((member, "") for member in with_pending(group))) == [NONE] * 3
    assert group.state == "Empty"


@kafka("GroupMetadataManagerTest.testJoinedMemberPendingMemberBatchLeaveGroupWithUnknownMember")
def test_members_and_a_pending_id_leave_although_another_is_unknown(group: Group) -> None:
    members = (*with_pending(group), "unknown-member-id")
    assert group.leave(*((member, "") for member in members)) == [NONE] * 3 + [UNKNOWN_MEMBER_ID]
    assert group.state == "Empty"
