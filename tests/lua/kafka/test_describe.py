"""DescribeGroups and ListGroups, as the library answers them."""

from __future__ import annotations

from tests.lua.group import GROUP_ID_NOT_FOUND, Group, Member
from tests.lua.kafka.scenes import FOLLOWER, LEADER, static_pair
from tests.support.ported import kafka


@kafka("GroupMetadataManagerTest.testDescribeGroupStable")
def test_stable_group_is_described_in_full(group: Group) -> None:
    pair = static_pair(group)
    described = group.describe()
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    assert set(described.members) == {
        Member(pair.leader, LEADER, "client", "/10.0.0.1", b"range-metadata", LEADER.encode()),
        Member(pair.follower, FOLLOWER, "client", "/10.0.0.1", b"range-metadata", FOLLOWER.encode()),
    }


@kafka("GroupMetadataManagerTest.testDescribeGroupRebalancing")
def test_rebalancing_group_is_described_with_its_last_assignments(group: Group) -> None:
    pair = static_pair(group)
    group.join(pair.leader, instance=LEADER)
    described = group.describe()
    assert (described.state, described.protocol_type) == ("PreparingRebalance", "consumer")
    assert {(one.id, one.metadata, one.assignment) for one in described.members} == {
        (pair.leader, b"", LEADER.encode()),
        (pair.follower, b"", FOLLOWER.encode()),
    }


@kafka("GroupCoordinatorTest.testDescribeGroupRebalancing")
def test_new_group_without_assignments_is_described_without_metadata(group: Group) -> None:
    member = group.entered().member
    described = group.describe()
    assert (described.state, described.protocol_type) == ("CompletingRebalance", "consumer")
    assert [(one.id, one.metadata, one.assignment) for one in described.members] == [(member, b"", b"")]


@kafka("GroupCoordinatorTest.testDescribeGroupStableForDynamicMember")
def test_dynamic_member_is_described_without_an_instance_id(group: Group) -> None:
    (member,) = group.stable()
    described = group.describe()
    assert (described.protocol_type, described.protocol) == ("consumer", "range")
    assert [(one.id, one.instance_id) for one in described.members] == [(member, "")]


@kafka("GroupCoordinatorTest.testDescribeGroupStableForStaticMember")
def test_static_member_is_described_with_its_instance_id(group: Group) -> None:
    member = group.join(instance=LEADER).member
    group.sync(member, 1, {})
    described = group.describe()
    assert (described.protocol_type, described.protocol) == ("consumer", "range")
    assert [(one.id, one.instance_id) for one in described.members] == [(member, LEADER)]


@kafka("GroupMetadataManagerTest.testDescribeGroupsGroupIdNotFoundException")
def test_unknown_group_is_not_found(group: Group) -> None:
    assert group.read("describe") == [GROUP_ID_NOT_FOUND]


@kafka("GroupCoordinatorTest.testListGroupsIncludesStableGroups")
def test_stable_group_is_listed(group: Group) -> None:
    group.stable()
    listed = group.read_named("state")
    assert (listed["state"], listed["protocol_type"]) == (b"Stable", b"consumer")


@kafka("GroupCoordinatorTest.testListGroupsIncludesRebalancingGroups")
def test_group_that_rebalances_is_listed(group: Group) -> None:
    group.entered()
    listed = group.read_named("state")
    assert (listed["state"], listed["protocol_type"]) == (b"CompletingRebalance", b"consumer")
