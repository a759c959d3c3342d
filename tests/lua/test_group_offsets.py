"""korvet_group_commit, _fetch and _offset_delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.group import (
    FENCED_INSTANCE_ID,
    GROUP_ID,
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    ILLEGAL_GENERATION,
    NONE,
    REBALANCE_IN_PROGRESS,
    RETENTION_S,
    UNKNOWN_MEMBER_ID,
    Group,
    plain,
)
from tests.lua.group_scenes import completing
from tests.support.ported import kafka

AT_5 = {"t:0": "5 -1 aa text"}
AT_9 = {"t:0": "9 2 aa "}


def subscription(*topics: str) -> tuple[tuple[str, bytes]]:
    """The range protocol with a ConsumerProtocolSubscription v1."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return (("range", b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff\0\0\0\0"),)


@kafka("OffsetMetadataManagerTest.testSimpleGroupOffsetCommit")
@kafka("GroupCoordinatorTest.testCommitOffsetWithDefaultGeneration")
def test_consumer_without_a_group_protocol_commits_and_makes_the_group(group: Group) -> None:
    assert group.commit({**AT_5, "t:1": "6 0 aa "}) == NONE
    assert group.fetch("t:1", "t:0", "t:2") == {"t:1": "6 0 aa ", "t:0": "5 -1 aa text", "t:2": ""}
    described = group.describe()
    assert (described.id, described.state, described.generation, described.protocol_type) == (GROUP_ID, "Empty", 0, "")


def test_later_commit_replaces_an_earlier_one(group: Group) -> None:
    group.commit(AT_9)
    group.commit(AT_5)
    assert group.fetch() == AT_5


def test_member_commits(group: Group) -> None:
    leader, follower = group.stable(2)
    assert group.commit(AT_5, leader, 2) == NONE
    assert group.commit({"t:1": "7 -1 aa "}, follower, 2) == NONE
    assert group.fetch() == {**AT_5, "t:1": "7 -1 aa "}


def test_one_commit_takes_a_thousand_offsets(group: Group) -> None:
    (member,) = group.stable()
    offsets = {f"topic:{partition}": f"{partition} -1 aa " for partition in range(1000)}
    assert group.commit(offsets, member, 1) == NONE
    assert group.fetch() == offsets
    assert group.fetch(*offsets) == offsets


def test_call_with_more_elements_than_its_bound_changes_nothing(group: Group) -> None:
    (member,) = group.stable()
    offsets = {f"topic:{partition}": f"{partition} -1 aa " for partition in range(1001)}
    joining = [part for number in range(101) for part in (f"p{number}", "")]
    calls: list[Callable[[], object]] = [
        lambda: group.commit(offsets, member, 1),
        lambda: group.fetch(*offsets),
        lambda: group.delete_offsets(*offsets),
        lambda: group.forget(offsets),
        lambda: group.leave(*((f"m{number}", "") for number in range(201))),
        lambda: group.wait_all(*((f"m{number}", "") for number in range(201))),
        lambda: group.wait_sync_all(1, *((f"m{number}", "") for number in range(201))),
        lambda: group.sync(member, 1, {f"m{number}": b"" for number in range(10_001)}),
        lambda: group.join(member, list(zip(joining[::2], [b""] * 101, strict=True))),
    ]
    for call in calls:
        with pytest.raises(redis.ResponseError, match="at most"):
            call()
    assert (group.fetch(), group.state) == ({}, "Stable")


def test_reader_gets_many_offsets_in_steps(group: Group) -> None:
    offsets = {f"topic:{partition}": f"{partition} -1 aa " for partition in range(3000)}
    for first in range(0, 3000, 1000):
        group.commit(dict(list(offsets.items())[first : first + 1000]))
    with pytest.raises(redis.ResponseError, match="3000 committed offsets"):
        group.fetch()
    found, cursor, steps = dict[str, str](), b"0", 0
    while not steps or cursor != b"0":
        reply: Any = group.server.fcall_ro("korvet_group_offsets", 5, *group.keys, cursor)
        cursor, texts = reply[0], [plain(text) for text in reply[1]]
        found |= dict(zip(texts[::2], texts[1::2], strict=True))
        steps += 1
    assert (found, steps > 1) == (offsets, True)


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithoutMemberIdAndGeneration")
def test_commit_without_a_member_is_refused_while_members_live(group: Group) -> None:
    group.stable()
    assert group.commit(AT_5) == UNKNOWN_MEMBER_ID
    assert group.fetch() == {}


def test_commit_without_a_member_is_taken_in_an_empty_group(group: Group) -> None:
    """The generation is below 0 and the group Empty. Source: ClassicGroup.validateOffsetCommit"""
    (member,) = group.stable()
    group.leave((member, ""))
    assert group.commit(AT_5, member, -1) == NONE
    assert group.commit(AT_9) == NONE


def test_commit_by_an_unknown_member_is_refused(group: Group) -> None:
    (member,) = group.stable()
    assert group.commit(AT_5, "nobody", 1) == UNKNOWN_MEMBER_ID
    assert group.commit(AT_5, "nobody", -1) == UNKNOWN_MEMBER_ID
    group.leave((member, ""))
    assert group.commit(AT_5, member, 2) == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("generation", [-1, 0, 2])
@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithIllegalGeneration")
def test_commit_of_another_generation_is_refused(group: Group, generation: int) -> None:
    (member,) = group.stable()
    assert group.commit(AT_5, member, generation) == ILLEGAL_GENERATION


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithFencedInstanceId")
def test_commit_of_a_fenced_instance_is_refused(group: Group) -> None:
    member = group.join(instance="i").member
    group.sync(member, 1, {}, instance="i")
    assert group.commit(AT_5, "old", 1, instance="i") == FENCED_INSTANCE_ID
    assert group.commit(AT_5, member, 1, instance="j") == UNKNOWN_MEMBER_ID
    assert group.commit(AT_5, member, 1, instance="i") == NONE


def test_commit_is_taken_while_the_group_rebalances(group: Group) -> None:
    """A member may commit its reads before it gives up its partitions."""
    leader, follower = group.stable(2)
    group.join(leader)
    assert group.commit(AT_5, follower, 2) == NONE


def test_commit_holds_the_session(group: Group) -> None:
    (member,) = group.stable(session_s=10)
    for _ in range(6):
        group.pass_time(4)
        assert group.commit(AT_5, member, 1) == NONE


def test_commit_expires_members_that_are_due(group: Group) -> None:
    """A member expired. Another member's commit counts, because the group only rebalances."""
    alive, dead = group.stable(2, session_s=10)
    for _ in range(2):
        group.pass_time(5)
        assert group.commit(AT_5, alive, 2) == NONE
    assert group.state == "PreparingRebalance"
    assert group.commit(AT_9, dead, 2) == UNKNOWN_MEMBER_ID
    assert group.fetch() == AT_5


def test_offsets_stay_when_members_leave_expire_and_rejoin(group: Group) -> None:
    (member,) = group.stable()
    group.commit(AT_5, member, 1)
    group.leave((member, ""))
    assert group.fetch() == AT_5
    group.stable()
    group.pass_time(11)
    assert group.state == "Empty"
    assert group.fetch() == AT_5


@kafka("OffsetMetadataManagerTest.testFetchAllOffsetsWithUnknownGroup")
@kafka("GroupCoordinatorTest.testFetchOffsetForUnknownPartition")
@kafka("OffsetMetadataManagerTest.testFetchOffsetsWithUnknownGroup")
def test_unknown_group_has_no_offsets(group: Group) -> None:
    assert group.fetch("t:0") == {"t:0": ""}
    assert group.fetch() == {}


def test_each_commit_prolongs_the_life_of_an_empty_group(group: Group) -> None:
    group.commit(AT_5)
    group.pass_time(RETENTION_S - 1)
    group.commit({"t:1": "1 -1 aa "})
    group.pass_time(RETENTION_S - 1)
    assert group.fetch() == {**AT_5, "t:1": "1 -1 aa "}


def test_commit_prolongs_the_life_of_an_empty_group_now_and_then(group: Group) -> None:
    """A thousandth of the retention is exact enough, so most commits write only their offsets."""
    group.commit(AT_5)
    first = group.field("expires_at")
    group.pass_time(RETENTION_S / 1000)
    group.commit(AT_9)
    assert group.field("expires_at") == first
    group.pass_time(0.001)
    group.commit(AT_5)
    assert group.field("expires_at") == str(round((group.now + RETENTION_S) * 1000))


def test_commit_without_a_member_expires_members_that_are_due(group: Group) -> None:
    """The group has offsets and only an id that has yet to join."""
    group.commit(AT_5)
    pending = group.known(session_s=10)
    group.pass_time(10)
    assert group.commit(AT_9) == NONE
    assert group.join(pending).code == UNKNOWN_MEMBER_ID


def test_group_with_members_never_expires(group: Group) -> None:
    (member,) = group.stable(session_s=1800)
    group.commit(AT_5, member, 1)
    for _ in range(3):
        group.outage(RETENTION_S)
        assert group.heartbeat(member, 1) == NONE
    assert group.fetch() == AT_5


def test_expired_group_begins_anew_without_its_offsets(group: Group) -> None:
    group.commit(AT_5)
    group.pass_time(RETENTION_S)
    group.id = "cgp_new"
    assert group.commit({"t:1": "1 -1 aa "}) == NONE
    assert group.fetch() == {"t:1": "1 -1 aa "}
    assert group.describe().id == "cgp_new"


def test_only_the_keys_of_an_empty_group_expire(group: Group, server: redis.Redis) -> None:
    client: Any = server

    def expiries() -> set[int]:
        return {client.pexpiretime(key) for key in group.keys if client.exists(key)}

    backstop = round((group.now + RETENTION_S + 86_400) * 1000)
    group.commit(AT_5)
    assert expiries() == {backstop}
    group.join(instance="i")
    assert len(group.exists()) == 5
    assert expiries() == {-1}
    group.leave(("", "i"))
    assert expiries() == {backstop}


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetDelete")
@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetDeleteWithErrors")
def test_administrator_deletes_offsets_of_an_empty_group(group: Group) -> None:
    group.commit({**AT_5, "t:1": "6 -1 aa ", "u:0": "7 -1 bb "})
    assert group.delete_offsets("t:0", "t:9", "u:0") == (NONE, [NONE, NONE, NONE])
    assert group.fetch() == {"t:1": "6 -1 aa "}


def test_offsets_of_a_subscribed_topic_cannot_be_deleted(group: Group) -> None:
    first, second = group.gathered(subscription("t"), subscription("u", "v.w"))
    group.assign(first)
    assert group.delete_offsets("t:0", "v.w:1", "x:0") == (
        NONE,
        [GROUP_SUBSCRIBED_TO_TOPIC, GROUP_SUBSCRIBED_TO_TOPIC, NONE],
    )
    group.leave((second.member, ""))
    group.assign(group.join(first.member, subscription("t")))
    assert group.delete_offsets("v.w:1") == (NONE, [NONE])


@pytest.mark.parametrize(
    "metadata", [b"", b"\0\1", b"\0\1\0\0\0\5\0\1t", b"\0\1\0\0\0\1\0\7t", b"\0\1\0\0\0\1\xff\xfft"]
)
@kafka("GroupCoordinatorTest.testDeleteOffsetOfConsumerGroupWithUnparsableProtocol")
def test_every_topic_counts_as_subscribed_if_a_subscription_is_unknown(group: Group, metadata: bytes) -> None:
    """ClassicGroup.isSubscribedToTopic of a consumer group whose subscription cannot be read."""
    (leader,) = group.gathered((("range", metadata),))
    group.assign(leader)
    assert group.delete_offsets("t:0") == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC])


def test_offset_of_a_deleted_topic_is_forgotten(group: Group) -> None:
    """An offset of a new topic of that name stays. Source: OffsetMetadataManagerTest.testOnPartitionsDeleted"""
    group.commit({"t:0": "5 -1 aa ", "t:1": "5 -1 bb some aa words", "u:0": "5 -1 aa "})
    assert group.forget({"t:0": "aa", "t:1": "aa", "u:7": "aa"}) == 1
    assert group.fetch() == {"t:1": "5 -1 bb some aa words", "u:0": "5 -1 aa "}
    assert group.forget({}) == 0


BAR = {"bar:0": "100 -1 aa "}
FOO = {"foo:0": "100 1 aa metadata", "foo:1": "110 1 aa metadata"}


@pytest.mark.parametrize("version", range(2, 10))
@kafka("OffsetMetadataManagerTest.testOffsetCommitWithUnknownGroup")
@kafka("GroupCoordinatorTest.testCommitOffsetFromUnknownGroup")
def test_commit_of_a_generation_of_an_unknown_group_is_refused(group: Group, version: int) -> None:
    expected = GROUP_ID_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION
    assert group.commit(BAR, "member", 10, version=version) == expected
    assert group.exists() == []


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithUnknownMemberId")
def test_commit_by_a_member_of_an_empty_group_is_refused(group: Group) -> None:
    group.known()
    assert group.commit(BAR, "member", 10) == UNKNOWN_MEMBER_ID


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitWithUnknownInstanceId")
def test_commit_by_a_dynamic_member_as_an_instance_is_refused(group: Group) -> None:
    (member,) = group.stable()
    assert group.commit(BAR, member, 10, instance="instance-id") == UNKNOWN_MEMBER_ID


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


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetCommitMaintainsSession")
def test_commit_prolongs_a_session_once(group: Group) -> None:
    (member,) = group.stable(session_s=6)
    group.pass_time(3)
    assert group.commit(BAR, member, 1) == NONE
    group.pass_time(3)
    assert group.describe().member_ids == {member}
    group.pass_time(3)
    assert group.describe().members == ()


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


@kafka("OffsetMetadataManagerTest.testGenericGroupFetchOffsetsWithDeadGroup")
@kafka("OffsetMetadataManagerTest.testGenericGroupFetchAllOffsetsWithDeadGroup")
def test_partitions_of_an_expired_group_have_no_offsets(group: Group) -> None:
    group.commit({**BAR, **FOO})
    group.pass_time(RETENTION_S)
    assert group.state == "Dead"
    assert group.fetch("foo:0", "bar:0") == {"foo:0": "", "bar:0": ""}
    assert group.fetch() == {}


@kafka("GroupCoordinatorTest.testFetchAllOffsets")
def test_fetch_returns_all_offsets_of_a_group(group: Group) -> None:
    assert group.fetch() == {}
    assert group.commit({**BAR, **FOO}) == NONE
    assert group.fetch() == {**BAR, **FOO}
