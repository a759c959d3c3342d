"""The function korvet_group_sync: assignments, and members that do not ask for them in time.

The cases of Kafka's own tests are in tests/lua/kafka.
"""

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


def test_sync_of_a_past_or_future_generation_is_refused(group: Group) -> None:
    (member,) = group.stable()
    assert [group.sync(member, generation).code for generation in (-1, 0, 2)] == [ILLEGAL_GENERATION] * 3


def test_sync_by_an_unknown_member_is_refused(group: Group) -> None:
    assert group.sync("nobody", 1).code == UNKNOWN_MEMBER_ID
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


@pytest.mark.parametrize(
    ("protocol", "code"),
    [
        (("consumer", "range"), NONE),
        (("consumer", "roundrobin"), INCONSISTENT_GROUP_PROTOCOL),
        (("connect", "range"), INCONSISTENT_GROUP_PROTOCOL),
        (("", ""), INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_sync_must_name_the_groups_protocol(group: Group, protocol: tuple[str, str], code: int) -> None:
    """KIP-559."""
    (member,) = group.stable()
    assert group.sync(member, 1, protocol=protocol).code == code


def test_sync_of_a_static_member_must_come_from_the_holder_of_the_id(group: Group) -> None:
    member = group.join(instance="i").member
    assert group.sync("other", 1, instance="i").code == FENCED_INSTANCE_ID
    assert group.sync(member, 1, instance="j").code == UNKNOWN_MEMBER_ID
    assert group.sync(member, 1, instance="i").code == NONE


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


def test_leader_that_assigns_nothing_in_time_is_out_and_the_others_rejoin(group: Group) -> None:
    leader, follower = group.gathered(RANGE, RANGE, session_s=60, rebalance_s=20)
    assert group.sync(follower.member, 1).wait_ms == 20_000
    group.pass_time(20)
    assert group.sync(follower.member, 1).code == REBALANCE_IN_PROGRESS
    assert group.sync(leader.member, 1).code == UNKNOWN_MEMBER_ID
    assert group.join(follower.member, session_s=60, rebalance_s=20).is_leader


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
