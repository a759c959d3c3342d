"""A group of both protocols loses members, and becomes classic when it loses its last consumer member."""

from __future__ import annotations

from tests.lua.consumer import of
from tests.lua.group import FENCED_INSTANCE_ID, NONE, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID
from tests.lua.mixed import MixedGroup, assignment
from tests.lua.mixed_scenes import INSTANCE, NEW, entered, with_classic
from tests.support.ported import kafka


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
def test_leave_of_an_unknown_member_changes_nothing(mixed: MixedGroup) -> None:
    epoch = entered(mixed)
    assert mixed.leave(("unknown", "")) == [UNKNOWN_MEMBER_ID]
    assert mixed.epochs == (epoch, epoch)


def downgraded(mixed: MixedGroup, one: str, generation: int) -> None:
    """Assert that the classic member, with its former assignment, is alone in a classic group that rebalances."""
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
def test_group_becomes_classic_when_the_last_consumer_member_expires(mixed: MixedGroup) -> None:
    (one,) = with_classic(mixed, {"foo": [0, 1, 2]})
    for _ in range(5):
        mixed.pass_time(9)
        mixed.heartbeat(one, 2)
    downgraded(mixed, one, 2)


@kafka("GroupMetadataManagerTest.testLastConsumerProtocolMemberRebalanceTimeoutInConsumerGroup")
def test_group_becomes_classic_if_its_last_consumer_member_revokes_none(mixed: MixedGroup) -> None:
    mixed.targets = {NEW: of(foo=[3, 4, 5], bar=[2])}
    (one,) = with_classic(mixed, {"foo": [0, 1, 2]})
    mixed.targets = {NEW: of(foo=[3, 4, 5]), one: of(foo=[0, 1, 2], bar=[0])}
    assert mixed.beat(NEW, 2, "foo", owned=of(foo=[3, 4, 5], bar=[2])).epoch == 2
    assert mixed.member(NEW).state == "UNREVOKED_PARTITIONS"
    mixed.pass_time(5)
    downgraded(mixed, one, 3)


@kafka("GroupMetadataManagerTest.testLastConsumerProtocolMemberLeavingConsumerGroupByAdminApi")
def test_group_becomes_classic_when_an_admin_removes_the_consumer_members(mixed: MixedGroup) -> None:
    one, two = with_classic(mixed, {"foo": [0, 1, 2]}, {"bar": [0]})
    entered(mixed, "four", instance="i4")
    for member in (one, two):
        mixed.classic(member)
    assert mixed.leave((two, ""), (NEW, ""), ("", "i4")) == [NONE, NONE, NONE]
    downgraded(mixed, one, mixed.generation)


@kafka("GroupMetadataManagerTest.testNoConversionWhenSizeExceedsClassicMaxGroupSize")
def test_too_large_group_keeps_the_consumer_protocol(mixed: MixedGroup) -> None:
    one, two = with_classic(mixed, {"foo": [0]}, {"foo": [1]})
    mixed.max_size = 1
    mixed.classic(one, mixed.says(owned={"foo": [0]}))
    mixed.part(NEW)
    assert (mixed.kind, mixed.describe().member_ids) == ("consumer", {one, two})


@kafka("GroupMetadataManagerTest.testLastStaticConsumerProtocolMemberReplacedByClassicProtocolMember")
@kafka("ClassicGroupTest.testFromConsumerGroupWithJoiningMember")
def test_group_goes_on_classic_when_its_last_consumer_member_changes(mixed: MixedGroup) -> None:
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
def test_classic_group_rebalances_if_the_member_wants_other_topics(mixed: MixedGroup) -> None:
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
def test_classic_group_rebalances_if_its_target_is_stale(mixed: MixedGroup) -> None:
    _, new = replaced_static(mixed)
    assert mixed.consume(new, 2, "foo").status == "target"
    joined = mixed.classic("", mixed.says("foo"), instance=INSTANCE)
    assert joined.is_parked
    assert (mixed.kind, mixed.state) == ("classic", "PreparingRebalance")


@kafka(
    "GroupMetadataManagerTest."
    "testLastStaticConsumerProtocolMemberReplacedByClassicProtocolMemberWhenTargetAssignmentIsMissing"
)
def test_classic_group_rebalances_if_a_member_has_no_target_yet(mixed: MixedGroup) -> None:
    mixed.targets = {NEW: of(foo=[0, 1, 2, 3, 4, 5])}
    entered(mixed, instance=INSTANCE)
    assert mixed.join("one", mixed.says()).status == "target"
    joined = mixed.classic("", instance=INSTANCE)
    assert joined.is_parked
    assert (mixed.kind, mixed.state) == ("classic", "PreparingRebalance")
