"""Groups as Kafka's tests of its coordinator set them up. Source: GroupMetadataManagerTestContext."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.lua.group import MEMBER_ID_REQUIRED, NONE, RANGE, ROUND_ROBIN, Group, Joined

LEADER, FOLLOWER = "leader-instance-id", "follower-instance-id"
BOTH = RANGE + ROUND_ROBIN
Options = dict[str, Any]
"""Named arguments of `Group.join`."""
STEP_S = 2.0
"""The interval at which a waiting member asks: less than half a session."""


class Pair(NamedTuple):
    """Member ids of a leader and a follower."""

    leader: str
    follower: str


class Pending(NamedTuple):
    """A leader and a follower in a rebalance, and an id that has yet to join."""

    leader: str
    follower: str
    pending: str


def static_pair(group: Group, **options: Any) -> Pair:
    """Two static members of a Stable group at generation 1; each one's assignment is its instance id.

    Source: staticMembersJoinAndRebalance
    """
    group.initial_delay_ms = 1000
    options = {"protocols": BOTH, "rebalance_s": 10, **options}
    pair = Pair(group.join(instance=LEADER, **options).member, group.join(instance=FOLLOWER, **options).member)
    instances = {pair.leader: LEADER, pair.follower: FOLLOWER}
    for _ in instances:
        group.pass_time(1)
        group.wait(pair.leader, LEADER)
    answers = group.settle(*pair, instances=instances)
    assert answers[pair.leader].is_leader and answers[pair.leader].generation == 1
    assignments = {member: instance.encode() for member, instance in instances.items()}
    assert group.sync(pair.leader, 1, assignments, instance=LEADER).assignment == LEADER.encode()
    assert group.sync(pair.follower, 1, instance=FOLLOWER).assignment == FOLLOWER.encode()
    assert group.state == "Stable"
    return pair


def with_pending(group: Group) -> Pending:
    """A group at generation 2 that waits for a pending id. Source: setupGroupWithPendingMember"""
    leader, follower = group.stable(2, session_s=20)
    assert group.join(leader, session_s=20).is_parked
    pending = group.known(session_s=10)
    assert group.join(follower, session_s=20).is_parked
    assert (group.state, group.describe().member_ids) == ("PreparingRebalance", {leader, follower})
    return Pending(leader, follower, pending)


def completing(group: Group, size: int = 1, **options: Any) -> list[Joined]:
    """The answers of members of a new group in CompletingRebalance at generation 1, the leader's first.

    Source: joinWithNMembers
    """
    return group.gathered(*[RANGE] * size, **options)


def handed_out(group: Group, count: int) -> list[str]:
    """As many member ids that have yet to join; the group stays Empty."""
    answers = [group.join() for _ in range(count)]
    assert {answer.code for answer in answers} == {MEMBER_ID_REQUIRED}
    assert group.state == "Empty"
    return [answer.member for answer in answers]


def asking(group: Group, seconds: float, waiting: Mapping[str, str]) -> dict[str, Joined]:
    """Let time pass while parked members (id -> instance id or '') ask for their answers, as front-ends do."""
    answers: dict[str, Joined] = {}
    while seconds > 0:
        group.pass_time(min(STEP_S, seconds))
        seconds -= STEP_S
        answers = {member: group.wait(member, instance) for member, instance in waiting.items()}
    return answers


def codes(answers: list[Joined]) -> dict[int, int]:
    """The number of answers with each code."""
    counts: dict[int, int] = {}
    for answer in answers:
        counts[answer.code] = counts.get(answer.code, 0) + 1
    return counts


def none_but(count: int, code: int) -> dict[int, int]:
    """The expected `codes` if one is refused."""
    return {NONE: count, code: 1}
