"""Classic members' metadata byte by byte: the readable ones, and the malformed ones that keep a group classic.

The library refuses the cases in which kafka-clients 4.1.2 throws; a length of less than -1 is null there, too.
Source: ConsumerProtocol.deserializeConsumerProtocolSubscription, deserializeConsumerProtocolAssignment
"""

from __future__ import annotations

import pytest

from tests.lua.consumer import BAR, FOO, of
from tests.lua.group import GROUP_ID_NOT_FOUND, NONE
from tests.lua.mixed import MixedGroup, assignment, subscription

FOO_TOPIC = "00000001 0003666f6f"
"""An array of one topic, foo."""
NULL, NOTHING, LESS, MANY = "ffffffff", "00000000", "fffffffe", "00000009"
PARTITION = f"{FOO_TOPIC} 00000001 00000001"
"""Partition 1 of foo."""

READ = {
    "version 0": f"0000 {FOO_TOPIC} {NULL}",
    "later version": f"0009 {FOO_TOPIC} {NULL} {NOTHING} {NULL} ffff",
    "empty data": f"0000 {FOO_TOPIC} {NOTHING}",
    "data of length -2": f"0000 {FOO_TOPIC} {LESS}",
    "rack of length -2": f"0003 {FOO_TOPIC} {NULL} {NOTHING} {NULL} fffe",
    "bytes behind": f"0003 {FOO_TOPIC} {NULL} {NOTHING} {NULL} ffff 010203",
}
MALFORMED = {
    "nothing": "",
    "half a version": "00",
    "negative version": f"ffff {FOO_TOPIC} {NULL}",
    "no data": f"0000 {FOO_TOPIC}",
    "data cut off": f"0000 {FOO_TOPIC} 00000005 01",
    "no topics": f"0000 {NULL} {NULL}",
    "fewer topics than said": f"0000 {MANY} 0003666f6f {NULL}",
    "topic without a name": f"0000 00000001 ffff {NULL}",
    "name cut off": f"0000 00000001 0009666f6f {NULL}",
    "no owned partitions": f"0001 {FOO_TOPIC} {NULL}",
    "owned partitions of length -1": f"0001 {FOO_TOPIC} {NULL} {NULL}",
    "partitions of length -1": f"0001 {FOO_TOPIC} {NULL} {FOO_TOPIC} {NULL}",
    "partitions cut off": f"0001 {FOO_TOPIC} {NULL} {FOO_TOPIC} 00000001 0000",
    "fewer partitions than said": f"0001 {FOO_TOPIC} {NULL} {FOO_TOPIC} {MANY} 00000001",
    "no generation": f"0002 {FOO_TOPIC} {NULL} {NOTHING}",
    "no rack": f"0003 {FOO_TOPIC} {NULL} {NOTHING} {NULL}",
    "rack cut off": f"0003 {FOO_TOPIC} {NULL} {NOTHING} {NULL} 0009 61",
}
READ_ASSIGNMENTS = {
    "version 0": f"0000 {PARTITION} {NULL}",
    "later version": f"0009 {PARTITION} {NULL}",
    "empty data": f"0000 {PARTITION} {NOTHING}",
    "data of length -2": f"0000 {PARTITION} {LESS}",
    "bytes behind": f"0000 {PARTITION} {NULL} 0102",
}
MALFORMED_ASSIGNMENTS = {
    "half a version": "00",
    "negative version": f"ffff {PARTITION} {NULL}",
    "no data": f"0000 {PARTITION}",
    "data cut off": f"0000 {PARTITION} 00000005 01",
    "topics of length -1": f"0000 {NULL} {NULL}",
    "partitions cut off": f"0000 {FOO_TOPIC} 00000001 00",
}


def upgraded(mixed: MixedGroup, metadata: bytes, assigned: bytes) -> MixedGroup:
    """A group with a classic member, after a member of the consumer protocol came."""
    one = mixed.newcomer((("range", metadata),))
    mixed.lead(one.member, 1, {one.member: assigned})
    answer = mixed.beat("new", 0, "zar", rebalance_s=5, owned="")
    if answer.code != NONE:
        assert (answer.code, mixed.kind) == (GROUP_ID_NOT_FOUND, "classic")
        assert answer.why.endswith("because the embedded consumer protocol is malformed.")
    return mixed


@pytest.mark.parametrize("metadata", READ.values(), ids=READ.keys())
def test_subscription_is_read(mixed: MixedGroup, metadata: str) -> None:
    group = upgraded(mixed, bytes.fromhex(metadata), assignment({"foo": [1]}))
    assert {member.topics for member in group.members().values()} == {("foo",), ("zar",)}


@pytest.mark.parametrize("metadata", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_subscription_keeps_the_group_classic(mixed: MixedGroup, metadata: str) -> None:
    assert upgraded(mixed, bytes.fromhex(metadata), assignment({"foo": [1]})).kind == "classic"


@pytest.mark.parametrize("assigned", READ_ASSIGNMENTS.values(), ids=READ_ASSIGNMENTS.keys())
def test_assignment_is_read(mixed: MixedGroup, assigned: str) -> None:
    assert f"{FOO}:1" in upgraded(mixed, subscription(["foo"]), bytes.fromhex(assigned)).owners()


@pytest.mark.parametrize("assigned", MALFORMED_ASSIGNMENTS.values(), ids=MALFORMED_ASSIGNMENTS.keys())
def test_malformed_assignment_keeps_the_group_classic(mixed: MixedGroup, assigned: str) -> None:
    assert upgraded(mixed, subscription(["foo"]), bytes.fromhex(assigned)).kind == "classic"


def test_library_reads_and_writes_assignments_of_many_partitions(mixed: MixedGroup) -> None:
    """The assignment has more partitions than the library reads at once."""
    mixed.topics["foo"] = (FOO, 200)
    everything = {"bar": [0], "foo": list(range(200))}
    (one,) = mixed.stable_classic(everything)
    mixed.consume("new", 0, "zar", rebalance_s=5, owned="", given=mixed.catalog_lines(["bar", "foo"]))
    text = f"{FOO}:{','.join(map(str, range(200)))} {BAR}:0"
    assert (mixed.member(one).owned, mixed.member(one).target) == (text, text)
    mixed.part("new")
    assert mixed.describe().members[0].assignment == assignment(everything)


def test_partition_assigned_twice_has_one_owner(mixed: MixedGroup) -> None:
    """No assignor does so. The library sorts partitions that arrive in any order."""
    twice = assignment({"foo": [2, -1, 0, 2], "baz": [1], "bar": [1]}).replace(b"baz", b"foo")
    mixed.initial_delay_ms = 1000
    members = [mixed.newcomer().member for _ in range(2)]
    for _ in members:
        mixed.pass_time(1)
        mixed.wait(members[0])
    leader = next(one for one in mixed.settle(*members).values() if one.is_leader)
    given = {members[0]: twice, members[1]: assignment({"foo": [5, 1, 0, 3], "gone": [0]})}
    mixed.lead(leader.member, leader.generation, given)
    mixed.consume("new", 0, "zar", rebalance_s=5, owned="", given=mixed.catalog_lines(["bar", "foo", "gone"]))
    owned = {member: mixed.member(member).owned for member in members}
    assert set(owned.values()) in (
        {of(foo=[0, 1, 2], bar=[1]), of(foo=[3, 5])},
        {of(foo=[2], bar=[1]), of(foo=[0, 1, 3, 5])},
    )
    assert {f"{FOO}:{one}" for one in (0, 1, 2, 3, 5)} | {f"{BAR}:1"} == set(mixed.owners())
    for name, owner in mixed.owners().items():
        topic_id, _, partition = name.partition(":")
        assert partition in dict(part.split(":") for part in owned[owner].split())[topic_id].split(",")
    assert all(mixed.member(member).target == text for member, text in owned.items())


def test_members_without_partitions_leave_no_targets(mixed: MixedGroup) -> None:
    mixed.stable_classic({"foo": [0]}, {})
    mixed.consume("new", 0, "zar", rebalance_s=5, owned="", given=mixed.catalog_lines(["bar", "foo"]))
    assert len([name for name in mixed.fields if name.startswith("target:")]) == 1


def test_group_that_becomes_classic_drops_all_consumer_state(mixed: MixedGroup) -> None:
    mixed.stable_classic({"foo": [0, 1]}, {"bar": [2]})
    before = mixed.fields
    mixed.consume("new", 0, "zar", rebalance_s=5, owned="", given=mixed.catalog_lines(["bar", "foo"]))
    assert not mixed.fields <= before
    assert mixed.part("new").code == NONE
    assert mixed.fields <= before | {"join_deadline", "attempt"}
    assert mixed.describe().members[0].assignment in (assignment({"foo": [0, 1]}), assignment({"bar": [2]}))
