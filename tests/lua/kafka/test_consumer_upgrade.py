"""A classic group becomes one of the consumer protocol when a member that speaks it joins."""

from __future__ import annotations

import pytest

from tests.lua.consumer import FOO, of
from tests.lua.group import (
    GROUP_ID_NOT_FOUND,
    NONE,
    REBALANCE_IN_PROGRESS,
)
from tests.lua.kafka.mixed_scenes import INSTANCE, NEW, POISON, entered
from tests.lua.mixed import NEWEST, MixedGroup, assignment, subscription
from tests.support.ported import kafka


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
def test_empty_classic_group_becomes_one_of_the_consumer_protocol(mixed: MixedGroup) -> None:
    (old,) = mixed.stable_classic({"foo": [0]})
    assert mixed.leave((old, "")) == [NONE] and mixed.state == "Empty"
    mixed.policy = "disabled"
    assert entered(mixed) == mixed.epochs[0]
    assert (mixed.kind, mixed.describe().member_ids) == ("consumer", {NEW})


@kafka("GroupMetadataManagerTest.testClassicGroupJoinWithEmptyConsumerGroup")
def test_empty_consumer_group_becomes_a_classic_one(mixed: MixedGroup) -> None:
    epoch = entered(mixed)
    mixed.part(NEW)
    assert mixed.state == "Empty"
    joined = mixed.newcomer()
    assert (joined.code, mixed.kind, joined.generation > epoch) == (NONE, "classic", True)
