"""korvet_group_consume, _snapshot and _assign beyond Kafka's own cases, which are in tests/lua/kafka."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.consumer import (
    BAR,
    FOO,
    RETRY,
    Beat,
    ConsumerGroup,
    of,
)
from tests.lua.group import (
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

ALL = of(foo=range(6), bar=range(3))


def single(group: ConsumerGroup) -> None:
    """Member ``a`` owns everything in epoch 1."""
    group.targets = {"a": ALL}
    assert group.enter("a") == Beat(NONE, "a", "ready", 1, ALL)


def test_first_member_makes_the_group_and_gets_everything(consumers: ConsumerGroup) -> None:
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


def test_group_that_is_not_in_the_index_is_asked_for_an_id(consumers: ConsumerGroup) -> None:
    consumers.id = ""
    assert consumers.consume("a", 0, "foo", rebalance_s=5, owned="") == Beat(UNINDEXED, "a")
    assert consumers.exists() == []


def test_calling_again_after_target_changes_nothing_more(consumers: ConsumerGroup) -> None:
    for _ in range(3):
        answer = consumers.consume("a", 0, "foo", rebalance_s=5, owned="")
        assert answer.status == "target"
        assert consumers.epochs == (1, 0)
    assert consumers.state == "Assigning"


def test_answer_anyway_needs_a_target_of_some_epoch(consumers: ConsumerGroup) -> None:
    assert consumers.consume("a", 0, "foo", rebalance_s=5, owned="", anyway=True).status == "target"
    consumers.retarget()
    assert consumers.consume("b", 0, "foo", rebalance_s=5, owned="", anyway=True) == Beat(NONE, "b", "ready", 1, "")
    assert consumers.epochs == (2, 1)
    assert consumers.state == "Assigning"


def test_member_that_is_answered_anyway_gives_up_topics_that_it_no_longer_wants(consumers: ConsumerGroup) -> None:
    single(consumers)
    answer = consumers.consume("a", 1, "bar", anyway=True)
    assert answer == Beat(NONE, "a", "ready", 1, of(bar=range(3)))
    member = consumers.member("a")
    assert (member.state, member.revoking) == ("UNREVOKED_PARTITIONS", of(foo=range(6)))
    consumers.targets = {"a": of(bar=range(3))}
    assert consumers.beat("a", 1, owned=of(bar=range(3))) == Beat(NONE, "a", "ready", 2)
    assert {place.partition(":")[0] for place in consumers.owners()} == {BAR}


def test_other_catalog_asks_for_a_target_and_raises_the_epoch_only_where_topics_changed(
    consumers: ConsumerGroup,
) -> None:
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


def test_snapshot_tells_what_a_target_is_made_from(consumers: ConsumerGroup) -> None:
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
        "generation": 2, "target_epoch": 1, "catalog_version": "1", "topics": f"bar {BAR} 3\nfoo {FOO} 6",
        "assignor": "uniform",
    }  # fmt: skip


def test_snapshot_of_a_group_that_speaks_another_protocol(consumers: ConsumerGroup) -> None:
    assert consumers.read("snapshot") == [GROUP_ID_NOT_FOUND]
    consumers.commit({"foo:0": "5 -1 aa "})
    assert consumers.read("snapshot") == [GROUP_ID_NOT_FOUND]
    assert consumers.call("assign", 0, 0, 1, "", "uniform") == [GROUP_ID_NOT_FOUND, 0, 0]


def test_target_of_an_older_epoch_is_installed_and_another_one_is_still_to_come(consumers: ConsumerGroup) -> None:
    consumers.consume("a", 0, "foo", rebalance_s=5, owned="")
    snapshot = consumers.snapshot()
    consumers.consume("b", 0, "foo", rebalance_s=5, owned="")
    assert consumers.assign(snapshot, {"a": of(foo=range(6))}) == (NONE, 2, 1)
    assert consumers.state == "Assigning"
    assert consumers.consume("a", 0, anyway=True) == Beat(NONE, "a", "ready", 1, of(foo=range(6)))
    assert consumers.consume("b", 0).status == "target"


def test_target_that_somebody_else_made_first_is_refused(consumers: ConsumerGroup) -> None:
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


def test_target_for_a_static_member_that_took_another_id_is_made_anew(consumers: ConsumerGroup) -> None:
    """Nothing raises the epoch there, and the partitions would be in nobody's target."""
    consumers.enter("a", "foo", instance="i")
    consumers.consume("b", 0, "foo", rebalance_s=5, owned="")
    snapshot = consumers.snapshot()
    consumers.part("a", -2, "i")
    assert consumers.consume("c", 0, "foo", rebalance_s=5, owned="", instance="i").status == "target"
    assert consumers.assign(snapshot, {"a": of(foo=[0])}) == (RETRY, 2, 1)


def test_topics_that_changed_behind_an_outdated_snapshot_are_looked_at_again(consumers: ConsumerGroup) -> None:
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


def test_member_is_not_settled_where_its_heartbeat_has_to_be_looked_at(consumers: ConsumerGroup) -> None:
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


def test_member_is_not_settled_before_the_whole_group_is_of_one_epoch(consumers: ConsumerGroup) -> None:
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


def test_other_session_timeout_is_taken_with_the_next_heartbeat(consumers: ConsumerGroup) -> None:
    single(consumers)
    consumers.session_s = 60
    consumers.beat("a", 1)
    assert consumers.member("a").session_ends_in_ms == 60_000
    consumers.pass_time(59)
    assert consumers.beat("a", 1).code == NONE


def test_call_that_waited_while_redis_stood_still_acknowledges_no_revocation(consumers: ConsumerGroup) -> None:
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


def test_settled_member_may_be_late(consumers: ConsumerGroup) -> None:
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


def test_static_member_comes_back_with_the_same_id(consumers: ConsumerGroup) -> None:
    consumers.targets = {"a": ALL}
    consumers.enter("a", instance="i")
    assert consumers.part("a", -2, "i") == Beat(NONE, "a", "ready", -2)
    assert consumers.state == "Reconciling"
    assert consumers.enter("a", instance="i") == Beat(NONE, "a", "ready", 1, ALL)
    assert (consumers.epochs, consumers.state) == ((1, 1), "Stable")
    assert set(consumers.owners().values()) == {"a"}


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


def test_thousands_of_partitions_of_one_member(consumers: ConsumerGroup) -> None:
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


def test_members_that_the_former_version_wrote_are_read(consumers: ConsumerGroup) -> None:
    """Version 0.5.0 had the names in the record as a list."""
    for member in "ab":
        consumers.enter(member)
        record = consumers.server.hget(consumers.keys[1], member)
        assert record is not None
        consumers.server.eval(FORMER_RECORD, 1, consumers.keys[1], member, record)
    assert [consumers.member(member).topics for member in "ab"] == [("bar", "foo")] * 2
    assert consumers.beat("a", 1, "foo").code == NONE
    assert (consumers.member("a").topics, consumers.member("b").topics) == (("foo",), ("bar", "foo"))


@pytest.mark.parametrize("names", [("bar", "foo", "bar"), ("foo", "bar")])
def test_same_names_in_another_order_are_no_change(consumers: ConsumerGroup, names: tuple[str, ...]) -> None:
    single(consumers)
    assert consumers.beat("a", 1, *names).epoch == 1
    assert consumers.epochs == (1, 1)


def test_redis_groups_of_a_consumer_group_go_before_it_is_deleted(consumers: ConsumerGroup) -> None:
    single(consumers)
    place = ("foo:0", "aa")
    keys = [consumers.attached]
    assert consumers.server.fcall("korvet_group_attach", 6, *consumers.keys, *keys, "", *place) == [NONE, 0, [b""]]
    assert consumers.read("attached", keys=keys) == [NON_EMPTY_GROUP, []]
    consumers.part("a")
    assert consumers.read("attached", keys=keys) == [NONE, [b"foo:0", b"aa"]]
    assert consumers.delete() == RETRY
    assert consumers.call("delete", "any", *place, keys=keys) == NONE
    assert consumers.exists() == []
