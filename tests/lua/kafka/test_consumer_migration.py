"""Groups in which members speak both protocols: upgrades, classic members, downgrades."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.consumer import FOO, of
from tests.lua.group import (
    FENCED_INSTANCE_ID,
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from tests.lua.mixed import NEWEST, MixedGroup, assignment, subscription
from tests.support.ported import kafka

INSTANCE = "instance-id"
NEW = "consumer-member"
POISON = struct.pack(">hi", 1, -1)
"""A subscription with a list of topics that has less than no elements."""


@pytest.fixture
def mixed(server: redis.Redis, set_clock: Callable[[float], None]) -> MixedGroup:
    return MixedGroup(server, set_clock)


def entered(mixed: MixedGroup, member: str = NEW, *, instance: str = "") -> int:
    """A member that speaks the consumer protocol joins; its epoch."""
    answer = mixed.enter(member, instance=instance)
    assert (answer.code, answer.status) == (NONE, "ready"), answer
    return answer.epoch


# ---------------------------------------------------------------------- upgrade


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
def test_members_that_wait_for_a_rebalance_are_to_join_the_consumer_group(mixed: MixedGroup) -> None:
    one, two = mixed.stable_classic({"foo": [0, 1]}, {"bar": [0]})
    assert mixed.classic(one).is_parked and mixed.state == "PreparingRebalance"
    assert mixed.enter(NEW).status == "ready"
    assert mixed.kind == "consumer"
    assert mixed.wait(one).refusal == (REBALANCE_IN_PROGRESS, one)
    assert {one: of(foo=[0, 1]), two: of(bar=[0])} == {member: mixed.member(member).owned for member in (one, two)}
    assert mixed.member(one).epoch == mixed.member(two).epoch == 1
    assert {mixed.member(member).session_ends_in_ms for member in (one, two)} == {10_000}


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithCompletingRebalanceClassicGroup")
def test_members_that_wait_for_their_assignment_are_to_join_the_consumer_group(mixed: MixedGroup) -> None:
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
def test_member_that_was_never_assigned_anything_owns_nothing(mixed: MixedGroup) -> None:
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
def test_assignor_that_adds_no_data_may_be_given_up(mixed: MixedGroup, data: bytes | None) -> None:
    joined = mixed.newcomer()
    mixed.lead(joined.member, 1, {joined.member: assignment({"foo": [0]}, data)})
    entered(mixed)
    assert mixed.member(joined.member).owned == of(foo=[0])


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithCustomAssignorClassicGroup")
def test_data_of_a_custom_assignor_would_be_lost(mixed: MixedGroup) -> None:
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
def test_static_classic_member_of_a_consumer_group_comes_back_with_the_new_protocol(mixed: MixedGroup) -> None:
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
def test_members_keep_what_they_are_known_by(mixed: MixedGroup) -> None:
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


# ---------------------------------------------------------------------- classic members join


@kafka("GroupMetadataManagerTest.testJoiningConsumerGroupThrowsExceptionIfGroupOverMaxSize")
def test_join_into_a_full_group_is_refused(mixed: MixedGroup) -> None:
    entered(mixed)
    mixed.max_size = 1
    assert mixed.classic("").refusal == (GROUP_MAX_SIZE_REACHED, "")
    assert mixed.describe().member_ids == {NEW}


@kafka("GroupMetadataManagerTest.testStaticMemberCanRejoinConsumerGroupWithClassicProtocolWhenGroupIsFull")
def test_static_member_has_its_place_in_a_full_group(mixed: MixedGroup) -> None:
    mixed.policy = "upgrade"
    entered(mixed, instance=INSTANCE)
    mixed.part(NEW, -2, INSTANCE)
    mixed.max_size = 1
    answer = mixed.classic("", instance=INSTANCE)
    assert (answer.code, answer.status) == (NONE, "ready")
    assert mixed.describe().member_ids == {answer.member} != {NEW}


@kafka(
    "GroupMetadataManagerTest.testNewStaticMemberClassicGroupJoinThrowsGroupMaxSizeReachedExceptionWhenConsumerGroupIsFull"
)
def test_another_static_member_has_no_place_in_a_full_group(mixed: MixedGroup) -> None:
    entered(mixed, instance=INSTANCE)
    mixed.part(NEW, -2, INSTANCE)
    mixed.max_size = 1
    assert mixed.classic("", instance="another").code == GROUP_MAX_SIZE_REACHED


@kafka("GroupMetadataManagerTest.testJoiningConsumerGroupThrowsExceptionIfProtocolIsNotSupported")
def test_protocols_have_to_be_those_of_the_classic_members(mixed: MixedGroup) -> None:
    entered(mixed)
    mixed.newcomer(mixed.says(protocol="roundrobin"))
    assert mixed.classic("").refusal == (INCONSISTENT_GROUP_PROTOCOL, "")
    assert mixed.classic("", protocol_type="connect").code == INCONSISTENT_GROUP_PROTOCOL
    assert mixed.newcomer((*mixed.says(), *mixed.says(protocol="roundrobin"))).code == NONE


@kafka("GroupMetadataManagerTest.testClassicGroupJoinToConsumerGroupFailsOnMalformedSubscriptionMetadata")
def test_join_with_a_malformed_subscription_is_refused(mixed: MixedGroup) -> None:
    entered(mixed)
    assert mixed.classic("", (("range", POISON),)).code == MEMBER_ID_REQUIRED
    assert mixed.classic("one", (("range", POISON),)).refusal == (INCONSISTENT_GROUP_PROTOCOL, "")
    assert mixed.describe().member_ids == {NEW}


@kafka("GroupMetadataManagerTest.testJoiningConsumerGroupWithNewDynamicMember")
@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_new_dynamic_member_joins_by_the_classic_protocol(mixed: MixedGroup, version: int) -> None:
    mixed.targets = {NEW: of(foo=[0, 1])}
    entered(mixed)
    says = mixed.says("foo", "bar", version=version)
    handed_out = mixed.classic("", says)
    assert handed_out.code == MEMBER_ID_REQUIRED and mixed.describe().member_ids == {NEW}
    mixed.targets = {NEW: of(foo=[0, 1]), handed_out.member: of(bar=[0])}
    joined = mixed.classic(handed_out.member, says, session_s=6, rebalance_s=8)
    assert (joined.code, joined.member, joined.generation) == (NONE, handed_out.member, 2)
    assert (joined.protocol_type, joined.protocol, joined.leader, joined.members) == ("consumer", "range", "", ())
    member = mixed.member(joined.member)
    assert (member.epoch, member.previous_epoch, member.state) == (2, 0, "STABLE")
    assert (member.owned, member.session_ends_in_ms) == (of(bar=[0]), 6000)
    assert mixed.synced(joined.member, 2) == assignment({"bar": [0]}, version=version)


@kafka("GroupMetadataManagerTest.testJoiningConsumerGroupWithNewStaticMember")
def test_new_static_member_joins_by_the_classic_protocol(mixed: MixedGroup) -> None:
    entered(mixed)
    joined = mixed.classic("", instance=INSTANCE)
    assert (joined.code, joined.generation, joined.protocol) == (NONE, 2, "range")
    member = mixed.member(joined.member)
    assert (member.instance_id, member.epoch, member.state) == (INSTANCE, 2, "STABLE")
    assert mixed.epochs == (2, 2)


@kafka("GroupMetadataManagerTest.testJoiningConsumerGroupReplacingExistingStaticMember")
def test_static_member_comes_back_by_the_classic_protocol(mixed: MixedGroup) -> None:
    mixed.policy = "upgrade"
    mixed.targets = {NEW: of(foo=[0, 1])}
    assert entered(mixed, instance=INSTANCE) == 1
    joined = mixed.classic("", instance=INSTANCE)
    assert (joined.code, joined.generation) == (NONE, 1)
    assert (mixed.epochs, mixed.kind, mixed.describe().member_ids) == ((1, 1), "consumer", {joined.member})
    assert mixed.member(joined.member).owned == of(foo=[0, 1])
    assert mixed.synced(joined.member, 1, INSTANCE) == assignment({"foo": [0, 1]})


@kafka("GroupMetadataManagerTest.testJoiningConsumerGroupWithExistingStaticMemberAndNewSubscription")
def test_classic_member_with_another_subscription_raises_the_epoch(mixed: MixedGroup) -> None:
    entered(mixed)
    joined = mixed.classic("", instance=INSTANCE)
    mixed.targets = {NEW: of(foo=[1]), joined.member: of(foo=[0], zar=[0])}
    again = mixed.classic(joined.member, mixed.says("foo", "bar", "zar"), instance=INSTANCE)
    assert (again.code, again.generation) == (NONE, 3)
    member = mixed.member(joined.member)
    assert (member.topics, member.state, member.owned) == (("bar", "foo", "zar"), "STABLE", of(foo=[0], zar=[0]))


@kafka("GroupMetadataManagerTest.testStaticMemberJoiningConsumerGroupWithUnknownInstanceId")
def test_join_by_an_unknown_instance_id_with_a_member_id_is_refused(mixed: MixedGroup) -> None:
    entered(mixed)
    joined = mixed.newcomer()
    assert mixed.classic(joined.member, instance=INSTANCE).refusal == (UNKNOWN_MEMBER_ID, "")


@kafka("GroupMetadataManagerTest.testStaticMemberJoiningConsumerGroupWithUnmatchedMemberId")
def test_join_by_another_member_id_than_the_instances_is_fenced(mixed: MixedGroup) -> None:
    entered(mixed)
    mixed.classic("", instance=INSTANCE)
    assert mixed.classic("another", instance=INSTANCE).refusal == (FENCED_INSTANCE_ID, "")


@kafka("GroupMetadataManagerTest.testReconciliationInJoiningConsumerGroupWithEagerProtocol")
def test_eager_member_gives_up_all_and_waits_for_what_others_have(mixed: MixedGroup) -> None:
    mixed.targets = {NEW: of(foo=[1])}
    entered(mixed)
    one = mixed.known(protocols=mixed.says())
    mixed.targets |= {one: of(foo=[0], bar=[0])}
    mixed.classic(one)
    mixed.beat(NEW, 1)
    mixed.targets = {one: of(foo=[0, 1], zar=[0]), NEW: of(bar=[0])}
    joined = mixed.classic(one, mixed.says("foo", "bar", "zar"))
    assert (joined.generation, mixed.member(one).state) == (3, "UNRELEASED_PARTITIONS")
    assert mixed.synced(one, 3) == assignment({"foo": [0], "zar": [0]})
    assert mixed.beat(NEW, 2, owned=of(foo=[1])).assignment == ""
    assert mixed.heartbeat(one, 3) == NONE
    assert mixed.beat(NEW, 2, owned="").assignment == of(bar=[0])
    assert mixed.heartbeat(one, 3) == REBALANCE_IN_PROGRESS
    joined = mixed.classic(one, mixed.says("foo", "bar", "zar"))
    assert (joined.generation, mixed.member(one).state) == (3, "STABLE")
    assert mixed.synced(one, 3) == assignment({"foo": [0, 1], "zar": [0]})


@kafka("GroupMetadataManagerTest.testReconciliationInJoiningConsumerGroupWithCooperativeProtocol")
def test_cooperative_member_gives_up_and_gets_one_thing_after_the_other(mixed: MixedGroup) -> None:
    mixed.targets = {NEW: of(foo=[1])}
    entered(mixed)
    one = mixed.known(protocols=mixed.says())
    mixed.targets |= {one: of(foo=[0], bar=[0])}
    mixed.classic(one)
    mixed.beat(NEW, 1)
    mixed.targets = {one: of(foo=[0, 1], zar=[0]), NEW: of(bar=[0])}
    topics = ("foo", "bar", "zar")
    joined = mixed.classic(one, mixed.says(*topics, owned={"foo": [0], "bar": [0]}))
    assert (joined.generation, mixed.member(one).state) == (2, "UNREVOKED_PARTITIONS")
    assert mixed.synced(one, 2) == assignment({"foo": [0]})
    assert mixed.heartbeat(one, 2) == REBALANCE_IN_PROGRESS
    joined = mixed.classic(one, mixed.says(*topics, owned={"foo": [0]}))
    assert (joined.generation, mixed.member(one).state) == (3, "UNRELEASED_PARTITIONS")
    assert mixed.synced(one, 3) == assignment({"foo": [0], "zar": [0]})
    mixed.beat(NEW, 2, owned="")
    assert mixed.heartbeat(one, 3) == REBALANCE_IN_PROGRESS
    joined = mixed.classic(one, mixed.says(*topics, owned={"foo": [0], "zar": [0]}))
    assert (joined.generation, mixed.member(one).state) == (3, "STABLE")
    assert mixed.synced(one, 3) == assignment({"foo": [0, 1], "zar": [0]})


# ---------------------------------------------------------------------- sync


def with_classic(mixed: MixedGroup, *assigned: dict[str, list[int]], **options: Any) -> list[str]:
    """A Stable consumer group of NEW, which has nothing, and classic members with assignments."""
    entered(mixed)
    ids = []
    for topics in assigned:
        ids.append(mixed.known(protocols=mixed.says()))
        mixed.targets[ids[-1]] = of(**topics)
        mixed.classic(ids[-1], **options)
    mixed.beat(NEW, 1)
    generation = mixed.epochs[0]
    for member in ids:
        assert mixed.classic(member, mixed.says(owned=assigned[ids.index(member)]), **options).generation == generation
        mixed.synced(member, generation)
    assert mixed.state == "Stable"
    return ids


@kafka("GroupMetadataManagerTest.testClassicGroupSyncToConsumerGroupWithAllConsumerProtocolVersions")
@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_sync_answers_in_the_version_of_the_member(mixed: MixedGroup, version: int) -> None:
    entered(mixed)
    member, says = "m", mixed.says(version=version)
    mixed.targets = {member: of(foo=[0, 1, 2], bar=[0, 1])}
    assert mixed.classic(member, says).generation == 2
    assert mixed.synced(member, 2) == assignment({"bar": [0, 1], "foo": [0, 1, 2]}, version=version)


@kafka("GroupMetadataManagerTest.testClassicGroupSyncToConsumerGroupWithUnknownMemberId")
def test_sync_of_nobody_and_of_a_consumer_member_is_refused(mixed: MixedGroup) -> None:
    entered(mixed)
    assert mixed.sync("unknown", 1).code == UNKNOWN_MEMBER_ID
    assert mixed.sync(NEW, 1, instance="unknown").code == UNKNOWN_MEMBER_ID
    assert mixed.sync(NEW, 1).code == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testClassicGroupSyncToConsumerGroupWithFencedInstanceId")
def test_sync_by_another_member_id_than_the_instances_is_fenced(mixed: MixedGroup) -> None:
    entered(mixed, instance=INSTANCE)
    assert mixed.sync("another", 1, instance=INSTANCE).code == FENCED_INSTANCE_ID


@kafka("GroupMetadataManagerTest.testClassicGroupSyncToConsumerGroupWithInconsistentGroupProtocol")
def test_sync_names_the_protocol_of_the_join(mixed: MixedGroup) -> None:
    (one,) = with_classic(mixed, {"foo": [0]})
    assert mixed.sync(one, 2, protocol=("consumer", "roundrobin")).code == INCONSISTENT_GROUP_PROTOCOL
    assert mixed.sync(one, 2, protocol=("connect", "range")).code == INCONSISTENT_GROUP_PROTOCOL
    assert mixed.sync(one, 2).assignment == assignment({"foo": [0]})


@kafka("GroupMetadataManagerTest.testClassicGroupSyncToConsumerGroupWithIllegalGeneration")
def test_sync_of_another_generation_is_refused(mixed: MixedGroup) -> None:
    (one,) = with_classic(mixed, {"foo": [0]})
    assert mixed.sync(one, 1).code == ILLEGAL_GENERATION


@kafka("GroupMetadataManagerTest.testClassicGroupSyncToConsumerGroupRebalanceInProgress")
def test_sync_in_a_group_that_went_on_is_refused_and_the_join_awaited(mixed: MixedGroup) -> None:
    (one,) = with_classic(mixed, {"foo": [0]}, rebalance_s=8)
    entered(mixed, "another")
    assert mixed.sync(one, 2).code == REBALANCE_IN_PROGRESS
    mixed.pass_time(7)
    assert mixed.heartbeat(one, 2) == REBALANCE_IN_PROGRESS
    mixed.pass_time(1)
    assert mixed.heartbeat(one, 2) == UNKNOWN_MEMBER_ID


# ---------------------------------------------------------------------- heartbeat and timeouts


@kafka("GroupMetadataManagerTest.testClassicGroupHeartbeatToConsumerGroupMaintainsSession")
def test_heartbeats_hold_the_session_of_a_classic_member(mixed: MixedGroup) -> None:
    (one,) = with_classic(mixed, {"foo": [0]}, session_s=6)
    for _ in range(3):
        mixed.pass_time(5)
        assert mixed.heartbeat(one, 2) == NONE
    assert mixed.member(one).session_ends_in_ms == 6000


@kafka("GroupMetadataManagerTest.testClassicGroupHeartbeatToConsumerGroupRebalanceInProgress")
def test_heartbeat_tells_a_classic_member_to_join_again(mixed: MixedGroup) -> None:
    one, two = with_classic(mixed, {"foo": [0]}, {"foo": [1]})
    generation = mixed.epochs[0]
    assert [mixed.heartbeat(member, generation) for member in (one, two)] == [NONE, NONE]
    # One of them is behind the group.
    mixed.targets = {one: of(foo=[1]), two: of(foo=[0])}
    entered(mixed, "another")
    assert [mixed.heartbeat(member, generation) for member in (one, two)] == [REBALANCE_IN_PROGRESS] * 2
    # One has to give up something.
    assert mixed.classic(one, mixed.says(owned={"foo": [0]})).generation == generation
    assert mixed.member(one).state == "UNREVOKED_PARTITIONS"
    assert mixed.heartbeat(one, generation) == REBALANCE_IN_PROGRESS
    # One waits for what another one has, and then for nobody.
    joined = mixed.classic(one)
    assert mixed.member(one).state == "UNRELEASED_PARTITIONS"
    assert mixed.heartbeat(one, joined.generation) == NONE
    mixed.classic(two)
    assert mixed.heartbeat(one, joined.generation) == REBALANCE_IN_PROGRESS


@kafka("GroupMetadataManagerTest.testClassicGroupHeartbeatToConsumerWithUnknownMember")
def test_heartbeat_of_nobody_is_refused(mixed: MixedGroup) -> None:
    entered(mixed)
    assert mixed.heartbeat("unknown", 1) == UNKNOWN_MEMBER_ID
    assert mixed.heartbeat("unknown", 1, "unknown") == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testClassicGroupHeartbeatToConsumerWithFencedInstanceId")
def test_heartbeat_by_another_member_id_than_the_instances_is_fenced(mixed: MixedGroup) -> None:
    entered(mixed)
    joined = mixed.classic("", instance=INSTANCE)
    assert mixed.heartbeat("another", joined.generation, INSTANCE) == FENCED_INSTANCE_ID


@kafka("GroupMetadataManagerTest.testClassicGroupHeartbeatToConsumerWithIllegalGenerationId")
def test_heartbeat_of_another_generation_is_refused(mixed: MixedGroup) -> None:
    (one,) = with_classic(mixed, {"foo": [0]})
    assert mixed.heartbeat(one, 1) == ILLEGAL_GENERATION


@kafka("GroupMetadataManagerTest.testClassicGroupHeartbeatToConsumerWithMemberNotUsingClassicProtocol")
def test_classic_heartbeat_of_a_consumer_member_is_refused(mixed: MixedGroup) -> None:
    assert mixed.heartbeat(NEW, entered(mixed)) == UNKNOWN_MEMBER_ID


@kafka("GroupMetadataManagerTest.testConsumerGroupMemberUsingClassicProtocolFencedWhenSessionTimeout")
def test_classic_member_is_taken_out_when_its_session_ends(mixed: MixedGroup) -> None:
    (one,) = with_classic(mixed, {"foo": [0]}, session_s=6)
    mixed.pass_time(6)
    assert mixed.heartbeat(one, 2) == UNKNOWN_MEMBER_ID
    assert (mixed.describe().member_ids, mixed.epochs, mixed.owners()) == ({NEW}, (3, 2), {})


@kafka("GroupMetadataManagerTest.testConsumerGroupMemberUsingClassicProtocolFencedWhenJoinTimeout")
def test_classic_member_that_does_not_join_in_time_is_taken_out(mixed: MixedGroup) -> None:
    (one,) = with_classic(mixed, {"foo": [0]}, rebalance_s=8)
    entered(mixed, "another")
    for _ in range(4):
        assert mixed.heartbeat(one, 2) == REBALANCE_IN_PROGRESS
        mixed.pass_time(2)
    assert mixed.heartbeat(one, 2) == UNKNOWN_MEMBER_ID
    assert mixed.owners() == {}


# ---------------------------------------------------------------------- leave and downgrade


@kafka("GroupMetadataManagerTest.testConsumerGroupMemberUsingClassicProtocolBatchLeaveGroup")
def test_members_of_both_protocols_leave_together(mixed: MixedGroup) -> None:
    mixed.policy = "disabled"
    entered(mixed, "three", instance="i3")
    one, two = mixed.newcomer(), mixed.classic("", instance="i2")
    leaving = (
        (one.member, ""), ("", "i2"), ("three", "i3"), ("unknown", ""), ("", "unknown"), ("unknown", "i3"),
    )  # fmt: skip
    expected = [NONE, NONE, NONE, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID]
    generation = mixed.epochs[0]
    assert two.generation == generation and mixed.leave(*leaving) == expected
    assert (mixed.state, mixed.epochs[0], mixed.exists()) == ("Empty", generation + 1, ["group"])


@kafka(
    "GroupMetadataManagerTest.testConsumerGroupMemberUsingClassicProtocolBatchLeaveGroupUpdatingSubscriptionMetadata"
)
def test_classic_member_that_leaves_raises_the_epoch(mixed: MixedGroup) -> None:
    entered(mixed)
    joined = mixed.newcomer(mixed.says("foo", "zar"))
    assert "zar" in str(mixed.field("topics"))
    assert mixed.leave((joined.member, "")) == [NONE]
    assert (mixed.epochs, mixed.describe().member_ids) == ((3, 2), {NEW})
    mixed.beat(NEW, 1)
    assert "zar" not in str(mixed.field("topics"))


@kafka("GroupMetadataManagerTest.testClassicGroupLeaveToConsumerGroupWithoutValidLeaveGroupMember")
def test_leave_of_nobody_changes_nothing(mixed: MixedGroup) -> None:
    epoch = entered(mixed)
    assert mixed.leave(("unknown", "")) == [UNKNOWN_MEMBER_ID]
    assert mixed.epochs == (epoch, epoch)


def downgraded(mixed: MixedGroup, one: str, generation: int) -> None:
    """The classic member is alone in a classic group that rebalances, in which it has what it had."""
    assert mixed.leave(("unknown", "")) == [UNKNOWN_MEMBER_ID]
    found = mixed.describe()
    assert (mixed.kind, found.state, found.generation) == ("classic", "PreparingRebalance", generation)
    (member,) = found.members
    assert (member.id, member.assignment) == (one, assignment({"foo": [0, 1, 2]}))
    assert (found.protocol_type, found.protocol, found.leader) == ("consumer", "range", one)
    assert not {"topics", "type", "target_epoch"} & mixed.fields and not any(":" in name for name in mixed.fields)
    assert mixed.heartbeat(one, generation) == REBALANCE_IN_PROGRESS
    answer = mixed.classic(one)
    assert (answer.status, answer.generation, answer.leader) == ("ready", generation + 1, one)
    mixed.lead(one, answer.generation, {one: assignment({"foo": [0]})})
    assert mixed.state == "Stable"


@kafka("GroupMetadataManagerTest.testLastConsumerProtocolMemberLeavingConsumerGroup")
@kafka("ClassicGroupTest.testFromConsumerGroupWithoutJoiningMember")
def test_group_becomes_classic_when_the_last_consumer_member_leaves(mixed: MixedGroup) -> None:
    (one,) = with_classic(mixed, {"foo": [0, 1, 2]})
    assert mixed.part(NEW).code == NONE
    downgraded(mixed, one, 2)


@kafka("GroupMetadataManagerTest.testLastConsumerProtocolMemberSessionTimeoutInConsumerGroup")
def test_group_becomes_classic_when_the_last_consumer_member_dies(mixed: MixedGroup) -> None:
    (one,) = with_classic(mixed, {"foo": [0, 1, 2]})
    for _ in range(5):
        mixed.pass_time(9)
        mixed.heartbeat(one, 2)
    downgraded(mixed, one, 2)


@kafka("GroupMetadataManagerTest.testLastConsumerProtocolMemberRebalanceTimeoutInConsumerGroup")
def test_group_becomes_classic_when_the_last_consumer_member_gives_nothing_up(mixed: MixedGroup) -> None:
    mixed.targets = {NEW: of(foo=[3, 4, 5], bar=[2])}
    (one,) = with_classic(mixed, {"foo": [0, 1, 2]})
    mixed.targets = {NEW: of(foo=[3, 4, 5]), one: of(foo=[0, 1, 2], bar=[0])}
    assert mixed.beat(NEW, 2, "foo", owned=of(foo=[3, 4, 5], bar=[2])).epoch == 2
    assert mixed.member(NEW).state == "UNREVOKED_PARTITIONS"
    mixed.pass_time(5)
    downgraded(mixed, one, 3)


@kafka("GroupMetadataManagerTest.testLastConsumerProtocolMemberLeavingConsumerGroupByAdminApi")
def test_group_becomes_classic_when_an_administrator_takes_the_last_consumer_members_out(mixed: MixedGroup) -> None:
    one, two = with_classic(mixed, {"foo": [0, 1, 2]}, {"bar": [0]})
    entered(mixed, "four", instance="i4")
    for member in (one, two):
        mixed.classic(member)
    assert mixed.leave((two, ""), (NEW, ""), ("", "i4")) == [NONE, NONE, NONE]
    downgraded(mixed, one, mixed.generation)


@kafka("GroupMetadataManagerTest.testNoConversionWhenSizeExceedsClassicMaxGroupSize")
def test_group_that_is_too_large_stays_of_the_consumer_protocol(mixed: MixedGroup) -> None:
    one, two = with_classic(mixed, {"foo": [0]}, {"foo": [1]})
    mixed.max_size = 1
    mixed.classic(one, mixed.says(owned={"foo": [0]}))
    mixed.part(NEW)
    assert (mixed.kind, mixed.describe().member_ids) == ("consumer", {one, two})


@kafka("GroupMetadataManagerTest.testLastStaticConsumerProtocolMemberReplacedByClassicProtocolMember")
@kafka("ClassicGroupTest.testFromConsumerGroupWithJoiningMember")
def test_group_goes_on_as_a_classic_one_when_its_last_consumer_member_changes_the_protocol(mixed: MixedGroup) -> None:
    one, new = replaced_static(mixed)
    joined = mixed.classic("", instance=INSTANCE)
    assert (joined.status, joined.generation, joined.protocol) == ("ready", 2, "range")
    assert (mixed.kind, mixed.state) == ("classic", "Stable")
    assert mixed.sync(joined.member, 2, instance=INSTANCE).assignment == assignment({"foo": [3, 4, 5]})
    assert mixed.sync(one, 2).assignment == assignment({"foo": [0, 1, 2]})
    assert [mixed.heartbeat(one, 2), mixed.heartbeat(joined.member, 2, INSTANCE)] == [NONE, NONE]
    assert mixed.describe().member_ids == {one, joined.member} and new not in (one, joined.member)


def replaced_static(mixed: MixedGroup) -> tuple[str, str]:
    """A Stable consumer group of a classic member and a static one of the consumer protocol."""
    mixed.targets = {NEW: of(foo=[3, 4, 5]), "one": of(foo=[0, 1, 2])}
    entered(mixed, instance=INSTANCE)
    mixed.classic("one")
    mixed.synced("one", 2)
    assert mixed.beat(NEW, 1, owned=of(foo=[3, 4, 5])).epoch == 2
    assert mixed.state == "Stable"
    return "one", NEW


@kafka("GroupMetadataManagerTest.testLastStaticConsumerProtocolMemberReplacedByClassicProtocolMember")
def test_group_rebalances_as_a_classic_one_when_the_member_wants_something_else(mixed: MixedGroup) -> None:
    one, _ = replaced_static(mixed)
    joined = mixed.classic("", mixed.says("foo"), instance=INSTANCE)
    assert joined.is_parked
    assert (mixed.kind, mixed.state) == ("classic", "PreparingRebalance")
    assert mixed.classic(one).status == "ready"
    assert mixed.wait(joined.member, INSTANCE).generation == 4


@kafka(
    "GroupMetadataManagerTest."
    "testLastStaticConsumerProtocolMemberReplacedByClassicProtocolMemberWhenTargetAssignmentIsStale"
)
def test_group_rebalances_as_a_classic_one_when_its_target_is_stale(mixed: MixedGroup) -> None:
    _, new = replaced_static(mixed)
    assert mixed.consume(new, 2, "foo").status == "target"
    joined = mixed.classic("", mixed.says("foo"), instance=INSTANCE)
    assert joined.is_parked
    assert (mixed.kind, mixed.state) == ("classic", "PreparingRebalance")


@kafka(
    "GroupMetadataManagerTest."
    "testLastStaticConsumerProtocolMemberReplacedByClassicProtocolMemberWhenTargetAssignmentIsMissing"
)
def test_group_rebalances_as_a_classic_one_when_a_member_has_no_target_yet(mixed: MixedGroup) -> None:
    mixed.targets = {NEW: of(foo=[0, 1, 2, 3, 4, 5])}
    entered(mixed, instance=INSTANCE)
    assert mixed.join("one", mixed.says()).status == "target"
    joined = mixed.classic("", instance=INSTANCE)
    assert joined.is_parked
    assert (mixed.kind, mixed.state) == ("classic", "PreparingRebalance")
