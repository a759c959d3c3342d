"""The functions korvet_group_describe, _state and _delete; and groups on a full server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.group import (
    GROUP_ID,
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    NON_EMPTY_GROUP,
    NONE,
    RANGE,
    RETENTION_S,
    Group,
    Member,
)
from tests.lua.group_scenes import Options, completing
from tests.support.ported import kafka


def state(name: str, generation: int, *, members: int, pending: int = 0) -> list[Any]:
    """The reply of korvet_group_state for a consumer group."""
    told = {
        b"state": name.encode(), b"generation": generation, b"protocol_type": b"consumer", b"members": members,
        b"pending": pending, b"type": b"classic",
    }  # fmt: skip
    return [NONE, *(part for pair in told.items() for part in pair)]


def test_stable_group_is_described_with_metadata_and_assignments(group: Group) -> None:
    leader, follower = group.stable(2, client="app")
    described = group.describe()
    assert described[:7] == (GROUP_ID, "default/consumer-groups/g", "Stable", 2, "consumer", "range", leader)
    assert set(described.members) == {
        Member(member, "", "app", "/10.0.0.1", b"range-metadata", member.encode()) for member in (leader, follower)
    }


def test_description_of_a_rebalancing_group_has_no_metadata(group: Group) -> None:
    (member,) = group.stable()
    group.entered()
    described = group.describe()
    assert described.state == "PreparingRebalance"
    assert {one.metadata for one in described.members} == {b""}
    assert {one.id: one.assignment for one in described.members}[member] == member.encode()


def test_description_hides_assignments_of_a_broken_off_generation(group: Group) -> None:
    """GroupMetadataManager.resetAndPropagateAssignmentWithError."""
    (member,) = group.stable()
    assert group.join(member).generation == 2
    assert group.describe().members[0].assignment == member.encode()
    group.entered()
    assert {one.assignment for one in group.describe().members} == {b""}


def test_description_shows_instance_ids(group: Group) -> None:
    member = group.join(instance="i").member
    assert [(one.id, one.instance_id) for one in group.describe().members] == [(member, "i")]


@kafka("GroupMetadataManagerTest.testDescribeGroupsGroupIdNotFoundException")
def test_unknown_group_is_not_found(group: Group) -> None:
    assert group.read("describe") == [GROUP_ID_NOT_FOUND]
    assert group.read("state") == [GROUP_ID_NOT_FOUND]


def test_state_is_returned_without_members(group: Group) -> None:
    group.stable(2)
    assert group.read("state") == state("Stable", 2, members=2)


def test_description_takes_out_members_that_expired(group: Group) -> None:
    first, _ = group.stable(2, session_s=10)
    group.pass_time(4)
    group.heartbeat(first, 2)
    group.pass_time(6)
    assert group.read("state") == state("PreparingRebalance", 2, members=1)
    assert group.describe().member_ids == {first}


def test_id_that_has_yet_to_join_is_no_member(group: Group) -> None:
    group.known()
    assert (group.state, group.describe().members) == ("Empty", ())


@kafka("GroupCoordinatorTest.testDeleteEmptyGroup")
@kafka("GroupCoordinatorTest.testDeleteEmptyGroupWithStoredOffsets")
@kafka("OffsetMetadataManagerTest.testDeleteGroupAllOffsets")
def test_empty_group_is_deleted_with_its_offsets(group: Group) -> None:
    (member,) = group.stable()
    group.commit({"t:0": "5 -1 aa "}, member, 1)
    group.leave((member, ""))
    assert group.delete() == NONE
    assert group.exists() == []
    assert group.delete() == GROUP_ID_NOT_FOUND


def test_group_is_deleted_if_all_its_members_expired(group: Group) -> None:
    group.stable(2, session_s=10)
    group.pass_time(10)
    assert group.delete() == NONE


@kafka("GroupMetadataManagerTest.testClassicGroupDelete")
def test_group_with_only_a_pending_id_is_deleted(group: Group) -> None:
    """Pending members do not keep a group."""
    group.known()
    assert group.delete() == NONE
    assert group.exists() == []


def test_expired_group_is_not_found_and_its_remains_go(group: Group) -> None:
    group.commit({"t:0": "5 -1 aa "})
    group.pass_time(RETENTION_S)
    assert group.delete() == GROUP_ID_NOT_FOUND
    assert group.exists() == []


def test_full_server_still_runs_groups(group: Group, server: redis.Redis) -> None:
    """A refusal would stop readers. Then korvet would trim no read records, and free no memory."""
    (member,) = group.stable()
    client: Any = server
    client.config_set("maxmemory", 1)
    assert group.heartbeat(member, 1) == NONE
    assert group.commit({"t:0": "5 -1 aa "}, member, 1) == NONE
    assert group.fetch() == {"t:0": "5 -1 aa "}
    assert group.entered().is_parked
    assert group.join(member).is_parked is False
    assert group.leave((member, "")) == [NONE]
    assert group.read("state")[0] == NONE


def test_group_has_five_hundred_members(group: Group) -> None:
    """The members are more than a batch of arguments."""
    answers = group.gathered(*[RANGE] * 500, session_s=60)
    assert len(answers[0].members) == 500
    group.assign(answers[0])
    for answer in answers:
        assert group.sync(answer.member, 1).assignment == answer.member.encode()
    assert group.read("state") == state("Stable", 1, members=500)
    assert group.field("sync_deadline") is None


@pytest.mark.parametrize("key", range(5))
def test_key_of_the_wrong_type_is_an_error_and_changes_nothing(group: Group, server: redis.Redis, key: int) -> None:
    client: Any = server
    (member,) = group.stable()
    client.delete(group.keys[key])
    client.set(group.keys[key], "x")
    before = {name: client.dump(name) for name in group.keys}
    if key != 4:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            group.join(instance="i")
        assert {name: client.dump(name) for name in group.keys} == before
    else:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            group.commit({"t:0": "5 -1 aa "}, member, 1)


@pytest.mark.parametrize("key", range(1, 5))
def test_group_is_not_made_if_a_key_has_another_type(group: Group, server: redis.Redis, key: int) -> None:
    """The call writes nothing."""
    client: Any = server
    client.set(group.keys[key], "x")
    calls: list[Callable[[], object]] = [
        lambda: group.join(instance="i"), lambda: group.join(), lambda: group.commit({"t:0": "5 -1 aa "}),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call()
        assert client.keys("korvet:*") == [group.keys[key].encode()]


def test_group_without_its_hash_is_made_anew_with_its_offsets(group: Group, server: redis.Redis) -> None:
    """The former members are unknown to the new group, also members with instance ids."""
    assert group.commit({"t:0": "5 -1 aa "}) == NONE
    group.join(instance="i")
    group.known()
    server.delete(group.keys[0])
    joined = group.join(instance="i")
    assert (joined.generation, joined.members) == (1, ((joined.member, "i", b"range-metadata"),))
    assert group.read("state") == state("CompletingRebalance", 1, members=1)
    assert group.fetch() == {"t:0": "5 -1 aa "}
    assert group.heartbeat(joined.member, 1, "i") == NONE
    server.delete(group.keys[0])
    assert group.commit({"t:1": "6 -1 aa "}) == NONE
    assert group.exists() == ["group", "offsets"]


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
@kafka("OffsetMetadataManagerTest.testCleanupExpiredOffsetsGroupHasNoOffsets")
@kafka("OffsetMetadataManagerTest.testCleanupExpiredOffsetsGroupDoesNotExist")
def test_offsets_of_an_unknown_group_cannot_be_deleted(group: Group) -> None:
    assert group.delete_offsets("foo:0") == group.delete_offsets() == (GROUP_ID_NOT_FOUND, [])


@kafka("GroupCoordinatorTest.testDeleteOffsetOfDeadConsumerGroup")
def test_offsets_of_an_expired_group_cannot_be_deleted(group: Group) -> None:
    group.commit(FOO_AND_BAR)
    group.pass_time(RETENTION_S)
    assert group.delete_offsets("foo:0") == (GROUP_ID_NOT_FOUND, [])


@kafka("GroupCoordinatorTest.testDeleteOffsetOfEmptyNonConsumerGroup")
def test_offsets_of_other_protocol_types_are_deleted_after_members_left(group: Group) -> None:
    (member,) = group.stable(protocol_type=OTHER_TYPE)
    group.commit(FOO_AND_BAR, member, 1)
    group.leave((member, ""))
    assert group.delete_offsets("foo:0") == (NONE, [NONE])
    assert group.fetch("foo:0", "bar:0") == {"foo:0": "", "bar:0": FOO_AND_BAR["bar:0"]}


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
@kafka("GroupCoordinatorTest.testDeleteOffsetOfNonEmptyNonConsumerGroup")
@kafka("ClassicGroupTest.testSubscribedTopicsNonConsumerGroup")
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


@kafka("ClassicGroupTest.testValidateDeleteGroup")
@kafka("GroupCoordinatorTest.testDeleteNonEmptyGroup")
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
