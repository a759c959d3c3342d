"""The function korvet_group_join: new groups, and the members that a group takes."""

from __future__ import annotations

import pytest

from tests.lua.group import (
    GROUP_ID,
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    NONE,
    RANGE,
    ROUND_ROBIN,
    UNINDEXED,
    UNKNOWN_MEMBER_ID,
    Group,
)
from tests.lua.group_scenes import asking, codes, handed_out, none_but
from tests.support.ported import kafka


def test_only_member_of_a_new_group_leads_the_first_generation(group: Group) -> None:
    member = group.known()
    joined = group.join(member)
    assert (joined.code, joined.status, joined.generation, joined.leader) == (NONE, "ready", 1, member)
    assert (joined.protocol_type, joined.protocol, joined.skips_assignment) == ("consumer", "range", False)
    assert joined.members == ((member, "", b"range-metadata"),)
    assert group.state == "CompletingRebalance"


def test_group_outside_the_index_is_not_made(group: Group) -> None:
    group.id = group.locator = ""
    assert group.join().refusal == (UNINDEXED, "")
    assert group.commit({"t:0": "1 -1 aa "}) == UNINDEXED
    assert group.exists() == []


def test_existing_group_needs_no_id(group: Group) -> None:
    group.known()
    group.id = group.locator = ""
    assert group.join().code == MEMBER_ID_REQUIRED
    assert group.describe().id == GROUP_ID


def test_group_keeps_its_id_when_a_caller_offers_another(group: Group) -> None:
    group.known()
    group.id = "cgp_other"
    group.known()
    assert group.describe()[:2] == (GROUP_ID, "default/consumer-groups/g")


@pytest.mark.parametrize("version", range(10))
def test_member_id_is_required_from_version_4_on(group: Group, version: int) -> None:
    """KIP-394."""
    joined = group.join(version=version)
    assert joined.code == (MEMBER_ID_REQUIRED if version >= 4 else NONE)
    assert group.state == ("Empty" if version >= 4 else "CompletingRebalance")


def test_handed_out_member_id_is_valid_for_a_session_timeout(group: Group) -> None:
    """KIP-394."""
    in_time, late = group.known(session_s=10), group.known(session_s=10)
    group.pass_time(9.999)
    assert group.join(in_time).code == NONE
    group.pass_time(0.001)
    assert group.join(late).code == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("session_s", "code"),
    [
        (5.999, INVALID_SESSION_TIMEOUT),
        (6, MEMBER_ID_REQUIRED),
        (1800, MEMBER_ID_REQUIRED),
        (1800.001, INVALID_SESSION_TIMEOUT),
    ],
)
@kafka("GroupCoordinatorTest.testJoinGroupSessionTimeoutTooSmall")
@kafka("GroupCoordinatorTest.testJoinGroupSessionTimeoutTooLarge")
def test_session_timeout_has_bounds(group: Group, session_s: float, code: int) -> None:
    assert group.join(session_s=session_s).code == code


def test_refused_session_timeout_keeps_the_callers_member_id(group: Group) -> None:
    assert group.join("m", session_s=1).refusal == (INVALID_SESSION_TIMEOUT, "m")


def test_join_without_a_common_protocol_is_refused(group: Group) -> None:
    (member,) = group.stable()
    assert group.join(protocols=ROUND_ROBIN).refusal == (INCONSISTENT_GROUP_PROTOCOL, "")
    assert group.join(member, ROUND_ROBIN).refusal == (INCONSISTENT_GROUP_PROTOCOL, member)
    assert group.state == "Stable"


def test_group_may_take_another_protocol_type_once_it_is_empty(group: Group) -> None:
    (member,) = group.stable()
    group.leave((member, ""))
    joined = group.entered(protocols=ROUND_ROBIN, protocol_type="connect")
    assert (joined.protocol_type, joined.protocol) == ("connect", "roundrobin")


def test_group_of_the_largest_size_takes_no_further_member(group: Group) -> None:
    group.max_size = 2
    members = group.stable(2)
    assert group.join().refusal == (GROUP_MAX_SIZE_REACHED, "")
    assert group.join(members[1]).code == NONE
    assert group.describe().member_ids == set(members)


def test_members_that_rejoin_first_fill_the_group(group: Group) -> None:
    """The refused member is taken out; the others go on at the rebalance timeout."""
    members = group.stable(3, rebalance_s=8)
    group.max_size = 2
    for member in members[:2]:
        assert group.join(member, rebalance_s=8).is_parked
    assert group.join(members[2], rebalance_s=8).refusal == (GROUP_MAX_SIZE_REACHED, "")
    assert group.wait(members[2]).code == UNKNOWN_MEMBER_ID
    for member in (*members[:2], members[0]):
        group.pass_time(8 / 3)
        group.wait(member)
    assert {answer.generation for answer in group.settle(*members[:2]).values()} == {4}


def test_pending_member_is_refused_when_the_group_is_full(group: Group) -> None:
    group.max_size = 1
    first, second = group.known(), group.known()
    assert group.join(first).code == NONE
    assert group.join(second).code == GROUP_MAX_SIZE_REACHED
    assert group.join(second).code == GROUP_MAX_SIZE_REACHED


def test_new_group_waits_for_more_members(group: Group) -> None:
    group.initial_delay_ms = 3000
    joined = group.entered(session_s=30)
    assert (joined.status, joined.wait_ms) == ("parked", 3000)
    group.pass_time(2.999)
    assert group.wait(joined.member).is_parked
    group.pass_time(0.001)
    assert group.wait(joined.member).generation == 1


def test_wait_for_members_grows_while_members_come(group: Group) -> None:
    group.initial_delay_ms = 3000
    first = group.entered(session_s=30)
    group.pass_time(2.999)
    second = group.entered(session_s=30)
    group.pass_time(0.001)
    assert group.wait(first.member).is_parked
    group.pass_time(2.999)
    assert group.wait(second.member).is_parked
    group.pass_time(0.001)
    assert len(group.settle(first.member, second.member)[first.member].members) == 2


def test_wait_for_members_ends_with_the_rebalance_timeout(group: Group) -> None:
    group.initial_delay_ms = 3000
    members = [group.entered(session_s=30, rebalance_s=7).member]
    for before_s, after_s in ((2, 1), (2, 1), (0.5, 0.499)):
        group.pass_time(before_s)
        members.append(group.entered(session_s=30, rebalance_s=7).member)
        group.pass_time(after_s)
        assert group.wait(members[0]).is_parked
    group.pass_time(0.001)
    assert len(group.settle(*members)[members[0]].members) == 4


def test_group_that_was_empty_waits_again(group: Group) -> None:
    (member,) = group.stable()
    group.leave((member, ""))
    group.initial_delay_ms = 3000
    assert group.entered().is_parked


def test_wait_for_members_goes_on_after_all_have_joined(group: Group) -> None:
    """Source: GroupMetadataManager.maybeCompleteJoinPhase, which does not end an initial rebalance."""
    group.initial_delay_ms = 3000
    first, second = group.entered(session_s=30), group.entered(session_s=30)
    assert group.join(first.member, session_s=30).is_parked
    assert group.leave((second.member, "")) == [NONE]
    assert group.wait(first.member).is_parked


def test_repeated_join_in_the_wait_for_members_adds_no_member(group: Group) -> None:
    group.initial_delay_ms = 3000
    first = group.entered(session_s=30)
    assert group.join(first.member, (("range", b"other"),), session_s=30).is_parked
    group.pass_time(3)
    assert group.wait(first.member).members == ((first.member, "", b"other"),)


def test_instance_id_does_not_make_a_pending_member_static(group: Group) -> None:
    pending = group.known()
    assert group.join(pending, RANGE, instance="i").code == UNKNOWN_MEMBER_ID


def test_new_member_of_an_abandoned_group_may_speak_any_protocol(group: Group) -> None:
    """The first rebalance still waits, and no member is left. Source: ClassicGroup.supportsProtocols"""
    group.initial_delay_ms = 3000
    first = group.entered(session_s=30)
    assert group.leave((first.member, "")) == [NONE]
    second = group.entered(ROUND_ROBIN, session_s=30)
    assert second.is_parked
    assert group.join("", protocol_type="connect").code == INCONSISTENT_GROUP_PROTOCOL
    group.pass_time(3)
    group.wait(second.member)
    group.pass_time(3)
    assert group.wait(second.member).is_leader


def test_removed_parked_member_is_answered_without_its_id(group: Group) -> None:
    """GroupMetadataManager.removeCurrentMemberFromClassicGroup."""
    group.initial_delay_ms = 3000
    joined = group.entered(session_s=30)
    group.leave((joined.member, ""))
    assert group.wait(joined.member).refusal == (UNKNOWN_MEMBER_ID, "")


def test_protocol_named_twice_by_a_member_counts_once(group: Group) -> None:
    """A front-end of a former version passes the names on. In Kafka 4.1.2 the group hangs: no member gets an answer."""
    twice = (*RANGE, ("range", b"other"))
    member = group.known(protocols=twice)
    joined = group.join(member, protocols=twice)
    assert (joined.code, joined.status, joined.protocol) == (NONE, "ready", "range")
    assert joined.members == ((member, "", b"range-metadata"),)
    other = group.known()
    assert group.join(other).is_parked
    again = group.join(member, protocols=(*twice, *ROUND_ROBIN))
    assert (again.protocol, again.generation) == ("range", 2)


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
def test_leader_and_follower_get_the_protocol_type(group: Group) -> None:
    assert [one.protocol_type for one in group.gathered(RANGE, RANGE)] == ["consumer", "consumer"]


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
