"""korvet_group_consumer_heartbeat, _snapshot and _assign."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.consumer import BAR, FOO, RETRY, Beat, ConsumerGroup, of
from tests.lua.group import (
    GROUP_ID,
    GROUP_ID_NOT_FOUND,
    LATE,
    NON_EMPTY_GROUP,
    NONE,
    RETENTION_S,
    UNINDEXED,
    UNKNOWN_MEMBER_ID,
    Group,
    named,
)
from tests.support.ported import kafka

ALL = of(foo=range(6), bar=range(3))


def single(group: ConsumerGroup) -> None:
    """Member ``a`` owns everything in epoch 1."""
    group.targets = {"a": ALL}
    assert group.enter("a") == Beat(NONE, "a", "ready", 1, ALL)


def test_first_member_creates_the_group_and_gets_all_partitions(consumers: ConsumerGroup) -> None:
    single(consumers)
    assert consumers.epochs == (1, 1)
    assert consumers.state == "Stable"
    assert set(consumers.owners().values()) == {"a"}
    assert len(consumers.owners()) == 9


def test_partition_moves_when_its_owner_has_given_it_up(consumers: ConsumerGroup) -> None:
    single(consumers)
    kept, moved = of(foo=[0, 1, 2], bar=[0]), of(foo=[3, 4, 5], bar=[1, 2])
    consumers.targets = {"a": kept, "b": moved}
    assert consumers.enter("b") == Beat(NONE, "b", "ready", 2, "")
    assert consumers.beat("a", 1, owned=ALL) == Beat(NONE, "a", "ready", 1, kept)
    assert consumers.beat("b", 2) == Beat(NONE, "b", "ready", 2)
    assert set(consumers.owners().values()) == {"a"}
    assert consumers.beat("a", 1, owned=kept) == Beat(NONE, "a", "ready", 2)
    assert consumers.state == "Reconciling"
    assert consumers.beat("b", 2) == Beat(NONE, "b", "ready", 2, moved)
    assert consumers.state == "Stable"
    assert sorted(consumers.owners().values()) == ["a"] * 4 + ["b"] * 5


def test_join_to_an_unindexed_group_asks_for_a_group_id(consumers: ConsumerGroup) -> None:
    consumers.id = ""
    assert consumers.consume("a", 0, "foo", rebalance_s=5, owned="") == Beat(UNINDEXED, "a")
    assert consumers.exists() == []


def test_repeated_join_after_the_target_changes_nothing(consumers: ConsumerGroup) -> None:
    for _ in range(3):
        answer = consumers.consume("a", 0, "foo", rebalance_s=5, owned="")
        assert answer.status == "target"
        assert consumers.epochs == (1, 0)
    assert consumers.state == "Assigning"


def test_call_that_answers_anyway_needs_a_target_of_any_epoch(consumers: ConsumerGroup) -> None:
    assert consumers.consume("a", 0, "foo", rebalance_s=5, owned="", anyway=True).status == "target"
    consumers.retarget()
    assert consumers.consume("b", 0, "foo", rebalance_s=5, owned="", anyway=True) == Beat(NONE, "b", "ready", 1, "")
    assert consumers.epochs == (2, 1)
    assert consumers.state == "Assigning"


def test_member_answered_anyway_gives_up_unwanted_topics(consumers: ConsumerGroup) -> None:
    single(consumers)
    answer = consumers.consume("a", 1, "bar", anyway=True)
    assert answer == Beat(NONE, "a", "ready", 1, of(bar=range(3)))
    member = consumers.member("a")
    assert (member.state, member.revoking) == ("UNREVOKED_PARTITIONS", of(foo=range(6)))
    consumers.targets = {"a": of(bar=range(3))}
    assert consumers.beat("a", 1, owned=of(bar=range(3))) == Beat(NONE, "a", "ready", 2)
    assert {name.partition(":")[0] for name in consumers.owners()} == {BAR}


def test_new_catalog_raises_the_group_epoch_only_if_topics_changed(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.catalog_version = 2
    assert consumers.consume("a", 1).status == "target"
    assert consumers.beat("a", 1) == Beat(NONE, "a", "ready", 1)
    assert consumers.epochs == (1, 1)
    consumers.catalog_version = 3
    consumers.topics["foo"] = (FOO, 7)
    consumers.targets = {"a": of(foo=range(7), bar=range(3))}
    assert consumers.beat("a", 1) == Beat(NONE, "a", "ready", 2, of(foo=range(7), bar=range(3)))
    assert consumers.epochs == (2, 2)


def test_snapshot_has_the_members_and_topics_of_a_target(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.consume("b", 0, regex="z.*", rebalance_s=5, owned="", rack="r", assignor="range", instance="i")
    snapshot = consumers.snapshot()
    assert snapshot.pop("members") == [
        {
            "member_id": "a", "instance_id": "", "rack": "", "assignor": "", "regex": "", "topics": ["bar", "foo"],
            "target": ALL, "is_classic": 0,
        },
        {
            "member_id": "b", "instance_id": "i", "rack": "r", "assignor": "range", "regex": "z.*", "topics": [],
            "target": "", "is_classic": 0,
        },
    ]  # fmt: skip
    assert snapshot == {
        "id": GROUP_ID, "type": "consumer", "generation": 2, "target_epoch": 1, "catalog_version": "1",
        "topics": f"bar {BAR} 3\nfoo {FOO} 6", "assignor": "uniform", "cursor": "0",
    }  # fmt: skip


def test_snapshot_of_a_missing_or_classic_group_is_refused(consumers: ConsumerGroup) -> None:
    assert consumers.read("snapshot") == [GROUP_ID_NOT_FOUND]
    consumers.commit({"foo:0": "5 -1 aa "})
    assert consumers.read("snapshot") == [GROUP_ID_NOT_FOUND]
    assert consumers.call("assign", 0, 0, 1, "", "uniform") == [GROUP_ID_NOT_FOUND, 0, 0]


def test_target_of_an_older_epoch_is_installed_until_a_newer_one_comes(consumers: ConsumerGroup) -> None:
    consumers.consume("a", 0, "foo", rebalance_s=5, owned="")
    snapshot = consumers.snapshot()
    consumers.consume("b", 0, "foo", rebalance_s=5, owned="")
    assert consumers.assign(snapshot, {"a": of(foo=range(6))}) == (NONE, 2, 1)
    assert consumers.state == "Assigning"
    assert consumers.consume("a", 0, anyway=True) == Beat(NONE, "a", "ready", 1, of(foo=range(6)))
    assert consumers.consume("b", 0).status == "target"


def test_target_is_refused_if_another_caller_installed_one_first(consumers: ConsumerGroup) -> None:
    consumers.consume("a", 0, "foo", rebalance_s=5, owned="")
    snapshot = consumers.snapshot()
    assert consumers.assign(snapshot, {"a": of(foo=[0])}) == (NONE, 1, 1)
    assert consumers.assign(snapshot, {"a": of(foo=[1])}) == (RETRY, 1, 1)
    assert consumers.member("a").target == of(foo=[0])


def test_target_for_a_member_that_left_is_skipped(consumers: ConsumerGroup) -> None:
    consumers.consume("a", 0, "foo", rebalance_s=5, owned="")
    consumers.consume("b", 0, "foo", rebalance_s=5, owned="")
    snapshot = consumers.snapshot()
    consumers.part("b")
    assert consumers.assign(snapshot, {"a": of(foo=[0]), "b": of(foo=[1])}) == (NONE, 3, 2)
    assert consumers.field("target:b") is None


def test_target_for_a_static_member_with_a_new_id_is_made_anew(consumers: ConsumerGroup) -> None:
    """The group epoch does not rise, so the partitions would be in no member's target."""
    consumers.enter("a", "foo", instance="i")
    consumers.consume("b", 0, "foo", rebalance_s=5, owned="")
    snapshot = consumers.snapshot()
    consumers.part("a", -2, "i")
    assert consumers.consume("c", 0, "foo", rebalance_s=5, owned="", instance="i").status == "target"
    assert consumers.assign(snapshot, {"a": of(foo=[0])}) == (RETRY, 2, 1)


def test_group_looks_again_at_topics_newer_than_the_snapshot(consumers: ConsumerGroup) -> None:
    single(consumers)
    snapshot = consumers.snapshot()
    consumers.consume("b", 0, "foo", rebalance_s=5, owned="")
    assert consumers.assign(snapshot, {}, f"bar {BAR} 4\nfoo {FOO} 6")[0] == RETRY
    assert consumers.snapshot()["topics"] == f"bar {BAR} 3\nfoo {FOO} 6"


def test_settled_heartbeat_writes_nothing_but_its_session(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.pass_time(5)
    before: Any = consumers.server.hgetall(consumers.keys[0]), consumers.server.hgetall(consumers.keys[1])
    assert consumers.beat("a", 1, owned=ALL) == Beat(NONE, "a", "ready", 1)
    assert (consumers.server.hgetall(consumers.keys[0]), consumers.server.hgetall(consumers.keys[1])) == before
    assert consumers.server.zscore(consumers.keys[2], "a") == (consumers.now + consumers.session_s) * 1000
    consumers.pass_time(5)
    assert consumers.is_settled("a", 1)
    assert (consumers.server.hgetall(consumers.keys[0]), consumers.server.hgetall(consumers.keys[1])) == before
    assert consumers.server.zscore(consumers.keys[2], "a") == (consumers.now + consumers.session_s) * 1000


def test_member_is_not_settled_if_its_heartbeat_has_news(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.pass_time(5)
    session = consumers.server.zscore(consumers.keys[2], "a")
    for member, epoch, instance in (("b", 1, ""), ("a", 0, ""), ("a", 2, ""), ("a", -1, ""), ("a", 1, "i")):
        assert not consumers.is_settled(member, epoch, instance), (member, epoch, instance)
    consumers.session_s += 1
    assert not consumers.is_settled("a", 1), "another session timeout"
    consumers.session_s -= 1
    consumers.catalog_version += 1
    assert not consumers.is_settled("a", 1), "other topics"
    consumers.catalog_version -= 1
    assert consumers.server.zscore(consumers.keys[2], "a") == session
    consumers.pass_time(consumers.session_s)
    assert not consumers.is_settled("a", 1), "its session is over"
    assert consumers.consume("a", 1).code == UNKNOWN_MEMBER_ID


def test_member_is_not_settled_before_all_members_have_one_epoch(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.targets = {"a": of(foo=[0]), "b": of(foo=[1])}
    assert consumers.consume("b", 0, "foo", rebalance_s=5, owned="").status == "target"
    assert not consumers.is_settled("a", 1), "the target is still to be made"
    consumers.enter("b", "foo")
    assert [consumers.is_settled("a", 1), consumers.is_settled("b", 2)] == [False, False]
    consumers.beat("a", 1)
    assert not consumers.is_settled("a", 1), "it is to give something up"
    consumers.beat("a", 1, owned=of(foo=[0]))
    assert not consumers.is_settled("b", 2), "it is to be told that it owns something"
    consumers.beat("b", 2)
    assert [consumers.is_settled("a", 2), consumers.is_settled("b", 2)] == [True, True]


def test_static_member_is_settled_by_its_own_instance_id(consumers: ConsumerGroup) -> None:
    consumers.targets = {"a": ALL}
    consumers.enter("a", instance="i")
    assert consumers.is_settled("a", 1, "i")
    assert not consumers.is_settled("a", 1, "j")


def test_next_heartbeat_takes_another_session_timeout(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.session_s = 60
    consumers.beat("a", 1)
    assert consumers.member("a").session_ends_in_ms == 60_000
    consumers.pass_time(59)
    assert consumers.beat("a", 1).code == NONE


def test_late_heartbeat_acknowledges_no_revocation(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.targets = {"a": of(foo=[0]), "b": of(foo=[1])}
    consumers.enter("b")
    consumers.beat("a", 1)
    consumers.served_until = consumers.now
    consumers.pass_time(3)
    assert consumers.consume("a", 1, owned="") == Beat(LATE, "a")
    assert consumers.consume("a", -1) == Beat(LATE, "a")
    assert consumers.member("a").state == "UNREVOKED_PARTITIONS"
    consumers.served_until = None
    assert consumers.beat("a", 1, owned=of(foo=[0])).epoch == 2


def test_late_heartbeat_holds_the_session_of_a_settled_member(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.served_until = consumers.now
    consumers.pass_time(3)
    assert consumers.consume("a", 1, owned="") == Beat(NONE, "a", "ready", 1)
    assert consumers.member("a").session_ends_in_ms == consumers.session_s * 1000


def test_outage_prolongs_session_and_the_time_to_give_up_partitions(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.targets = {"a": of(foo=[0]), "b": of(foo=[1])}
    consumers.enter("b")
    consumers.beat("a", 1)
    consumers.outage(100)
    assert consumers.beat("b", 2).code == NONE
    consumers.pass_time(4.9)
    assert consumers.beat("b", 2) == Beat(NONE, "b", "ready", 2)
    assert set(consumers.members()) == {"a", "b"}
    consumers.pass_time(0.2)
    assert consumers.beat("b", 2).epoch == 3
    assert set(consumers.members()) == {"b"}


def test_recurring_outages_take_a_member_out_that_gives_nothing_up(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.targets = {"a": of(foo=[0]), "b": of(foo=[1])}
    consumers.enter("b")
    consumers.beat("a", 1)
    for _ in range(5):
        consumers.outage(100)
        assert consumers.beat("b", 2).code == NONE
        assert set(consumers.members()) == {"a", "b"}
        consumers.pass_time(1)
    assert consumers.beat("b", 2).epoch == 3
    assert set(consumers.members()) == {"b"}


@kafka("GroupMetadataManagerTest.testStaticMemberRejoinsWithSameMemberIdAfterLeaving")
def test_static_member_comes_back_with_the_same_id(consumers: ConsumerGroup) -> None:
    consumers.targets = {"a": ALL}
    consumers.enter("a", instance="i")
    assert consumers.part("a", -2, "i") == Beat(NONE, "a", "ready", -2)
    assert consumers.state == "Reconciling"
    assert consumers.enter("a", instance="i") == Beat(NONE, "a", "ready", 1, ALL)
    assert (consumers.epochs, consumers.state) == ((1, 1), "Stable")
    assert set(consumers.owners().values()) == {"a"}


@kafka("GroupMetadataManagerTest.testConsumerGroupHeartbeatWithEmptyClassicGroup")
def test_empty_classic_group_becomes_one_of_the_consumer_protocol(consumers: ConsumerGroup, group: Group) -> None:
    (member,) = group.stable()
    group.commit({"foo:0": "5 -1 aa "}, member, 1)
    group.leave((member, ""))
    group.known()
    generation = group.generation
    single_epoch = consumers.enter("a").epoch
    assert single_epoch == generation + 1
    assert consumers.field("type") == "consumer"
    assert consumers.field("protocol_type") is None
    assert consumers.fetch() == {"foo:0": "5 -1 aa "}
    consumers.pass_time(44)
    assert set(consumers.members()) == {"a"}


@kafka("GroupMetadataManagerTest.testClassicGroupJoinWithEmptyConsumerGroup")
def test_empty_group_of_the_consumer_protocol_becomes_classic(consumers: ConsumerGroup, group: Group) -> None:
    single(consumers)
    assert consumers.commit({"foo:0": "5 -1 aa "}, "a", 1) == NONE
    consumers.part("a")
    assert consumers.state == "Empty"
    (member,) = group.stable()
    assert group.describe().member_ids == {member}
    assert group.field("type") is None
    assert group.field("topics") is None
    assert group.fetch() == {"foo:0": "5 -1 aa "}


def test_group_without_members_expires(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.part("a")
    consumers.pass_time(RETENTION_S - 1)
    assert consumers.state == "Empty"
    consumers.pass_time(1)
    assert consumers.state == "Dead"
    assert consumers.enter("b").epoch == 1
    assert consumers.field("expires_at") is None


def test_state_says_the_type(consumers: ConsumerGroup) -> None:
    single(consumers)
    state = named(consumers.read("state")[1:])
    assert state == {
        "state": b"Stable", "generation": 1, "protocol_type": b"consumer", "members": 1, "pending": 0,
        "type": b"consumer",
    }  # fmt: skip


def test_member_owns_thousands_of_partitions(consumers: ConsumerGroup) -> None:
    consumers.topics = {"foo": (FOO, 5000)}
    consumers.targets = {"a": of(foo=range(5000))}
    consumers.enter("a", "foo")
    assert len(consumers.owners()) == 5000
    consumers.targets = {"b": of(foo=range(5000))}
    consumers.enter("b", "foo")
    consumers.part("a")
    assert consumers.owners() == {}
    consumers.targets = {"b": of(foo=range(5000))}
    assert consumers.beat("b", 2) == Beat(NONE, "b", "ready", 3, of(foo=range(5000)))


FORMER_RECORD = """
local head, rest = string.sub(ARGV[2], 1, 14), cmsgpack.unpack(string.sub(ARGV[2], 15))
rest[8] = cmsgpack.unpack(rest[8])
redis.call('HSET', KEYS[1], ARGV[1], head .. cmsgpack.pack(rest))
"""


def test_library_reads_members_that_the_former_version_wrote(consumers: ConsumerGroup) -> None:
    """Version 0.5.0 wrote the names into the record as a list."""
    for member in "ab":
        consumers.enter(member)
        record = consumers.server.hget(consumers.keys[1], member)
        assert record is not None
        consumers.server.eval(FORMER_RECORD, 1, consumers.keys[1], member, record)
    assert [consumers.member(member).topics for member in "ab"] == [("bar", "foo")] * 2
    assert consumers.beat("a", 1, "foo").code == NONE
    assert (consumers.member("a").topics, consumers.member("b").topics) == (("foo",), ("bar", "foo"))


@pytest.mark.parametrize("names", [("bar", "foo", "bar"), ("foo", "bar")])
def test_names_in_another_order_change_nothing(consumers: ConsumerGroup, names: tuple[str, ...]) -> None:
    single(consumers)
    assert consumers.beat("a", 1, *names).epoch == 1
    assert consumers.epochs == (1, 1)


def test_consumer_group_is_deleted_after_its_redis_groups(consumers: ConsumerGroup) -> None:
    single(consumers)
    partition = ("foo:0", "aa")
    keys = [consumers.attached]
    assert consumers.server.fcall("korvet_group_attach", 6, *consumers.keys, *keys, "", *partition) == [NONE, 0, [b""]]
    assert consumers.read("attached", keys=keys) == [NON_EMPTY_GROUP, []]
    consumers.part("a")
    assert consumers.read("attached", keys=keys) == [NONE, [b"foo:0", b"aa"]]
    assert consumers.delete() == RETRY
    assert consumers.call("delete", "any", *partition, keys=keys) == NONE
    assert consumers.exists() == []


def test_refusal_names_member_and_instance_with_a_nul_whole(consumers: ConsumerGroup) -> None:
    consumers.enter("m\0one", instance="i\0one")
    assert "instance id i\0one was fenced by member m\0one" in consumers.consume("m2", 1, instance="i\0one").why
    assert "Member m\0two is not a member" in consumers.consume("m\0two", 1).why
    assert "i\0one cannot join the group" in consumers.enter("m2", instance="i\0one").why
    assert "Member m\0one with instance id i2 cannot join" in consumers.enter("m\0one", instance="i2").why
