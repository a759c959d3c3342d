"""The steps of a member of the consumer protocol towards its target."""

from __future__ import annotations

import pytest

from tests.lua.consumer import ConsumerGroup, of
from tests.lua.consumer_scenes import STABLE, UNRELEASED, UNREVOKED, aim, settle, shape, told
from tests.lua.group import NONE
from tests.support.ported import kafka

OLD = of(foo=[0, 1, 2], bar=[0, 1])


@kafka("CurrentAssignmentBuilderTest.testStableToStable")
def test_member_with_an_unchanged_target_arrives_at_its_epoch(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=OLD)
    aim(consumers, m=OLD)
    assert consumers.consume("m", epoch) == told(epoch + 1)
    assert shape(consumers, "m") == (STABLE, epoch + 1, epoch, OLD, "")


@kafka("CurrentAssignmentBuilderTest.testStableToStableWithNewPartitions")
def test_member_gets_free_partitions_at_once(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=OLD)
    more = of(foo=[0, 1, 2, 3], bar=[0, 1, 2])
    aim(consumers, m=more)
    assert consumers.consume("m", epoch) == told(epoch + 1, more)
    assert shape(consumers, "m") == (STABLE, epoch + 1, epoch, more, "")


@kafka("CurrentAssignmentBuilderTest.testStableToUnrevokedPartitions")
def test_member_gives_up_before_it_gets_anything(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=OLD)
    aim(consumers, m=of(foo=[1, 2, 3], bar=[1, 2]))
    kept, revoked = of(foo=[1, 2], bar=[1]), of(foo=[0], bar=[0])
    assert consumers.consume("m", epoch) == told(epoch, kept)
    assert shape(consumers, "m") == (UNREVOKED, epoch, epoch, kept, revoked)
    assert len(consumers.owners()) == 5


@kafka("CurrentAssignmentBuilderTest.testStableToUnreleasedPartitions")
def test_member_waits_for_partitions_that_another_one_owns(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=OLD, other=of(foo=[3], bar=[2]))
    aim(consumers, m=of(foo=[0, 1, 2, 3], bar=[0, 1, 2]))
    assert consumers.consume("m", epoch) == told(epoch + 1)
    assert shape(consumers, "m") == (UNRELEASED, epoch + 1, epoch, OLD, "")


@kafka("CurrentAssignmentBuilderTest.testStableToUnreleasedPartitionsWithOwnedPartitionsNotHavingRevokedPartitions")
def test_member_goes_on_without_the_partitions_to_give_up(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=OLD, other=of(bar=[2]))
    aim(consumers, m=of(foo=[0, 1, 2], bar=[0, 2]))
    assert consumers.consume("m", epoch, owned="") == told(epoch + 1, of(foo=[0, 1, 2], bar=[0]))
    assert shape(consumers, "m") == (UNRELEASED, epoch + 1, epoch, of(foo=[0, 1, 2], bar=[0]), "")
    assert len(consumers.owners()) == 5


def revoking(group: ConsumerGroup) -> int:
    """Member ``m`` has foo 1, 2 and bar 1, and must give up foo 0 and bar 0."""
    epoch = settle(group, m=OLD)
    aim(group, m=of(foo=[1, 2], bar=[1]))
    group.consume("m", epoch)
    return epoch


@kafka("CurrentAssignmentBuilderTest.testUnrevokedPartitionsToStable")
def test_member_that_gave_up_arrives(consumers: ConsumerGroup) -> None:
    epoch = revoking(consumers)
    kept = of(foo=[1, 2], bar=[1])
    assert consumers.consume("m", epoch, owned=kept) == told(epoch + 1)
    assert shape(consumers, "m") == (STABLE, epoch + 1, epoch, kept, "")
    assert len(consumers.owners()) == 3


@kafka("CurrentAssignmentBuilderTest.testRemainsInUnrevokedPartitions")
@pytest.mark.parametrize("owned", [None, of(foo=[0, 1, 2], bar=[1]), of(foo=[1, 2], bar=[0, 1])])
def test_member_that_has_yet_to_give_up_stays(consumers: ConsumerGroup, owned: str | None) -> None:
    epoch = revoking(consumers)
    before = shape(consumers, "m")
    aim(consumers, m=of(foo=[2], bar=[1]))
    assert consumers.consume("m", epoch, owned=owned) == told(epoch)
    assert shape(consumers, "m") == before


@kafka("CurrentAssignmentBuilderTest.testUnrevokedPartitionsToUnrevokedPartitions")
def test_member_that_gave_up_has_more_to_give_up_by_a_newer_target(consumers: ConsumerGroup) -> None:
    epoch = revoking(consumers)
    aim(consumers, m=of(foo=[2]))
    assert consumers.consume("m", epoch, owned=of(foo=[1, 2], bar=[1])) == told(epoch, of(foo=[2]))
    assert shape(consumers, "m") == (UNREVOKED, epoch, epoch, of(foo=[2]), of(foo=[1], bar=[1]))
    assert len(consumers.owners()) == 3


@kafka("CurrentAssignmentBuilderTest.testUnrevokedPartitionsToUnreleasedPartitions")
def test_member_that_gave_up_waits_for_others(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=OLD, other=of(foo=[3], bar=[2]))
    aim(consumers, m=of(foo=[1, 2, 3], bar=[1, 2]))
    kept = of(foo=[1, 2], bar=[1])
    assert consumers.consume("m", epoch) == told(epoch, kept)
    assert consumers.consume("m", epoch, owned=kept) == told(epoch + 1)
    assert shape(consumers, "m") == (UNRELEASED, epoch + 1, epoch, kept, "")


@kafka("CurrentAssignmentBuilderTest.testUnrevokedPartitionsToStableWithReturnedPartitionsPendingRevocation")
def test_member_gets_back_its_unrevoked_partitions(consumers: ConsumerGroup) -> None:
    epoch = revoking(consumers)
    back = of(foo=[0, 1, 2], bar=[1, 2])
    aim(consumers, m=back)
    assert consumers.consume("m", epoch, owned=of(foo=[1, 2], bar=[1])) == told(epoch + 2, back)
    assert shape(consumers, "m") == (STABLE, epoch + 2, epoch, back, "")
    assert len(consumers.owners()) == 5


def waiting(group: ConsumerGroup) -> int:
    """Member ``m`` waits for foo 3 and bar 2, which ``other`` owns and must give up."""
    epoch = settle(group, m=OLD, other=of(foo=[3], bar=[2]))
    aim(group, m=of(foo=[0, 1, 2, 3], bar=[0, 1, 2]))
    group.consume("m", epoch)
    return epoch + 1


@kafka("CurrentAssignmentBuilderTest.testUnreleasedPartitionsToStable")
def test_waiting_member_arrives_when_a_newer_target_wants_no_more(consumers: ConsumerGroup) -> None:
    epoch = waiting(consumers)
    aim(consumers, m=OLD)
    assert consumers.consume("m", epoch) == told(epoch + 1)
    assert shape(consumers, "m") == (STABLE, epoch + 1, epoch, OLD, "")


@kafka("CurrentAssignmentBuilderTest.testUnreleasedPartitionsToStableWithNewPartitions")
def test_waiting_member_gets_released_partitions(consumers: ConsumerGroup) -> None:
    epoch = waiting(consumers)
    consumers.consume("other", epoch - 1)
    consumers.consume("other", epoch - 1, owned="")
    everything = of(foo=[0, 1, 2, 3], bar=[0, 1, 2])
    assert consumers.consume("m", epoch) == told(epoch, everything)
    assert shape(consumers, "m") == (STABLE, epoch, epoch, everything, "")


@kafka("CurrentAssignmentBuilderTest.testUnreleasedPartitionsToUnreleasedPartitions")
def test_member_waits_on_while_nothing_is_released(consumers: ConsumerGroup) -> None:
    epoch = waiting(consumers)
    for _ in range(2):
        assert consumers.consume("m", epoch) == told(epoch)
        assert shape(consumers, "m") == (UNRELEASED, epoch, epoch, OLD, "")


@kafka("CurrentAssignmentBuilderTest.testUnreleasedPartitionsToUnrevokedPartitions")
def test_waiting_member_must_give_up_by_a_newer_target(consumers: ConsumerGroup) -> None:
    epoch = waiting(consumers)
    aim(consumers, m=of(foo=[1, 2], bar=[1]))
    kept = of(foo=[1, 2], bar=[1])
    assert consumers.consume("m", epoch) == told(epoch, kept)
    assert shape(consumers, "m") == (UNREVOKED, epoch, epoch, kept, of(foo=[0], bar=[0]))


def changed(group: ConsumerGroup, *, has_newer_target: bool) -> int:
    """Member ``m`` no longer wants foo, but its target has partitions of foo; returns its epoch."""
    epoch = settle(group, m=OLD)
    if has_newer_target:
        group.consume("other", 0, "foo", rebalance_s=5, owned="")
    snapshot = group.snapshot()
    assert group.consume("m", epoch, "bar").status == "target"
    if has_newer_target:
        assert group.assign(snapshot, {"m": OLD, "other": ""})[0] == NONE
    return epoch


@kafka("CurrentAssignmentBuilderTest.testStableToStableWithAssignmentTopicsNoLongerInSubscription")
@pytest.mark.parametrize("has_newer_target", [False, True])
def test_assignment_leaves_out_topics_that_the_member_does_not_want(
    consumers: ConsumerGroup, has_newer_target: bool
) -> None:
    epoch = changed(consumers, has_newer_target=has_newer_target)
    arrived = epoch + has_newer_target
    kept = of(bar=[0, 1])
    assert consumers.consume("m", epoch, owned=kept, anyway=True) == told(arrived, kept)
    assert shape(consumers, "m") == (STABLE, arrived, epoch, kept, "")
    assert len(consumers.owners()) == 2


@kafka("CurrentAssignmentBuilderTest.testStableToUnrevokedPartitionsWithAssignmentTopicsNoLongerInSubscription")
@pytest.mark.parametrize("has_newer_target", [False, True])
def test_member_must_give_up_topics_that_it_does_not_want(consumers: ConsumerGroup, has_newer_target: bool) -> None:
    epoch = changed(consumers, has_newer_target=has_newer_target)
    kept = of(bar=[0, 1])
    assert consumers.consume("m", epoch, owned=OLD, anyway=True) == told(epoch, kept)
    assert shape(consumers, "m") == (UNREVOKED, epoch, epoch, kept, of(foo=[0, 1, 2]))


@kafka("CurrentAssignmentBuilderTest.testRemainsInUnrevokedPartitionsWithAssignmentTopicsNoLongerInSubscription")
def test_member_gives_up_unsubscribed_topics_with_the_others(consumers: ConsumerGroup) -> None:
    epoch = revoking(consumers)
    assert consumers.consume("m", epoch, "bar").status == "target"
    assert consumers.consume("m", epoch, owned=OLD, anyway=True) == told(epoch, of(bar=[1]))
    assert shape(consumers, "m") == (UNREVOKED, epoch, epoch, of(bar=[1]), of(foo=[0, 1, 2], bar=[0]))


@kafka("CurrentAssignmentBuilderTest.testSubscribedTopicNameAndResolvedRegularExpression")
def test_member_with_a_regular_expression_keeps_its_targets_topics(consumers: ConsumerGroup) -> None:
    consumers.targets = {"m": OLD}
    consumers.enter("m", "foo", regex="bar.*")
    consumers.consume("other", 0, "foo", rebalance_s=5, owned="")
    assert consumers.consume("m", 1, owned=OLD, anyway=True) == told(1)
    assert shape(consumers, "m") == (STABLE, 1, 0, OLD, "")
