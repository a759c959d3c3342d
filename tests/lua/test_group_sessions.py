"""The function korvet_group_heartbeat: sessions, and the members whose sessions end.

The cases of Kafka's own tests are in tests/lua/kafka.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.group import (
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    NONE,
    RANGE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    Group,
)

CHANGED = (("range", b"changed"),)


def test_heartbeats_hold_a_session(group: Group) -> None:
    (member,) = group.stable(session_s=10)
    for _ in range(12):
        group.pass_time(3)
        assert group.heartbeat(member, 1) == NONE


def test_member_without_a_heartbeat_is_out_after_its_session_timeout(group: Group) -> None:
    alive, dead = group.stable(2, session_s=10)
    for _ in range(3):
        group.pass_time(3)
        assert group.heartbeat(alive, 2) == NONE
    assert group.state == "Stable"
    group.pass_time(1)
    assert group.state == "PreparingRebalance"
    assert group.heartbeat(dead, 2) == UNKNOWN_MEMBER_ID
    assert group.heartbeat(alive, 2) == REBALANCE_IN_PROGRESS
    assert group.join(alive).generation == 3


def test_heartbeat_of_an_unknown_member_is_refused(group: Group) -> None:
    assert group.heartbeat("nobody", 1) == UNKNOWN_MEMBER_ID
    (member,) = group.stable()
    assert group.heartbeat("nobody", 1) == UNKNOWN_MEMBER_ID
    assert group.heartbeat("", 1) == UNKNOWN_MEMBER_ID
    group.leave((member, ""))
    assert group.heartbeat(member, 2) == UNKNOWN_MEMBER_ID


def test_heartbeat_of_an_id_that_has_yet_to_join_is_refused(group: Group) -> None:
    group.stable()
    assert group.heartbeat(group.known(), 1) == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("generation", [-1, 0, 2])
def test_heartbeat_of_another_generation_is_refused(group: Group, generation: int) -> None:
    (member,) = group.stable()
    assert group.heartbeat(member, generation) == ILLEGAL_GENERATION


def test_heartbeat_in_a_rebalance_asks_to_rejoin_and_holds_the_session(group: Group) -> None:
    member, other = group.stable(2, session_s=10, rebalance_s=60)
    group.join(other, CHANGED, rebalance_s=60)
    for _ in range(5):
        group.pass_time(4)
        assert group.heartbeat(member, 2) == REBALANCE_IN_PROGRESS
        assert group.wait(other).is_parked


def test_heartbeat_before_the_assignment_holds_the_session(group: Group) -> None:
    leader, follower = group.gathered(RANGE, RANGE)
    for _ in range(5):
        group.pass_time(4)
        assert group.heartbeat(leader.member, 1) == NONE
        assert group.heartbeat(follower.member, 1) == NONE


def test_heartbeat_checks_instance_member_and_generation_in_order(group: Group) -> None:
    """GroupMetadataManager.validateClassicGroupHeartbeat."""
    member = group.join(instance="i").member
    assert group.heartbeat("other", 9, "i") == FENCED_INSTANCE_ID
    assert group.heartbeat("other", 9) == UNKNOWN_MEMBER_ID
    assert group.heartbeat(member, 9, "j") == UNKNOWN_MEMBER_ID
    assert group.heartbeat(member, 9, "i") == ILLEGAL_GENERATION
    assert group.heartbeat(member, 1, "i") == NONE


def test_join_with_another_session_timeout_counts_at_once(group: Group) -> None:
    """ClassicGroup.updateMember."""
    (member,) = group.stable(session_s=10)
    group.assign(group.join(member, session_s=60))
    for _ in range(3):
        group.pass_time(25)
        assert group.heartbeat(member, 2) == NONE


def test_reader_prolongs_no_session_and_writes_nothing(group: Group, server: redis.Redis) -> None:
    group.stable(2, session_s=10)
    group.pass_time(3600)
    client: Any = server
    before = [client.dump(key) for key in group.keys]
    assert (group.state, group.describe().members) == ("Empty", ())
    assert [client.dump(key) for key in group.keys] == before


def test_heartbeat_of_a_settled_member_writes_its_session_and_nothing_else(group: Group, server: redis.Redis) -> None:
    """A group of any size: all other keys stay as they are."""
    members = group.stable(4, session_s=40)
    client: Any = server
    others = [client.dump(key) for key in (group.keys[0], group.keys[1])]
    for seconds in (5, 30):
        group.pass_time(seconds)
        assert group.heartbeat(members[2], 4) == NONE
        assert client.zscore(group.keys[2], members[2]) == (group.now + 40) * 1000
    assert [client.dump(key) for key in (group.keys[0], group.keys[1])] == others
