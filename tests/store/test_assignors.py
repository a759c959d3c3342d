"""The assignors: cases of Kafka's tests of its assignors and of its builder of targets."""

from __future__ import annotations

from itertools import permutations

import pytest

from korvet.assignors import ASSIGNORS, AssignorError, GroupSpec, changed, preferred
from tests.store.assignor_specs import assign, assigned, group, member, moves, sizes, target, topic, with_members
from tests.support.ported import kafka

SAME = group("T1=2 T2=5 T3=7", A="T1 T2 T3", B="T1 T2 T3", C="T1 T2 T3")
MIXED = group("T1=2 T2=5 T3=7", A="T1 T2 T3", B="T1 T2", C="T2 T3")


@kafka("UniformHomogeneousAssignmentBuilderTest.testOneMemberNoTopicSubscription")
@kafka("UniformHeterogeneousAssignmentBuilderTest.testTwoMembersNoTopicSubscription")
@kafka("RangeAssignorTest.testOneMemberNoTopic")
@pytest.mark.parametrize("name", ASSIGNORS)
def test_member_without_subscriptions_gets_nothing(name: str) -> None:
    assert assign(name, group("T1=3", A="")) == target(A="")
    assert assign(name, group("T1=3", A="", B="| T1:0,1,2")) == target(A="", B="")


@pytest.mark.parametrize("name", ASSIGNORS)
def test_group_without_members_has_no_targets(name: str) -> None:
    assert assign(name, group("T1=3")) == {}


@kafka("UniformHomogeneousAssignmentBuilderTest.testOneMemberSubscribedToNonexistentTopic")
@kafka("UniformHeterogeneousAssignmentBuilderTest.testTwoMembersSubscribedToNonexistentTopics")
@kafka("RangeAssignorTest.testOneMemberSubscribedToNonExistentTopic")
@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("spec", [group("T1=3", A="T2"), group("T1=3", A="T3", B="T2")])
def test_topic_without_metadata_is_an_error(name: str, spec: GroupSpec) -> None:
    with pytest.raises(AssignorError, match="which doesn't exist in the topic metadata"):
        ASSIGNORS[name].assign(spec)


@kafka("UniformHomogeneousAssignmentBuilderTest.testFirstAssignmentTwoMembersTwoTopicsNoMemberRacks")
def test_uniform_deals_two_topics_to_two_members() -> None:
    found = assign("uniform", group("T1=3 T3=2", A="T1 T3", B="T1 T3"))
    assert found == target(A="T1:0,1", B="T1:2 T3:0,1")


@kafka("UniformHomogeneousAssignmentBuilderTest.testFirstAssignmentNumMembersGreaterThanTotalNumPartitions")
def test_uniform_leaves_a_member_without_partitions_if_there_are_too_few() -> None:
    found = assign("uniform", group("T3=2", A="T3", B="T3", C="T3"))
    assert found == target(A="", B="T3:0", C="T3:1")


@kafka("UniformHomogeneousAssignmentBuilderTest.testValidityAndBalanceForLargeSampleSet")
def test_uniform_is_balanced_for_fifty_members_and_a_hundred_topics() -> None:
    topics = " ".join(f"T{number}" for number in range(1, 101))
    spec = group(
        " ".join(f"{name}=3" for name in topics.split()), **{f"member{number}": topics for number in range(49)}
    )
    assert sorted(sizes(assign("uniform", spec)).values()) == [6] * 43 + [7] * 6


@kafka("UniformHomogeneousAssignmentBuilderTest.testReassignmentForTwoMembersTwoTopicsGivenUnbalancedPrevAssignment")
def test_uniform_takes_only_partitions_above_the_quota() -> None:
    spec = group("T1=3 T2=3", A="T1 T2 | T1:0,1 T2:0,1", B="T1 T2 | T1:2 T2:2")
    assert assign("uniform", spec) == target(A="T1:0,1 T2:0", B="T1:2 T2:1,2")


@kafka("UniformHomogeneousAssignmentBuilderTest.testReassignmentWhenPartitionsAreAddedForTwoMembersTwoTopics")
def test_uniform_moves_nothing_if_partitions_are_added() -> None:
    spec = group("T1=6 T2=5", A="T1 T2 | T1:0,2 T2:0", B="T1 T2 | T1:1 T2:1,2")
    found = assign("uniform", spec)
    assert found == target(A="T1:0,2,3,4 T2:0", B="T1:1,5 T2:1,2,3,4")
    assert moves(spec, found) == 5


@kafka(
    "UniformHomogeneousAssignmentBuilderTest."
    "testReassignmentWhenOneMemberAddedAfterInitialAssignmentWithTwoMembersTwoTopics"
)
def test_uniform_takes_from_both_members_for_a_third() -> None:
    spec = group("T1=3 T2=3", A="T1 T2 | T1:0,2 T2:0", B="T1 T2 | T1:1 T2:1,2", C="T1 T2")
    assert assign("uniform", spec) == target(A="T1:0,2", B="T1:1 T2:1", C="T2:0,2")


@kafka(
    "UniformHomogeneousAssignmentBuilderTest."
    "testReassignmentWhenOneMemberRemovedAfterInitialAssignmentWithThreeMembersTwoTopics"
)
def test_uniform_moves_only_partitions_of_a_removed_member() -> None:
    spec = group("T1=3 T2=3", A="T1 T2 | T1:0 T2:0", B="T1 T2 | T1:1 T2:1")
    assert assign("uniform", spec) == target(A="T1:0,2 T2:0", B="T1:1 T2:1,2")


@kafka(
    "UniformHomogeneousAssignmentBuilderTest."
    "testReassignmentWhenOneSubscriptionRemovedAfterInitialAssignmentWithTwoMembersTwoTopics"
)
def test_uniform_takes_back_a_topic_without_subscribers() -> None:
    spec = group("T1=2 T2=2", A="T2 | T1:0 T2:0", B="T2 | T1:1 T2:1")
    assert assign("uniform", spec) == target(A="T2:0", B="T2:1")


@kafka("UniformHomogeneousAssignmentBuilderTest.testAssignmentReuse")
@kafka("UniformHeterogeneousAssignmentBuilderTest.testAssignmentReuse")
@pytest.mark.parametrize("spec", [SAME, MIXED])
@pytest.mark.parametrize("name", ASSIGNORS)
def test_right_target_changes_nothing(name: str, spec: GroupSpec) -> None:
    first = assign(name, spec)
    settled = assigned(spec, first)
    assert changed(settled, assign(name, settled)) == {}
    assert changed(spec, first) == first


@kafka("UniformHomogeneousAssignmentBuilderTest.testReassignmentStickiness")
@kafka("UniformHeterogeneousAssignmentBuilderTest.testReassignmentStickiness")
@pytest.mark.parametrize("spec", [SAME, MIXED])
@pytest.mark.parametrize("name", ASSIGNORS)
def test_order_of_members_changes_nothing(name: str, spec: GroupSpec) -> None:
    first = assign(name, spec)
    settled = assigned(spec, first)
    for members in permutations(settled.members.values()):
        assert assign(name, with_members(spec, *members)) == first


@kafka("UniformHeterogeneousAssignmentBuilderTest.testFirstAssignmentTwoMembersTwoTopics")
def test_uniform_gives_a_shared_topic_to_the_member_without_another() -> None:
    found = assign("uniform", group("T1=3 T3=6", A="T1 T3", B="T3"))
    assert found == target(A="T1:0,1,2 T3:4", B="T3:0,1,2,3,5")


@kafka("UniformHeterogeneousAssignmentBuilderTest.testFirstAssignmentNumMembersGreaterThanTotalNumPartitions")
def test_uniform_leaves_a_subscriber_of_a_small_topic_without_partitions() -> None:
    found = assign("uniform", group("T3=1 T1=2", A="T3", B="T3", C="T1"))
    assert found == target(A="T3:0", B="", C="T1:0,1")


@kafka(
    "UniformHeterogeneousAssignmentBuilderTest.testReassignmentForTwoMembersThreeTopicsGivenUnbalancedPrevAssignment"
)
def test_uniform_takes_from_the_member_with_most_partitions() -> None:
    spec = group("T1=6 T2=4 T3=4", A="T1 | T1:0,1,2", B="T1 T2 | T1:3 T2:0", C="T1 T2 T3 | T1:4,5 T2:1,2,3 T3:0,1,2,3")
    assert assign("uniform", spec) == target(A="T1:0,1,2,5", B="T1:3 T2:0,1,2,3", C="T1:4 T3:0,1,2,3")


@kafka("UniformHeterogeneousAssignmentBuilderTest.testReassignmentWhenPartitionsAreAddedForTwoMembers")
def test_uniform_gives_added_partitions_to_the_member_with_fewest() -> None:
    spec = group("T1=6 T2=5 T3=3 T4=3", A="T1 T3 | T1:0,1,2,3 T3:0,1", B="T1 T2 T3 T4 | T2:0,1,2 T4:0,1,2")
    assert assign("uniform", spec) == target(A="T1:0,1,2,3,4,5 T3:0,1,2", B="T2:0,1,2,3,4 T4:0,1,2")


@kafka(
    "UniformHeterogeneousAssignmentBuilderTest.testReassignmentWhenOneMemberAddedAndPartitionsAddedTwoMembersTwoTopics"
)
def test_uniform_gives_added_partitions_to_a_new_member() -> None:
    spec = group("T1=6 T2=7", A="T1 | T1:0,2 T2:0", B="T1 T2 | T1:1 T2:1,2", C="T1 T2")
    assert assign("uniform", spec) == target(A="T1:0,2,3,4,5", B="T1:1 T2:1,2,6", C="T2:0,3,4,5")


@kafka(
    "UniformHeterogeneousAssignmentBuilderTest."
    "testReassignmentWhenOneMemberRemovedAfterInitialAssignmentWithThreeMembersThreeTopics"
)
def test_uniform_gives_a_removed_members_partitions_to_the_only_subscriber() -> None:
    spec = group("T1=3 T2=8 T3=3", A="T1 T3 | T1:0,1,2 T3:0,1", B="T2 | T2:3,4,5,6")
    assert assign("uniform", spec) == target(A="T1:0,1,2 T3:0,1,2", B="T2:0,1,2,3,4,5,6,7")


@kafka(
    "UniformHeterogeneousAssignmentBuilderTest."
    "testReassignmentWhenOneSubscriptionRemovedAfterInitialAssignmentWithTwoMembersTwoTopics"
)
def test_uniform_levels_after_a_subscription_ended() -> None:
    spec = group("T1=3 T2=5", A="T1 | T1:0,2 T2:1,3", B="T1 T2 | T1:1 T2:0,2,4")
    assert assign("uniform", spec) == target(A="T1:0,1,2", B="T2:0,1,2,3,4")


@kafka("UniformHeterogeneousAssignmentBuilderTest.testReassignmentWhenTopicPartitionsRunOutAndMembersHaveNoPartitions")
@pytest.mark.parametrize(
    ("other", "expected"),
    [("T1 T2 T3", target(A="T1:0,1 T2:0", B="T2:1 T3:0,1")), ("T1 T2 T3 T4", target(A="T2:0 T3:0,1", B="T1:0,1 T2:1"))],
    ids=["same topics", "other topics"],
)
def test_uniform_goes_on_with_the_next_topic_if_one_runs_out(other: str, expected: dict[str, object]) -> None:
    spec = group("T1=2 T2=2 T3=2 T4=0", A="T1 T2 T3 | T1:0,1 T2:0,1 T3:0,1", B=other)
    assert assign("uniform", spec) == expected


@kafka("UniformHeterogeneousAssignmentBuilderTest.testFirstAssignmentWithTwoMembersIncludingOneWithoutSubscriptions")
def test_uniform_gives_all_partitions_to_the_only_subscriber() -> None:
    assert assign("uniform", group("T1=3", A="T1", B="")) == target(A="T1:0,1,2", B="")


@kafka("RangeAssignorTest.testFirstAssignmentTwoMembersTwoTopicsSameSubscriptions")
def test_range_gives_the_longer_ranges_to_the_first_members() -> None:
    found = assign("range", group("T1=3 T3=2", A="T1 T3", B="T1 T3"))
    assert found == target(A="T1:0,1 T3:0", B="T1:2 T3:1")


@kafka("RangeAssignorTest.testFirstAssignmentThreeMembersThreeTopicsDifferentSubscriptions")
def test_range_cuts_each_topic_among_its_subscribers() -> None:
    found = assign("range", group("T1=3 T2=3 T3=2", A="T1 T2", B="T3", C="T2 T3"))
    assert found == target(A="T1:0,1,2 T2:0,1", B="T3:0", C="T2:2 T3:1")


@kafka("RangeAssignorTest.testFirstAssignmentNumMembersGreaterThanNumPartitions")
def test_range_leaves_the_last_member_out_if_a_topic_is_too_small() -> None:
    found = assign("range", group("T1=3 T3=2", A="T1 T3", B="T1 T3", C="T1 T3"))
    assert found == target(A="T1:0 T3:0", B="T1:1 T3:1", C="T1:2")


@kafka("RangeAssignorTest.testStaticMembership")
def test_range_gives_the_same_to_an_instance_under_another_member_id() -> None:
    spec = group("T1=3")
    first = assign("range", with_members(spec, member("A", "T1", "instanceA"), member("B", "T1", "instanceB")))
    later = assign("range", with_members(spec, member("Z", "T1", "instanceA"), member("B", "T1", "instanceB")))
    assert first == target(A="T1:0,1", B="T1:2")
    assert later == target(Z="T1:0,1", B="T1:2")


@kafka("RangeAssignorTest.testMixedStaticMembership")
def test_range_places_static_members_before_the_others() -> None:
    spec = group("T1=5")
    others = member("C", "T1", "instanceC"), member("B", "T1")
    assert assign("range", with_members(spec, member("A", "T1", "instanceA"), *others)) == target(
        A="T1:0,1", C="T1:2,3", B="T1:4"
    )
    assert assign("range", with_members(spec, member("Z", "T1", "instanceA"), *others)) == target(
        Z="T1:0,1", C="T1:2,3", B="T1:4"
    )


@kafka("RangeAssignorTest.testReassignmentNumMembersGreaterThanNumPartitionsWhenOneMemberAdded")
def test_range_has_nothing_for_the_third_member_of_a_topic_of_two() -> None:
    spec = group("T1=2 T2=2", A="T1 T2 | T1:0 T2:0", B="T1 T2 | T1:1 T2:1", C="T1 T2")
    assert assign("range", spec) == target(A="T1:0 T2:0", B="T1:1 T2:1", C="")


@kafka("RangeAssignorTest.testReassignmentWhenOnePartitionAddedForTwoMembersTwoTopics")
def test_range_extends_the_last_range_by_an_added_partition() -> None:
    spec = group("T1=4 T2=4", A="T1 T2 | T1:0,1 T2:0,1", B="T1 T2 | T1:2 T2:2")
    assert assign("range", spec) == target(A="T1:0,1 T2:0,1", B="T1:2,3 T2:2,3")


@kafka("RangeAssignorTest.testReassignmentWhenOneMemberAddedAfterInitialAssignmentWithTwoMembersTwoTopics")
def test_range_cuts_the_topics_anew_for_a_third_member() -> None:
    spec = group("T1=3 T2=3", A="T1 T2 | T1:0,1 T2:0,1", B="T1 T2 | T1:2 T2:2", C="T1 T2")
    assert assign("range", spec) == target(A="T1:0 T2:0", B="T1:1 T2:1", C="T1:2 T2:2")


@kafka(
    "RangeAssignorTest.testReassignmentWhenOneMemberAddedAndOnePartitionAfterInitialAssignmentWithTwoMembersTwoTopics"
)
def test_range_gives_an_added_partition_to_an_added_member() -> None:
    spec = group("T1=4 T2=3", A="T1 T2 | T1:0,1 T2:0,1", B="T1 T2 | T1:2 T2:2", C="T1")
    assert assign("range", spec) == target(A="T1:0,1 T2:0,1", B="T1:2 T2:2", C="T1:3")


@kafka("RangeAssignorTest.testReassignmentWhenOneMemberRemovedAfterInitialAssignmentWithTwoMembersTwoTopics")
def test_range_gives_all_to_the_member_that_stays() -> None:
    spec = group("T1=3 T2=3", B="T1 T2 | T1:2 T2:2")
    assert assign("range", spec) == target(B="T1:0,1,2 T2:0,1,2")


@kafka(
    "RangeAssignorTest.testReassignmentWhenMultipleSubscriptionsRemovedAfterInitialAssignmentWithThreeMembersTwoTopics"
)
def test_range_follows_changed_subscriptions() -> None:
    spec = group("T1=3 T2=3 T3=2", A="T1 | T1:0,1,2 T2:0", B="T1 T2 T3 | T2:1", C="T2 | T2:2 T3:0,1")
    assert assign("range", spec) == target(A="T1:0,1", B="T1:2 T2:0,1 T3:0,1", C="T2:2")


@pytest.mark.parametrize("subscriptions", [("T1 T2", "T1 T2"), ("T1 T2", "T1")], ids=["same topics", "other topics"])
def test_uniform_repairs_a_target_of_another_catalog(subscriptions: tuple[str, str]) -> None:
    """A partition that two members have stays with one; a partition beyond the topic's end goes to no member."""
    first, second = subscriptions
    spec = group("T1=2 T2=1", A=f"{first} | T1:0,1,7 T2:0", B=f"{second} | T1:1,2")
    found = assign("uniform", spec)
    assert sorted(sizes(found).values()) == [1, 2]


@kafka("TargetAssignmentBuilderTest.testEmpty")
def test_group_without_members_changes_nothing() -> None:
    assert changed(group("T1=3"), {}) == {}


FOUND = "T1 T2 | T1:1,2,3 T2:1,2,3", "T1 T2 | T1:4,5,6 T2:4,5,6"


@kafka("TargetAssignmentBuilderTest.testAssignmentHasNotChanged")
def test_same_target_is_no_change() -> None:
    spec = group("T1=7 T2=7", A=FOUND[0], B=FOUND[1])
    assert changed(spec, target(A="T1:1,2,3 T2:1,2,3", B="T2:4,5,6 T1:4,5,6")) == {}


@kafka("TargetAssignmentBuilderTest.testAssignmentSwapped")
def test_swapped_targets_are_two_changes() -> None:
    spec = group("T1=7 T2=7", A=FOUND[0], B=FOUND[1])
    swapped = target(B="T1:1,2,3 T2:1,2,3", A="T1:4,5,6 T2:4,5,6")
    assert changed(spec, swapped) == swapped


@kafka("TargetAssignmentBuilderTest.testNewMember", "TargetAssignmentBuilderTest.testUpdateMember")
@pytest.mark.parametrize("third", ["T1 T2", "T1 T2 | T2:5,6"], ids=["new", "updated"])
def test_member_that_gets_partitions_is_a_change(third: str) -> None:
    spec = group("T1=7 T2=7", A=FOUND[0], B=FOUND[1], C=third)
    shared = target(A="T1:1,2 T2:1,2", B="T1:3,4 T2:3,4", C="T1:5,6 T2:5,6")
    assert changed(spec, shared) == shared


@kafka("TargetAssignmentBuilderTest.testPartialAssignmentUpdate")
def test_member_that_keeps_its_partitions_is_no_change() -> None:
    spec = group("T1=7 T2=7", A="T1 T2 | T1:1,2 T2:1,2", B="T1 T2 | T1:3,4 T2:3,4", C="T2 | T1:5,6 T2:5,6")
    found = target(A="T1:1,2 T2:1,2", B="T1:3,4,5 T2:3,4,5", C="T1:6 T2:6")
    assert changed(spec, found) == target(B="T1:3,4,5 T2:3,4,5", C="T1:6 T2:6")


@kafka("TargetAssignmentBuilderTest.testDeleteMember")
def test_removed_members_partitions_change_the_other_members() -> None:
    spec = group("T1=7 T2=7", A="T1 T2 | T1:1,2 T2:1,2", B="T1 T2 | T1:3,4 T2:3,4")
    found = target(A="T1:1,2,3 T2:1,2,3", B="T1:4,5,6 T2:4,5,6")
    assert changed(spec, found) == found


def test_member_that_loses_everything_is_a_change() -> None:
    assert changed(group("T1=1", A="T1 | T1:0"), target(A="")) == {"A": {}}


@kafka("ConsumerGroupTest.testPreferredServerAssignor")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), "uniform"),
        ((None, None, "range"), "range"),
        (("range", "range", "uniform"), "range"),
        (("range", "uniform"), "uniform"),
        ((None, "uniform", "uniform", "range"), "uniform"),
    ],
)
def test_group_uses_the_assignor_that_most_members_ask_for(names: tuple[str | None, ...], expected: str) -> None:
    assert preferred(names) == expected


def test_error_names_the_topic_whose_metadata_is_missing() -> None:
    with pytest.raises(AssignorError, match=str(topic(2))):
        ASSIGNORS["uniform"].assign(group("T1=3", A="T1", B="T2"))
