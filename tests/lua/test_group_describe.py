"""korvet_group_describe as one reads it in redis-cli, lags in records, wrong calls, and members asked for together."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
import redis

from tests.lua.group import NONE, RANGE, Group, named, plain
from tests.lua.log import TOPIC_ID, Log

OTHER_ID = "0123456789abcdef0123456789abcdef"


def text(value: str) -> bytes:
    return pack(">h", len(value.encode())) + value.encode()


def subscription(*topics: str, version: int = 1) -> bytes:
    """A ConsumerProtocolSubscription without user data."""
    return pack(">hi", version, len(topics)) + b"".join(map(text, topics)) + pack(">i", -1)


def assignment(places: dict[str, list[int]]) -> bytes:
    """A ConsumerProtocolAssignment without user data."""
    parts = [text(topic) + pack(f">i{len(of)}i", len(of), *of) for topic, of in places.items()]
    return pack(">hi", 1, len(parts)) + b"".join(parts) + pack(">i", -1)


def members(group: Group) -> list[dict[str, Any]]:
    return [named(member) for member in group.read_named("describe")["members"]]


def test_deadlines_are_told_from_now(group: Group) -> None:
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


def test_what_members_want_and_have_is_decoded(group: Group) -> None:
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
def test_what_is_no_consumer_protocol_is_shown_as_bytes_alone(group: Group, data: bytes) -> None:
    leader = group.entered((("range", data),))
    group.sync(leader.member, 1, {leader.member: data})
    (told,) = members(group)
    assert told["partitions"] in ([], [b"t:1"])
    assert (told["metadata"], told["assignment"]) == (data, data)


def test_other_protocols_of_members_are_not_decoded(group: Group) -> None:
    leader = group.entered((("v1", subscription("t")),), protocol_type="connect")
    group.sync(leader.member, 1, {leader.member: assignment({"t": [0]})})
    (told,) = members(group)
    assert (told["topics"], told["partitions"]) == ([], [])


def test_offsets_are_shown_as_they_are_committed(group: Group) -> None:
    group.commit({"t:0": "5 7 aa some words", "t:1": "6 -1 aa "})
    assert named(group.read_named("describe")["offsets"]) == {"t:0": b"5 7 aa some words", "t:1": b"6 -1 aa "}


def test_lag_is_told_in_records_of_the_partitions_that_are_named(group: Group, server: redis.Redis) -> None:
    """Not where nothing is committed, the topic is another one of that name, or there is no such partition."""
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
    places, metas = ("t:0", "t:1", "t:2", "t:3", "t:4"), [log.meta, log.meta, log.meta, "nothing", log.meta]
    lags = [named(lag) for lag in group.read_named("describe", *places, keys=metas)["lags"]]
    assert [plain(lag["place"]) for lag in lags] == list(places)
    assert [(lag["offset"], lag["end_offset"], lag["lag"]) for lag in lags] == [
        (4, 15, 11), (4, 15, None), (None, 15, None), (4, None, None), (20, 15, 0),
    ]  # fmt: skip


WRONG_CALLS: dict[str, tuple[int, tuple[str, ...]]] = {
    "join": (5, ("", "g")),
    "await": (5, ("", "m")),
    "sync": (5, ("", "m", "", "1", "0", "", "", "half")),
    "await_sync": (5, ("", "1", "m")),
    "heartbeat": (5, ("m", "", "1")),
    "leave": (5, ("", "m")),
    "commit": (5, ("", "", "", "m", "", "1", "9", "1000", "t:0")),
    "fetch": (4, ()),
    "offset_delete": (5, ()),
    "offset_forget": (5, ("t:0",)),
    "describe": (5, ("", "t:0")),
    "state": (1, ()),
}


@pytest.mark.parametrize("function", WRONG_CALLS)
def test_call_with_a_wrong_number_says_how_to_call(group: Group, function: str) -> None:
    """Before anything is read; no Lua error of a nil somewhere."""
    keys, args = WRONG_CALLS[function]
    call: Any = group.server.fcall
    usage = f"korvet_group_{function} takes KEYS group members sessions static offsets.* ARGV "
    with pytest.raises(redis.ResponseError, match=f"^{usage}.*these were {keys} keys and {len(args)} arguments"):
        call(f"korvet_group_{function}", keys, *group.keys[:keys], *args)


def test_group_is_indexed_once(group: Group, server: redis.Redis) -> None:
    client: Any = server
    client.config_set("maxmemory", 1)
    assert [client.fcall("korvet_group_index", 1, "index", name) for name in ("a", "a", "b")] == [1, 0, 1]
    assert client.smembers("index") == {b"a", b"b"}
    with pytest.raises(redis.ResponseError, match="korvet_group_index takes KEYS index ARGV group_id"):
        client.fcall("korvet_group_index", 1, "index")


def test_parked_members_are_asked_for_together(group: Group) -> None:
    """Each with its own answer, the leader's with all members; one who is refused takes nobody along."""
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


def test_parked_syncs_are_asked_for_together(group: Group) -> None:
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
