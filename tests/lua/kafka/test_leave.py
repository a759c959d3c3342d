"""LeaveGroup: one member or several, each with its own answer."""

from __future__ import annotations

from tests.lua.group import FENCED_INSTANCE_ID, NONE, UNKNOWN_MEMBER_ID, Group
from tests.lua.kafka.scenes import FOLLOWER, LEADER, static_pair, with_pending
from tests.support.ported import kafka

UNKNOWN_INSTANCE = "unknown-instance-id"


@kafka("GroupMetadataManagerTest.testValidLeaveGroup")
@kafka("GroupCoordinatorTest.testValidLeaveGroup")
def test_group_is_empty_after_its_only_member_left(group: Group) -> None:
    member = group.entered().member
    assert group.leave((member, "")) == [NONE]
    assert (group.state, group.generation) == ("Empty", 2)


@kafka("GroupMetadataManagerTest.testLeaveGroupInvalidGroup")
@kafka("GroupMetadataManagerTest.testLeaveGroupUnknownGroup")
@kafka("GroupCoordinatorTest.testLeaveGroupUnknownGroup")
def test_leave_of_an_unknown_group_is_refused(group: Group) -> None:
    assert group.leave(("member-id", "")) == [UNKNOWN_MEMBER_ID]
    assert group.exists() == []


@kafka("GroupMetadataManagerTest.testStaticMembersLeaveUnknownGroup")
@kafka("GroupCoordinatorTest.testStaticMembersUnknownGroupBatchLeaveGroup")
def test_leave_of_instances_of_an_unknown_group_is_refused(group: Group) -> None:
    assert group.leave(("", LEADER), ("", FOLLOWER)) == [UNKNOWN_MEMBER_ID] * 2


@kafka("GroupMetadataManagerTest.testLeaveGroupUnknownMemberIdExistingGroup")
@kafka("GroupCoordinatorTest.testLeaveGroupUnknownConsumerExistingGroup")
def test_leave_of_an_unknown_member_is_refused(group: Group) -> None:
    member = group.entered().member
    assert group.leave(("unknown-member-id", "")) == [UNKNOWN_MEMBER_ID]
    assert group.describe().member_ids == {member}


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


@kafka("GroupMetadataManagerTest.testPendingMembersLeaveGroup")
@kafka("GroupCoordinatorTest.testPendingMembersLeavesGroup")
def test_pending_id_that_leaves_completes_the_rebalance(group: Group) -> None:
    leader, follower, pending = with_pending(group)
    assert group.leave((pending, "")) == [NONE]
    assert (group.state, group.describe().member_ids) == ("CompletingRebalance", {leader, follower})


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
