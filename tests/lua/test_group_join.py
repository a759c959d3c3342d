"""The function korvet_group_join: new groups, and the members that a group takes.

The cases of Kafka's own tests are in tests/lua/kafka.
"""

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
