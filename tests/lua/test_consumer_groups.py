"""Groups of the consumer protocol: states, partitions' owners, offsets, deletion."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.consumer import STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION, ConsumerGroup, of
from tests.lua.consumer_scenes import UNREVOKED, aim, settle, told
from tests.lua.group import (
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    ILLEGAL_GENERATION,
    NON_EMPTY_GROUP,
    NONE,
    RETENTION_S,
    UNKNOWN_MEMBER_ID,
    named,
)
from tests.lua.transaction_group import TransactionGroup
from tests.support.ported import kafka

AT_5 = {"foo:0": "5 -1 aa "}


@kafka("ConsumerGroupTest.testGetOrCreateMember", "ConsumerGroupTest.testRemoveMember")
def test_member_is_there_from_its_join_to_its_leave(consumers: ConsumerGroup) -> None:
    consumers.enter("m")
    assert set(consumers.members()) == {"m"}
    assert consumers.consume("other", 1).code == UNKNOWN_MEMBER_ID
    consumers.part("m")
    assert consumers.members() == {}
    assert consumers.part("m").code == UNKNOWN_MEMBER_ID


@kafka("ConsumerGroupTest.testNoStaticMember", "ConsumerGroupTest.testGetStaticMemberByInstanceId")
def test_static_member_is_found_by_its_instance(consumers: ConsumerGroup) -> None:
    consumers.enter("dynamic")
    assert consumers.server.hlen(consumers.keys[3]) == 0
    consumers.enter("m", instance="i")
    assert consumers.server.hget(consumers.keys[3], "i") == b"m"
    assert consumers.consume("m", 2, instance="i").code == NONE


@kafka("ConsumerGroupTest.testRemoveStaticMember")
def test_instance_id_is_free_after_its_member_left(consumers: ConsumerGroup) -> None:
    consumers.enter("m", instance="i")
    consumers.part("m", -1, "i")
    assert consumers.server.hlen(consumers.keys[3]) == 0


@kafka("ConsumerGroupTest.testUpdateMember")
def test_group_keeps_a_members_own_settings(consumers: ConsumerGroup) -> None:
    consumers.enter("m", rack="r1", client="one")
    consumers.consume("m", 1, rack="r2", client="two", host="/10.0.0.2", rebalance_s=7)
    member = consumers.member("m")
    assert (member.rack, member.client_id, member.client_host) == ("r2", "two", "/10.0.0.2")
    assert (member.rebalance_timeout_ms, member.topics) == (7000, ("bar", "foo"))
    assert consumers.epochs == (1, 1)


@kafka("ConsumerGroupTest.testUpdatingMemberUpdatesPartitionEpoch")
def test_member_owns_its_assignment_and_its_unrevoked_partitions(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=of(foo=[1, 2, 3], bar=[0, 1]))
    aim(consumers, m=of(foo=[1, 2, 3]))
    consumers.consume("m", epoch)
    assert len(consumers.owners()) == 5
    consumers.consume("m", epoch, owned=of(foo=[1, 2, 3]))
    assert len(consumers.owners()) == 3
    assert set(consumers.owners().values()) == {"m"}


@kafka("ConsumerGroupTest.testUpdatingMemberUpdatesPartitionEpochWhenPartitionIsReassignedBeforeBeingRevoked")
def test_member_gets_back_a_partition_that_it_has_not_given_up(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=of(foo=[1]))
    aim(consumers)
    assert consumers.consume("m", epoch) == told(epoch, "")
    aim(consumers, m=of(foo=[1]))
    assert consumers.consume("m", epoch, owned="") == told(epoch + 2, of(foo=[1]))
    assert set(consumers.owners().values()) == {"m"}


@kafka("ConsumerGroupTest.testUpdatingMemberUpdatesPartitionEpochWhenPartitionIsNotReleased")
@kafka("ConsumerGroupTest.testWaitingOnUnreleasedPartition")
def test_partition_is_not_given_out_before_its_owner_gave_it_up(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=of(foo=[1]), other=of(foo=[2]))
    aim(consumers, other=of(foo=[1, 2]))
    consumers.consume("m", epoch)
    assert consumers.member("m").state == UNREVOKED
    assert consumers.consume("other", epoch) == told(epoch + 1, member="other")
    assert sorted(consumers.owners().values()) == ["m", "other"]


@kafka("ConsumerGroupTest.testDeletingMemberRemovesPartitionEpoch")
def test_member_that_leaves_also_releases_its_unrevoked_partitions(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=of(foo=[1, 2], bar=[0]), other=of(foo=[0]))
    aim(consumers, m=of(foo=[1]), other=of(foo=[0]))
    consumers.consume("m", epoch)
    consumers.part("m")
    assert set(consumers.owners().values()) == {"other"}
    assert len(consumers.owners()) == 1


@kafka("ConsumerGroupTest.testGroupState", "ConsumerGroupTest.testStateTransitionMetrics")
def test_group_is_stable_when_every_member_is_in_the_targets_epoch(consumers: ConsumerGroup) -> None:
    for member in ("a", "b"):
        consumers.consume(member, 0, "foo", rebalance_s=5, owned="")
        assert consumers.state == "Assigning"
    consumers.targets = {"a": of(foo=[0]), "b": of(foo=[1])}
    consumers.retarget()
    assert consumers.state == "Reconciling"
    consumers.consume("a", 0)
    assert consumers.state == "Reconciling"
    consumers.consume("b", 0)
    assert consumers.state == "Stable"
    consumers.part("a")
    assert consumers.state == "Assigning"
    consumers.part("b")
    assert consumers.state == "Empty"


@kafka("ConsumerGroupTest.testIsInStatesCaseInsensitive", "ConsumerGroupTest.testAsListedGroup")
def test_group_is_listed_with_its_state_and_type(consumers: ConsumerGroup) -> None:
    consumers.enter("m")
    listed = named(consumers.read("state")[1:])
    assert (listed["state"], listed["type"], listed["protocol_type"]) == (b"Stable", b"consumer", b"consumer")
    consumers.part("m")
    assert named(consumers.read("state")[1:])["state"] == b"Empty"


@kafka("ConsumerGroupTest.testAsDescribedGroup")
def test_members_are_described_with_epochs_and_assignments(consumers: ConsumerGroup) -> None:
    consumers.targets = {"a": of(foo=[0], bar=[1]), "b": of(foo=[1])}
    consumers.enter("a", "foo", "bar")
    consumers.enter("b", "foo")
    found = consumers.read_named("describe")
    assert (found["generation"], found["target_epoch"], found["assignor"]) == (2, 2, b"uniform")
    assert (found["type"], found["unsettled"]) == (b"consumer", b"1 of 2 members do not have all of their target yet")
    a = consumers.member("a")
    assert (a.owned, a.target, a.partitions) == (of(foo=[0], bar=[1]), of(foo=[0], bar=[1]), ("foo:0", "bar:1"))
    consumers.consume("a", 1)
    assert consumers.read_named("describe")["unsettled"] == b""
    consumers.part("b")
    why = b"the target assignment is of epoch 2 and the group is at epoch 3"
    assert consumers.read_named("describe")["unsettled"] == why


@kafka("ConsumerGroupTest.testValidateOffsetCommit")
@pytest.mark.parametrize("version", [8, 9])
@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetCommitWithUnknownMemberId")
def test_commit_is_judged_by_member_epoch_and_version(consumers: ConsumerGroup, version: int) -> None:
    consumers.enter("m")
    consumers.part("m")
    assert consumers.commit(AT_5, version=version) == NONE
    assert consumers.commit(AT_5, "m", 0, version=version) == UNKNOWN_MEMBER_ID
    epoch = consumers.enter("m").epoch
    assert consumers.commit(AT_5, version=version) == UNKNOWN_MEMBER_ID
    assert consumers.commit(AT_5, "m", epoch + 1, version=version) == (
        STALE_MEMBER_EPOCH if version >= 9 else UNSUPPORTED_VERSION
    )
    assert consumers.commit({"foo:1": "7 -1 aa "}, "m", epoch, version=version) == (
        NONE if version >= 9 else UNSUPPORTED_VERSION
    )
    assert ("foo:1" in consumers.fetch()) == (version >= 9)


@kafka("ConsumerGroupTest.testValidateDeleteGroup")
def test_only_a_group_without_members_is_deleted(consumers: ConsumerGroup) -> None:
    consumers.consume("m", 0, "foo", rebalance_s=5, owned="")
    assert consumers.delete() == NON_EMPTY_GROUP
    consumers.retarget()
    assert consumers.delete() == NON_EMPTY_GROUP
    consumers.consume("m", 0)
    assert consumers.state == "Stable"
    assert consumers.delete() == NON_EMPTY_GROUP
    consumers.part("m")
    assert consumers.delete() == NONE
    assert consumers.exists() == []
    assert consumers.delete() == GROUP_ID_NOT_FOUND


@kafka("ConsumerGroupTest.testOffsetExpirationCondition")
def test_offsets_expire_with_the_group(consumers: ConsumerGroup) -> None:
    epoch = consumers.enter("m").epoch
    consumers.commit(AT_5, "m", epoch)
    consumers.part("m")
    consumers.pass_time(RETENTION_S - 1)
    assert consumers.fetch() == AT_5
    consumers.pass_time(1)
    assert consumers.fetch() == {}


@kafka("ConsumerGroupTest.testIsSubscribedToTopic", "ConsumerGroupTest.testUpdateSubscribedTopicNames")
@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetDelete")
@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetDeleteWithErrors")
def test_offsets_of_subscribed_topics_stay(consumers: ConsumerGroup) -> None:
    epoch = consumers.enter("a", "foo").epoch
    consumers.enter("b", "bar")
    consumers.beat("a", epoch)
    consumers.commit({"foo:0": "5 -1 aa ", "bar:0": "6 -1 aa ", "zar:0": "7 -1 aa "}, "a", epoch + 1)
    partitions = ("foo:0", "bar:0", "zar:0")
    assert consumers.delete_offsets(*partitions) == (
        NONE, [GROUP_SUBSCRIBED_TO_TOPIC, GROUP_SUBSCRIBED_TO_TOPIC, NONE],
    )  # fmt: skip
    consumers.part("a")
    assert consumers.delete_offsets("foo:0", "bar:0") == (NONE, [NONE, GROUP_SUBSCRIBED_TO_TOPIC])
    consumers.part("b")
    assert consumers.delete_offsets("bar:0") == (NONE, [NONE])
    assert consumers.fetch() == {}


def test_offsets_of_topics_that_match_a_regular_expression_stay(consumers: ConsumerGroup) -> None:
    consumers.enter("a", regex="foo|bar")
    epoch = consumers.beat("a", 1).epoch
    consumers.commit(AT_5, "a", epoch)
    assert consumers.delete_offsets("foo:0") == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC])


@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetCommit")
def test_commit_of_a_consumer_member_does_not_prolong_its_session(consumers: ConsumerGroup) -> None:
    epoch = consumers.enter("m").epoch
    consumers.pass_time(44)
    assert consumers.commit(AT_5, "m", epoch) == NONE
    assert consumers.fetch() == AT_5
    consumers.pass_time(1)
    assert consumers.commit(AT_5, "m", epoch) == UNKNOWN_MEMBER_ID


@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetCommitWithStaleMemberEpoch")
@pytest.mark.parametrize("step", [-1, 1])
def test_commit_of_another_epoch_is_refused(consumers: ConsumerGroup, step: int) -> None:
    epoch = settle(consumers, m=of(foo=[0]))
    assert consumers.commit(AT_5, "m", epoch + step) == STALE_MEMBER_EPOCH
    assert consumers.fetch() == {}


@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetCommitFromAdminClient")
def test_administrator_commits_to_a_group_without_members(consumers: ConsumerGroup) -> None:
    consumers.enter("m")
    consumers.part("m")
    assert consumers.commit(AT_5) == NONE
    assert consumers.field("type") == "consumer"
    assert consumers.state == "Empty"


@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetFetchWithUnknownMemberId")
@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetFetchWithStaleMemberEpoch")
@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetFetchFromAdminClient")
@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetFetchWithMemberIdAndEpoch")
@kafka("ConsumerGroupTest.testValidateOffsetFetch")
def test_fetch_takes_a_member_of_the_epoch_or_no_member(consumers: ConsumerGroup) -> None:
    assert consumers.read("check_fetch", "m", 0) == NONE
    epoch = settle(consumers, m=of(foo=[0]))
    assert consumers.read("check_fetch", "unknown", epoch) == UNKNOWN_MEMBER_ID
    assert consumers.read("check_fetch", "", epoch) == UNKNOWN_MEMBER_ID
    assert consumers.read("check_fetch", "m", epoch - 1) == STALE_MEMBER_EPOCH
    assert consumers.read("check_fetch", "m", epoch) == NONE
    assert consumers.read("check_fetch", "", -1) == NONE


@pytest.fixture
def producing(consumers: ConsumerGroup, set_clock: Callable[[float], None]) -> TransactionGroup:
    """The same group, for producers' transactions."""
    return TransactionGroup(consumers.server, set_clock)


@kafka("OffsetMetadataManagerTest.testConsumerGroupTransactionalOffsetCommit")
def test_transaction_commits_offsets_of_a_member(consumers: ConsumerGroup, producing: TransactionGroup) -> None:
    epoch = settle(consumers, m=of(foo=[0]))
    assert producing.hold({"foo:0": 5}, member="m", generation=epoch) == NONE
    assert consumers.fetch() == {}
    assert producing.end() == NONE
    assert producing.committed("foo:0") == {"foo:0": "5"}
    assert consumers.state == "Stable"


@kafka("OffsetMetadataManagerTest.testConsumerGroupTransactionalOffsetCommitWithUnknownMemberId")
@kafka("OffsetMetadataManagerTest.testConsumerGroupTransactionalOffsetCommitWithStaleMemberEpoch")
@kafka("ConsumerGroupTest.testValidateTransactionalOffsetCommit")
def test_transaction_of_another_member_or_epoch_is_refused(
    consumers: ConsumerGroup, producing: TransactionGroup
) -> None:
    epoch = settle(consumers, m=of(foo=[0]))
    assert producing.hold({"foo:0": 5}, member="other", generation=epoch) == UNKNOWN_MEMBER_ID
    assert producing.hold({"foo:0": 5}, member="m", generation=epoch + 1) == ILLEGAL_GENERATION
    assert producing.hold({"foo:0": 5}, member="m") == ILLEGAL_GENERATION
    assert producing.hold({"foo:0": 5}) == NONE


@kafka("OffsetMetadataManagerTest.testConsumerGroupOffsetDeleteWithPendingTransactionalOffsets")
def test_deletion_removes_offsets_that_a_transaction_holds(
    consumers: ConsumerGroup, producing: TransactionGroup
) -> None:
    epoch = settle(consumers, m=of(foo=[0]))
    assert producing.hold({"zar:0": 5}, member="m", generation=epoch) == NONE
    assert producing.stable_offsets("zar:0") == {"zar:0": "unstable"}
    assert producing.delete_offsets("zar:0") == (NONE, [NONE])
    assert producing.stable_offsets() == {}
    assert producing.end() == NONE
    assert producing.committed() == {}


def test_group_with_an_open_transaction_outlives_its_retention(
    consumers: ConsumerGroup, producing: TransactionGroup
) -> None:
    epoch = settle(consumers, m=of(foo=[0]))
    assert producing.hold({"foo:0": 5}, member="m", generation=epoch) == NONE
    consumers.part("m")
    consumers.pass_time(RETENTION_S + 1)
    assert consumers.state == "Empty"
    assert producing.end() == NONE
    assert producing.committed("foo:0") == {"foo:0": "5"}
