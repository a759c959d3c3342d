"""OffsetCommit and OffsetFetch: the callers that may commit, and the offsets afterwards."""

from __future__ import annotations

import pytest

from tests.lua.group import (
    FENCED_INSTANCE_ID,
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    NONE,
    REBALANCE_IN_PROGRESS,
    RETENTION_S,
    UNKNOWN_MEMBER_ID,
    Group,
)
from tests.lua.kafka.scenes import completing
from tests.support.ported import kafka

BAR = {"bar:0": "100 -1 aa "}
FOO = {"foo:0": "100 1 aa metadata", "foo:1": "110 1 aa metadata"}


@pytest.mark.parametrize("version", range(2, 10))
@kafka("OffsetMetadataManagerTest.testOffsetCommitWithUnknownGroup")
def test_commit_of_a_generation_of_an_unknown_group_is_refused(group: Group, version: int) -> None:
    expected = GROUP_ID_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION
    assert group.commit(BAR, "member", 10, version=version) == expected
    assert group.exists() == []


@kafka("GroupCoordinatorTest.testCommitOffsetFromUnknownGroup")
def test_old_client_gets_illegal_generation_for_an_unknown_group(group: Group) -> None:
    assert group.commit(BAR, "member", 1, version=8) == ILLEGAL_GENERATION


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithUnknownMemberId")
def test_commit_by_a_member_of_an_empty_group_is_refused(group: Group) -> None:
    group.known()
    assert group.commit(BAR, "member", 10) == UNKNOWN_MEMBER_ID


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithIllegalGeneration")
def test_commit_of_a_future_generation_is_refused(group: Group) -> None:
    member = group.join(instance="new-instance-id").member
    assert group.commit(BAR, member, 10) == ILLEGAL_GENERATION


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithUnknownInstanceId")
def test_commit_by_a_dynamic_member_as_an_instance_is_refused(group: Group) -> None:
    (member,) = group.stable()
    assert group.commit(BAR, member, 10, instance="instance-id") == UNKNOWN_MEMBER_ID


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithFencedInstanceId")
def test_commit_by_a_static_member_as_another_instance_is_refused(group: Group) -> None:
    member = group.join(instance="new-instance-id").member
    assert group.commit(BAR, member, 10, instance="old-instance-id") == UNKNOWN_MEMBER_ID


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWhileInCompletingRebalanceState")
@kafka("GroupCoordinatorTest.testCommitOffsetInCompletingRebalance")
def test_commit_before_the_assignment_is_refused(group: Group) -> None:
    (leader,) = completing(group)
    assert group.commit(BAR, leader.member, 1) == REBALANCE_IN_PROGRESS
    assert group.fetch() == {}


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWhileInCompletingRebalanceState")
def test_commit_before_the_assignment_is_refused_if_something_is_due(group: Group) -> None:
    (leader,) = completing(group, session_s=30)
    group.known(session_s=6)
    group.pass_time(6)
    assert group.commit(BAR, leader.member, 1) == REBALANCE_IN_PROGRESS
    assert (group.state, group.fetch()) == ("CompletingRebalance", {})


@kafka("GroupCoordinatorTest.testCommitOffsetInCompletingRebalanceFromUnknownMemberId")
def test_commit_reports_an_unknown_member_before_a_rebalance(group: Group) -> None:
    completing(group)
    assert group.commit(BAR, "", 1) == UNKNOWN_MEMBER_ID


@kafka("GroupCoordinatorTest.testCommitOffsetInCompletingRebalanceFromIllegalGeneration")
def test_commit_reports_an_illegal_generation_before_a_rebalance(group: Group) -> None:
    (leader,) = completing(group)
    assert group.commit(BAR, leader.member, 2) == ILLEGAL_GENERATION


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithoutMemberIdAndGeneration")
def test_commit_without_a_member_is_refused_if_the_group_has_one(group: Group) -> None:
    group.join(instance="new-instance-id")
    assert group.commit(BAR) == UNKNOWN_MEMBER_ID


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitMaintainsSession")
def test_commit_prolongs_a_session_once(group: Group) -> None:
    (member,) = group.stable(session_s=6)
    group.pass_time(3)
    assert group.commit(BAR, member, 1) == NONE
    group.pass_time(3)
    assert group.describe().member_ids == {member}
    group.pass_time(3)
    assert group.describe().members == ()


@kafka("OffsetMetadataManagerTest.testSimpleGroupOffsetCommit")
@kafka("GroupCoordinatorTest.testCommitOffsetWithDefaultGeneration")
def test_commit_of_a_consumer_without_a_group_makes_the_group(group: Group) -> None:
    assert group.commit(BAR) == NONE
    assert (group.state, group.fetch()) == ("Empty", BAR)


@kafka("OffsetMetadataManagerTest.testSimpleGroupOffsetCommitWithInstanceId")
def test_commit_of_a_consumer_without_a_group_ignores_its_instance_id(group: Group) -> None:
    assert group.commit(BAR, instance="instance-id") == NONE
    assert group.commit(BAR, instance="instance-id") == NONE
    assert group.fetch() == BAR


@kafka("GroupCoordinatorTest.testCommitOffsetsAfterGroupIsEmpty")
def test_any_client_may_commit_after_the_members_left(group: Group) -> None:
    (member,) = group.stable()
    assert group.leave((member, "")) == [NONE]
    assert group.commit(BAR) == NONE
    assert group.fetch("bar:0") == BAR


REFUSALS = [
    pytest.param("", "", -1, UNKNOWN_MEMBER_ID, id="nobody"),
    pytest.param("unknown", "unknown", -1, UNKNOWN_MEMBER_ID, id="unknown member"),
    pytest.param("member-id", "unknown", -1, UNKNOWN_MEMBER_ID, id="unknown instance"),
    pytest.param("member-id", "instance-id", 0, ILLEGAL_GENERATION, id="generation before"),
    pytest.param("member-id", "instance-id", 1, REBALANCE_IN_PROGRESS, id="before the assignment"),
]


@pytest.mark.parametrize(("member", "instance", "generation", "code"), REFUSALS)
@kafka("ClassicGroupTest.testValidateOffsetCommit")
def test_commit_is_refused_in_the_order_of_kafkas_checks(
    group: Group, member: str, instance: str, generation: int, code: int
) -> None:
    first = group.join(instance="instance-id").member
    assert group.commit(BAR, first if member == "member-id" else member, generation, instance=instance) == code


@kafka("ClassicGroupTest.testValidateOffsetCommit")
def test_commit_is_taken_until_the_member_is_replaced(group: Group) -> None:
    assert group.commit(BAR) == NONE
    member = group.join(instance="instance-id").member
    group.sync(member, 1, {}, instance="instance-id")
    assert group.commit(BAR, member, 1, instance="instance-id") == NONE
    group.join(instance="instance-id")
    assert group.commit(BAR, member, 1, instance="instance-id") == FENCED_INSTANCE_ID


@kafka("GroupCoordinatorTest.testFetchOffsets")
def test_fetch_returns_an_offset_with_its_epoch_and_metadata(group: Group) -> None:
    assert group.commit({"topic:0": "97 15 aa some metadata"}) == NONE
    assert group.fetch("topic:0") == {"topic:0": "97 15 aa some metadata"}


@kafka("GroupCoordinatorTest.testFetchOffsetForUnknownPartition")
@kafka("OffsetMetadataManagerTest.testFetchOffsetsWithUnknownGroup")
def test_partitions_of_an_unknown_group_have_no_offsets(group: Group) -> None:
    assert group.fetch("foo:0", "foo:1", "bar:0") == {"foo:0": "", "foo:1": "", "bar:0": ""}


@kafka("OffsetMetadataManagerTest.testFetchAllOffsetsWithUnknownGroup")
def test_unknown_group_has_no_offsets(group: Group) -> None:
    assert group.fetch() == {}


@kafka("OffsetMetadataManagerTest.testGenericGroupFetchOffsetsWithDeadGroup")
def test_partitions_of_an_expired_group_have_no_offsets(group: Group) -> None:
    group.commit({**BAR, **FOO})
    group.pass_time(RETENTION_S)
    assert group.state == "Dead"
    assert group.fetch("foo:0", "bar:0") == {"foo:0": "", "bar:0": ""}


@kafka("OffsetMetadataManagerTest.testGenericGroupFetchAllOffsetsWithDeadGroup")
def test_expired_group_has_no_offsets(group: Group) -> None:
    group.commit({**BAR, **FOO})
    group.pass_time(RETENTION_S)
    assert group.fetch() == {}


@kafka("GroupCoordinatorTest.testFetchAllOffsets")
def test_fetch_returns_all_offsets_of_a_group(group: Group) -> None:
    assert group.fetch() == {}
    assert group.commit({**BAR, **FOO}) == NONE
    assert group.fetch() == {**BAR, **FOO}
