"""OffsetDelete, DeleteGroups and the end of unused groups and offsets."""

from __future__ import annotations

import pytest

from tests.lua.group import (
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    NON_EMPTY_GROUP,
    NONE,
    RETENTION_S,
    Group,
)
from tests.lua.kafka.scenes import Options, completing
from tests.support.ported import kafka

FOO_AND_BAR = {"foo:0": "37 -1 aa ", "bar:0": "37 -1 bb "}
OTHER_TYPE = "My Protocol"


def subscription(*topics: str) -> tuple[tuple[str, bytes]]:
    """The range protocol with a ConsumerProtocolSubscription of version 0."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return (("range", b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"),)


def subscribed(group: Group, *topics: str) -> str:
    """The only member of a Stable group, which subscribes to topics and has committed."""
    (member,) = group.stable(protocols=subscription(*topics))
    assert group.commit(FOO_AND_BAR, member, 1) == NONE
    return member


# ------------------------------------------------------------------ offsets


@kafka("GroupCoordinatorTest.testDeleteOffsetOfNonExistingGroup")
def test_offsets_of_an_unknown_group_cannot_be_deleted(group: Group) -> None:
    assert group.delete_offsets("foo:0") == (GROUP_ID_NOT_FOUND, [])


@kafka("GroupCoordinatorTest.testDeleteOffsetOfDeadConsumerGroup")
def test_offsets_of_an_expired_group_cannot_be_deleted(group: Group) -> None:
    group.commit(FOO_AND_BAR)
    group.pass_time(RETENTION_S)
    assert group.delete_offsets("foo:0") == (GROUP_ID_NOT_FOUND, [])


@kafka("GroupCoordinatorTest.testDeleteOffsetOfNonEmptyNonConsumerGroup")
@kafka("ClassicGroupTest.testSubscribedTopicsNonConsumerGroup")
def test_offsets_of_other_protocol_types_cannot_be_deleted(group: Group) -> None:
    group.entered(protocol_type=OTHER_TYPE)
    assert group.delete_offsets("foo:0") == (NON_EMPTY_GROUP, [])


@kafka("GroupCoordinatorTest.testDeleteOffsetOfEmptyNonConsumerGroup")
def test_offsets_of_other_protocol_types_are_deleted_after_members_left(group: Group) -> None:
    (member,) = group.stable(protocol_type=OTHER_TYPE)
    group.commit(FOO_AND_BAR, member, 1)
    group.leave((member, ""))
    assert group.delete_offsets("foo:0") == (NONE, [NONE])
    assert group.fetch("foo:0", "bar:0") == {"foo:0": "", "bar:0": FOO_AND_BAR["bar:0"]}


@kafka("GroupCoordinatorTest.testDeleteOffsetOfConsumerGroupWithUnparsableProtocol")
def test_offsets_stay_if_a_subscription_cannot_be_read(group: Group) -> None:
    (member,) = group.stable(protocols=(("range", b""),))
    group.commit(FOO_AND_BAR, member, 1)
    assert group.delete_offsets("foo:0") == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC])
    assert group.fetch() == FOO_AND_BAR


@kafka("GroupCoordinatorTest.testDeleteOffsetOfEmptyConsumerGroup")
def test_offsets_of_consumers_are_deleted_after_they_left(group: Group) -> None:
    group.leave((subscribed(group, "foo"), ""))
    assert group.state == "Empty"
    assert group.delete_offsets("foo:0") == (NONE, [NONE])
    assert group.fetch("foo:0", "bar:0") == {"foo:0": "", "bar:0": FOO_AND_BAR["bar:0"]}


@kafka("GroupCoordinatorTest.testDeleteOffsetOfStableConsumerGroup")
def test_offsets_of_unsubscribed_topics_are_deleted(group: Group) -> None:
    subscribed(group, "bar")
    assert group.delete_offsets("foo:0", "bar:0") == (NONE, [NONE, GROUP_SUBSCRIBED_TO_TOPIC])
    assert group.fetch("foo:0", "bar:0") == {"foo:0": "", "bar:0": FOO_AND_BAR["bar:0"]}


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetDelete")
def test_committed_offset_is_deleted(group: Group) -> None:
    group.commit(FOO_AND_BAR)
    assert group.delete_offsets("bar:0") == (NONE, [NONE])
    assert "bar:0" not in group.fetch()


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetDeleteWithErrors")
def test_offset_that_was_never_committed_is_deleted_without_an_error(group: Group) -> None:
    subscribed(group, "bar")
    assert group.delete_offsets("bar1:0", "bar:0") == (NONE, [NONE, GROUP_SUBSCRIBED_TO_TOPIC])


@kafka("ClassicGroupTest.testSubscribedTopics")
def test_only_present_members_count_as_subscribed(group: Group) -> None:
    member = subscribed(group, "foo")
    assert group.delete_offsets("foo:0") == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC])
    group.leave((member, ""))
    assert group.delete_offsets("foo:0") == (NONE, [NONE])
    group.stable(protocols=(("range", b""),))
    assert group.delete_offsets("foo:0") == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC])


@pytest.mark.parametrize("state", ["Stable", "CompletingRebalance", "PreparingRebalance"])
@kafka("ClassicGroupTest.testIsSubscribedToTopic")
def test_members_are_subscribed_in_every_state(group: Group, state: str) -> None:
    group.commit(FOO_AND_BAR)
    if state == "Stable":
        group.stable(protocols=subscription("foo"))
    else:
        group.entered(subscription("foo"))
    if state == "PreparingRebalance":
        group.entered(subscription("foo"))
    assert group.state == state
    assert group.delete_offsets("foo:0", "bar:0") == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC, NONE])


@kafka("ClassicGroupTest.testComputeSubscribedTopicsHandlesMalformedMemberMetadata")
def test_subscription_with_a_negative_count_cannot_be_read(group: Group) -> None:
    group.commit(FOO_AND_BAR)
    group.stable(protocols=(("range", b"\0\1\xff\xff\xff\xff"),))
    assert group.delete_offsets("foo:0") == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC])


@pytest.mark.parametrize(("protocol_type", "code"), [("consumer", NONE), (OTHER_TYPE, NON_EMPTY_GROUP)])
@kafka("ClassicGroupTest.testValidateOffsetDelete")
def test_offsets_of_consumers_may_be_deleted_in_every_state(group: Group, protocol_type: str, code: int) -> None:
    options: Options = {"protocol_type": protocol_type, "protocols": subscription("foo")}
    first = group.entered(**options)
    assert (group.state, group.delete_offsets("x:0")[0]) == ("CompletingRebalance", code)
    group.assign(first)
    assert (group.state, group.delete_offsets("x:0")[0]) == ("Stable", code)
    second = group.entered(**options)
    assert (group.state, group.delete_offsets("x:0")[0]) == ("PreparingRebalance", code)
    group.leave((first.member, ""), (second.member, ""))
    assert (group.state, group.delete_offsets("x:0")[0]) == ("Empty", NONE)
    group.delete()
    assert group.delete_offsets("x:0")[0] == GROUP_ID_NOT_FOUND


# ------------------------------------------------------------------ groups


@kafka("GroupCoordinatorTest.testDeleteNonEmptyGroup")
def test_group_with_a_member_is_not_deleted(group: Group) -> None:
    group.entered()
    assert group.delete() == NON_EMPTY_GROUP


@kafka("GroupMetadataManagerTest.testClassicGroupDelete")
def test_group_is_deleted_with_all_its_keys(group: Group) -> None:
    group.known()
    assert group.delete() == NONE
    assert group.exists() == []


@kafka("GroupCoordinatorTest.testDeleteEmptyGroup")
def test_group_is_deleted_after_its_members_left(group: Group) -> None:
    group.leave((group.entered().member, ""))
    assert group.delete() == NONE


@kafka("GroupCoordinatorTest.testDeleteEmptyGroupWithStoredOffsets")
@kafka("OffsetMetadataManagerTest.testDeleteGroupAllOffsets")
def test_group_is_deleted_with_its_offsets(group: Group) -> None:
    (member,) = group.stable()
    assert group.commit({"bar-0:0": "100 0 aa ", "bar-0:1": "100 0 aa ", "bar-1:0": "100 0 bb "}, member, 1) == NONE
    assert group.describe().member_ids == {member}
    group.leave((member, ""))
    assert group.delete() == NONE
    assert (group.state, group.fetch()) == ("Dead", {})


@kafka("ClassicGroupTest.testValidateDeleteGroup")
def test_only_an_empty_group_is_deleted(group: Group) -> None:
    (leader,) = completing(group)
    outcomes = [(group.state, group.delete())]
    group.assign(leader)
    outcomes.append((group.state, group.delete()))
    pending = group.entered()
    outcomes.append((group.state, group.delete()))
    group.leave((leader.member, ""), (pending.member, ""))
    outcomes += [(group.state, group.delete()), (group.state, group.delete())]
    assert outcomes == [
        ("CompletingRebalance", NON_EMPTY_GROUP),
        ("Stable", NON_EMPTY_GROUP),
        ("PreparingRebalance", NON_EMPTY_GROUP),
        ("Empty", NONE),
        ("Dead", GROUP_ID_NOT_FOUND),
    ]


# ------------------------------------------------------------------ time


@kafka("GroupMetadataManagerTest.testClassicGroupMaybeDelete")
@kafka("ClassicGroupTest.testEmptyToDeadTransition")
def test_only_an_empty_group_expires(group: Group) -> None:
    group.known()
    group.pass_time(RETENTION_S)
    assert group.state == "Dead"
    assert group.delete_offsets() == (GROUP_ID_NOT_FOUND, [])
    assert group.exists() == []
    group.stable(session_s=1800)
    for _ in range(2):
        group.pass_time(800)
        assert group.delete_offsets()[0] == NONE
    assert group.state == "Stable"


@kafka("OffsetMetadataManagerTest.testCleanupExpiredOffsetsGroupHasNoOffsets")
@kafka("OffsetMetadataManagerTest.testCleanupExpiredOffsetsGroupDoesNotExist")
def test_clean_up_finds_no_offsets_of_an_unknown_group(group: Group) -> None:
    assert group.delete_offsets() == (GROUP_ID_NOT_FOUND, [])


@kafka("OffsetMetadataManagerTest.testCleanupExpiredOffsetsEmptyOffsetExpirationCondition")
def test_offsets_of_members_do_not_expire(group: Group) -> None:
    (member,) = group.stable(session_s=1800, protocol_type=OTHER_TYPE)
    group.commit(FOO_AND_BAR, member, 1, retention_s=600)
    for _ in range(3):
        group.pass_time(800)
        assert group.heartbeat(member, 1) == NONE
    assert group.fetch() == FOO_AND_BAR


@kafka("ClassicGroupTest.testOffsetExpirationCondition")
def test_offsets_of_a_consumer_without_a_group_expire_after_its_commit(group: Group) -> None:
    group.commit(FOO_AND_BAR)
    group.pass_time(RETENTION_S / 2)
    group.commit({"foo:0": "38 -1 aa "})
    group.pass_time(RETENTION_S - 0.001)
    assert group.fetch("foo:0") == {"foo:0": "38 -1 aa "}
    group.pass_time(0.001)
    assert group.fetch() == {}


@pytest.mark.parametrize("protocol_type", ["consumer", OTHER_TYPE])
@kafka("ClassicGroupTest.testOffsetExpirationCondition")
def test_offsets_of_members_expire_after_the_group_became_empty(group: Group, protocol_type: str) -> None:
    (member,) = group.stable(protocol_type=protocol_type, session_s=1800)
    group.commit(FOO_AND_BAR, member, 1)
    group.pass_time(800)
    group.leave((member, ""))
    group.pass_time(RETENTION_S - 0.001)
    assert group.fetch() == FOO_AND_BAR
    group.pass_time(0.001)
    assert group.fetch() == {}


@kafka("GroupCoordinatorTest.testOffsetsRetentionMsIntegerOverflow")
def test_group_keeps_offsets_for_the_longest_retention(group: Group) -> None:
    longest_s = (2**31 - 1) * 60.0
    assert group.commit(FOO_AND_BAR, retention_s=longest_s) == NONE
    assert group.field("expires_at") == str(round((group.now + longest_s) * 1000))
    group.pass_time(longest_s - 1)
    assert group.fetch() == FOO_AND_BAR
    group.pass_time(1)
    assert group.fetch() == {}
