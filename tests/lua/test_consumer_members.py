"""Members of a group of the consumer protocol: they join, stay, leave and expire."""

from __future__ import annotations

from hashlib import sha1

import pytest

from tests.lua.consumer import (
    BAR,
    FENCED_MEMBER_EPOCH,
    FOO,
    INVALID_REQUEST,
    UNRELEASED_INSTANCE_ID,
    Beat,
    ConsumerGroup,
    of,
)
from tests.lua.consumer_scenes import STABLE, UNRELEASED, UNREVOKED, aim, settle, shape, told
from tests.lua.group import (
    FENCED_INSTANCE_ID,
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    NONE,
    UNKNOWN_MEMBER_ID,
    Group,
)
from tests.support.ported import kafka

ONE = of(foo=[0, 1, 2], bar=[0, 1])
TWO = of(foo=[3, 4, 5], bar=[2])
ALL = of(foo=range(6), bar=range(3))
GREATER = (
    "The consumer group member has a greater member epoch ({}) than the one known by the group coordinator ({}). The "
    "member must abandon all its partitions and rejoin."
)
SMALLER = GREATER.replace("greater", "smaller")
UNRELEASED_WHY = (
    "Static member {} with instance id {} cannot join the group because the instance id is owned by {} member."
)


@kafka("GroupMetadataManagerTest.testUnknownGroupId")
def test_heartbeat_to_an_unknown_group_is_refused(consumers: ConsumerGroup) -> None:
    # Kafka answers GROUP_ID_NOT_FOUND, and clients would not join again after that.
    why = "Consumer group {group} not found."
    assert consumers.consume("m", 100, "foo", "bar") == Beat(UNKNOWN_MEMBER_ID, "m", why=why)
    assert consumers.exists() == []


@kafka("GroupMetadataManagerTest.testUnknownMemberIdJoinsConsumerGroup")
def test_heartbeat_of_an_unknown_member_is_refused(consumers: ConsumerGroup) -> None:
    consumers.enter("m")
    why = "Member other is not a member of group {group}."
    assert consumers.consume("other", 1, "foo", "bar") == Beat(UNKNOWN_MEMBER_ID, "other", why=why)


@kafka("GroupMetadataManagerTest.testConsumerGroupMemberEpochValidation")
def test_member_epoch_may_be_the_previous_one_with_partitions_it_may_own(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=ONE)
    assert consumers.member("m").previous_epoch == epoch - 1
    consumers.pass_time(1)
    assert consumers.consume("m", 200) == Beat(FENCED_MEMBER_EPOCH, "m", why=GREATER.format(200, epoch))
    aim(consumers, m=ONE)
    consumers.consume("m", epoch)
    epoch += 1
    assert consumers.consume("m", epoch - 2, owned=ONE) == Beat(
        FENCED_MEMBER_EPOCH, "m", why=SMALLER.format(epoch - 2, epoch)
    )
    assert consumers.consume("m", epoch - 1).code == FENCED_MEMBER_EPOCH
    assert consumers.consume("m", epoch - 1, owned=of(foo=[1, 4])).code == FENCED_MEMBER_EPOCH
    assert consumers.consume("m", epoch - 1, owned=of(foo=[1, 2])) == told(epoch)


@kafka("GroupMetadataManagerTest.testConsumerGroupMemberEpochValidationForStaticMember")
def test_epoch_of_a_static_member_is_judged_as_of_a_dynamic_one(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, instances={"m": "i"}, m=ONE)
    assert consumers.consume("m", 200, instance="i").why == GREATER.format(200, epoch)
    aim(consumers, m=ONE)
    consumers.consume("m", epoch, instance="i")
    epoch += 1
    assert consumers.consume("m", epoch - 2, instance="i").why == SMALLER.format(epoch - 2, epoch)
    assert consumers.consume("m", epoch - 1, instance="i").code == FENCED_MEMBER_EPOCH
    assert consumers.consume("m", epoch - 1, instance="i", owned=of(foo=[1, 2])) == told(epoch)


@kafka("GroupMetadataManagerTest.testMemberCanRejoinWithEpochZeroInStableState")
def test_settled_member_that_rejoins_gets_its_whole_assignment(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=ONE)
    assert consumers.enter("m") == told(epoch, ONE)
    assert consumers.epochs == (epoch, epoch)


@kafka("GroupMetadataManagerTest.testMemberCanRejoinWithEpochZeroInUnrevokedPartitionsState")
def test_member_that_must_give_up_may_rejoin_without_partitions(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=of(foo=[0, 1, 2]))
    aim(consumers, m=of(foo=[0, 1]))
    consumers.consume("m", epoch)
    assert consumers.enter("m") == told(epoch + 1, of(foo=[0, 1]))
    assert consumers.member("m").state == STABLE


@kafka("GroupMetadataManagerTest.testMemberCanRejoinWithEpochZeroInUnreleasedPartitionsState")
def test_waiting_member_may_rejoin(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, m=of(foo=[0]), other=of(foo=[1, 2]))
    aim(consumers, m=of(foo=[0, 1, 2]))
    consumers.consume("m", epoch)
    assert consumers.enter("m") == told(epoch + 1, of(foo=[0]))
    assert consumers.member("m").state == UNRELEASED


@kafka("GroupMetadataManagerTest.testMemberJoinsEmptyConsumerGroup")
def test_first_member_gets_all_partitions(consumers: ConsumerGroup) -> None:
    consumers.targets = {"m": ALL}
    assert consumers.enter("m", assignor="range", client="app", host="/10.0.0.9") == told(1, ALL)
    assert shape(consumers, "m") == (STABLE, 1, 0, ALL, "")
    member = consumers.member("m")
    assert (member.topics, member.client_id, member.client_host) == (("bar", "foo"), "app", "/10.0.0.9")
    assert (member.rebalance_timeout_ms, member.target) == (5000, ALL)
    assert consumers.snapshot()["topics"] == f"bar {BAR} 3\nfoo {FOO} 6"
    assert consumers.epochs == (1, 1)


@kafka("GroupMetadataManagerTest.testUpdatingSubscriptionTriggersNewTargetAssignment")
def test_new_subscription_raises_the_epoch_and_asks_for_a_target(consumers: ConsumerGroup) -> None:
    consumers.targets = {"m": of(foo=range(6))}
    consumers.enter("m", "foo")
    consumers.targets = {"m": ALL}
    assert consumers.beat("m", 1, "foo", "bar") == told(2, ALL)
    assert shape(consumers, "m") == (STABLE, 2, 1, ALL, "")
    assert consumers.epochs == (2, 2)
    assert consumers.snapshot()["topics"] == f"bar {BAR} 3\nfoo {FOO} 6"


@kafka("GroupMetadataManagerTest.testRemoveTopicCleanupTopicHash")
def test_member_gives_up_a_deleted_topic(consumers: ConsumerGroup) -> None:
    consumers.targets = {"m": of(foo=range(6))}
    consumers.enter("m", "foo")
    del consumers.topics["foo"]
    consumers.catalog_version += 1
    consumers.targets = {}
    assert consumers.beat("m", 1) == told(1, "")
    assert shape(consumers, "m") == (UNREVOKED, 1, 1, "", of(foo=range(6)))
    assert consumers.epochs == (2, 2)
    assert consumers.snapshot()["topics"] == ""


@kafka("GroupMetadataManagerTest.testNewJoiningMemberTriggersNewTargetAssignment")
def test_new_member_asks_for_a_target_and_waits_for_its_partitions(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, a=ONE, b=TWO)
    targets = {
        "a": of(foo=[0, 1], bar=[0]), "b": of(foo=[2, 3], bar=[1]), "c": of(foo=[4, 5], bar=[2]),
    }  # fmt: skip
    consumers.targets = targets
    assert consumers.enter("c") == told(epoch + 1, "", "c")
    assert shape(consumers, "c") == (UNRELEASED, epoch + 1, 0, "", "")
    assert {member: of.target for member, of in consumers.members().items()} == targets
    assert consumers.epochs == (epoch + 1, epoch + 1)


@kafka("GroupMetadataManagerTest.testLeavingMemberBumpsGroupEpoch")
def test_leaving_member_raises_the_epoch_and_releases_all_partitions(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, a=ONE, b=TWO)
    assert consumers.part("b") == told(-1, member="b")
    assert consumers.epochs == (epoch + 1, epoch)
    assert set(consumers.members()) == {"a"}
    assert set(consumers.owners().values()) == {"a"}
    assert consumers.field("target:b") is None
    assert consumers.state == "Assigning"


@kafka("GroupMetadataManagerTest.testGroupEpochBumpWhenNewStaticMemberJoins")
def test_new_static_member_raises_the_epoch(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, instances={"a": "ia", "b": "ib"}, a=ONE, b=TWO)
    consumers.targets = {"a": of(foo=[0, 1], bar=[0]), "b": of(foo=[2, 3], bar=[1]), "c": of(foo=[4, 5], bar=[2])}
    assert consumers.enter("c", instance="ic") == told(epoch + 1, "", "c")
    assert consumers.member("c").instance_id == "ic"
    assert consumers.epochs == (epoch + 1, epoch + 1)


@kafka("GroupMetadataManagerTest.testStaticMemberGetsBackAssignmentUponRejoin")
def test_returning_static_member_gets_its_partitions_back(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, instances={"a": "ia", "b": "ib"}, a=ONE, b=TWO)
    assert consumers.part("b", -2, "ib") == told(-2, member="b")
    assert consumers.epochs == (epoch, epoch)
    assert set(consumers.owners().values()) == {"a", "b"}
    assert consumers.enter("c", instance="ib") == told(epoch, TWO, "c")
    assert shape(consumers, "c") == (STABLE, epoch, 0, TWO, "")
    assert consumers.member("c").target == TWO
    assert set(consumers.members()) == {"a", "c"}
    assert set(consumers.owners().values()) == {"a", "c"}
    assert (consumers.epochs, consumers.state) == ((epoch, epoch), "Stable")


@kafka("GroupMetadataManagerTest.testStaticMemberRejoinsWithSameMemberIdWhileActive")
def test_present_static_member_may_repeat_its_join(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, instances={"m": "i"}, m=ONE)
    assert consumers.enter("m", instance="i") == told(epoch, ONE)
    assert shape(consumers, "m") == (STABLE, epoch, epoch - 1, ONE, "")
    assert consumers.epochs == (epoch, epoch)


@kafka("GroupMetadataManagerTest.testNoGroupEpochBumpWhenStaticMemberTemporarilyLeaves")
def test_static_member_that_goes_away_keeps_the_group_epoch(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, instances={"a": "ia", "b": "ib"}, a=ONE, b=TWO)
    assert consumers.part("b", -2, "ib") == told(-2, member="b")
    assert shape(consumers, "b") == (STABLE, -2, epoch - 1, TWO, "")
    assert consumers.epochs == (epoch, epoch)


@kafka("GroupMetadataManagerTest.testLeavingStaticMemberBumpsGroupEpoch")
def test_static_member_that_leaves_for_good_raises_the_epoch(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, instances={"a": "ia", "b": "ib"}, a=ONE, b=TWO)
    assert consumers.part("b", -1, "ib") == told(-1, member="b")
    assert set(consumers.members()) == {"a"}
    assert consumers.epochs == (epoch + 1, epoch)
    assert consumers.enter("c", instance="ib").code == NONE


@kafka("GroupMetadataManagerTest.testStaticMemberCannotRejoinWithDifferentInstanceId")
@kafka("GroupMetadataManagerTest.testStaticMemberCannotRejoinWithReleasedInstanceId")
@kafka("GroupMetadataManagerTest.testStaticMemberCannotRejoinWithUnreleasedInstanceId")
@pytest.mark.parametrize("holder", ["nobody", "away", "there"])
def test_static_member_cannot_take_another_instance_id(consumers: ConsumerGroup, holder: str) -> None:
    consumers.enter("m", instance="i")
    if holder != "nobody":
        consumers.enter("other", instance="j")
    if holder == "away":
        consumers.part("other", -2, "j")
    why = (
        "Member m with instance id j cannot join the group because the member id is already used by a static member "
        "with instance id i."
    )
    assert consumers.enter("m", instance="j") == Beat(INVALID_REQUEST, "m", why=why)


@kafka("GroupMetadataManagerTest.testDynamicMemberCannotRejoinWithInstanceId")
@kafka("GroupMetadataManagerTest.testDynamicMemberCannotRejoinWithReleasedInstanceId")
@kafka("GroupMetadataManagerTest.testDynamicMemberCannotRejoinWithUnreleasedInstanceId")
@pytest.mark.parametrize("holder", ["nobody", "away", "there"])
def test_dynamic_member_cannot_become_static(consumers: ConsumerGroup, holder: str) -> None:
    consumers.enter("m")
    if holder != "nobody":
        consumers.enter("other", instance="j")
    if holder == "away":
        consumers.part("other", -2, "j")
    why = "Member m with instance id j cannot join the group because the member id is already used by a dynamic member."
    assert consumers.enter("m", instance="j") == Beat(INVALID_REQUEST, "m", why=why)


@kafka("GroupMetadataManagerTest.testShouldThrownUnreleasedInstanceIdExceptionWhenNewMemberJoinsWithInUseInstanceId")
def test_instance_id_that_is_in_use_is_refused(consumers: ConsumerGroup) -> None:
    consumers.enter("m", instance="i")
    why = UNRELEASED_WHY.format("other", "i", "m")
    assert consumers.enter("other", instance="i") == Beat(UNRELEASED_INSTANCE_ID, "other", why=why)
    assert set(consumers.members()) == {"m"}


@kafka("GroupMetadataManagerTest.testShouldThrownUnknownMemberIdExceptionWhenUnknownStaticMemberJoins")
def test_heartbeat_of_an_unknown_instance_is_refused(consumers: ConsumerGroup) -> None:
    consumers.enter("m", instance="i")
    why = "Instance id unknown is unknown."
    assert consumers.consume("other", 1, instance="unknown") == Beat(UNKNOWN_MEMBER_ID, "other", why=why)


@kafka("GroupMetadataManagerTest.testShouldThrowFencedInstanceIdExceptionWhenStaticMemberWithDifferentMemberIdJoins")
def test_heartbeat_with_the_instance_id_of_another_member_is_refused(consumers: ConsumerGroup) -> None:
    consumers.enter("m", instance="i")
    why = "Static member other with instance id i was fenced by member m."
    assert consumers.consume("other", 1, instance="i") == Beat(FENCED_INSTANCE_ID, "other", why=why)


@kafka("GroupMetadataManagerTest.testShouldThrowUnknownMemberIdExceptionWhenUnknownStaticMemberLeaves")
@pytest.mark.parametrize("epoch", [-1, -2])
def test_leave_of_an_unknown_instance_is_refused(consumers: ConsumerGroup, epoch: int) -> None:
    consumers.enter("m", instance="i")
    why = "Instance id unknown is unknown."
    assert consumers.part("m", epoch, "unknown") == Beat(UNKNOWN_MEMBER_ID, "m", why=why)


@kafka("GroupMetadataManagerTest.testShouldThrowFencedInstanceIdExceptionWhenStaticMemberWithDifferentMemberIdLeaves")
@pytest.mark.parametrize("epoch", [-1, -2])
def test_leave_with_the_instance_id_of_another_member_is_refused(consumers: ConsumerGroup, epoch: int) -> None:
    consumers.enter("m", instance="i")
    why = "Static member other with instance id i was fenced by member m."
    assert consumers.part("other", epoch, "i") == Beat(FENCED_INSTANCE_ID, "other", why=why)
    assert set(consumers.members()) == {"m"}


@kafka("GroupMetadataManagerTest.testClassicGroupJoinWithNonEmptyConsumerGroup")
def test_member_of_another_protocol_type_cannot_join_a_consumer_group(consumers: ConsumerGroup, group: Group) -> None:
    consumers.enter("m")
    assert group.join(protocol_type="connect").code == INCONSISTENT_GROUP_PROTOCOL
    assert set(consumers.members()) == {"m"}


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatFullResponse")
def test_full_heartbeat_gets_the_whole_assignment(consumers: ConsumerGroup) -> None:
    consumers.targets = {"m": of(foo=[0, 1])}
    assert consumers.enter("m") == told(1, of(foo=[0, 1]))
    assert consumers.consume("m", 1) == told(1)
    assert consumers.consume("m", 1, "foo", "bar", rebalance_s=5) == told(1)
    assert consumers.consume("m", 1, "foo", "bar", rebalance_s=5, owned="") == told(1, of(foo=[0, 1]))
    consumers.beat("m", 1, regex="foo.*")
    consumers.beat("m", 1)
    full = consumers.consume("m", 2, regex="foo.*", rebalance_s=5, owned="")
    assert full == told(2, of(foo=[0, 1]))


@kafka("GroupMetadataManagerTest.testReconciliationProcess")
def test_partitions_move_from_two_members_to_a_third_one(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, a=ONE, b=TWO)
    a, b, c = of(foo=[0, 1], bar=[0]), of(foo=[2, 3], bar=[2]), of(foo=[4, 5], bar=[1])
    consumers.targets = {"a": a, "b": b, "c": c}
    assert consumers.enter("c") == told(epoch + 1, "", "c")
    assert consumers.consume("a", epoch) == told(epoch, a, "a")
    assert shape(consumers, "a") == (UNREVOKED, epoch, epoch, a, of(foo=[2], bar=[1]))
    b_kept = of(foo=[3], bar=[2])
    assert consumers.consume("b", epoch) == told(epoch, b_kept, "b")
    assert shape(consumers, "b") == (UNREVOKED, epoch, epoch, b_kept, of(foo=[4, 5]))
    assert consumers.consume("c", epoch + 1) == told(epoch + 1, member="c")
    assert shape(consumers, "c") == (UNRELEASED, epoch + 1, epoch + 1, "", "")
    assert consumers.consume("a", epoch, owned=a) == told(epoch + 1, member="a")
    assert shape(consumers, "a") == (STABLE, epoch + 1, epoch, a, "")
    assert consumers.consume("b", epoch) == told(epoch, member="b")
    assert consumers.consume("c", epoch + 1) == told(epoch + 1, of(bar=[1]), "c")
    assert consumers.consume("c", epoch + 1) == told(epoch + 1, member="c")
    assert consumers.state == "Reconciling"
    assert consumers.consume("b", epoch, owned=b_kept) == told(epoch + 1, b, "b")
    assert shape(consumers, "b") == (STABLE, epoch + 1, epoch, b, "")
    assert consumers.consume("c", epoch + 1) == told(epoch + 1, c, "c")
    assert shape(consumers, "c") == (STABLE, epoch + 1, epoch + 1, c, "")
    assert consumers.state == "Stable"


@kafka("GroupMetadataManagerTest.testNewMemberIsRejectedWithMaximumMembersIsReached")
def test_full_group_takes_no_further_member(consumers: ConsumerGroup) -> None:
    consumers.max_size = 2
    consumers.enter("a")
    consumers.enter("b")
    why = "The consumer group has reached its maximum capacity of 2 members."
    assert consumers.enter("c") == Beat(GROUP_MAX_SIZE_REACHED, "c", why=why)
    assert consumers.beat("a", 1).code == NONE


@kafka("GroupMetadataManagerTest.testConsumerGroupStates")
def test_state_follows_epochs_and_members(consumers: ConsumerGroup) -> None:
    assert consumers.state == "Dead"
    consumers.consume("m", 0, "foo", rebalance_s=5, owned="")
    assert consumers.state == "Assigning"
    consumers.targets = {"m": of(foo=[1, 2, 3])}
    consumers.retarget()
    assert consumers.state == "Reconciling"
    assert consumers.consume("m", 0).assignment == of(foo=[1, 2, 3])
    assert consumers.state == "Stable"
    aim(consumers, m=of(foo=[3]))
    assert consumers.state == "Reconciling"
    consumers.consume("m", 1)
    assert consumers.state == "Reconciling"
    consumers.consume("m", 1, owned=of(foo=[3]))
    assert consumers.state == "Stable"
    consumers.part("m")
    assert consumers.state == "Empty"


@kafka("GroupMetadataManagerTest.testSessionTimeoutLifecycle")
def test_heartbeat_restarts_the_session_and_a_leave_ends_it(consumers: ConsumerGroup) -> None:
    consumers.enter("m")
    for _ in range(3):
        consumers.pass_time(44)
        assert consumers.consume("m", 1).code == NONE
        assert consumers.member("m").session_ends_in_ms == 45_000
    consumers.part("m")
    assert consumers.server.zcard(consumers.keys[2]) == 0


@kafka("GroupMetadataManagerTest.testSessionTimeoutExpiration")
def test_member_is_taken_out_when_its_session_is_over(consumers: ConsumerGroup) -> None:
    consumers.targets = {"m": ALL}
    consumers.enter("m")
    consumers.pass_time(45)
    assert consumers.state == "Empty"
    assert consumers.consume("m", 1).code == UNKNOWN_MEMBER_ID
    assert consumers.epochs == (2, 1)
    assert consumers.owners() == {}
    assert consumers.exists() == ["group"]


@kafka("GroupMetadataManagerTest.testSessionTimeoutExpirationStaticMember")
def test_static_member_that_does_not_return_is_taken_out(consumers: ConsumerGroup) -> None:
    consumers.enter("m", instance="i")
    assert consumers.part("m", -2, "i") == told(-2)
    consumers.pass_time(44)
    assert consumers.state == "Reconciling"
    consumers.pass_time(1)
    assert consumers.state == "Empty"
    assert consumers.consume("m", 1, instance="i").code == UNKNOWN_MEMBER_ID
    assert consumers.epochs == (2, 1)


def yielding(group: ConsumerGroup) -> int:
    """The epoch of member ``a``, which has 12 s to give up a partition that ``b`` waits for."""
    group.targets = {"a": of(foo=[0, 1, 2])}
    group.enter("a", "foo", rebalance_s=12)
    group.targets = {"a": of(foo=[0, 1]), "b": of(foo=[2])}
    group.enter("b", "foo", rebalance_s=90)
    assert group.consume("a", 1) == told(1, of(foo=[0, 1]), "a")
    return 1


@kafka("GroupMetadataManagerTest.testRebalanceTimeoutLifecycle")
def test_time_to_give_up_ends_when_the_member_gave_up(consumers: ConsumerGroup) -> None:
    epoch = yielding(consumers)
    assert consumers.member("a").session_ends_in_ms == 12_000
    consumers.pass_time(6)
    assert consumers.consume("a", epoch) == told(epoch, member="a")
    assert consumers.member("a").session_ends_in_ms == 6000
    assert consumers.consume("a", epoch, owned=of(foo=[0, 1])) == told(epoch + 1, member="a")
    consumers.pass_time(12)
    assert consumers.consume("a", epoch + 1).code == NONE
    assert consumers.consume("b", 2) == told(2, of(foo=[2]), "b")


@kafka("GroupMetadataManagerTest.testRebalanceTimeoutExpiration")
def test_member_that_does_not_give_up_in_time_is_taken_out(consumers: ConsumerGroup) -> None:
    epoch = yielding(consumers)
    consumers.pass_time(11)
    assert consumers.consume("a", epoch) == told(epoch, member="a")
    consumers.pass_time(1)
    assert consumers.consume("a", epoch).code == UNKNOWN_MEMBER_ID
    assert consumers.epochs == (3, 2)
    consumers.targets = {"b": of(foo=[0, 1, 2])}
    assert consumers.beat("b", 2) == told(3, of(foo=[0, 1, 2]), "b")


@kafka("GroupMetadataManagerTest.testConsumerGroupMemberJoinsWithNewRegex")
def test_member_joins_with_a_regular_expression(consumers: ConsumerGroup) -> None:
    epoch = settle(consumers, "foo", m=of(foo=range(6)))
    consumers.targets = {"m": of(foo=range(6)), "r": of(bar=range(3))}
    assert consumers.enter("r", regex="foo|bar") == told(epoch, "", "r")
    assert consumers.member("r").regex == "foo|bar"
    assert consumers.beat("r", epoch, regex="foo|bar") == told(epoch + 1, of(bar=range(3)), "r")
    assert consumers.consume("r", epoch + 1, regex="foo|bar") == told(epoch + 1, member="r")


@kafka("GroupMetadataManagerTest.testConsumerGroupMemberJoinsWithNewRegex")
def test_member_gets_named_topics_before_matching_ones(consumers: ConsumerGroup) -> None:
    consumers.targets = {"r": of(foo=range(6))}
    assert consumers.enter("r", "foo", regex="bar") == told(1, of(foo=range(6)), "r")
    assert [member["regex"] for member in consumers.snapshot()["members"]] == ["bar"]
    consumers.targets = {"r": ALL}
    assert consumers.beat("r", 1) == told(2, ALL, "r")


def test_regular_expression_counts_only_after_its_member_got_an_answer(consumers: ConsumerGroup) -> None:
    for _ in range(2):
        answer = consumers.consume("r", 0, "foo", regex="bar", rebalance_s=5, owned="")
        assert answer.status == "target"
        assert [member["regex"] for member in consumers.snapshot()["members"]] == [""]


def test_regular_expression_of_another_member_counts_at_once(consumers: ConsumerGroup) -> None:
    settle(consumers, "foo", m=of(foo=range(6)))
    consumers.enter("r", regex="bar")
    epoch = consumers.beat("r", 1, regex="bar").epoch
    consumers.targets = {"r": of(bar=[0]), "s": of(bar=[1, 2])}
    consumers.enter("s", "zar", regex="bar")
    assert [member["regex"] for member in consumers.snapshot()["members"]] == ["", "bar", "bar"]
    for member in ("r", "s"):
        assert consumers.part(member).code == NONE
    assert consumers.enter("t", regex="bar").epoch > epoch
    assert consumers.server.hget(consumers.keys[0], f"regex:{sha1(b'bar').hexdigest()}") == b"1"


@kafka("GroupMetadataManagerTest.testConsumerGroupMemberJoinsWithUpdatedRegex")
def test_other_regular_expression_raises_the_epoch(consumers: ConsumerGroup) -> None:
    assert consumers.enter("r", regex="foo") == told(1, "", "r")
    consumers.targets = {"r": of(foo=range(6))}
    assert consumers.beat("r", 1, regex="foo") == told(2, of(foo=range(6)), "r")
    consumers.targets = {"r": ALL}
    assert consumers.beat("r", 2, regex="foo|bar") == told(2, member="r")
    assert consumers.beat("r", 2, regex="foo|bar") == told(3, ALL, "r")
    assert consumers.beat("r", 3, "foo", regex="") == told(4, member="r")
    member = consumers.member("r")
    assert (member.regex, member.topics) == ("", ("foo",))


@kafka("GroupMetadataManagerTest.testConsumerGroupDynamicConfigs")
def test_session_timeout_of_the_group_counts_from_the_next_heartbeat(consumers: ConsumerGroup) -> None:
    consumers.enter("m")
    consumers.session_s = 50
    assert consumers.member("m").session_ends_in_ms == 45_000
    assert consumers.consume("m", 1).code == NONE
    assert consumers.member("m").session_ends_in_ms == 50_000


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithNonEmptyClassicGroup")
def test_heartbeat_of_a_member_epoch_to_a_classic_group_is_refused(consumers: ConsumerGroup, group: Group) -> None:
    group.stable()
    why = "Group {group} is not a consumer group."
    consumers.policy = "disabled"
    assert consumers.consume("m", 1, "foo") == Beat(GROUP_ID_NOT_FOUND, "m", why=why)
    assert consumers.part("m") == Beat(GROUP_ID_NOT_FOUND, "m", why="Group {group} is not a consumer group.")
    assert group.state == "Stable"


def test_leave_of_an_unknown_group_is_refused(consumers: ConsumerGroup) -> None:
    assert consumers.part("m") == Beat(GROUP_ID_NOT_FOUND, "m", why="Group {group} not found.")
