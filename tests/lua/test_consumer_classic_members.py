"""Members that speak the classic protocol in a group of the consumer protocol."""

from __future__ import annotations

import pytest

from tests.lua.consumer import of
from tests.lua.group import (
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from tests.lua.mixed import NEWEST, MixedGroup, assignment
from tests.lua.mixed_scenes import INSTANCE, NEW, POISON, entered, with_classic
from tests.support.ported import kafka

# ---------------------------------------------------------------------- classic members join


@kafka("GroupMetadataManagerTest.testJoiningConsumerGroupThrowsExceptionIfGroupOverMaxSize")
def test_join_into_a_full_group_is_refused(mixed: MixedGroup) -> None:
    entered(mixed)
    mixed.max_size = 1
    assert mixed.classic("").refusal == (GROUP_MAX_SIZE_REACHED, "")
    assert mixed.describe().member_ids == {NEW}


@kafka("GroupMetadataManagerTest.testStaticMemberCanRejoinConsumerGroupWithClassicProtocolWhenGroupIsFull")
def test_full_group_takes_its_static_member_back(mixed: MixedGroup) -> None:
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
def test_full_group_refuses_another_static_member(mixed: MixedGroup) -> None:
    entered(mixed, instance=INSTANCE)
    mixed.part(NEW, -2, INSTANCE)
    mixed.max_size = 1
    assert mixed.classic("", instance="another").code == GROUP_MAX_SIZE_REACHED


@kafka("GroupMetadataManagerTest.testJoiningConsumerGroupThrowsExceptionIfProtocolIsNotSupported")
def test_join_without_the_classic_members_protocols_is_refused(mixed: MixedGroup) -> None:
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
def test_eager_member_gives_up_all_partitions_and_waits_for_others(mixed: MixedGroup) -> None:
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
def test_cooperative_member_first_gives_up_and_then_gets_partitions(mixed: MixedGroup) -> None:
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


@kafka("GroupMetadataManagerTest.testClassicGroupSyncToConsumerGroupWithAllConsumerProtocolVersions")
@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_sync_answers_in_the_version_of_the_member(mixed: MixedGroup, version: int) -> None:
    entered(mixed)
    member, says = "m", mixed.says(version=version)
    mixed.targets = {member: of(foo=[0, 1, 2], bar=[0, 1])}
    assert mixed.classic(member, says).generation == 2
    assert mixed.synced(member, 2) == assignment({"bar": [0, 1], "foo": [0, 1, 2]}, version=version)


@kafka("GroupMetadataManagerTest.testClassicGroupSyncToConsumerGroupWithUnknownMemberId")
def test_sync_of_an_unknown_or_a_consumer_member_is_refused(mixed: MixedGroup) -> None:
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
def test_sync_of_a_member_that_must_rejoin_is_refused(mixed: MixedGroup) -> None:
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
def test_heartbeat_has_a_classic_member_join_again(mixed: MixedGroup) -> None:
    one, two = with_classic(mixed, {"foo": [0]}, {"foo": [1]})
    generation = mixed.epochs[0]
    assert [mixed.heartbeat(member, generation) for member in (one, two)] == [NONE, NONE]
    # One member has an older epoch than the group.
    mixed.targets = {one: of(foo=[1]), two: of(foo=[0])}
    entered(mixed, "another")
    assert [mixed.heartbeat(member, generation) for member in (one, two)] == [REBALANCE_IN_PROGRESS] * 2
    # One member must give up partitions.
    assert mixed.classic(one, mixed.says(owned={"foo": [0]})).generation == generation
    assert mixed.member(one).state == "UNREVOKED_PARTITIONS"
    assert mixed.heartbeat(one, generation) == REBALANCE_IN_PROGRESS
    # The member waits for another member's partition, and then waits no longer.
    joined = mixed.classic(one)
    assert mixed.member(one).state == "UNRELEASED_PARTITIONS"
    assert mixed.heartbeat(one, joined.generation) == NONE
    mixed.classic(two)
    assert mixed.heartbeat(one, joined.generation) == REBALANCE_IN_PROGRESS


@kafka("GroupMetadataManagerTest.testClassicGroupHeartbeatToConsumerWithUnknownMember")
def test_classic_heartbeat_of_an_unknown_member_is_refused(mixed: MixedGroup) -> None:
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
