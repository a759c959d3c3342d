"""Outages: a member that could not call Redis keeps its session, and its part in a rebalance.

Kafka does the same when a coordinator loads a group: GroupMetadataManager.onLoaded gives every member a new session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.group import (
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
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
"""A time shortly before the tests."""


@pytest.mark.parametrize("outage_s", [9.0, 11.0, 3600.0])
def test_outage_expires_no_living_member(group: Group, outage_s: float) -> None:
    """Every deadline has passed when the queued heartbeats run."""
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
def test_first_call_after_an_outage_expires_no_member(group: Group, call: str) -> None:
    members = group.stable(3, session_s=10)
    group.outage(60)
    assert FIRST_CALLS[call](group)
    assert group.describe().member_ids >= set(members)
    assert UNKNOWN_MEMBER_ID not in [group.heartbeat(member, 3) for member in members]


def test_call_from_a_frozen_servers_queue_knows_of_the_outage(group: Group) -> None:
    """No outage is noted yet: only served_until, the time at which the call left, is old."""
    members = group.stable(3, session_s=10)
    group.served_until = group.now
    group.pass_time(60)
    assert group.heartbeat(members[0], 1) == ILLEGAL_GENERATION
    assert [group.heartbeat(member, 3) for member in members] == [NONE] * 3


@pytest.mark.parametrize(("silent_s", "expected"), [(2.5, REBALANCE_IN_PROGRESS), (2.501, NONE)])
def test_short_silence_is_no_outage(group: Group, silent_s: float, expected: int) -> None:
    alive, _ = group.stable(2, session_s=10)
    group.pass_time(8)
    assert group.heartbeat(alive, 2) == NONE
    group.served_until = group.now
    group.pass_time(silent_s)
    assert group.heartbeat(alive, 2) == expected


def test_dead_member_expires_a_session_after_the_end_of_an_outage(group: Group) -> None:
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


def test_session_that_ended_before_an_outage_ends_right_after_it(group: Group) -> None:
    alive, dead = group.stable(2, session_s=10)
    group.pass_time(6)
    assert group.heartbeat(alive, 2) == NONE
    group.pass_time(4)
    group.outage(60)
    assert group.heartbeat(alive, 2) == REBALANCE_IN_PROGRESS
    assert group.heartbeat(dead, 2) == UNKNOWN_MEMBER_ID


def test_consecutive_outages_expire_no_member(group: Group) -> None:
    """No member called between two outages, or the first one ended a while before the session."""
    members = group.stable(3, session_s=10)
    group.outage(60)
    group.pass_time(9)
    group.outage(60)
    assert [group.heartbeat(member, 3) for member in members] == [NONE] * 3


def test_outage_soon_after_another_expires_no_member(group: Group) -> None:
    members = group.stable(3, session_s=10)
    for _ in range(4):
        group.outage(60)
        assert group.heartbeat(members[0], 3) == NONE
    assert [group.heartbeat(member, 3) for member in reversed(members)] == [NONE] * 3


def test_first_of_two_outages_expires_no_member_heard_between_them(group: Group) -> None:
    """The member's deadline is later than any deadline that an outage gives, and stays."""
    (member,) = group.stable(session_s=10)
    group.outage(60)
    group.pass_time(5)
    assert group.heartbeat(member, 1) == NONE
    group.pass_time(9.999)
    assert group.heartbeat(member, 1) == NONE
    group.pass_time(10)
    assert group.heartbeat(member, 1) == UNKNOWN_MEMBER_ID


def test_recurring_outages_keep_a_dead_member_for_a_session_and_what_was_served(group: Group) -> None:
    """The first outage gives the dead member a whole session, and each further one its own length."""
    alive, dead = group.stable(2, session_s=10)
    for _ in range(5):
        group.outage(4)
        assert group.heartbeat(alive, 2) == NONE
        assert group.describe().member_ids == {alive, dead}
        group.pass_time(2)
    assert group.heartbeat(alive, 2) == REBALANCE_IN_PROGRESS
    assert group.describe().member_ids == {alive}


def test_recurring_outages_end_a_rebalance_that_waits_for_a_dead_member(group: Group) -> None:
    alive, _ = group.stable(2, session_s=60, rebalance_s=10)
    assert group.join(alive, CHANGED, session_s=60, rebalance_s=10).is_parked
    for _ in range(5):
        group.outage(4)
        assert group.wait(alive).is_parked
        group.pass_time(2)
    assert group.wait(alive).generation == 3


def test_recurring_pauses_of_one_front_end_prolong_nothing_that_others_served(group: Group) -> None:
    """A call of the front-end that paused tells when it was served last; calls of others came since."""
    alive, dead = group.stable(2, session_s=10)
    for _ in range(5):
        served_until = group.now
        for _ in range(3):
            group.pass_time(1)
            group.served_until = None
            assert group.heartbeat("nobody", 2) == UNKNOWN_MEMBER_ID
            assert group.heartbeat(alive, 2) in (NONE, REBALANCE_IN_PROGRESS)
        group.served_until = served_until
        group.heartbeat("nobody", 2)
    assert dead not in group.describe().member_ids


def test_outage_that_a_front_end_hears_of_late_still_counts(group: Group) -> None:
    """Another front-end's call came first, which did not know of it: of another server, from which the group came."""
    members = group.stable(2, session_s=10)
    began = group.now
    group.pass_time(8)
    assert group.commit(AT_5, members[0], 2) == NONE
    group.heartbeat("nobody", 1)
    group._outages.append(f"{round(began * 1000)}-{round((began + 7) * 1000)}")
    group.pass_time(8)
    assert [group.heartbeat(member, 2) for member in members] == [NONE] * 2


def test_outage_during_a_rebalance_takes_no_member_out(group: Group) -> None:
    """Members have the rebalance timeout from the outage's end on."""
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


def test_outage_before_the_assignment_takes_no_member_out(group: Group) -> None:
    leader, follower = group.gathered(RANGE, RANGE, session_s=10, rebalance_s=20)
    group.outage(60)
    assert group.sync(follower.member, 1).is_parked
    group.assign(leader)
    assert group.sync(follower.member, 1).assignment == follower.member.encode()


def test_outage_does_not_prolong_the_initial_delay(group: Group) -> None:
    """The initial delay waits for possible members, and the member that joined is still there."""
    group.initial_delay_ms = 3000
    joined = group.entered(session_s=10)
    group.outage(60)
    assert group.wait(joined.member).generation == 1


def test_id_that_has_yet_to_join_may_join_after_an_outage(group: Group) -> None:
    """The id has the group's shortest session, or without members the shortest that Kafka allows."""
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


def test_group_expires_during_an_outage(group: Group) -> None:
    group.commit(AT_5)
    group.outage(10 * 86_400)
    assert group.delete() == GROUP_ID_NOT_FOUND


def test_commit_that_waited_in_an_outage_is_late_and_changes_nothing(group: Group) -> None:
    """The member may have gone to another front-end, and committed more there."""
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


def test_late_join_of_a_static_member_does_not_fence_its_successor(group: Group) -> None:
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


def test_late_join_does_not_put_back_an_old_subscription(group: Group) -> None:
    (member,) = group.stable(session_s=10)
    group.served_until = group.now
    group.pass_time(2.501)
    assert group.join(member, CHANGED).code == LATE
    group.served_until = group.now
    assert (group.state, group.generation) == ("Stable", 1)
    assert group.join(member, CHANGED).generation == 2


def test_late_removal_by_instance_id_does_not_take_out_a_later_member(group: Group) -> None:
    """A member that is named by its own id does not come back, so its leave may be late."""
    joined = group.join(instance="i")
    group.assign(joined)
    (other,) = [group.entered().member]
    group.served_until = group.now
    group.pass_time(2.501)
    assert group.leave(("", "i"), (other, "")) == [LATE, LATE]
    assert group.leave((other, "")) == [NONE]
    group.served_until = group.now
    assert group.leave(("", "i")) == [NONE]


def test_late_deletion_keeps_offsets_that_were_committed_since(group: Group) -> None:
    assert group.commit(AT_5) == NONE
    group.served_until = group.now
    group.pass_time(2.501)
    assert group.delete_offsets("t:0") == (LATE, [])
    assert group.delete() == LATE
    group.served_until = group.now
    assert group.fetch() == AT_5
    assert group.delete_offsets("t:0") == (NONE, [NONE])
    assert group.delete() == NONE


MALFORMED = [
    "x", " ", "-", "1-2", "1 2", "1 2-", "1 -2", "1 3-2", "1 2-3x", "1x 2-3", f"{SERVED_MS}-{SERVED_MS}",
    f"{SERVED_MS},{SERVED_MS}-{SERVED_MS}",
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_outages_raise_an_error_and_change_nothing(group: Group, server: redis.Redis, text: str) -> None:
    """A heartbeat does not read outages if its group has no due work."""
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
