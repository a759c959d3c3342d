"""korvet_group_attach, _attached and _delete, korvet_reader_note and _find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.group import GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, NONE, RETENTION_S, Group, named, plain

RETRY = -5
TOPIC = "a" * 32
OTHER = "b" * 32
READER = "korvet:{default:@reader:client@host}:groups"
TTL_S = 600


def attach(group: Group, *partitions: str, topic_id: str = TOPIC, mirror: str = "") -> Any:
    """The reply, with offsets as text."""
    flat = [part for partition in partitions for part in (partition, topic_id)]
    keys = (*group.keys, group.attached)
    code, *rest = group.server.fcall("korvet_group_attach", 6, *keys, mirror, *flat)
    return (code, rest[0], [plain(offset) for offset in rest[1]]) if rest else code


def attached(group: Group) -> tuple[int, dict[str, str]]:
    code, flat = group.read("attached", keys=[group.attached])
    return code, {name: plain(topic_id) for name, topic_id in named(flat).items()}


def delete(group: Group, *detached: str, which: str = "any", topic_id: str = TOPIC) -> int:
    flat = [part for partition in detached for part in (partition, topic_id)]
    return int(group.call("delete", which, *flat, keys=[group.attached]))


def commit(group: Group, **offsets: int) -> None:
    """Commit by the names of partitions: ``t0=5`` is partition 0 of topic t."""
    assert group.commit({f"{name[0]}:{name[1:]}": f"{offset} -1 {TOPIC} " for name, offset in offsets.items()}) == NONE


def left(group: Group) -> set[str]:
    keys: Any = group.server.keys("korvet:*")
    return {key.decode().rpartition(":")[2] for key in keys}


# ---------------------------------------------------------------------- the partitions that a group notes


def test_group_notes_partitions_and_returns_their_committed_offsets(group: Group) -> None:
    commit(group, t0=5, t1=2**62)
    assert attach(group, "t:0", "t:2", "t:1") == (NONE, 0, ["5", "", str(2**62)])
    assert attached(group) == (NONE, {"t:0": TOPIC, "t:1": TOPIC, "t:2": TOPIC})


def test_offset_of_a_former_topic_does_not_count(group: Group) -> None:
    commit(group, t0=5)
    assert attach(group, "t:0", topic_id=OTHER) == (NONE, 0, [""])
    assert attached(group) == (NONE, {"t:0": OTHER})


def test_offset_below_zero_does_not_count(group: Group) -> None:
    commit(group, t0=-1)
    assert attach(group, "t:0") == (NONE, 0, [""])


def test_mirror_learns_whether_another_mirror_called(group: Group) -> None:
    commit(group, t0=5)
    assert [attach(group, "t:0", mirror=name)[1] for name in ("me", "me", "you", "me", "me")] == [0, 1, 0, 0, 1]
    assert attach(group, "t:0", mirror="")[1] == 0
    assert attach(group, "t:0", mirror="me")[1] == 1


def test_mirror_notes_only_committed_partitions(group: Group) -> None:
    """The mirror may be late with a commit for a former topic of that name."""
    commit(group, t0=5)
    assert attach(group, "t:0", "t:1", mirror="me") == (NONE, 0, ["5", ""])
    assert attached(group) == (NONE, {"t:0": TOPIC})
    assert attach(group, "t:0", topic_id=OTHER, mirror="me") == (NONE, 1, [""])
    assert attached(group) == (NONE, {"t:0": TOPIC})
    assert attach(group, "t:0", topic_id=OTHER) == (NONE, 0, [""])
    assert attach(group, "t:0", mirror="me") == (NONE, 1, ["5"])
    assert attached(group) == (NONE, {"t:0": TOPIC})


def test_missing_group_notes_no_partition(group: Group) -> None:
    assert attach(group, "t:0") == GROUP_ID_NOT_FOUND
    assert attached(group) == (GROUP_ID_NOT_FOUND, {})
    commit(group, t0=5)
    group.pass_time(RETENTION_S)
    assert attach(group, "t:0") == GROUP_ID_NOT_FOUND
    assert "attached" not in left(group)


def test_group_notes_and_forgets_hundreds_of_partitions(group: Group) -> None:
    partitions = [f"t:{index}" for index in range(500)]
    assert group.commit({partition: f"{at} -1 {TOPIC} " for at, partition in enumerate(partitions)}) == NONE
    assert attach(group, *partitions) == (NONE, 0, [str(at) for at in range(500)])
    assert attached(group) == (NONE, dict.fromkeys(partitions, TOPIC))
    assert delete(group, *partitions) == NONE
    assert left(group) == set()


def test_group_lists_and_forgets_very_many_partitions_in_steps(group: Group) -> None:
    commit(group, t0=5)
    partitions = [f"t:{index}" for index in range(2500)]
    for first in range(0, 2500, 500):
        attach(group, *partitions[first : first + 500], mirror="")
    seen: set[str] = set()
    for _ in range(50):
        some = attached(group)[1]
        if delete(group, *some) == NONE:
            break
        flat = [part for pair in some.items() for part in pair]
        keys = (*group.keys, group.attached)
        assert group.server.fcall("korvet_group_detach", 6, *keys, *flat) == 500
        seen |= some.keys()
    assert seen | some.keys() == set(partitions)
    assert (left(group), len(seen)) == (set(), 2000)


def test_full_server_notes_and_forgets_partitions(group: Group) -> None:
    commit(group, t0=5)
    group.server.config_set("maxmemory", 1)
    assert attach(group, "t:0") == (NONE, 0, ["5"])
    assert attached(group)[0] == NONE
    assert delete(group, "t:0") == NONE


def test_key_of_the_wrong_type_is_an_error_and_nothing_changes(group: Group) -> None:
    commit(group, t0=5)
    group.server.set(group.attached, "mine")
    calls: list[Callable[[], object]] = [lambda: attach(group, "t:0"), lambda: attached(group), lambda: delete(group)]
    for call in calls:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call()
    assert group.fetch("t:0") == {"t:0": f"5 -1 {TOPIC} "}


@pytest.mark.parametrize("args", [("me", "t:0"), ("me", "t:0", TOPIC, "t:1")])
def test_partition_without_a_topic_raises_an_error(group: Group, args: tuple[str, ...]) -> None:
    commit(group, t0=5)
    with pytest.raises(
        redis.ResponseError, match=r"korvet_group_attach takes the arguments mirror partitions.*; the call has"
    ):
        group.server.fcall("korvet_group_attach", 6, *group.keys, group.attached, *args)
    with pytest.raises(
        redis.ResponseError, match=r"korvet_group_delete takes the arguments outages which partitions.*; the call has"
    ):
        group.call("delete", "any", *args[1:], keys=[group.attached])
    assert "attached" not in left(group)


# ---------------------------------------------------------------------- the end of a group


def test_group_with_members_is_neither_listed_nor_deleted(group: Group) -> None:
    (member,) = group.stable()
    assert attach(group, "t:0")[0] == NONE
    assert attached(group) == (NON_EMPTY_GROUP, {})
    assert delete(group, "t:0") == NON_EMPTY_GROUP
    group.leave((member, ""))
    assert attached(group) == (NONE, {"t:0": TOPIC})


def test_group_goes_only_after_all_its_redis_groups(group: Group) -> None:
    commit(group, t0=5)
    attach(group, "t:0", "t:1")
    assert delete(group) == delete(group, "t:0") == delete(group, "t:0", "t:1", topic_id=OTHER) == RETRY
    assert attached(group)[0] == NONE
    assert delete(group, "t:0", "t:1", "t:9") == NONE
    assert left(group) == set()
    assert delete(group) == GROUP_ID_NOT_FOUND


def test_expired_group_is_remembered_until_its_redis_groups_are_gone(group: Group) -> None:
    commit(group, t0=5)
    attach(group, "t:0")
    group.pass_time(RETENTION_S)
    group.heartbeat("nobody", 1)
    assert left(group) == {"attached"}
    assert group.server.pttl(group.attached) == -1
    assert attached(group) == (GROUP_ID_NOT_FOUND, {"t:0": TOPIC})
    assert delete(group, which="expired") == RETRY
    assert delete(group, "t:0", which="expired") == GROUP_ID_NOT_FOUND
    assert left(group) == set()


def test_group_that_came_back_is_not_taken_for_an_expired_one(group: Group) -> None:
    commit(group, t0=5)
    attach(group, "t:0")
    group.pass_time(RETENTION_S)
    commit(group, t1=6)
    assert delete(group, "t:0", which="expired") == NON_EMPTY_GROUP
    assert attached(group) == (NONE, {"t:0": TOPIC})
    assert group.fetch("t:1") == {"t:1": f"6 -1 {TOPIC} "}


def test_unknown_word_for_which_groups_to_delete_is_an_error(group: Group) -> None:
    commit(group, t0=5)
    with pytest.raises(redis.ResponseError, match="which"):
        delete(group, which="all")
    assert group.state == "Empty"


# ---------------------------------------------------------------------- readers


def note(group: Group, group_id: str, *partitions: str, ttl_s: int = TTL_S) -> None:
    assert group.server.fcall("korvet_reader_note", 1, READER, group_id, ttl_s * 1000, *partitions) == NONE


def find(group: Group, *partitions: str) -> list[str]:
    return [plain(one) for one in group.server.fcall_ro("korvet_reader_find", 1, READER, *partitions)]


def test_reader_finds_the_only_group_of_a_partition(group: Group) -> None:
    assert find(group, "t:0") == [""]
    note(group, "g", "t:0", "t:1")
    note(group, "h", "t:2")
    assert find(group, "t:1", "t:3", "t:2", "t:0") == ["g", "", "h", "g"]


@pytest.mark.parametrize("name", ["with space {and} brace", "группа", "12 34 ", "x" * 200, "a\nb", "a\0b"])
def test_reader_finds_any_group_id(group: Group, name: str) -> None:
    for _ in range(2):
        note(group, name, "t:0")
        assert find(group, "t:0") == [name]
    note(group, "h", "t:0")
    assert find(group, "t:0") == [""]
    group.pass_time(TTL_S - 1)
    note(group, name, "t:0")
    group.pass_time(1)
    assert find(group, "t:0") == [name]


def test_reader_finds_no_group_for_a_partition_of_several_groups(group: Group) -> None:
    for name in ("f", "g", "h"):
        note(group, name, "t:0")
        group.pass_time(1)
    assert find(group, "t:0") == [""]
    group.pass_time(TTL_S - 3)
    note(group, "f", "t:0")
    group.pass_time(1)
    assert find(group, "t:0") == [""]
    group.pass_time(1)
    assert find(group, "t:0") == ["f"]
    group.pass_time(TTL_S)
    assert find(group, "t:0") == [""]


def test_notes_of_a_reader_expire(group: Group) -> None:
    for index in range(20):
        note(group, "g", f"t:{index}")
        group.pass_time(TTL_S / 10)
    fields: Any = group.server.hkeys(READER)
    assert b"t:0" not in fields and b"t:19" in fields and len(fields) <= 21
    assert find(group, "t:8", "t:12") == ["", "g"]
    assert 0 < group.server.pttl(READER) <= TTL_S * 1000


def test_full_server_notes_and_finds_thousands_of_partitions(group: Group) -> None:
    group.server.config_set("maxmemory", 1)
    partitions = [f"t:{index}" for index in range(1000)]
    note(group, "g", *partitions)
    assert find(group, *partitions) == ["g"] * 1000


def test_text_that_is_no_reader_is_replaced(group: Group) -> None:
    group.server.hset(READER, "t:0", "whatever")
    assert find(group, "t:0") == [""]
    note(group, "g", "t:1", "t:0")
    assert find(group, "t:0", "t:1") == ["g", "g"]
