"""korvet_group_commit, _fetch and _offset_delete.

The cases of Kafka's own tests are in tests/lua/kafka.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.group import (
    FENCED_INSTANCE_ID,
    GROUP_ID,
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    ILLEGAL_GENERATION,
    NON_EMPTY_GROUP,
    NONE,
    RANGE,
    REBALANCE_IN_PROGRESS,
    RETENTION_S,
    UNKNOWN_MEMBER_ID,
    Group,
)

AT_5 = {"t:0": "5 -1 aa text"}
AT_9 = {"t:0": "9 2 aa "}


def subscription(*topics: str) -> tuple[tuple[str, bytes]]:
    """The range protocol with a ConsumerProtocolSubscription v1."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return (("range", b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff\0\0\0\0"),)


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


def test_thousands_of_offsets_in_one_commit(group: Group) -> None:
    (member,) = group.stable()
    offsets = {f"topic:{partition}": f"{partition} -1 aa " for partition in range(5000)}
    assert group.commit(offsets, member, 1) == NONE
    assert group.fetch() == offsets
    assert group.fetch(*offsets) == offsets


@pytest.mark.parametrize(("version", "code"), [(8, ILLEGAL_GENERATION), (9, GROUP_ID_NOT_FOUND)])
def test_commit_of_a_generation_of_an_unknown_group_is_refused(group: Group, version: int, code: int) -> None:
    assert group.commit(AT_5, "m", 3, version=version) == code
    assert group.exists() == []


def test_commit_without_a_member_is_refused_while_members_live(group: Group) -> None:
    group.stable()
    assert group.commit(AT_5) == UNKNOWN_MEMBER_ID
    assert group.fetch() == {}


def test_commit_without_a_member_is_fine_in_an_empty_group(group: Group) -> None:
    """ClassicGroup.validateOffsetCommit: generation below 0 and Empty, whoever says so."""
    (member,) = group.stable()
    group.leave((member, ""))
    assert group.commit(AT_5, member, -1) == NONE
    assert group.commit(AT_9) == NONE


def test_commit_by_nobody_is_refused(group: Group) -> None:
    (member,) = group.stable()
    assert group.commit(AT_5, "nobody", 1) == UNKNOWN_MEMBER_ID
    assert group.commit(AT_5, "nobody", -1) == UNKNOWN_MEMBER_ID
    group.leave((member, ""))
    assert group.commit(AT_5, member, 2) == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("generation", [-1, 0, 2])
def test_commit_of_another_generation_is_refused(group: Group, generation: int) -> None:
    (member,) = group.stable()
    assert group.commit(AT_5, member, generation) == ILLEGAL_GENERATION


def test_commit_of_a_fenced_instance_is_refused(group: Group) -> None:
    member = group.join(instance="i").member
    group.sync(member, 1, {}, instance="i")
    assert group.commit(AT_5, "old", 1, instance="i") == FENCED_INSTANCE_ID
    assert group.commit(AT_5, member, 1, instance="j") == UNKNOWN_MEMBER_ID
    assert group.commit(AT_5, member, 1, instance="i") == NONE


def test_commit_before_the_assignment_is_refused(group: Group) -> None:
    (leader,) = group.gathered(RANGE)
    assert group.commit(AT_5, leader.member, 1) == REBALANCE_IN_PROGRESS
    assert group.fetch() == {}


def test_commit_while_the_group_gathers_is_fine(group: Group) -> None:
    """What was read may be kept before the partitions go."""
    leader, follower = group.stable(2)
    group.join(leader)
    assert group.commit(AT_5, follower, 2) == NONE


def test_commit_holds_the_session(group: Group) -> None:
    (member,) = group.stable(session_s=10)
    for _ in range(6):
        group.pass_time(4)
        assert group.commit(AT_5, member, 1) == NONE


def test_commit_finds_what_became_due(group: Group) -> None:
    """A member expired: the commit of another one counts, as the group only gathers again."""
    alive, dead = group.stable(2, session_s=10)
    for _ in range(2):
        group.pass_time(5)
        assert group.commit(AT_5, alive, 2) == NONE
    assert group.state == "PreparingRebalance"
    assert group.commit(AT_9, dead, 2) == UNKNOWN_MEMBER_ID
    assert group.fetch() == AT_5


def test_offsets_stay_when_members_leave_die_and_rejoin(group: Group) -> None:
    (member,) = group.stable()
    group.commit(AT_5, member, 1)
    group.leave((member, ""))
    assert group.fetch() == AT_5
    group.stable()
    group.pass_time(11)
    assert group.state == "Empty"
    assert group.fetch() == AT_5


def test_unknown_group_has_no_offsets(group: Group) -> None:
    assert group.fetch("t:0") == {"t:0": ""}
    assert group.fetch() == {}


def test_offsets_outlive_the_members_by_the_retention(group: Group) -> None:
    (member,) = group.stable(session_s=1800)
    group.commit(AT_5, member, 1)
    group.leave((member, ""))
    group.pass_time(RETENTION_S - 0.001)
    assert group.fetch() == AT_5
    group.pass_time(0.001)
    assert group.fetch() == {}
    assert group.fetch("t:0") == {"t:0": ""}
    assert group.state == "Dead"


def test_each_commit_prolongs_the_life_of_an_empty_group(group: Group) -> None:
    group.commit(AT_5)
    group.pass_time(RETENTION_S - 1)
    group.commit({"t:1": "1 -1 aa "})
    group.pass_time(RETENTION_S - 1)
    assert group.fetch() == {**AT_5, "t:1": "1 -1 aa "}


def test_life_of_an_empty_group_is_prolonged_now_and_then(group: Group) -> None:
    """A thousandth of the retention is exact enough, and most commits write their offsets alone."""
    group.commit(AT_5)
    first = group.field("expires_at")
    group.pass_time(RETENTION_S / 1000)
    group.commit(AT_9)
    assert group.field("expires_at") == first
    group.pass_time(0.001)
    group.commit(AT_5)
    assert group.field("expires_at") == str(round((group.now + RETENTION_S) * 1000))


def test_commit_without_a_member_finds_what_became_due(group: Group) -> None:
    """Also where the group had offsets and nobody but an id that is yet to join."""
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


def test_group_that_expired_begins_anew_without_its_offsets(group: Group) -> None:
    group.commit(AT_5)
    group.pass_time(RETENTION_S)
    group.id = "cgp_new"
    assert group.commit({"t:1": "1 -1 aa "}) == NONE
    assert group.fetch() == {"t:1": "1 -1 aa "}
    assert group.describe().id == "cgp_new"


def test_keys_of_an_empty_group_have_an_expiry_and_those_of_members_none(group: Group, server: redis.Redis) -> None:
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


def test_administrator_deletes_offsets_of_an_empty_group(group: Group) -> None:
    group.commit({**AT_5, "t:1": "6 -1 aa ", "u:0": "7 -1 bb "})
    assert group.delete_offsets("t:0", "t:9", "u:0") == (NONE, [NONE, NONE, NONE])
    assert group.fetch() == {"t:1": "6 -1 aa "}


def test_offsets_of_an_unknown_group_cannot_be_deleted(group: Group) -> None:
    assert group.delete_offsets("t:0") == (GROUP_ID_NOT_FOUND, [])


def test_offsets_of_a_topic_that_members_subscribe_to_cannot_be_deleted(group: Group) -> None:
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
def test_where_the_subscription_is_not_known_every_topic_counts_as_subscribed(group: Group, metadata: bytes) -> None:
    """ClassicGroup.isSubscribedToTopic of a consumer group whose subscription cannot be read."""
    (leader,) = group.gathered((("range", metadata),))
    group.assign(leader)
    assert group.delete_offsets("t:0") == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC])


def test_offsets_of_members_of_another_protocol_type_cannot_be_deleted(group: Group) -> None:
    """ClassicGroup.validateOffsetDelete."""
    group.stable(protocol_type="connect")
    assert group.delete_offsets("t:0") == (NON_EMPTY_GROUP, [])


def test_offset_of_a_topic_that_is_gone_is_forgotten(group: Group) -> None:
    """OMMT.testOnPartitionsDeleted; not one of the topic that has its name now."""
    group.commit({"t:0": "5 -1 aa ", "t:1": "5 -1 bb some aa words", "u:0": "5 -1 aa "})
    assert group.forget({"t:0": "aa", "t:1": "aa", "u:7": "aa"}) == 1
    assert group.fetch() == {"t:1": "5 -1 bb some aa words", "u:0": "5 -1 aa "}
    assert group.forget({}) == 0
