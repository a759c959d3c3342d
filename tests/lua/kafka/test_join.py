"""JoinGroup: who is let in, and how large a group may be."""

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
"""The last version of JoinGroup that is let in without a member id."""


@kafka("GroupMetadataManagerTest.testGenerateRecordsOnNewClassicGroup")
def test_join_without_an_id_makes_an_empty_group(group: Group) -> None:
    joined = group.join()
    assert joined.code == MEMBER_ID_REQUIRED and joined.member != ""
    assert (group.state, group.generation) == ("Empty", 0)


@kafka("GroupCoordinatorTest.testValidJoinGroup")
def test_join_with_the_id_that_was_handed_out_is_fine(group: Group) -> None:
    joined = group.entered()
    assert (joined.code, joined.generation, joined.leader) == (NONE, 1, joined.member)


@kafka(
    "GroupMetadataManagerTest.testJoinGroupShouldReceiveErrorIfGroupOverMaxSize",
    "GroupCoordinatorTest.testJoinGroupShouldReceiveErrorIfGroupOverMaxSize",
)
def test_one_more_than_the_largest_size_is_refused(group: Group) -> None:
    group.max_size, group.initial_delay_ms = MAX_SIZE, 3000
    assert all(group.join(version=OLD).is_parked for _ in range(MAX_SIZE))
    assert group.join(version=OLD).refusal == (GROUP_MAX_SIZE_REACHED, "")


@kafka(
    "GroupMetadataManagerTest.testDynamicMembersJoinGroupWithMaxSizeAndRequiredKnownMember",
    "GroupCoordinatorTest.testDynamicMembersJoinGroupWithMaxSizeAndRequiredKnownMember",
)
def test_ids_do_not_count_towards_the_size_before_they_join(group: Group) -> None:
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
def test_old_clients_beyond_the_size_are_refused_at_once(group: Group) -> None:
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
def test_static_members_beyond_the_size_are_refused(group: Group) -> None:
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
def test_members_of_a_full_group_may_repeat_their_join_while_it_gathers(group: Group) -> None:
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
def test_last_to_rejoin_a_group_that_is_too_large_are_out(group: Group) -> None:
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
def test_unknown_member_of_a_group_is_refused(group: Group) -> None:
    group.entered()
    assert group.join("other-member-id").refusal == (UNKNOWN_MEMBER_ID, "other-member-id")


@kafka(
    "GroupMetadataManagerTest.testClassicGroupJoinInconsistentProtocolType",
    "GroupCoordinatorTest.testJoinGroupInconsistentProtocolType",
)
def test_other_protocol_type_is_refused(group: Group) -> None:
    group.entered()
    assert group.join(protocol_type="connect", version=OLD).code == INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("instance", ["", "group-instance-id"])
@kafka(
    "GroupMetadataManagerTest.testJoinGroupWithEmptyProtocolType",
    "GroupCoordinatorTest.testJoinGroupWithEmptyProtocolType",
)
def test_empty_protocol_type_is_refused(group: Group, instance: str) -> None:
    group.known()
    assert group.join(protocol_type="", instance=instance).code == INCONSISTENT_GROUP_PROTOCOL


@kafka(
    "GroupMetadataManagerTest.testJoinGroupWithEmptyGroupProtocol",
    "GroupCoordinatorTest.testJoinGroupWithEmptyGroupProtocol",
)
def test_no_protocols_are_refused(group: Group) -> None:
    group.known()
    assert group.join(protocols=()).code == INCONSISTENT_GROUP_PROTOCOL


@kafka(
    "GroupMetadataManagerTest.testJoinGroupInconsistentGroupProtocol",
    "GroupCoordinatorTest.testJoinGroupInconsistentGroupProtocol",
)
def test_protocol_that_a_waiting_member_lacks_is_refused(group: Group) -> None:
    group.initial_delay_ms = 1000
    first = group.join(version=OLD)
    assert group.join(protocols=ROUND_ROBIN, version=OLD).code == INCONSISTENT_GROUP_PROTOCOL
    group.pass_time(1)
    assert group.wait(first.member).protocol == "range"


@kafka(
    "GroupMetadataManagerTest.testJoinGroupSecondJoinInconsistentProtocol",
    "GroupCoordinatorTest.testJoinGroupSecondJoinInconsistentProtocol",
)
def test_id_is_still_good_after_a_join_without_protocols(group: Group) -> None:
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
def test_id_that_is_yet_to_join_cannot_be_a_static_members(group: Group) -> None:
    """Kafka calls it an illegal state; both refuse it."""
    member = group.known()
    assert group.join(member, instance="group-instance-id").code == UNKNOWN_MEMBER_ID
    assert (group.state, group.describe().members) == ("Empty", ())


@kafka("GroupMetadataManagerTest.testJoinGroupExistingMemberInEmptyState")
def test_member_of_before_is_unknown_to_an_empty_group(group: Group) -> None:
    (member,) = group.stable()
    group.leave((member, ""))
    assert group.state == "Empty"
    assert group.join(member).refusal == (UNKNOWN_MEMBER_ID, member)


@kafka("ClassicGroupTest.testSupportsProtocols")
def test_one_protocol_in_common_is_enough(group: Group) -> None:
    both = (*RANGE, *ROUND_ROBIN)
    foo, bar = (("foo", b""),), (("bar", b""),)
    assert group.join(protocols=both).code == MEMBER_ID_REQUIRED
    group.initial_delay_ms = 60_000
    group.entered(protocols=both)
    assert group.state == "PreparingRebalance"
    assert group.join(protocols=(*ROUND_ROBIN, *foo)).code == MEMBER_ID_REQUIRED
    assert group.join(protocols=(*RANGE, *bar)).code == MEMBER_ID_REQUIRED
    assert group.join(protocols=(*foo, *bar)).code == INCONSISTENT_GROUP_PROTOCOL
