"""An outage is not a death: who could not call Redis does not lose its session, nor its place in a rebalance.

Kafka does the same where a coordinator loads a group: GroupMetadataManager.onLoaded gives every member a new session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.group import (
    GROUP_ID_NOT_FOUND,
    LATE,
    NON_EMPTY_GROUP,
    NONE,
    RANGE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    Group,
)

CHANGED = (("range", b"changed"),)
AT_5 = {"t:0": "5 -1 aa "}
SERVED_MS = 4_000_000_000_000
"""About when the tests begin."""


@pytest.mark.parametrize("outage_s", [9.0, 11.0, 3600.0])
def test_nobody_who_lives_expires_in_an_outage(group: Group, outage_s: float) -> None:
    """Every deadline is past when the queued heartbeats run."""
    members = group.stable(3, session_s=10)
    group.outage(outage_s)
    assert [group.heartbeat(member, 3) for member in members] == [NONE] * 3
    assert group.state == "Stable"


FIRST_CALLS: dict[str, Callable[[Group], Any]] = {
    "describe": lambda group: group.describe().state == "Stable",
    "state": lambda group: group.state == "Stable",
    "delete": lambda group: group.delete() == NON_EMPTY_GROUP,
    "offset_delete": lambda group: group.delete_offsets("t:0") == (NONE, [86]),
    "offset_delete of none": lambda group: group.delete_offsets() == (NONE, []),
    "commit of no member": lambda group: group.commit(AT_5) == UNKNOWN_MEMBER_ID,
    "leave of nobody": lambda group: group.leave(("nobody", "")) == [UNKNOWN_MEMBER_ID],
    "heartbeat of nobody": lambda group: group.heartbeat("nobody", 1) == UNKNOWN_MEMBER_ID,
    "sync of nobody": lambda group: group.sync("nobody", 1).code == UNKNOWN_MEMBER_ID,
    "wait of nobody": lambda group: group.wait("nobody").code == UNKNOWN_MEMBER_ID,
    "new member's id": lambda group: bool(group.known()),
    "new member": lambda group: group.entered().is_parked,
}


@pytest.mark.parametrize("call", FIRST_CALLS)
def test_first_call_after_an_outage_takes_nobody_for_dead(group: Group, call: str) -> None:
    members = group.stable(3, session_s=10)
    group.outage(60)
    assert FIRST_CALLS[call](group)
    assert group.describe().member_ids >= set(members)
    assert UNKNOWN_MEMBER_ID not in [group.heartbeat(member, 3) for member in members]


def test_call_that_lay_in_a_frozen_servers_queue_knows_of_the_outage(group: Group) -> None:
    """Nothing is noted yet: only served_until, when the call left, is old."""
    members = group.stable(3, session_s=10)
    group.served_until = group.now
    group.pass_time(60)
    assert group.delete() == NON_EMPTY_GROUP
    assert [group.heartbeat(member, 3) for member in members] == [NONE] * 3


@pytest.mark.parametrize(("silent_s", "expected"), [(2.5, REBALANCE_IN_PROGRESS), (2.501, NONE)])
def test_a_moment_without_an_answer_is_no_outage(group: Group, silent_s: float, expected: int) -> None:
    alive, _ = group.stable(2, session_s=10)
    group.pass_time(8)
    assert group.heartbeat(alive, 2) == NONE
    group.served_until = group.now
    group.pass_time(silent_s)
    assert group.heartbeat(alive, 2) == expected


def test_member_that_died_in_an_outage_is_out_a_session_after_its_end(group: Group) -> None:
    alive, dead = group.stable(2, session_s=10)
    group.outage(3600)
    for _ in range(3):
        assert group.heartbeat(alive, 2) == NONE
        group.pass_time(3)
    assert group.heartbeat(alive, 2) == NONE
    group.pass_time(0.999)
    assert group.heartbeat(alive, 2) == NONE
    group.pass_time(0.001)
    assert group.heartbeat(alive, 2) == REBALANCE_IN_PROGRESS
    assert group.heartbeat(dead, 2) == UNKNOWN_MEMBER_ID


def test_member_that_died_before_the_outage_is_out_at_once_after_it(group: Group) -> None:
    alive, dead = group.stable(2, session_s=10)
    group.pass_time(6)
    assert group.heartbeat(alive, 2) == NONE
    group.pass_time(4)
    group.outage(60)
    assert group.heartbeat(alive, 2) == REBALANCE_IN_PROGRESS
    assert group.heartbeat(dead, 2) == UNKNOWN_MEMBER_ID


def test_outages_that_follow_each_other_expire_nobody(group: Group) -> None:
    """Also where nobody was heard between two, and where the first had ended a while before the session did."""
    members = group.stable(3, session_s=10)
    group.outage(60)
    group.pass_time(9)
    group.outage(60)
    assert [group.heartbeat(member, 3) for member in members] == [NONE] * 3


def test_outage_that_begins_before_all_were_heard_after_the_last_expires_nobody(group: Group) -> None:
    members = group.stable(3, session_s=10)
    for _ in range(4):
        group.outage(60)
        assert group.heartbeat(members[0], 3) == NONE
    assert [group.heartbeat(member, 3) for member in reversed(members)] == [NONE] * 3


def test_who_was_heard_between_two_outages_is_not_given_up_for_the_first(group: Group) -> None:
    """Its deadline is later than any that an outage gives, and stays."""
    (member,) = group.stable(session_s=10)
    group.outage(60)
    group.pass_time(5)
    assert group.heartbeat(member, 1) == NONE
    group.pass_time(9.999)
    assert group.heartbeat(member, 1) == NONE
    group.pass_time(10)
    assert group.heartbeat(member, 1) == UNKNOWN_MEMBER_ID


def test_outage_during_a_rebalance_throws_nobody_out(group: Group) -> None:
    """Members have the rebalance timeout from its end on."""
    first, second = group.stable(2, session_s=10, rebalance_s=20)
    group.join(second, CHANGED, rebalance_s=20)
    group.outage(60)
    assert group.wait(second).is_parked
    for _ in range(3):
        group.pass_time(6)
        assert (group.heartbeat(first, 2), group.wait(second).is_parked) == (REBALANCE_IN_PROGRESS, True)
    assert group.join(first, rebalance_s=20).generation == 3


def test_rebalance_ends_in_time_after_an_outage(group: Group) -> None:
    first, second = group.stable(2, session_s=60, rebalance_s=20)
    group.join(second, CHANGED, session_s=60, rebalance_s=20)
    group.outage(60)
    group.pass_time(19.999)
    assert group.wait(second).is_parked
    group.pass_time(0.001)
    assert group.wait(second).members == ((second, "", b"changed"),)
    assert group.heartbeat(first, 3) == UNKNOWN_MEMBER_ID


def test_outage_before_the_assignment_throws_nobody_out(group: Group) -> None:
    leader, follower = group.gathered(RANGE, RANGE, session_s=10, rebalance_s=20)
    group.outage(60)
    assert group.sync(follower.member, 1).is_parked
    group.assign(leader)
    assert group.sync(follower.member, 1).assignment == follower.member.encode()


def test_delay_of_a_first_rebalance_is_over_as_ever(group: Group) -> None:
    """It waits for whoever may come, and who joined is there."""
    group.initial_delay_ms = 3000
    joined = group.entered(session_s=10)
    group.outage(60)
    assert group.wait(joined.member).generation == 1


def test_id_that_is_yet_to_join_may_do_so_after_an_outage(group: Group) -> None:
    """It has the shortest session of the group's, and where there is no member the shortest that Kafka allows."""
    pending = group.known(session_s=10)
    group.outage(60)
    group.pass_time(5.999)
    leader = group.join(pending, session_s=10)
    assert leader.generation == 1
    group.assign(leader)
    pending = group.known(session_s=30)
    group.outage(60)
    assert group.heartbeat(leader.member, 1) == NONE
    group.pass_time(9.999)
    assert group.join(pending).is_parked


def test_group_that_expires_in_an_outage_is_gone(group: Group) -> None:
    group.commit(AT_5)
    group.outage(10 * 86_400)
    assert group.delete() == GROUP_ID_NOT_FOUND


def test_commit_that_waited_while_redis_stood_still_is_late_and_changes_nothing(group: Group) -> None:
    """Its member may be at another front-end by now, and have committed more there."""
    (member,) = group.stable(session_s=10)
    group.served_until = group.now
    group.pass_time(2.5)
    assert group.commit(AT_5, member, 1) == NONE
    group.pass_time(0.001)
    assert group.commit({"t:0": "4 -1 aa "}, member, 1) == LATE
    assert group.commit({"t:0": "4 -1 aa "}) == LATE
    assert group.fetch() == AT_5
    group.served_until = group.now
    assert group.commit({"t:0": "6 -1 aa "}, member, 1) == NONE


def test_static_member_that_came_late_does_not_fence_the_one_that_took_its_place(group: Group) -> None:
    (member,) = group.stable(session_s=10)
    (static,) = [group.join(instance="i").member]
    group.served_until = group.now
    group.pass_time(2.501)
    late = group.join(instance="i")
    assert (late.code, late.member) == (LATE, "")
    group.served_until = group.now
    assert group.heartbeat(member, 1) == REBALANCE_IN_PROGRESS
    assert static in group.describe().member_ids
    assert group.join(instance="i").member not in ("", static)


MALFORMED = [
    "x", " ", "-", "1-2", "1 2", "1 2-", "1 -2", "1 3-2", "1 2-3x", "1x 2-3", f"{SERVED_MS}-{SERVED_MS}",
    f"{SERVED_MS},{SERVED_MS}-{SERVED_MS}",
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_outages_are_an_error_that_changes_nothing(group: Group, server: redis.Redis, text: str) -> None:
    """Wherever they are read: a heartbeat in whose group nothing is due does not look at them."""
    (member,) = group.stable(session_s=10)
    group.pass_time(10)
    client: Any = server
    before = [client.dump(key) for key in group.keys]
    for function, args in {
        "heartbeat": (member, "", 1),
        "leave": (member, ""),
        "commit": ("", "", member, "", 1, 9, 1000, "t:0", "5 -1 aa "),
        "offset_delete": ("t:0",),
        "state": (),
        "describe": (),
    }.items():
        with pytest.raises(redis.ResponseError, match="outages are not"):
            client.fcall(f"korvet_group_{function}", len(group.keys), *group.keys, text, *args)
    assert [client.dump(key) for key in group.keys] == before
