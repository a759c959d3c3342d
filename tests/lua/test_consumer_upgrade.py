"""A group that changes the protocol while its clients go on: no partition has two readers at any time."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.lua.consumer import FOO, INVALID_REQUEST, TOPICS, UNRELEASED_INSTANCE_ID, of
from tests.lua.group import (
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from tests.lua.mixed import NEWEST, MixedGroup, assignment, subscription
from tests.lua.mixed_clients import COOPERATIVE, Crowd, SharedGroup
from tests.lua.mixed_scenes import INSTANCE, NEW, POISON, entered
from tests.support.ported import kafka

PROTOCOLS = pytest.mark.parametrize("protocol", ["range", COOPERATIVE])
"""Eager and cooperative classic clients."""
EXAMPLES = 60
SETTLED = 24
"""The rounds after which dead members' sessions have ended and all others are settled."""
OUTAGE_S = 100
"""Longer than any session."""
ROUNDS = 8
"""The rounds in which a group settles if no member died."""

Steps = list[tuple[str, int]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["classic", "consumer", "static classic", "static consumer", "stop", "die", "switch", "outage"]
            + ["step"] * 8
        ),
        st.integers(0, 5),
    ),
    max_size=30,
)


@pytest.fixture
def shared(server: redis.Redis, set_clock: Callable[[float], None]) -> SharedGroup:
    return SharedGroup(server, set_clock)


@PROTOCOLS
@pytest.mark.parametrize("instances", [[""] * 3, ["a", "b", "c"]], ids=["dynamic", "static"])
def test_members_change_the_protocol_one_by_one_and_back(
    shared: SharedGroup, protocol: str, instances: list[str]
) -> None:
    crowd = Crowd(shared, protocol)
    for instance in instances:
        crowd.add(is_classic=True, instance=instance)
    crowd.settle(ROUNDS)
    for kind in ("consumer", "classic"):
        for client in list(crowd.clients):
            crowd.switch(client)
            crowd.settle(ROUNDS)
        assert shared.kind == kind and shared.state == "Stable"


@PROTOCOLS
def test_group_is_upgraded_again_before_its_members_have_rejoined(shared: SharedGroup, protocol: str) -> None:
    crowd = Crowd(shared, protocol)
    for is_classic in (True, True, False):
        crowd.add(is_classic)
    crowd.settle(ROUNDS)
    for _ in range(3):
        crowd.stop(crowd.clients[-1])
        assert (shared.kind, shared.state) == ("classic", "PreparingRebalance")
        crowd.add(is_classic=False)
        assert shared.kind == "consumer"
    crowd.settle(ROUNDS)


def partition_names(**topics: list[int]) -> list[str]:
    return [f"{TOPICS[name][0]}:{partition}" for name, partitions in topics.items() for partition in partitions]


def partitions_of(text: str) -> list[str]:
    """An assignment's partitions as the group hash names them."""
    topics = (topic.split(":") for topic in text.split())
    return [f"{topic_id}:{partition}" for topic_id, partitions in topics for partition in partitions.split(",")]


def upgrade(shared: SharedGroup, member: str = "new") -> None:
    """A member that has no target yet joins."""
    answer = shared.consume(member, 0, "foo", rebalance_s=5, owned="")
    assert answer.status == "topics"
    given = shared.catalog_lines(answer.topics)
    assert shared.consume(member, 0, "foo", rebalance_s=5, owned="", given=given).status == "target"


def gathering(shared: SharedGroup, *owned: dict[str, list[int]]) -> list[str]:
    """Members of a classic group whose assignments a rebalance dropped; only their reports of partitions are left."""
    members = shared.stable_classic({"foo": [0, 1]})
    shared.initial_delay_ms = 0
    assert shared.classic(members[0], shared.says(owned=owned[0])).status == "ready"
    assert shared.state == "CompletingRebalance"
    for reported in owned[1:]:
        members.append(shared.newcomer(shared.says(owned=reported)).member)
    assert shared.state == "PreparingRebalance"
    return members


def test_member_without_an_assignment_owns_the_partitions_it_reported(shared: SharedGroup) -> None:
    one, two = gathering(shared, {"foo": [0, 1]}, {})
    upgrade(shared)
    assert (shared.member(one).owned, shared.member(two).owned) == (of(foo=[0, 1]), "")
    assert shared.owners() == dict.fromkeys(partition_names(foo=[0, 1]), one)


def test_partition_that_two_members_report_has_one_owner(shared: SharedGroup) -> None:
    one, two = gathering(shared, {"foo": [0, 1]}, {"foo": [1, 2]})
    upgrade(shared)
    owners = shared.owners()
    assert set(owners) == set(partition_names(foo=[0, 1, 2]))
    for member in (one, two):
        own = {partition for partition, owner in owners.items() if owner == member}
        assert own == set(partitions_of(shared.member(member).owned))


def test_cooperative_member_owns_partitions_until_it_joins_without_them(shared: SharedGroup) -> None:
    """The member owned more than its assignment. Kafka counts the assignment alone, and gives the rest away at once."""
    (one,) = shared.stable_classic({"foo": [0, 1, 2, 3, 4, 5]})
    joined = shared.classic(one, shared.says(owned={"foo": [0, 1, 2, 3, 4, 5]}))
    shared.lead(one, joined.generation, {one: assignment({"foo": [0, 2, 4]})})
    upgrade(shared)
    assert shared.owners() == dict.fromkeys(partition_names(foo=[0, 1, 2, 3, 4, 5]), one)
    assert shared.heartbeat(one, joined.generation) == REBALANCE_IN_PROGRESS
    shared.classic(one, shared.says(owned={"foo": [0, 2, 4]}))
    assert not set(partition_names(foo=[1, 3, 5])) & set(shared.owners())


def test_member_keeps_unrevoked_partitions_through_a_downgrade(shared: SharedGroup) -> None:
    (one,) = shared.stable_classic({"foo": [0, 1, 2, 3, 4, 5]})
    shared.enter("new")
    shared.classic(one, shared.says(owned={"foo": [0, 1, 2, 3, 4, 5]}))
    member = shared.member(one)
    assert member.state == "UNREVOKED_PARTITIONS" and member.revoking
    shared.part("new")
    (classic,) = shared.describe().members
    assert classic.assignment == assignment({"foo": [0, 1, 2, 3, 4, 5]})
    upgrade(shared, "newer")
    assert shared.member(one).owned == of(foo=[0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("has", [6, 5])
def test_static_member_that_upgrades_alone_gets_unassigned_partitions(shared: SharedGroup, has: int) -> None:
    """The upgraded member wants the same topics, so no other step makes the group look at them."""
    joined = shared.classic("", shared.says("foo"), instance="i")
    shared.lead(joined.member, joined.generation, {joined.member: assignment({"foo": list(range(has))})}, "i")
    answer = shared.beat("new", 0, "foo", instance="i", owned="", rebalance_s=5)
    assert (answer.status, answer.epoch) == ("ready", joined.generation + (has < 6))
    assert set(partitions_of(answer.assignment or "")) >= set(partition_names(foo=[0, 1, 2, 3, 4, 5]))


def test_free_partition_is_seen_if_two_members_report_the_same_one(shared: SharedGroup) -> None:
    """The members report as many partitions as the topic has, but some of them twice."""
    first = shared.classic("", shared.says("foo"), instance="i", session_s=100)
    shared.lead(first.member, first.generation, {first.member: assignment({"foo": [0, 1, 2]})}, "i")
    again = shared.classic(first.member, shared.says("foo", owned={"foo": [0, 1, 2]}), instance="i", session_s=100)
    assert again.status == "ready" and shared.state == "CompletingRebalance"
    shared.newcomer(shared.says("foo", owned={"foo": [0, 1, 2]}), session_s=100)
    answer = shared.beat("new", 0, "foo", instance="i", owned="", rebalance_s=5)
    assert (answer.status, shared.epochs[0]) == ("ready", again.generation + 1)


def test_upgrade_asks_for_the_topics_that_members_want_or_own(shared: SharedGroup) -> None:
    joined = shared.newcomer(shared.says("foo", "none"))
    shared.lead(joined.member, 1, {joined.member: assignment({"zar": [0], "gone": [0]})})
    answer = shared.consume("new", 0, "foo", rebalance_s=5, owned="")
    assert (answer.status, answer.topics) == ("topics", ("foo", "gone", "none", "zar"))
    assert (shared.kind, shared.state) == ("classic", "Stable")
    answer = shared.consume("new", 0, "foo", rebalance_s=5, owned="", given=shared.catalog_lines(answer.topics))
    assert answer.status == "target"
    assert (shared.member(joined.member).owned, shared.field("topics")) == (of(zar=[0]), f"foo {FOO} 6")


def test_upgrade_needs_no_topics_if_members_want_none(shared: SharedGroup) -> None:
    joined = shared.newcomer((("range", subscription([])),))
    shared.lead(joined.member, 1, {})
    assert shared.consume("new", 0, "foo", rebalance_s=5, owned="").status == "target"


def test_full_group_stays_classic(shared: SharedGroup) -> None:
    shared.stable_classic({"foo": [0]})
    shared.max_size = 1
    assert shared.enter("new").code == GROUP_MAX_SIZE_REACHED
    shared.max_size = 0
    assert shared.enter("new").why.endswith("because the group size exceeds the consumer group maximum size.")
    assert (shared.kind, shared.state) == ("classic", "Stable")


def test_join_with_refused_ids_upgrades_no_group(shared: SharedGroup) -> None:
    (one,) = shared.stable_classic({"foo": [0, 1]})
    assert shared.beat(one, 0, "foo", instance="i", rebalance_s=5, owned="").code == INVALID_REQUEST
    assert (shared.kind, shared.state) == ("classic", "Stable")


def test_upgrade_asks_again_for_topics_of_a_later_member(shared: SharedGroup) -> None:
    shared.stable_classic({"foo": [0, 1], "bar": [0]})
    shared.consume("new", 0, "foo", rebalance_s=5, owned="")
    answer = shared.consume("new", 0, "foo", rebalance_s=5, owned="", given=shared.catalog_lines(["foo"]))
    assert (answer.status, answer.topics) == ("topics", ("bar", "foo"))
    assert shared.kind == "classic"


def test_invalid_topic_names_hinder_no_upgrade(shared: SharedGroup) -> None:
    metadata = subscription(["foo", "", "a b", "\n", "??", "z"]).replace(b"??", b"\xff\xff")
    shared.stable_classic({"foo": [0, 1]}, protocols=(("range", metadata),))
    lines = shared.catalog_lines(["", "\n", "a b", "foo", "z", "\N{REPLACEMENT CHARACTER}" * 2])
    assert shared.consume("new", 0, "foo", rebalance_s=5, owned="", given=lines).status == "target"
    assert shared.kind == "consumer"


def test_heartbeat_with_an_epoch_upgrades_nothing(shared: SharedGroup) -> None:
    shared.stable_classic({"foo": [0]})
    answer = shared.consume("new", 3)
    assert (answer.code, shared.kind) == (UNKNOWN_MEMBER_ID, "classic")


def test_expired_members_come_back_to_a_group_made_classic(shared: SharedGroup) -> None:
    (one,) = shared.stable_classic({"foo": [0]}, session_s=100)
    upgrade(shared)
    shared.pass_time(shared.session_s)
    shared.enter("static", instance="i")
    epoch = shared.member("static").epoch
    shared.pass_time(shared.session_s)
    assert shared.heartbeat(one, epoch) != NONE
    assert shared.kind == "classic"
    assert shared.consume("new", epoch).code == UNKNOWN_MEMBER_ID
    assert shared.consume("static", epoch, instance="i").code == UNKNOWN_MEMBER_ID
    assert shared.enter("new").code == NONE
    assert shared.kind == "consumer"


@pytest.mark.parametrize(("policy", "instance"), [("downgrade", ""), ("bidirectional", "i")])
def test_member_that_could_not_rejoin_does_not_have_to(shared: SharedGroup, policy: str, instance: str) -> None:
    """The policy keeps the group classic, or a classic member has taken the instance id."""
    joined = shared.classic("", instance="i")
    shared.lead(joined.member, 1, {}, instance="i")
    shared.policy = policy
    assert shared.consume("new", 3, instance=instance).code == GROUP_ID_NOT_FOUND


def test_id_that_was_handed_out_may_still_join(shared: SharedGroup) -> None:
    (one,) = shared.stable_classic({"foo": [0]})
    pending = shared.known(protocols=shared.says())
    shared.enter("new")
    assert shared.server.zscore(shared.keys[2], pending) is None
    assert shared.member(one).session_ends_in_ms == 10_000
    assert shared.classic(pending).status == "ready"


def test_offsets_stay_through_all_changes(shared: SharedGroup) -> None:
    (one,) = shared.stable_classic({"foo": [0]})
    assert shared.commit({"foo:0": "7 -1 t "}, one, 1) == NONE
    shared.enter("new")
    assert shared.commit({"foo:0": "8 -1 t "}, one, 1, version=8) == NONE
    assert shared.commit({"foo:0": "9 -1 t "}, one, 0) == ILLEGAL_GENERATION
    shared.part("new")
    assert shared.fetch() == {"foo:0": "8 -1 t "}


@pytest.mark.parametrize("policy", ["bidirectional", "upgrade"])
def test_policy_may_allow_the_upgrade(shared: SharedGroup, policy: str) -> None:
    shared.policy = policy
    shared.stable_classic({"foo": [0]})
    upgrade(shared)
    assert shared.kind == "consumer"


@pytest.mark.parametrize(
    ("policy", "kind"),
    [("bidirectional", "classic"), ("downgrade", "classic"), ("upgrade", "consumer"), ("disabled", "consumer")],
)
def test_policy_of_the_last_join_says_whether_the_group_becomes_classic(
    shared: SharedGroup, policy: str, kind: str
) -> None:
    (one,) = shared.stable_classic({"foo": [0]})
    upgrade(shared)
    shared.policy = policy
    shared.enter("newer")
    assert shared.leave(("new", ""), ("newer", "")) == [NONE, NONE]
    assert (shared.kind, shared.describe().member_ids) == (kind, {one})
    assert shared.classic(one).code == NONE


def test_group_of_another_protocol_type_stays_classic(shared: SharedGroup) -> None:
    joined = shared.newcomer((("v0", b"worker"),), protocol_type="connect")
    shared.lead(joined.member, 1, {})
    answer = shared.enter("new")
    assert answer.code == GROUP_ID_NOT_FOUND
    assert answer.why.endswith("because the group does not use the consumer embedded protocol.")
    assert shared.kind == "classic"


def test_group_in_its_first_rebalance_becomes_one_of_the_consumer_protocol(shared: SharedGroup) -> None:
    shared.initial_delay_ms = 3000
    one = shared.newcomer()
    assert one.is_parked and shared.generation == 0
    upgrade(shared)
    assert shared.wait(one.member).refusal == (REBALANCE_IN_PROGRESS, one.member)
    assert shared.classic(one.member).generation == 1
    assert shared.enter("new", "foo").epoch == 1


def test_static_consumer_member_is_not_replaced_until_it_leaves(shared: SharedGroup) -> None:
    shared.enter("new", instance="i")
    shared.newcomer()
    assert shared.enter("another", instance="i").code == UNRELEASED_INSTANCE_ID


def test_call_upgrades_a_group_that_it_finds_classic_by_time(shared: SharedGroup) -> None:
    (one,) = shared.stable_classic({"foo": [0, 1]}, session_s=100)
    upgrade(shared)
    shared.pass_time(shared.session_s)
    upgrade(shared, "newer")
    assert shared.describe().member_ids == {one, "newer"}
    assert shared.owners() == dict.fromkeys(partition_names(foo=[0, 1]), one)


def test_second_call_upgrades_a_group_that_the_first_made_classic(shared: SharedGroup) -> None:
    """One call finds that a member left and that another comes. It cannot write both changes of the group."""
    (one,) = shared.stable_classic({"foo": [0, 1]}, session_s=100)
    upgrade(shared)
    shared.pass_time(shared.session_s)
    given = shared.catalog_lines(["bar", "foo"])
    answers = [shared.consume("newer", 0, "foo", rebalance_s=5, owned="", given=given).status for _ in range(2)]
    assert answers == ["topics", "target"]
    assert shared.describe().member_ids == {one, "newer"}
    assert shared.owners() == dict.fromkeys(partition_names(foo=[0, 1]), one)


def walk(crowd: Crowd, steps: Steps) -> None:
    """Any steps of a group's clients, and then enough time for the group to settle."""
    for name, number in steps:
        if name in ("classic", "consumer"):
            crowd.add(name == "classic")
        elif name.startswith("static"):
            instance = f"i{number % 2}"
            if all(client.instance != instance for client in crowd.clients):
                crowd.add(name.endswith("classic"), instance)
        elif name == "outage":
            crowd.group.outage(OUTAGE_S)
        elif crowd.clients:
            client = crowd.clients[number % len(crowd.clients)]
            if name == "step":
                crowd.step(client)
            elif name == "stop":
                crowd.stop(client)
            elif name == "switch":
                crowd.switch(client)
            else:
                crowd.clients.remove(client)
    crowd.settle(SETTLED)


@PROTOCOLS
def test_each_partition_has_one_reader_after_any_changes(
    server: redis.Redis, protocol: str, set_clock: Callable[[float], None]
) -> None:
    """The same cases each time, unless KORVET_MODEL_EXAMPLES asks for a number of new ones."""
    wanted = os.environ.get("KORVET_MODEL_EXAMPLES")

    @settings(
        max_examples=int(wanted or EXAMPLES),
        derandomize=wanted is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(STEPS)
    @example([("classic", 0), ("classic", 0), ("consumer", 0), ("step", 0), ("die", 2), ("step", 1), ("switch", 0)])
    def check(steps: Steps) -> None:
        server.flushall()
        walk(Crowd(SharedGroup(server, set_clock), protocol), steps)

    check()


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithStableClassicGroup")
def test_stable_classic_group_becomes_one_of_the_consumer_protocol(mixed: MixedGroup) -> None:
    (old,) = mixed.stable_classic({"foo": [0, 1], "bar": [0]})
    mixed.targets = {old: of(foo=[0]), NEW: of(foo=[1], bar=[0])}
    answer = mixed.enter(NEW)
    assert (answer.code, answer.epoch, answer.assignment) == (NONE, 2, "")
    assert mixed.kind == "consumer" and mixed.epochs == (2, 2)
    classic, new = mixed.member(old), mixed.member(NEW)
    assert (classic.epoch, classic.state, classic.owned) == (1, "STABLE", of(foo=[0, 1], bar=[0]))
    assert (classic.topics, classic.rebalance_timeout_ms, classic.session_ends_in_ms) == (
        ("bar", "foo"),
        60_000,
        10_000,
    )
    assert (new.epoch, new.state, new.session_ends_in_ms) == (2, "UNRELEASED_PARTITIONS", 45_000)
    assert set(mixed.owners().values()) == {old}


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithPreparingRebalanceClassicGroup")
def test_members_that_wait_for_a_rebalance_must_join_the_consumer_group(mixed: MixedGroup) -> None:
    one, two = mixed.stable_classic({"foo": [0, 1]}, {"bar": [0]})
    assert mixed.classic(one).is_parked and mixed.state == "PreparingRebalance"
    assert mixed.enter(NEW).status == "ready"
    assert mixed.kind == "consumer"
    assert mixed.wait(one).refusal == (REBALANCE_IN_PROGRESS, one)
    assert {one: of(foo=[0, 1]), two: of(bar=[0])} == {member: mixed.member(member).owned for member in (one, two)}
    assert mixed.member(one).epoch == mixed.member(two).epoch == 1
    assert {mixed.member(member).session_ends_in_ms for member in (one, two)} == {10_000}


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithCompletingRebalanceClassicGroup")
def test_members_that_wait_to_sync_must_join_the_consumer_group(mixed: MixedGroup) -> None:
    one, two = mixed.stable_classic({"foo": [0, 1]}, {"bar": [0]})
    for member in (one, two):
        mixed.classic(member)
    generation = mixed.settle(one, two)[one].generation
    assert mixed.sync(two, generation).is_parked and mixed.state == "CompletingRebalance"
    assert mixed.enter(NEW).status == "ready"
    assert mixed.wait_sync(two, generation).code == REBALANCE_IN_PROGRESS
    assert mixed.sync(one, generation, {}).code == REBALANCE_IN_PROGRESS
    assert mixed.heartbeat(two, generation) == REBALANCE_IN_PROGRESS
    assert mixed.member(one).owned == of(foo=[0, 1])


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatToClassicGroupWithEmptyAssignmentMember")
def test_member_without_any_assignment_owns_nothing(mixed: MixedGroup) -> None:
    old = mixed.newcomer()
    assert old.generation == 1 and mixed.state == "CompletingRebalance"
    assert entered(mixed) == 2
    classic = mixed.member(old.member)
    assert (classic.epoch, classic.state, classic.owned) == (1, "STABLE", "")
    assert mixed.owners() == {}


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithNonEmptyClassicGroup")
@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_policy_may_forbid_the_upgrade(mixed: MixedGroup, policy: str) -> None:
    mixed.policy = policy
    mixed.stable_classic({"foo": [0]})
    answer = mixed.enter(NEW)
    assert answer.code == GROUP_ID_NOT_FOUND
    assert answer.why == "Cannot upgrade classic group {group} to consumer group because online upgrade is disabled."
    assert (mixed.kind, mixed.state) == ("classic", "Stable")


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithStableClassicGroupFailsOnMalformedProtocol")
def test_group_with_a_malformed_subscription_stays_classic(mixed: MixedGroup) -> None:
    joined = mixed.newcomer((("range", POISON),))
    mixed.lead(joined.member, 1, {joined.member: assignment({"foo": [0]})})
    answer = mixed.enter(NEW)
    assert answer.code == GROUP_ID_NOT_FOUND
    assert answer.why.endswith("because the embedded consumer protocol is malformed.")
    assert (mixed.kind, mixed.state) == ("classic", "Stable")


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithCustomAssignorClassicGroup")
@pytest.mark.parametrize("data", [None, b""])
def test_upgrade_may_drop_an_assignor_without_data(mixed: MixedGroup, data: bytes | None) -> None:
    joined = mixed.newcomer()
    mixed.lead(joined.member, 1, {joined.member: assignment({"foo": [0]}, data)})
    entered(mixed)
    assert mixed.member(joined.member).owned == of(foo=[0])


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithCustomAssignorClassicGroup")
def test_data_of_a_custom_assignor_prevents_the_upgrade(mixed: MixedGroup) -> None:
    joined = mixed.newcomer()
    mixed.lead(joined.member, 1, {joined.member: assignment({"foo": [0]}, b"\0")})
    answer = mixed.enter(NEW)
    assert answer.code == GROUP_ID_NOT_FOUND
    assert "because an unsupported custom assignor is in use." in answer.why
    assert mixed.kind == "classic"


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatToClassicGroupFromExistingStaticMember")
def test_static_member_comes_back_with_the_new_protocol(mixed: MixedGroup) -> None:
    old = mixed.classic("", mixed.says("foo"), instance=INSTANCE)
    mixed.lead(old.member, 1, {old.member: assignment({"foo": [0, 1, 2, 3, 4, 5]})}, instance=INSTANCE)
    answer = mixed.enter(NEW, "foo", instance=INSTANCE)
    assert (answer.member, answer.epoch, answer.assignment) == (NEW, 1, of(foo=range(6)))
    assert mixed.epochs == (1, 1)
    member = mixed.member(NEW)
    assert (member.instance_id, member.state, member.rebalance_timeout_ms) == (INSTANCE, "STABLE", 5000)
    assert mixed.describe().member_ids == {NEW}
    assert mixed.owners() == {f"{FOO}:{partition}": NEW for partition in range(6)}
    assert mixed.snapshot()["members"][0]["is_classic"] == 0


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatFromExistingClassicStaticMember")
def test_static_classic_member_comes_back_with_the_new_protocol(mixed: MixedGroup) -> None:
    old = mixed.classic("", instance=INSTANCE)
    mixed.lead(old.member, 1, {old.member: assignment({"foo": [0, 1, 2]})}, instance=INSTANCE)
    mixed.targets = {old.member: of(foo=[0, 1, 2]), NEW: of(foo=[3, 4, 5])}
    entered(mixed)
    assert mixed.classic(old.member, instance=INSTANCE).generation == 2
    answer = mixed.enter("newer", instance=INSTANCE)
    assert (answer.code, answer.member, answer.epoch) == (NONE, "newer", 2)
    assert answer.assignment == of(foo=[0, 1, 2])
    assert (mixed.epochs, mixed.field("consumers"), mixed.state) == ((2, 2), "2", "Stable")
    assert mixed.describe().member_ids == {NEW, "newer"}


@kafka("ConsumerGroupTest.testFromClassicGroup")
def test_members_keep_their_names_and_timeouts(mixed: MixedGroup) -> None:
    old = mixed.classic("", ((("range"), subscription(["foo"], version=NEWEST, rack="rack-a")),), instance=INSTANCE)
    mixed.lead(old.member, 1, {old.member: assignment({"foo": [0]})}, instance=INSTANCE)
    entered(mixed)
    member = mixed.member(old.member)
    assert (member.instance_id, member.rack, member.topics) == (INSTANCE, "rack-a", ("foo",))
    assert (member.client_id, member.client_host, member.rebalance_timeout_ms) == ("client", "/10.0.0.1", 60_000)
    assert (member.epoch, member.previous_epoch, member.state) == (1, 1, "STABLE")
    assert mixed.owners() == {f"{FOO}:0": old.member}


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithEmptyClassicGroup")
def test_empty_classic_group_is_upgraded_although_the_policy_forbids_it(mixed: MixedGroup) -> None:
    (old,) = mixed.stable_classic({"foo": [0]})
    assert mixed.leave((old, "")) == [NONE] and mixed.state == "Empty"
    mixed.policy = "disabled"
    assert entered(mixed) == mixed.epochs[0]
    assert (mixed.kind, mixed.describe().member_ids) == ("consumer", {NEW})
