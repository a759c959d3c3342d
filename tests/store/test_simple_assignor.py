"""The assignor of share groups: cases of Kafka's SimpleAssignorTest, and properties of every target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.assignors import SIMPLE, Assignment, AssignorError, GroupSpec, MemberSpec, changed
from tests.store.assignor_specs import assigned, group, moves, sizes, target, topic, with_members
from tests.store.test_assignor_properties import mixed, same
from tests.support.ported import kafka


def sharers(targets: Mapping[str, Assignment]) -> Counter[tuple[int, int]]:
    """How many members have each partition."""
    return Counter((one.int, number) for held in targets.values() for one, many in held.items() for number in many)


@kafka("SimpleAssignorTest.testAssignWithEmptyMembers testAssignWithNoSubscribedTopic")
def test_group_without_members_or_subscriptions_gets_nothing() -> None:
    assert SIMPLE.assign(group("T1=3")) == {}
    assert SIMPLE.assign(group("T1=3", A="", B="")) == target(A="", B="")


@kafka("SimpleAssignorTest.testAssignWithSubscribedToNonExistentTopic")
def test_topic_without_metadata_is_an_error() -> None:
    with pytest.raises(AssignorError, match="which doesn't exist in the topic metadata"):
        SIMPLE.assign(group("T1=3", A="T2"))


@kafka("SimpleAssignorTest.testAssignWithTwoMembersAndTwoTopicsHomogeneous")
def test_members_with_the_same_topics_divide_them_together() -> None:
    found = SIMPLE.assign(group("T1=3 T3=2", A="T1 T3", B="T1 T3"))
    assert found == target(A="T1:0,2 T3:1", B="T1:1 T3:0")


@kafka("SimpleAssignorTest.testAssignWithThreeMembersThreeTopicsHeterogeneous")
def test_members_with_different_topics_divide_each_topic() -> None:
    found = SIMPLE.assign(group("T1=3 T2=3 T3=2", A="T1 T2", B="T3", C="T2 T3"))
    assert found == target(A="T1:0,1,2 T2:0,2", B="T3:0", C="T2:1 T3:1")


@kafka("SimpleAssignorTest.testAssignWithOneMemberNoAssignedTopicHeterogeneous")
def test_member_without_subscriptions_gets_nothing_beside_one_with_some() -> None:
    assert SIMPLE.assign(group("T1=3 T2=2", A="T1 T2", B="")) == target(A="T1:0,1,2 T2:0,1", B="")


def test_more_members_than_partitions_share_them() -> None:
    assert SIMPLE.assign(group("T1=2", A="T1", B="T1", C="T1")) == target(A="T1:0,1", B="T1:0", C="T1:1")


@kafka("SimpleAssignorTest.testIncrementalAssignmentIncreasingMembersHomogeneous")
@kafka("SimpleAssignorTest.testIncrementalAssignmentDecreasingMembersHomogeneous")
def test_partitions_stay_balanced_while_members_come_and_go() -> None:
    spec = group("T1=24")
    for number in (*range(60), *range(59, 0, -1)):
        one = MemberSpec(id=f"M{number}", topics=frozenset({topic(1)}))
        others = [member for member in spec.members.values() if member.id != one.id]
        spec = with_members(spec, *others, *(() if one.id in spec.members else (one,)))
        targets = SIMPLE.assign(spec)
        assert len(sharers(targets)) == 24
        assert max(sizes(targets).values()) - min(sizes(targets).values()) <= 1
        spec = assigned(spec, targets)


@kafka("SimpleAssignorTest.testAssignWithCurrentAssignmentHeterogeneous")
def test_topic_that_a_member_no_longer_wants_goes_and_the_rest_stays() -> None:
    spec = group("T1=3 T2=2", A="T1 | T1:0,1 T2:0", B="T1 T2 | T1:2 T2:1")
    assert SIMPLE.assign(spec) == target(A="T1:0,1", B="T1:2 T2:0,1")


@kafka("SimpleAssignorTest.testIncrementalAssignmentIncreasingMembersHeterogeneous")
@kafka("SimpleAssignorTest.testIncrementalAssignmentDecreasingMembersHeterogeneous")
@given(st.one_of(same, mixed))
def test_every_partition_has_a_member_and_none_has_too_many(spec: GroupSpec) -> None:
    targets = SIMPLE.assign(spec)
    assert targets.keys() == spec.members.keys()
    subscribers = Counter(one for member in spec.members.values() for one in member.topics)
    counts = sharers(targets)
    assert counts.keys() == {(one.int, number) for one in subscribers for number in range(spec.partitions[one])}
    for name, held in targets.items():
        assert held.keys() <= spec.members[name].topics
        assert all(many and list(many) == sorted(set(many)) for many in held.values())
    if len({member.topics for member in spec.members.values()}) > 1:
        assert all(
            count <= -(-subscribers[topic(one)] // spec.partitions[topic(one)]) for (one, _), count in counts.items()
        )
    elif counts:
        assert max(counts.values()) <= -(-len(spec.members) // len(counts))


@given(same)
def test_target_is_balanced_if_all_members_have_the_same_topics(spec: GroupSpec) -> None:
    settled = with_members(spec, *(MemberSpec(id=one.id, topics=one.topics) for one in spec.members.values()))
    size = sizes(SIMPLE.assign(settled)).values()
    assert max(size) - min(size) <= 1


@given(st.one_of(same, mixed))
def test_second_target_equals_the_first(spec: GroupSpec) -> None:
    settled = assigned(spec, SIMPLE.assign(spec))
    assert changed(settled, SIMPLE.assign(settled)) == {}


@given(st.one_of(same, mixed), st.randoms(use_true_random=False))
def test_order_of_members_changes_no_target(spec: GroupSpec, random: Random) -> None:
    members = list(spec.members.values())
    random.shuffle(members)
    assert SIMPLE.assign(with_members(spec, *members)) == SIMPLE.assign(spec)


@given(same)
def test_added_member_takes_no_more_than_its_share(spec: GroupSpec) -> None:
    """The members that stay give up what the new one gets, or share it."""
    settled = assigned(spec, SIMPLE.assign(spec))
    topics = next(iter(spec.members.values())).topics
    later = with_members(settled, *settled.members.values(), MemberSpec(id="zz-new", topics=topics))
    targets = SIMPLE.assign(later)
    assert moves(later, targets) <= sizes(targets)["zz-new"] + len(spec.members)
