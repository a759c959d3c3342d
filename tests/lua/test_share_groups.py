"""Share groups at the library: korvet_group_share_heartbeat, and the answers of a share group to other protocols."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.consumer import FENCED_MEMBER_EPOCH, FOO, Beat, ConsumerGroup, of
from tests.lua.group import (
    GROUP_ID,
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    LATE,
    NON_EMPTY_GROUP,
    NONE,
    RETENTION_S,
    UNINDEXED,
    UNKNOWN_MEMBER_ID,
    Group,
    plain,
)
from tests.lua.sharing import ShareGroup
from tests.support.ported import kafka

ALL = of(foo=range(6), bar=range(3))
HALF = of(foo=range(3))


@pytest.fixture
def sharing(server: redis.Redis, set_clock: Callable[[float], None]) -> ShareGroup:
    """A share group that does not exist yet; time stands still."""
    return ShareGroup(server, set_clock)


@pytest.fixture
def pair(sharing: ShareGroup) -> ShareGroup:
    """Members ``a`` and ``b`` share everything, in epoch 2."""
    sharing.targets = {"a": ALL, "b": ALL}
    sharing.enter("a")
    sharing.enter("b")
    assert sharing.beat("a", 1) == Beat(NONE, "a", "ready", 2)
    return sharing


# ---------------------------------------------------------------------- members


@kafka("GroupMetadataManagerTest.testShareGroupUnknownMemberIdJoins testShareGroupMemberIdGeneration")
@kafka("ShareGroupTest.testType testProtocolType testGetOrCreateMember testAsListedGroup")
@kafka("ShareGroupMemberTest.testNewMember")
def test_first_member_makes_the_group_and_gets_its_target(sharing: ShareGroup) -> None:
    sharing.targets = {"a": ALL}
    assert sharing.enter("a") == Beat(NONE, "a", "ready", 1, ALL)
    assert (sharing.state, sharing.epochs) == ("Stable", (1, 1))
    described = {name: plain(value) for name, value in sharing.read_named("describe").items()}
    assert (described["type"], described["protocol_type"], described["unsettled"]) == ("share", "share", "")
    assert {name: plain(value) for name, value in sharing.read_named("state").items()} == {
        "state": "Stable", "generation": 1, "protocol_type": "share", "members": 1, "pending": 0, "type": "share",
    }  # fmt: skip


@kafka("GroupMetadataManagerTest.testShareGroupMemberJoinsEmptyGroupWithAssignments")
@kafka("ShareGroupHeartbeatRequestTest.testShareGroupHeartbeatWithMultipleMembers")
def test_members_share_a_partition_and_none_waits_for_another(pair: ShareGroup) -> None:
    assert pair.member("a").owned == pair.member("b").owned == ALL
    assert pair.owners() == {}
    assert pair.state == "Stable"


@kafka("ShareGroupAssignmentBuilderTest.testStableToStable testStableToStableWithNewPartitions")
def test_member_gets_a_changed_target_at_its_next_heartbeat(pair: ShareGroup) -> None:
    pair.targets = {"a": HALF, "b": ALL, "c": ALL}
    assert pair.enter("c") == Beat(NONE, "c", "ready", 3, ALL)
    assert pair.beat("a", 2) == Beat(NONE, "a", "ready", 3, HALF)
    assert pair.beat("b", 2) == Beat(NONE, "b", "ready", 3)
    assert pair.state == "Stable"


@kafka("ShareGroupAssignmentBuilderTest.testStableToStableWithAssignmentTopicsNoLongerInSubscription")
@kafka("ShareGroupMemberTest.testUpdateMember")
@kafka("ShareGroupTest.testUpdateMember")
def test_topic_that_a_member_no_longer_names_leaves_its_assignment_before_the_next_target(pair: ShareGroup) -> None:
    assert pair.consume("a", 2, "bar", anyway=True) == Beat(NONE, "a", "ready", 2, of(bar=range(3)))
    assert pair.epochs == (3, 2)


def test_heartbeat_that_names_its_topics_gets_its_assignment_again(pair: ShareGroup) -> None:
    assert pair.beat("a", 2, "foo", "bar") == Beat(NONE, "a", "ready", 2, ALL)
    assert pair.epochs == (2, 2)


@kafka("GroupMetadataManagerTest.testShareGroupMemberCanRejoinWithEpochZero")
@kafka("ShareGroupHeartbeatRequestTest.testFencedMemberCanRejoinWithEpochZero")
def test_member_that_joins_again_keeps_its_place(pair: ShareGroup) -> None:
    assert pair.enter("a") == Beat(NONE, "a", "ready", 2, ALL)
    assert pair.epochs == (2, 2)


@kafka("GroupMetadataManagerTest.testShareGroupUnknownGroupId")
def test_heartbeat_without_a_group_has_its_member_join_again(sharing: ShareGroup) -> None:
    """Kafka answers GROUP_ID_NOT_FOUND, which ends clients for good."""
    assert sharing.consume("a", 5) == Beat(UNKNOWN_MEMBER_ID, "a", why="Share group {group} not found.")
    sharing.id = ""
    assert sharing.consume("a", 0, "foo") == Beat(UNINDEXED, "a")
    assert sharing.exists() == []


def test_unknown_member_is_refused(pair: ShareGroup) -> None:
    assert pair.consume("c", 2) == Beat(UNKNOWN_MEMBER_ID, "c", why="Member c is not a member of group {group}.")


def test_epoch_that_is_neither_the_members_nor_the_one_before_is_fenced(pair: ShareGroup) -> None:
    assert pair.consume("a", 3) == Beat(
        FENCED_MEMBER_EPOCH, "a", why="The share group member has a greater member epoch (3) than the one known by the "
        "group coordinator (2). The member must abandon all its partitions and rejoin.",
    )  # fmt: skip
    assert pair.beat("a", 1) == Beat(NONE, "a", "ready", 2)
    pair.enter("b", "foo")
    pair.beat("a", 2)
    assert pair.consume("a", 1) == Beat(
        FENCED_MEMBER_EPOCH, "a", why="The share group member has a smaller member epoch (1) than the one known by the "
        "group coordinator (3), and it does not match the previous member epoch (2). The member must abandon all its "
        "partitions and rejoin.",
    )  # fmt: skip


@kafka("GroupMetadataManagerTest.testShareGroupNewMemberIsRejectedWithMaximumMembersIsReached")
@kafka("ShareGroupHeartbeatRequestTest.testShareGroupMaxSizeConfigExceeded")
def test_member_beyond_the_largest_size_is_refused(pair: ShareGroup) -> None:
    pair.max_size = 2
    why = "The share group has reached its maximum capacity of 2 members."
    assert pair.consume("c", 0, "foo") == Beat(GROUP_MAX_SIZE_REACHED, "c", why=why)
    assert pair.beat("a", 2) == Beat(NONE, "a", "ready", 2)


@kafka("GroupMetadataManagerTest.testShareGroupLeavingMemberBumpsGroupEpoch")
@kafka("ShareGroupTest.testRemoveMember")
@kafka("ShareGroupHeartbeatRequestTest.testMemberLeavingAndRejoining")
def test_leave_raises_the_group_epoch(pair: ShareGroup) -> None:
    assert pair.consume("b", -1) == Beat(NONE, "b", "ready", -1)
    assert pair.epochs == (3, 2)
    assert pair.consume("b", -1).code == UNKNOWN_MEMBER_ID
    assert pair.beat("a", 2) == Beat(NONE, "a", "ready", 3)


def test_leave_of_no_share_group_is_refused(sharing: ShareGroup, group: Group) -> None:
    assert sharing.consume("a", -1) == Beat(GROUP_ID_NOT_FOUND, "a", why="Group {group} not found.")


@kafka("GroupMetadataManagerTest.testSessionTimeoutExpirationForShareMember")
@kafka("ShareGroupHeartbeatRequestTest.testMemberJoiningAndExpiring")
def test_silent_member_expires_and_an_outage_gives_its_session_back(pair: ShareGroup) -> None:
    pair.pass_time(30)
    assert pair.beat("a", 2) == Beat(NONE, "a", "ready", 2)
    pair.outage(30)
    assert set(pair.members()) == {"a", "b"}
    pair.pass_time(44)
    assert pair.beat("a", 2) == Beat(NONE, "a", "ready", 2)
    pair.pass_time(2)
    assert pair.beat("a", 2) == Beat(NONE, "a", "ready", 3)
    assert set(pair.members()) == {"a"}


def test_settled_heartbeat_reads_one_member(pair: ShareGroup) -> None:
    assert pair.is_settled("a", 2)
    assert not pair.is_settled("a", 1)
    pair.catalog_version = 2
    assert not pair.is_settled("a", 2)


def test_late_heartbeat_changes_nothing(pair: ShareGroup) -> None:
    pair.served_until = pair.now
    pair.pass_time(10)
    assert pair.consume("c", 0, "foo") == Beat(LATE, "c")
    assert pair.consume("b", -1) == Beat(LATE, "b")
    assert pair.epochs == (2, 2)


@kafka("GroupMetadataManagerTest.testShareGroupStates")
@kafka("ShareGroupTest.testGroupState testOffsetExpirationCondition")
def test_group_without_members_stays(pair: ShareGroup) -> None:
    for member in "ab":
        pair.consume(member, -1)
    assert pair.state == "Empty"
    assert pair.server.pttl(pair.keys[0]) == -1
    pair.pass_time(10 * RETENTION_S)
    assert pair.state == "Empty"
    assert pair.enter("a") == Beat(NONE, "a", "ready", 5, ALL)


@kafka("ShareGroupTest.testValidateDeleteGroup")
def test_group_is_deleted_when_it_is_empty_and_its_topics_are_detached(pair: ShareGroup) -> None:
    topics = ("foo", f"{FOO} 6")
    assert pair.server.fcall("korvet_group_attach", 6, *pair.keys, pair.attached, "", *topics)[0] == NONE
    keys = (pair.attached,)
    assert pair.call("delete", "any", *topics, keys=keys) == NON_EMPTY_GROUP
    for member in "ab":
        pair.consume(member, -1)
    code, flat = pair.read("attached", keys=keys)
    assert (code, [plain(one) for one in flat]) == (NONE, list(topics))
    assert pair.call("delete", "any", *topics, keys=keys) == NONE
    assert pair.exists() == []


# ---------------------------------------------------------------------- other protocols


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatOnShareGroup")
def test_heartbeat_of_the_consumer_protocol_is_refused(pair: ShareGroup, consumers: ConsumerGroup) -> None:
    refusal = Beat(GROUP_ID_NOT_FOUND, "a", why="Group {group} is not a consumer group.")
    assert consumers.consume("a", 0, "foo", rebalance_s=5, owned="") == refusal
    assert consumers.consume("a", 2) == refusal
    assert not consumers.is_settled("a", 2)
    assert consumers.part("a").code == GROUP_ID_NOT_FOUND
    for member in "ab":
        pair.consume(member, -1)
    assert consumers.consume("a", 0, "foo", rebalance_s=5, owned="") == refusal
    assert pair.field("type") == "share"


@kafka("GroupMetadataManagerTest.testClassicGroupJoinOnShareGroup testClassicGroupSyncOnShareGroup")
@kafka("GroupMetadataManagerTest.testClassicGroupLeaveOnShareGroup")
def test_classic_requests_are_refused(pair: ShareGroup, group: Group) -> None:
    for _ in range(2):
        assert group.join().refusal == (INCONSISTENT_GROUP_PROTOCOL, "")
        assert group.join("a").refusal == (INCONSISTENT_GROUP_PROTOCOL, "")
        assert group.wait("a").code == UNKNOWN_MEMBER_ID
        assert group.sync("a", 2).code == UNKNOWN_MEMBER_ID
        assert group.wait_sync("a", 2).code == UNKNOWN_MEMBER_ID
        assert group.heartbeat("a", 2) == UNKNOWN_MEMBER_ID
        assert group.leave(("a", "")) == [UNKNOWN_MEMBER_ID]
        for member in "ab":
            pair.consume(member, -1)
    assert pair.field("type") == "share"


@kafka("ShareGroupTest.testValidateOffsetCommit testValidateOffsetFetch testValidateOffsetDelete")
def test_share_group_takes_no_offsets(pair: ShareGroup, group: Group) -> None:
    for _ in range(2):
        assert group.commit({"foo:0": "5 -1 id "}) == GROUP_ID_NOT_FOUND
        assert group.commit({"foo:0": "5 -1 id "}, "a", 2) == GROUP_ID_NOT_FOUND
        assert group.delete_offsets("foo:0") == (GROUP_ID_NOT_FOUND, [])
        assert group.fetch("foo:0") == {"foo:0": ""}
        for member in "ab":
            pair.consume(member, -1)


@kafka("GroupMetadataManagerTest.testShareGroupHeartbeatOnConsumerGroup")
def test_share_member_cannot_join_another_kind_of_group(sharing: ShareGroup, consumers: ConsumerGroup) -> None:
    consumers.targets = {"a": ALL}
    consumers.enter("a")
    why = "Group {group} is not a share group."
    assert sharing.consume("a", 0, "foo") == Beat(GROUP_ID_NOT_FOUND, "a", why=why)
    assert sharing.consume("a", -1) == Beat(GROUP_ID_NOT_FOUND, "a", why=why)
    assert not sharing.is_settled("a", 1)
    consumers.part("a")
    assert sharing.consume("a", 0, "foo") == Beat(GROUP_ID_NOT_FOUND, "a", why=why)
    assert consumers.field("type") == "consumer"


# ---------------------------------------------------------------------- topics with share partitions


def topics(group: ShareGroup) -> tuple[int, str, str, dict[str, str]]:
    """The reply of korvet_group_share_topics."""
    code, group_id, state, cursor, flat = group.read("share_topics", 0, keys=(group.attached,))
    assert plain(cursor) == "0"
    names = [plain(one) for one in flat]
    return code, plain(group_id), plain(state), dict(zip(names[::2], names[1::2], strict=True))


def attach(group: ShareGroup, mode: str, *flat: str) -> tuple[int, str]:
    code, group_id = group.call("share_attach", group.id, group.locator, mode, *flat, keys=(group.attached,))
    return code, plain(group_id)


def test_topics_of_share_partitions_are_noted_for_members_and_for_administrators(pair: ShareGroup) -> None:
    assert attach(pair, "begin", "foo", f"{FOO} 6") == (NONE, GROUP_ID)
    assert topics(pair) == (NONE, GROUP_ID, "Stable", {"foo": f"{FOO} 6"})
    assert attach(pair, "move", "bar", "x 3") == (NON_EMPTY_GROUP, GROUP_ID)
    for member in "ab":
        pair.consume(member, -1)
    assert attach(pair, "move", "bar", "x 3") == (NONE, GROUP_ID)
    assert topics(pair) == (NONE, GROUP_ID, "Empty", {"foo": f"{FOO} 6", "bar": "x 3"})


@kafka("GroupMetadataManagerTest.testShareGroupInitializeSuccess")
def test_administrator_makes_the_group_by_moving_its_start(sharing: ShareGroup) -> None:
    assert attach(sharing, "begin", "foo", f"{FOO} 6") == (GROUP_ID_NOT_FOUND, "")
    group_id, sharing.id = sharing.id, ""
    assert attach(sharing, "move", "foo", f"{FOO} 6") == (UNINDEXED, "")
    assert topics(sharing) == (GROUP_ID_NOT_FOUND, "", "", {})
    sharing.id = group_id
    assert attach(sharing, "move", "foo", f"{FOO} 6") == (NONE, GROUP_ID)
    assert (sharing.state, sharing.field("type")) == ("Empty", "share")


def test_another_kind_of_group_has_no_share_partitions(sharing: ShareGroup, group: Group) -> None:
    assert group.commit({"foo:0": "5 -1 id "}) == NONE
    for mode in ("begin", "move"):
        assert attach(sharing, mode, "foo", f"{FOO} 6") == (GROUP_ID_NOT_FOUND, GROUP_ID)
    assert topics(sharing)[0] == GROUP_ID_NOT_FOUND
    assert not sharing.server.exists(sharing.attached)


def test_deleted_share_partitions_have_the_next_heartbeat_make_a_target(pair: ShareGroup) -> None:
    attach(pair, "begin", "foo", f"{FOO} 6")
    assert pair.server.fcall("korvet_group_detach", 6, *pair.keys, pair.attached, "foo", f"{FOO} 6") == 1
    assert topics(pair) == (NONE, GROUP_ID, "Stable", {})
    assert pair.snapshot()["topics"] == ""
    assert not pair.is_settled("a", 2)
    assert pair.beat("a", 2) == Beat(NONE, "a", "ready", 3)


def test_transaction_cannot_commit_offsets_of_a_share_group(pair: ShareGroup) -> None:
    for _ in range(2):
        reply = pair.call(
            "txn_commit", pair.id, pair.locator, "", "", -1, 1000, "7", 0, 1, "txn", "foo:0", "5 -1 id ",
            keys=(pair.attached, pair.attached.replace("attached", "pending")),
        )  # fmt: skip
        assert reply == GROUP_ID_NOT_FOUND
        for member in "ab":
            pair.consume(member, -1)


def test_damaged_share_group_has_its_members_join_again(pair: ShareGroup) -> None:
    """Somebody removed a member by hand."""
    attach(pair, "begin", "foo", f"{FOO} 6")
    pair.server.hdel(pair.keys[1], "b")
    assert pair.consume("a", 2) == Beat(UNKNOWN_MEMBER_ID, "a", why="Member a is not a member of group {group}.")
    assert pair.state == "Empty"
    assert pair.enter("a") == Beat(NONE, "a", "ready", 4, ALL)
    assert topics(pair)[3] == {"foo": f"{FOO} 6"}


def test_group_goes_on_after_the_clock_went_back(pair: ShareGroup) -> None:
    pair.pass_time(-1000)
    assert pair.beat("a", 2) == Beat(NONE, "a", "ready", 2)
    pair.pass_time(44)
    assert set(pair.members()) == {"a", "b"}
    pair.pass_time(2)
    assert set(pair.members()) == set()
    assert pair.state == "Empty"
