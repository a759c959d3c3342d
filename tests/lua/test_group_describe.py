"""korvet_group_describe as redis-cli shows it, lags in records, wrong calls, and several parked members in one call."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
import redis

from tests.lua.group import NONE, RANGE, Group, Member, named, plain
from tests.lua.group_scenes import FOLLOWER, LEADER, static_pair
from tests.lua.log import TOPIC_ID, Log
from tests.support.ported import kafka

OTHER_ID = "0123456789abcdef0123456789abcdef"
POLICY_VIOLATION = 44


def text(value: str) -> bytes:
    return pack(">h", len(value.encode())) + value.encode()


def subscription(*topics: str, version: int = 1) -> bytes:
    """A ConsumerProtocolSubscription without user data."""
    return pack(">hi", version, len(topics)) + b"".join(map(text, topics)) + pack(">i", -1)


def assignment(partitions: dict[str, list[int]]) -> bytes:
    """A ConsumerProtocolAssignment without user data."""
    parts = [text(topic) + pack(f">i{len(of)}i", len(of), *of) for topic, of in partitions.items()]
    return pack(">hi", 1, len(parts)) + b"".join(parts) + pack(">i", -1)


def members(group: Group) -> list[dict[str, Any]]:
    return [named(member) for member in group.read_named("describe")["members"]]


def test_description_counts_deadlines_from_now(group: Group) -> None:
    (member,) = group.stable(session_s=30, rebalance_s=60)
    group.pass_time(4)
    found = group.read_named("describe")
    assert (found["state_for_ms"], found["rebalance_ends_in_ms"], found["expires_in_ms"]) == (4000, None, None)
    (told,) = members(group)
    assert (plain(told["member_id"]), told["session_ends_in_ms"]) == (member, 26_000)
    assert (told["session_timeout_ms"], told["rebalance_timeout_ms"]) == (30_000, 60_000)
    group.known()
    group.entered(session_s=30, rebalance_s=60)
    group.pass_time(1)
    found = group.read_named("describe")
    assert (plain(found["state"]), found["rebalance_ends_in_ms"]) == ("PreparingRebalance", 59_000)
    assert [plain(one) for one in found["pending"]] == ["client-3"]
    group.leave(("client-3", ""), *((plain(told["member_id"]), "") for told in members(group)))
    assert group.read_named("describe")["expires_in_ms"] == 7 * 86_400_000


def test_description_marks_the_members_that_a_rebalance_waits_for(group: Group) -> None:
    def awaited() -> set[str]:
        return {plain(member["member_id"]) for member in members(group) if member["is_awaited"]}

    first, second = group.stable(2)
    assert awaited() == set()
    newcomer = group.entered().member
    assert awaited() == {first, second}
    group.join(second)
    assert (awaited(), group.read_named("describe")["is_initial"]) == ({first}, 0)
    group.join(first)
    assert awaited() == {first, second, newcomer}
    group.sync(first, 3, {second: b"2"})
    assert awaited() == {second, newcomer}


def test_description_marks_a_first_rebalance_that_waits_for_members(group: Group) -> None:
    group.initial_delay_ms = 3000
    group.entered()
    found = group.read_named("describe")
    assert (found["is_initial"], found["rebalance_ends_in_ms"]) == (1, 3000)


def test_description_decodes_subscriptions_and_assignments(group: Group) -> None:
    wanted = subscription("orders", "größe")
    leader = group.entered((("range", wanted),))
    (told,) = members(group)
    assert told["topics"] == [b"orders", "größe".encode()]
    assert (told["partitions"], told["metadata"]) == ([], b"")
    given = assignment({"orders": [0, 11], "größe": [2]})
    group.sync(leader.member, 1, {leader.member: given})
    (told,) = members(group)
    assert told["partitions"] == [b"orders:0", b"orders:11", "größe:2".encode()]
    assert (told["metadata"], told["assignment"]) == (wanted, given)


BROKEN = [b"", b"\0", pack(">hi", 1, 3) + text("t"), pack(">hih", 1, 1, -1), pack(">hih", 1, 2**31 - 1, 9)]


@pytest.mark.parametrize("data", [*BROKEN, subscription("t")[:-7], assignment({"t": [1, 2]})[:-5]])
def test_description_shows_metadata_of_another_protocol_type_as_bytes(group: Group, data: bytes) -> None:
    leader = group.entered((("range", data),))
    group.sync(leader.member, 1, {leader.member: data})
    (told,) = members(group)
    assert told["partitions"] in ([], [b"t:1"])
    assert (told["metadata"], told["assignment"]) == (data, data)


def test_description_decodes_only_the_chosen_protocol(group: Group) -> None:
    leader = group.entered((("v1", subscription("t")),), protocol_type="connect")
    group.sync(leader.member, 1, {leader.member: assignment({"t": [0]})})
    (told,) = members(group)
    assert (told["topics"], told["partitions"]) == ([], [])


def test_description_shows_offsets_as_members_commit_them(group: Group) -> None:
    group.commit({"t:0": "5 7 aa some words", "t:1": "6 -1 aa "})
    assert named(group.read_named("describe")["offsets"]) == {"t:0": b"5 7 aa some words", "t:1": b"6 -1 aa "}


def test_description_has_the_lag_of_named_partitions_in_records(group: Group, server: redis.Redis) -> None:
    """A partition has no lag if it has no committed offset, its topic was made anew, or it does not exist."""
    log = Log(server)
    assert log.create() == 0
    log.append(10)
    log.append(5)
    group.commit(
        {
            "t:0": f"4 -1 {TOPIC_ID} m",
            "t:1": f"4 -1 {OTHER_ID} ",
            "t:3": f"4 -1 {TOPIC_ID} ",
            "t:4": f"20 -1 {TOPIC_ID} ",
        }
    )
    partitions, metas = ("t:0", "t:1", "t:2", "t:3", "t:4"), [log.meta, log.meta, log.meta, "nothing", log.meta]
    lags = [named(lag) for lag in group.read_named("describe", *partitions, keys=metas)["lags"]]
    assert [plain(lag["partition"]) for lag in lags] == list(partitions)
    assert [(lag["offset"], lag["end_offset"], lag["lag"]) for lag in lags] == [
        (4, 15, 11), (4, 15, None), (None, 15, None), (4, None, None), (20, 15, 0),
    ]  # fmt: skip


WRONG_CALLS: dict[str, tuple[int, tuple[str, ...], str]] = {
    "join": (5, ("", "g"), "the arguments outages id locator member_id .* protocols"),
    "await": (5, ("", "m"), "the arguments outages members"),
    "sync": (5, ("", "m", "", "1", "0", "", "", "half"), "the arguments outages member_id .* assignments"),
    "await_sync": (5, ("", "1", "m"), "the arguments outages generation:int members"),
    "heartbeat": (5, ("m", "", "1"), "the arguments outages member_id .* catalog_version"),
    "leave": (5, ("", "m"), "the arguments outages members"),
    "commit": (5, ("", "", "", "m", "", "1", "9"), "the arguments outages id locator .* offsets"),
    "fetch": (4, (), "the keys group members sessions static offsets"),
    "offset_delete": (5, (), "the arguments outages partitions"),
    "offset_forget": (5, ("t:0",), "the arguments partitions"),
    "describe": (5, ("", "t:0"), "the keys of the group and the meta of each partition"),
    "state": (1, (), "the keys group members sessions static offsets"),
}


@pytest.mark.parametrize("function", WRONG_CALLS)
def test_call_with_a_wrong_number_says_how_to_call(group: Group, function: str) -> None:
    """The call fails before it reads a key, and not with a Lua error."""
    keys, args, usage = WRONG_CALLS[function]
    call: Any = group.server.fcall
    number = keys if " keys" in usage else len(args)
    with pytest.raises(redis.ResponseError, match=f"korvet_group_{function} takes {usage}.*; the call has {number}"):
        call(f"korvet_group_{function}", keys, *group.keys[:keys], *args)


def test_commit_of_a_partition_without_a_position_is_an_error(group: Group) -> None:
    with pytest.raises(redis.ResponseError, match=r"korvet_group_commit takes the arguments .*; the call has 9"):
        group.call("commit", "", "", "m", "", "1", "9", "1000", "t:0")


def test_group_is_indexed_once(group: Group, server: redis.Redis) -> None:
    client: Any = server
    client.config_set("maxmemory", 1)
    assert [client.fcall("korvet_group_index", 1, "index", name) for name in ("a", "a", "b")] == [1, 0, 1]
    assert client.smembers("index") == {b"a", b"b"}
    with pytest.raises(redis.ResponseError, match="korvet_group_index takes the arguments group_id; the call has 0"):
        client.fcall("korvet_group_index", 1, "index")


def test_new_group_is_admitted_below_the_bound_and_below_maxmemory(server: redis.Redis) -> None:
    client: Any = server
    client.sadd("other", "a", "b")
    admitted = [client.fcall("korvet_group_admit", 2, "index", "other", name, 3) for name in ("c", "d", "c")]
    assert admitted == [0, POLICY_VIOLATION, 0]
    assert client.smembers("index") == {b"c"}
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        client.fcall("korvet_group_admit", 2, "index", "other", "d", 100)


def test_one_call_asks_for_several_parked_members(group: Group) -> None:
    """Each member gets its own answer, the leader's with all members. A refused member does not affect the others."""
    first, second = group.stable(2)
    third = group.entered()
    group.join(second)
    answers = group.wait_all((third.member, ""), ("nobody", ""), (second, ""))
    assert [answer.status for answer in answers] == ["parked", "", "parked"]
    group.join(first)
    answers = group.wait_all((first, ""), (second, ""), ("nobody", ""), (third.member, ""), (third.member, ""))
    assert [(answer.code, answer.generation, len(answer.members)) for answer in answers] == [
        (NONE, 3, 3), (NONE, 3, 0), (25, -1, 0), (NONE, 3, 0), (NONE, 3, 0),
    ]  # fmt: skip


def test_one_call_asks_for_several_parked_syncs(group: Group) -> None:
    leader, *others = group.gathered(RANGE, RANGE, RANGE)
    followers = [(other.member, "") for other in others]
    for member, _ in followers:
        assert group.sync(member, 1).is_parked
    assert [synced.is_parked for synced in group.wait_sync_all(1, *followers)] == [True, True]
    group.assign(leader)
    answers = group.wait_sync_all(1, followers[0], ("nobody", ""), followers[1])
    assert [answer.assignment for answer in answers] == [followers[0][0].encode(), b"", followers[1][0].encode()]
    assert [answer.code for answer in answers] == [NONE, 25, NONE]
    assert group.wait_sync(followers[0][0], 2).code == 22
    group.join(leader.member)
    assert group.wait_sync(followers[0][0], 1).code == 27


@kafka("GroupMetadataManagerTest.testDescribeGroupStable")
def test_stable_group_is_described_in_full(group: Group) -> None:
    pair = static_pair(group)
    described = group.describe()
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    assert set(described.members) == {
        Member(pair.leader, LEADER, "client", "/10.0.0.1", b"range-metadata", LEADER.encode()),
        Member(pair.follower, FOLLOWER, "client", "/10.0.0.1", b"range-metadata", FOLLOWER.encode()),
    }


@kafka("GroupMetadataManagerTest.testDescribeGroupRebalancing")
def test_rebalancing_group_is_described_with_its_last_assignments(group: Group) -> None:
    pair = static_pair(group)
    group.join(pair.leader, instance=LEADER)
    described = group.describe()
    assert (described.state, described.protocol_type) == ("PreparingRebalance", "consumer")
    assert {(one.id, one.metadata, one.assignment) for one in described.members} == {
        (pair.leader, b"", LEADER.encode()),
        (pair.follower, b"", FOLLOWER.encode()),
    }


@kafka("GroupCoordinatorTest.testDescribeGroupRebalancing")
def test_new_group_without_assignments_is_described_without_metadata(group: Group) -> None:
    member = group.entered().member
    described = group.describe()
    assert (described.state, described.protocol_type) == ("CompletingRebalance", "consumer")
    assert [(one.id, one.metadata, one.assignment) for one in described.members] == [(member, b"", b"")]


@kafka("GroupCoordinatorTest.testDescribeGroupStableForDynamicMember")
def test_dynamic_member_is_described_without_an_instance_id(group: Group) -> None:
    (member,) = group.stable()
    described = group.describe()
    assert (described.protocol_type, described.protocol) == ("consumer", "range")
    assert [(one.id, one.instance_id) for one in described.members] == [(member, "")]


@kafka("GroupCoordinatorTest.testDescribeGroupStableForStaticMember")
def test_static_member_is_described_with_its_instance_id(group: Group) -> None:
    member = group.join(instance=LEADER).member
    group.sync(member, 1, {})
    described = group.describe()
    assert (described.protocol_type, described.protocol) == ("consumer", "range")
    assert [(one.id, one.instance_id) for one in described.members] == [(member, LEADER)]


@kafka("GroupCoordinatorTest.testListGroupsIncludesStableGroups")
def test_stable_group_is_listed(group: Group) -> None:
    group.stable()
    listed = group.read_named("state")
    assert (listed["state"], listed["protocol_type"]) == (b"Stable", b"consumer")


@kafka("GroupCoordinatorTest.testListGroupsIncludesRebalancingGroups")
def test_group_that_rebalances_is_listed(group: Group) -> None:
    group.entered()
    listed = group.read_named("state")
    assert (listed["state"], listed["protocol_type"]) == (b"CompletingRebalance", b"consumer")
