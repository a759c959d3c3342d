"""JoinGroup: the members that a group takes, and its size."""

from __future__ import annotations

import pytest

from tests.lua.group import (
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    NONE,
    RANGE,
    ROUND_ROBIN,
    UNKNOWN_MEMBER_ID,
    Group,
)
from tests.lua.kafka.scenes import asking, codes, handed_out, none_but
from tests.support.ported import kafka

MAX_SIZE = 4
OLD = 3
"""The last version of JoinGroup that joins without a member id."""


def in_state(group: Group, state: str) -> None:
    """A group with one member."""
    if state == "Stable":
        group.stable()
    else:
        group.entered()
    assert group.state == state


@kafka("GroupMetadataManagerTest.testGenerateRecordsOnNewClassicGroup")
def test_join_without_an_id_makes_an_empty_group(group: Group) -> None:
    joined = group.join()
    assert joined.code == MEMBER_ID_REQUIRED and joined.member != ""
    assert (group.state, group.generation) == ("Empty", 0)


@kafka("GroupCoordinatorTest.testValidJoinGroup")
def test_join_with_the_handed_out_id_is_accepted(group: Group) -> None:
    joined = group.entered()
    assert (joined.code, joined.generation, joined.leader) == (NONE, 1, joined.member)


@kafka(
    "GroupMetadataManagerTest.testJoinGroupShouldReceiveErrorIfGroupOverMaxSize",
    "GroupCoordinatorTest.testJoinGroupShouldReceiveErrorIfGroupOverMaxSize",
)
def test_group_refuses_one_member_more_than_its_largest_size(group: Group) -> None:
    group.max_size, group.initial_delay_ms = MAX_SIZE, 3000
    assert all(group.join(version=OLD).is_parked for _ in range(MAX_SIZE))
    assert group.join(version=OLD).refusal == (GROUP_MAX_SIZE_REACHED, "")


@kafka(
    "GroupMetadataManagerTest.testDynamicMembersJoinGroupWithMaxSizeAndRequiredKnownMember",
    "GroupCoordinatorTest.testDynamicMembersJoinGroupWithMaxSizeAndRequiredKnownMember",
)
def test_id_does_not_count_towards_the_size_before_it_joins(group: Group) -> None:
    group.max_size, group.initial_delay_ms = MAX_SIZE, 1000
    members = handed_out(group, MAX_SIZE + 1)
    answers = [group.join(member) for member in members]
    assert codes(answers) == none_but(MAX_SIZE, GROUP_MAX_SIZE_REACHED)
    asking(group, 4, {members[0]: ""})
    assert group.state == "CompletingRebalance"
    again = [group.join(member) for member in members]
    assert [one.code for one in again] == [one.code for one in answers]
    assert group.describe().member_ids == set(members[:MAX_SIZE])


@kafka(
    "GroupMetadataManagerTest.testDynamicMembersJoinGroupWithMaxSizeAndNotRequiredKnownMember",
    "GroupCoordinatorTest.testDynamicMembersJoinGroupWithMaxSize",
)
def test_full_group_refuses_old_clients_at_once(group: Group) -> None:
    group.max_size, group.initial_delay_ms = MAX_SIZE, 1000
    answers = [group.join(version=OLD) for _ in range(MAX_SIZE + 1)]
    assert codes(answers) == none_but(MAX_SIZE, GROUP_MAX_SIZE_REACHED)
    asking(group, 4, {answers[0].member: ""})
    again = [group.join(answer.member, version=OLD) for answer in answers]
    assert codes(again) == none_but(MAX_SIZE, GROUP_MAX_SIZE_REACHED)
    assert (group.state, len(group.describe().members)) == ("CompletingRebalance", MAX_SIZE)


@kafka(
    "GroupMetadataManagerTest.testStaticMembersJoinGroupWithMaxSize",
    "GroupCoordinatorTest.testStaticMembersJoinGroupWithMaxSize",
)
def test_full_group_refuses_static_members(group: Group) -> None:
    group.max_size, group.initial_delay_ms = MAX_SIZE, 1000
    instances = [f"instance-id-{number}" for number in range(MAX_SIZE + 1)]
    answers = [group.join(instance=instance) for instance in instances]
    assert codes(answers) == none_but(MAX_SIZE, GROUP_MAX_SIZE_REACHED)
    asking(group, 4, {answers[0].member: instances[0]})
    again = [group.join(one.member, instance=instance) for one, instance in zip(answers, instances, strict=True)]
    assert codes(again) == none_but(MAX_SIZE, GROUP_MAX_SIZE_REACHED)
    assert (group.state, len(group.describe().members)) == ("CompletingRebalance", MAX_SIZE)


@kafka(
    "GroupMetadataManagerTest.testDynamicMembersCanRejoinGroupWithMaxSizeWhileRebalancing",
    "GroupCoordinatorTest.testDynamicMembersCanReJoinGroupWithMaxSizeWhileRebalancing",
)
def test_members_of_a_full_group_may_repeat_their_join(group: Group) -> None:
    group.max_size, group.initial_delay_ms = MAX_SIZE, 1000
    members = handed_out(group, MAX_SIZE + 1)
    for member in members:
        group.join(member)
    assert group.state == "PreparingRebalance"
    assert codes([group.join(member) for member in members]) == none_but(MAX_SIZE, GROUP_MAX_SIZE_REACHED)
    asking(group, 4, {members[0]: ""})
    assert {one.generation for one in group.settle(*members[:MAX_SIZE]).values()} == {1}


@kafka(
    "GroupMetadataManagerTest.testLastJoiningMembersAreKickedOutWhenRejoiningGroupWithMaxSize",
    "GroupCoordinatorTest.testLastJoiningMembersAreKickedOutWhenReJoiningGroupWithMaxSize",
)
def test_last_members_to_rejoin_a_too_large_group_are_taken_out(group: Group) -> None:
    members = group.stable(MAX_SIZE + 2)
    group.max_size = MAX_SIZE
    answers = [group.join(member) for member in members]
    assert [one.code for one in answers] == [NONE] * MAX_SIZE + [GROUP_MAX_SIZE_REACHED] * 2
    asking(group, 60, dict.fromkeys(members[:MAX_SIZE], ""))
    assert group.state == "CompletingRebalance"
    assert group.describe().member_ids == set(members[:MAX_SIZE])


@pytest.mark.parametrize("instance", ["", "group-instance-id"])
@kafka(
    "GroupMetadataManagerTest.testJoinGroupUnknownMemberNewGroup",
    "GroupCoordinatorTest.testJoinGroupUnknownConsumerNewGroup",
)
def test_unknown_member_of_a_new_group_is_refused(group: Group, instance: str) -> None:
    assert group.join("member-id", instance=instance).refusal == (UNKNOWN_MEMBER_ID, "member-id")
    assert group.exists() == []


@kafka(
    "GroupMetadataManagerTest.testJoinGroupUnknownConsumerExistingGroup",
    "GroupCoordinatorTest.testJoinGroupUnknownConsumerExistingGroup",
)
@pytest.mark.parametrize("state", ["CompletingRebalance", "Stable"])
def test_unknown_member_of_a_group_is_refused(group: Group, state: str) -> None:
    in_state(group, state)
    assert group.join("other-member-id").refusal == (UNKNOWN_MEMBER_ID, "other-member-id")
    assert group.state == state


@kafka(
    "GroupMetadataManagerTest.testClassicGroupJoinInconsistentProtocolType",
    "GroupCoordinatorTest.testJoinGroupInconsistentProtocolType",
)
@pytest.mark.parametrize("version", [OLD, 9])
@pytest.mark.parametrize("state", ["CompletingRebalance", "Stable"])
def test_join_with_another_protocol_type_is_refused(group: Group, state: str, version: int) -> None:
    in_state(group, state)
    assert group.join(protocol_type="connect", version=version).code == INCONSISTENT_GROUP_PROTOCOL
    assert group.state == state


@pytest.mark.parametrize("instance", ["", "group-instance-id"])
@kafka(
    "GroupMetadataManagerTest.testJoinGroupWithEmptyProtocolType",
    "GroupCoordinatorTest.testJoinGroupWithEmptyProtocolType",
)
def test_join_with_an_empty_protocol_type_is_refused(group: Group, instance: str) -> None:
    assert group.join(protocol_type="", instance=instance).code == INCONSISTENT_GROUP_PROTOCOL
    assert group.exists() == []
    group.known()
    assert group.join(protocol_type="", instance=instance).code == INCONSISTENT_GROUP_PROTOCOL


@kafka(
    "GroupMetadataManagerTest.testJoinGroupWithEmptyGroupProtocol",
    "GroupCoordinatorTest.testJoinGroupWithEmptyGroupProtocol",
)
def test_join_without_protocols_is_refused(group: Group) -> None:
    assert group.join(protocols=()).code == INCONSISTENT_GROUP_PROTOCOL
    assert group.exists() == []
    group.known()
    assert group.join(protocols=()).code == INCONSISTENT_GROUP_PROTOCOL


@kafka(
    "GroupMetadataManagerTest.testJoinGroupInconsistentGroupProtocol",
    "GroupCoordinatorTest.testJoinGroupInconsistentGroupProtocol",
)
def test_join_without_a_waiting_members_protocol_is_refused(group: Group) -> None:
    group.initial_delay_ms = 1000
    first = group.join(version=OLD)
    assert group.join(protocols=ROUND_ROBIN, version=OLD).code == INCONSISTENT_GROUP_PROTOCOL
    group.pass_time(1)
    assert group.wait(first.member).protocol == "range"


@kafka(
    "GroupMetadataManagerTest.testJoinGroupSecondJoinInconsistentProtocol",
    "GroupCoordinatorTest.testJoinGroupSecondJoinInconsistentProtocol",
)
def test_id_stays_valid_after_a_join_without_protocols(group: Group) -> None:
    member = group.known()
    assert group.join(member, ()).refusal == (INCONSISTENT_GROUP_PROTOCOL, member)
    assert group.join(member).generation == 1


@kafka(
    "GroupMetadataManagerTest.testJoinGroupReturnsTheProtocolType",
    "GroupCoordinatorTest.testJoinGroupReturnsTheProtocolType",
)
def test_leader_and_follower_are_told_the_protocol_type(group: Group) -> None:
    assert [one.protocol_type for one in group.gathered(RANGE, RANGE)] == ["consumer", "consumer"]


@kafka("GroupCoordinatorTest.testJoinGroupSessionTimeoutTooSmall")
def test_session_timeout_below_the_least_is_refused(group: Group) -> None:
    assert group.join(session_s=5.999).code == INVALID_SESSION_TIMEOUT


@kafka("GroupCoordinatorTest.testJoinGroupSessionTimeoutTooLarge")
def test_session_timeout_above_the_greatest_is_refused(group: Group) -> None:
    assert group.join(session_s=1800.001).code == INVALID_SESSION_TIMEOUT


@kafka("GroupMetadataManagerTest.testJoinGroupExistingPendingMemberWithGroupInstanceIdThrowsException")
def test_id_that_has_yet_to_join_cannot_become_static(group: Group) -> None:
    """Kafka raises an illegal state; both refuse the join."""
    member = group.known()
    assert group.join(member, instance="group-instance-id").code == UNKNOWN_MEMBER_ID
    assert (group.state, group.describe().members) == ("Empty", ())


@kafka("GroupMetadataManagerTest.testJoinGroupExistingMemberInEmptyState")
def test_former_member_is_unknown_to_an_empty_group(group: Group) -> None:
    (member,) = group.stable()
    group.leave((member, ""))
    assert group.state == "Empty"
    assert group.join(member).refusal == (UNKNOWN_MEMBER_ID, member)


@kafka("ClassicGroupTest.testSupportsProtocols")
def test_join_with_one_common_protocol_is_accepted(group: Group) -> None:
    both = (*RANGE, *ROUND_ROBIN)
    foo, bar = (("foo", b""),), (("bar", b""),)
    assert group.join(protocols=both).code == MEMBER_ID_REQUIRED
    group.initial_delay_ms = 60_000
    group.entered(protocols=both)
    assert group.state == "PreparingRebalance"
    assert group.join(protocols=(*ROUND_ROBIN, *foo)).code == MEMBER_ID_REQUIRED
    assert group.join(protocols=(*RANGE, *bar)).code == MEMBER_ID_REQUIRED
    assert group.join(protocols=(*foo, *bar)).code == INCONSISTENT_GROUP_PROTOCOL
