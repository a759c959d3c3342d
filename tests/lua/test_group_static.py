"""Static members (KIP-345, KIP-814): they come back without a rebalance, and each instance id has one member.

The cases of Kafka's own tests are in tests/lua/kafka.
"""

from __future__ import annotations

from tests.lua.group import (
    FENCED_INSTANCE_ID,
    NONE,
    RANGE,
    REBALANCE_IN_PROGRESS,
    ROUND_ROBIN,
    UNKNOWN_MEMBER_ID,
    Group,
    Joined,
    Protocols,
)

CHANGED = (("range", b"changed"),)


def stable(group: Group, *instances: str, session_s: float = 30, rebalance_s: float = 60) -> list[str]:
    """Member ids of a Stable group of static members, the leader's first, at generation 1."""
    group.initial_delay_ms = 1000
    members = [
        group.join(instance=instance, session_s=session_s, rebalance_s=rebalance_s).member for instance in instances
    ]
    for _ in range(2):
        group.pass_time(1)
        group.wait(members[0], instances[0])
    by_member = dict(zip(members, instances, strict=True))
    leader = group.settle(*members, instances=by_member)[members[0]]
    assignments = {member: instance.encode() for member, instance in by_member.items()}
    assert group.sync(leader.member, 1, assignments, instance=instances[0]).code == NONE
    for member, instance in list(by_member.items())[1:]:
        assert group.sync(member, 1, instance=instance).assignment == instance.encode()
    return members


def rejoin(group: Group, instance: str, protocols: Protocols = RANGE, version: int = 9) -> Joined:
    return group.join(instance=instance, protocols=protocols, session_s=30, version=version)


def test_static_member_joins_at_once_and_its_id_begins_with_its_instance_id(group: Group) -> None:
    """The group does not answer MEMBER_ID_REQUIRED."""
    joined = group.join(instance="i")
    assert (joined.code, joined.status) == (NONE, "ready")
    assert joined.member.startswith("i-")
    assert joined.members == ((joined.member, "i", b"range-metadata"),)
    assert not joined.skips_assignment


def test_follower_that_restarts_keeps_its_assignment_without_a_rebalance(group: Group) -> None:
    leader, follower = stable(group, "L", "F")
    joined = rejoin(group, "F")
    assert (joined.status, joined.generation, joined.leader) == ("ready", 1, leader)
    assert joined.member != follower and joined.members == () and not joined.skips_assignment
    assert group.sync(joined.member, 1, instance="F").assignment == b"F"
    assert group.state == "Stable"
    assert group.describe().member_ids == {leader, joined.member}


def test_restarted_leader_is_told_to_assign_nothing(group: Group) -> None:
    """KIP-814."""
    old, follower = stable(group, "L", "F")
    joined = rejoin(group, "L")
    assert joined.is_leader and joined.skips_assignment and joined.generation == 1
    assert {(member, instance) for member, instance, _ in joined.members} == {(joined.member, "L"), (follower, "F")}
    assert group.sync(joined.member, 1, instance="L").assignment == b"L"
    assert group.heartbeat(old, 1, "L") == FENCED_INSTANCE_ID


def test_restarted_leader_is_told_of_the_old_leader_before_version_9(group: Group) -> None:
    old, _ = stable(group, "L", "F")
    joined = rejoin(group, "L", version=8)
    assert (joined.leader, joined.members, joined.skips_assignment) == (old, (), False)
    assert group.describe().leader == joined.member


def test_every_call_of_an_instance_ids_old_holder_is_fenced(group: Group) -> None:
    """KIP-345."""
    _, old = stable(group, "L", "F")
    new = rejoin(group, "F").member
    assert group.heartbeat(old, 1, "F") == FENCED_INSTANCE_ID
    assert group.join(old, instance="F").refusal == (FENCED_INSTANCE_ID, old)
    assert group.wait(old, "F").code == FENCED_INSTANCE_ID
    assert group.sync(old, 1, instance="F").code == FENCED_INSTANCE_ID
    assert group.commit({"t:0": "1 -1 aa "}, old, 1, instance="F") == FENCED_INSTANCE_ID
    assert group.leave((old, "F")) == [FENCED_INSTANCE_ID]
    assert group.heartbeat(new, 1, "F") == NONE


def test_old_member_id_without_the_instance_id_is_unknown(group: Group) -> None:
    _, old = stable(group, "L", "F")
    rejoin(group, "F")
    assert group.heartbeat(old, 1) == UNKNOWN_MEMBER_ID


def test_unused_instance_id_is_unknown(group: Group) -> None:
    leader, _ = stable(group, "L", "F")
    assert group.join(leader, instance="X").refusal == (UNKNOWN_MEMBER_ID, leader)
    assert group.heartbeat(leader, 1, "X") == UNKNOWN_MEMBER_ID


def test_static_member_rejoins_with_its_member_id(group: Group) -> None:
    """A leader's join rebalances, a follower's does not."""
    leader, follower = stable(group, "L", "F")
    assert group.join(follower, instance="F").generation == 1
    assert group.join(leader, instance="L").is_parked
    assert group.heartbeat(follower, 1, "F") == REBALANCE_IN_PROGRESS


def test_changed_metadata_alone_does_not_rebalance(group: Group) -> None:
    """The protocol chosen stays the same."""
    stable(group, "L", "F")
    joined = rejoin(group, "F", protocols=CHANGED)
    assert (joined.status, group.state) == ("ready", "Stable")
    metadata = {member.id: member.metadata for member in group.describe().members}
    assert metadata[joined.member] == b"changed"


def test_restart_that_changes_the_chosen_protocol_begins_a_rebalance(group: Group) -> None:
    group.initial_delay_ms = 1000
    both = RANGE + ROUND_ROBIN
    first, second = group.join(instance="L", protocols=both), group.join(instance="F", protocols=both)
    for _ in range(2):
        group.pass_time(1)
        group.wait(first.member, "L")
    group.wait(second.member, "F")
    group.sync(first.member, 1, {}, instance="L")
    joined = rejoin(group, "F", protocols=ROUND_ROBIN)
    assert joined.is_parked
    assert group.join(first.member, both, instance="L").protocol == "roundrobin"


def test_restart_before_the_assignment_begins_a_rebalance(group: Group) -> None:
    """The leader knows an id that no longer exists."""
    group.initial_delay_ms = 1000
    first, second = group.join(instance="L"), group.join(instance="F")
    for _ in range(2):
        group.pass_time(1)
        group.wait(first.member, "L")
    assert group.wait(second.member, "F").generation == 1
    assert group.sync(second.member, 1, instance="F").is_parked
    assert rejoin(group, "F").is_parked
    assert group.sync(second.member, 1, instance="F").code == FENCED_INSTANCE_ID
    assert group.sync(first.member, 1, {}, instance="L").code == REBALANCE_IN_PROGRESS


def test_member_that_restarts_in_a_rebalance_replaces_the_parked_one(group: Group) -> None:
    leader, old = stable(group, "L", "F")
    group.join(old, CHANGED, instance="F")
    assert group.wait(old, "F").is_parked
    new = rejoin(group, "F")
    assert new.is_parked
    assert group.wait(old, "F").code == FENCED_INSTANCE_ID
    answer = group.join(leader, instance="L")
    assert {member for member, _, _ in answer.members} == {leader, new.member}


def test_static_member_that_does_not_rejoin_stays(group: Group) -> None:
    """Only the end of its session removes a static member."""
    leader, away = stable(group, "L", "F", session_s=60, rebalance_s=10)
    group.join(leader, instance="L", session_s=60, rebalance_s=10)
    group.pass_time(10)
    answer = group.wait(leader, "L")
    assert {member for member, _, _ in answer.members} == {leader, away}
    assert group.heartbeat(away, 2, "F") == NONE


def test_static_leader_that_does_not_rejoin_stays_and_another_leads(group: Group) -> None:
    away, follower = stable(group, "L", "F", session_s=60, rebalance_s=10)
    group.join(follower, CHANGED, instance="F", session_s=60, rebalance_s=10)
    group.pass_time(10)
    answer = group.wait(follower, "F")
    assert answer.is_leader and len(answer.members) == 2
    assert group.describe().member_ids == {away, follower}


def test_rebalance_without_any_join_waits_until_a_session_ends(group: Group) -> None:
    """The group has only static members that are away."""
    first, second = stable(group, "L", "F", session_s=20, rebalance_s=8)
    third = group.entered(session_s=20, rebalance_s=8)
    assert group.leave((third.member, "")) == [NONE]
    for _ in range(2):
        group.pass_time(8)
        assert group.heartbeat(first, 1, "L") == REBALANCE_IN_PROGRESS
        assert group.heartbeat(second, 1, "F") == REBALANCE_IN_PROGRESS
    assert group.join(first, instance="L", session_s=20, rebalance_s=8).is_parked
    group.pass_time(8)
    assert group.wait(first, "L").generation == 2


def test_static_member_leaves_by_its_session_or_by_an_administrator(group: Group) -> None:
    """KIP-345: its own close does not send LeaveGroup."""
    leader, follower = stable(group, "L", "F", session_s=10)
    group.pass_time(5)
    group.heartbeat(leader, 1, "L")
    group.pass_time(5)
    assert group.heartbeat(leader, 1, "L") == REBALANCE_IN_PROGRESS
    assert group.heartbeat(follower, 1, "F") == UNKNOWN_MEMBER_ID
    assert group.leave(("", "L")) == [NONE]
    assert group.state == "Empty"
    assert group.exists() == ["group"]


def test_instance_id_is_free_after_its_member_left(group: Group) -> None:
    leader, follower = stable(group, "L", "F")
    assert group.leave((follower, "F")) == [NONE]
    joined = rejoin(group, "F")
    assert joined.is_parked
    assert group.join(leader, instance="L").generation == 2
