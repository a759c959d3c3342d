"""Classic members of a group of the consumer protocol: repeated calls, deadlines, and their metadata."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import redis

from tests.lua.consumer import RETRY, of
from tests.lua.group import INCONSISTENT_GROUP_PROTOCOL, LATE, NONE, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID
from tests.lua.mixed import NEWEST, MixedGroup, assignment, subscription

FIRST = "first"
INSTANCE = "instance-id"


@pytest.fixture
def mixed(server: redis.Redis, set_clock: Callable[[float], None]) -> MixedGroup:
    """A consumer group with one member, which has no partitions."""
    group = MixedGroup(server, set_clock)
    assert group.enter(FIRST).status == "ready"
    return group


def joined(mixed: MixedGroup, rebalance_s: float = 8) -> str:
    """A classic member that has joined and synced."""
    answer = mixed.newcomer(rebalance_s=rebalance_s)
    mixed.synced(answer.member, answer.generation)
    return answer.member


def test_join_that_requested_a_target_may_be_repeated(mixed: MixedGroup) -> None:
    member = mixed.known(protocols=mixed.says())
    for _ in range(2):
        assert mixed.join(member, mixed.says()).status == "target"
    assert mixed.epochs == (2, 1)
    mixed.retarget()
    for _ in range(2):
        assert mixed.join(member, mixed.says()).generation == 2


def test_static_member_may_repeat_its_join_by_its_new_id(mixed: MixedGroup) -> None:
    old = mixed.classic("", instance=INSTANCE)
    answers = []
    for _ in range(2):
        mixed._names = iter([77])  # type: ignore[assignment]
        answers.append(mixed.join("", mixed.says("foo"), instance=INSTANCE))
    assert {answer.status for answer in answers} == {"target"}
    (member,) = {answer.member for answer in answers}
    assert member != old.member and mixed.epochs[0] == old.generation + 1
    assert mixed.describe().member_ids == {FIRST, member}


def test_member_that_does_not_sync_in_time_is_taken_out(mixed: MixedGroup) -> None:
    answer = mixed.newcomer(rebalance_s=8)
    for _ in range(4):
        assert mixed.heartbeat(answer.member, answer.generation) == NONE
        mixed.pass_time(2)
    assert mixed.heartbeat(answer.member, answer.generation) == UNKNOWN_MEMBER_ID


def test_heartbeat_of_a_classic_member_notices_another_catalog(mixed: MixedGroup) -> None:
    """All other members may be classic, in a group that may not become classic again."""
    mixed.policy = "upgrade"
    mixed.enter(FIRST)
    member = joined(mixed)
    mixed.consume(FIRST, -1)
    assert (mixed.kind, mixed.classic(member).generation) == ("consumer", 3)
    mixed.synced(member, 3)
    assert mixed.heartbeat(member, 3, catalog=[1]) == NONE
    mixed.topics["foo"] = (mixed.topics["foo"][0], 7)
    assert mixed.heartbeat(member, 3) == NONE
    assert mixed.heartbeat(member, 3, catalog=[2]) == RETRY
    mixed.catalog_version = 2
    mixed.retarget()
    assert mixed.heartbeat(member, 3, catalog=[2]) == REBALANCE_IN_PROGRESS


def test_classic_member_goes_on_if_its_topics_did_not_change(mixed: MixedGroup) -> None:
    member = joined(mixed)
    mixed.catalog_version = 2
    assert mixed.heartbeat(member, 2, catalog=[2]) == RETRY
    mixed.retarget()
    assert mixed.heartbeat(member, 2, catalog=[2]) == NONE


def test_group_that_became_classic_without_a_leader_notices_another_catalog(mixed: MixedGroup) -> None:
    """No client knows that it leads the group, so no client looks at topics."""
    mixed.part(FIRST)
    mixed.enter(FIRST, "foo", instance=INSTANCE)
    answer = mixed.classic("", mixed.says("foo"), instance=INSTANCE)
    assert (mixed.kind, mixed.state, answer.status, answer.leader) == ("classic", "Stable", "ready", "")
    beat = partial(mixed.heartbeat, answer.member, answer.generation, INSTANCE)
    assert [beat(catalog=[mixed.catalog_version]), beat()] == [NONE, NONE]
    assert mixed.commit({"foo:0": "1 -1 t "}, answer.member, answer.generation, instance=INSTANCE) == NONE
    assert beat(catalog=[2]) == REBALANCE_IN_PROGRESS
    again = mixed.classic(answer.member, mixed.says("foo"), instance=INSTANCE)
    assert (again.is_leader, again.generation) == (True, answer.generation + 1)
    mixed.lead(again.member, again.generation, {}, INSTANCE)
    assert mixed.heartbeat(again.member, again.generation, INSTANCE, [3]) == NONE
    assert "catalog_version" not in mixed.fields


def test_member_that_synced_stays(mixed: MixedGroup) -> None:
    member = joined(mixed)
    for _ in range(8):
        mixed.pass_time(2)
        assert mixed.heartbeat(member, 2) == NONE


def test_time_to_join_runs_from_the_first_heartbeat_that_requests_it(mixed: MixedGroup) -> None:
    member = joined(mixed)
    mixed.enter("another")
    assert mixed.heartbeat(member, 2) == REBALANCE_IN_PROGRESS
    mixed.pass_time(5)
    assert mixed.heartbeat(member, 2) == REBALANCE_IN_PROGRESS
    assert mixed.member(member).session_ends_in_ms == 3000
    assert mixed.classic(member, rebalance_s=8).generation == 3
    assert mixed.member(member).session_ends_in_ms == 8000


def test_member_that_comes_back_with_the_new_protocol_has_nothing_to_sync(mixed: MixedGroup) -> None:
    member = mixed.newcomer(rebalance_s=8).member
    assert mixed.enter(member).epoch == 2
    mixed.pass_time(40)
    assert mixed.beat(member, 2).code == NONE
    assert (mixed.field("consumers"), mixed.field("protocols")) == ("2", None)


def test_outage_prolongs_the_sessions_and_the_time_to_sync(mixed: MixedGroup) -> None:
    member = mixed.newcomer(rebalance_s=8).member
    mixed.outage(100)
    assert mixed.heartbeat(member, 2) == NONE
    mixed.pass_time(7)
    assert mixed.heartbeat(member, 2) == NONE
    mixed.pass_time(1)
    assert mixed.heartbeat(member, 2) == UNKNOWN_MEMBER_ID
    assert mixed.describe().member_ids == {FIRST}


def test_late_join_acknowledges_no_revocation(mixed: MixedGroup) -> None:
    mixed.targets = {"m": of(foo=[0, 1])}
    mixed.classic("m")
    mixed.targets = {"m": of(foo=[0]), "another": of(foo=[1])}
    mixed.enter("another")
    assert mixed.classic("m", mixed.says(owned={"foo": [0, 1]})).generation == 2
    revoking = mixed.member("m")
    mixed.served_until = mixed.now
    mixed.pass_time(2.501)
    assert mixed.join("m", mixed.says()).refusal == (LATE, "")
    mixed.served_until = mixed.now
    assert (mixed.member("m").revoking, revoking.state) == (of(foo=[1]), "UNREVOKED_PARTITIONS")
    assert mixed.classic("m", mixed.says(owned={"foo": [0]})).generation == 3


def test_protocols_are_counted_while_members_come_and_go(mixed: MixedGroup) -> None:
    both = (*mixed.says(), *mixed.says(protocol="roundrobin"))
    one, two = mixed.newcomer(both), mixed.newcomer()
    assert mixed.classic("", mixed.says(protocol="roundrobin")).code == INCONSISTENT_GROUP_PROTOCOL
    assert mixed.leave((two.member, "")) == [NONE]
    assert mixed.newcomer(mixed.says(protocol="roundrobin")).code == NONE
    assert mixed.classic(one.member, mixed.says()).code == INCONSISTENT_GROUP_PROTOCOL


def test_member_of_another_generation_may_commit_nothing(mixed: MixedGroup) -> None:
    member = joined(mixed)
    assert mixed.commit({"foo:0": "1 -1 t "}, member, 2, version=8) == NONE
    mixed.enter("another")
    assert mixed.commit({"foo:0": "2 -1 t "}, member, 2, version=8) == NONE
    mixed.classic(member)
    assert mixed.commit({"foo:0": "3 -1 t "}, member, 2, version=8) != NONE
    assert mixed.fetch() == {"foo:0": "2 -1 t "}


def test_assignment_leaves_deleted_topics_out(mixed: MixedGroup) -> None:
    member = mixed.known(protocols=mixed.says())
    mixed.targets = {member: of(foo=[0], bar=[1])}
    generation = mixed.classic(member).generation
    del mixed.topics["bar"]
    mixed.catalog_version += 1
    assert mixed.consume(FIRST, 1).status == "target"
    mixed.targets[member] = of(foo=[0])
    mixed.retarget()
    generation = mixed.classic(member, mixed.says(owned={"foo": [0]})).generation
    assert mixed.synced(member, generation) == assignment({"foo": [0]})


FULL = subscription(["foo", "bar"], {"foo": [0, 1]}, rack="rack")


@pytest.mark.parametrize("size", range(len(FULL)))
def test_subscription_that_ends_early_is_refused(mixed: MixedGroup, size: int) -> None:
    assert mixed.join("m", (("range", FULL[:size]),)).code == INCONSISTENT_GROUP_PROTOCOL


def test_subscription_of_a_later_version_is_read_as_the_newest(mixed: MixedGroup) -> None:
    later = (NEWEST + 1).to_bytes(2, "big") + FULL[2:] + b"more"
    mixed.targets = {"m": of(foo=[0])}
    assert mixed.classic("m", (("range", later),)).generation == 2
    assert (mixed.member("m").rack, mixed.member("m").topics) == ("rack", ("bar", "foo"))
    assert mixed.synced("m", 2) == assignment({"foo": [0]})
