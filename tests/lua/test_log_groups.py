"""korvet_log_attach, _detach and _describe: Redis groups on a partition's stream, on Redis 7.0 and Valkey."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.log import Log

GONE = -3
OFFSET_OUT_OF_RANGE = 1
OTHER_TOPIC = "b" * 32


def attach(log: Log, group: str, offset: int | str, mode: str = "keep") -> int:
    (code,) = log.call("korvet_log_attach", log.topic_id, group, offset, mode)
    return int(code)


def detach(log: Log, group: str) -> int:
    (code,) = log.call("korvet_log_detach", log.topic_id, group)
    return int(code)


def redis_groups(log: Log) -> dict[str, tuple[str, int | None, int | None]]:
    """Name -> last-delivered-id, entries-read and lag, as XINFO GROUPS shows them."""
    found: Any = log.server.xinfo_groups(log.log)
    return {one["name"].decode(): (one["last-delivered-id"].decode(), one["entries-read"], one["lag"]) for one in found}


def named(flat: Any) -> dict[str, Any]:
    plain = [part.decode() if isinstance(part, bytes) else part for part in flat]
    return dict(zip(plain[::2], plain[1::2], strict=True))


def described(log: Log) -> dict[str, Any]:
    code, *flat = log.server.fcall_ro("korvet_log_describe", 2, log.log, log.meta)
    assert code == 0
    found = named(flat)
    return {**found, "groups": {one["name"]: one for one in map(named, found["groups"])}}


@pytest.fixture
def filled(log: Log) -> Log:
    """Five batches of three records each."""
    for _ in range(5):
        assert log.append(3).code == 0
    return log


@pytest.mark.parametrize(
    ("offset", "read", "lag"), [(0, 0, 5), (1, 0, 5), (3, 1, 4), (4, 1, 4), (14, 4, 1), (15, 5, 0)]
)
@pytest.mark.parametrize("mode", ["keep", "move"])
def test_group_is_made_at_the_offset_and_redis_knows_its_lag(
    filled: Log, mode: str, offset: int, read: int, lag: int
) -> None:
    assert attach(filled, "g", offset, mode) == 0
    assert redis_groups(filled) == {"g": (f"{offset}-0", read, lag)}


def test_group_on_an_empty_log_has_no_lag_until_something_comes(log: Log) -> None:
    assert attach(log, "g", 0) == 0
    assert redis_groups(log) == {"g": ("0-0", 0, 0)}
    log.place(2)
    assert redis_groups(log) == {"g": ("0-0", 0, 1)}


def test_group_that_is_there_keeps_its_position(filled: Log) -> None:
    assert attach(filled, "g", 6) == 0
    assert attach(filled, "g", 12) == 0
    assert redis_groups(filled) == {"g": ("6-0", 2, 3)}


@pytest.mark.parametrize(("offset", "read", "lag"), [(12, 4, 1), (7, 2, 3), (0, 0, 5)])
def test_group_is_moved_on_and_back(filled: Log, offset: int, read: int, lag: int) -> None:
    assert attach(filled, "g", 9) == 0
    for _ in range(2):
        assert attach(filled, "g", offset, "move") == 0
        assert redis_groups(filled) == {"g": (f"{offset}-0", read, lag)}


def test_who_fetches_from_where_nothing_is_gets_no_group(filled: Log) -> None:
    """A client is told so, and reads from elsewhere."""
    assert filled.trim(6)[0] == 0
    assert attach(filled, "g", 5) == attach(filled, "g", 16) == OFFSET_OUT_OF_RANGE
    assert redis_groups(filled) == {}


@pytest.mark.parametrize(("offset", "read"), [(2, 2), (100, 5), (2**63 - 1, 5)])
def test_commit_beside_the_log_is_followed(filled: Log, offset: int, read: int) -> None:
    """Kafka takes any offset in a commit."""
    assert filled.trim(6)[0] == 0
    assert attach(filled, "g", offset, "move") == 0
    assert redis_groups(filled) == {"g": (f"{offset}-0", read, 5 - read)}


def test_lag_is_right_behind_a_trim_and_in_a_log_that_was_emptied(filled: Log) -> None:
    assert filled.trim(7)[0] == 0
    assert attach(filled, "inside", 8) == 0
    assert redis_groups(filled)["inside"] == ("8-0", 2, 3)
    assert filled.trim(-1)[0] == 0
    assert attach(filled, "emptied", 15) == 0
    assert redis_groups(filled)["emptied"] == ("15-0", 5, 0)
    assert filled.append(2).code == 0
    assert redis_groups(filled)["emptied"] == ("15-0", 5, 1)


def test_group_that_stays_below_a_trim_is_shown_what_was_trimmed_until_it_moves(filled: Log) -> None:
    """Redis subtracts what was read from what was ever added; korvet's own description counts what is there."""
    assert attach(filled, "g", 0) == 0
    assert filled.trim(6)[0] == 0
    assert redis_groups(filled)["g"] == ("0-0", 0, 5)
    assert described(filled)["groups"]["g"]["lag_batches"] == 3
    assert attach(filled, "g", 0, "move") == 0
    assert redis_groups(filled)["g"] == ("0-0", 2, 3)


@pytest.mark.parametrize("name", ["korvet", "", "with space {and} brace", "группа", "x" * 200, "a\nb:c"])
def test_any_group_id_is_a_name(filled: Log, name: str) -> None:
    assert attach(filled, name, 3) == attach(filled, name, 6, "move") == 0
    assert filled.create() == 0
    assert filled.append(1).code == 0
    assert redis_groups(filled)[name] == ("6-0", 2, 4)
    assert list(described(filled)["groups"]) == [name]
    assert detach(filled, name) == 0
    assert redis_groups(filled) == {}


def test_group_can_be_read_by_redis_clients_where_it_stands(filled: Log) -> None:
    assert attach(filled, "g", 7) == 0
    read: Any = filled.server.xreadgroup("g", "someone", {filled.log: ">"})
    assert [name for name, _ in read[0][1]] == [b"9-0", b"12-0", b"15-0"]


def test_detaching_destroys_one_group_and_may_be_repeated(filled: Log) -> None:
    for name in ("mine", "other"):
        assert attach(filled, name, 3) == 0
    for _ in range(2):
        assert detach(filled, "mine") == 0
        assert list(redis_groups(filled)) == ["other"]


def test_other_topic_is_left_alone(filled: Log) -> None:
    assert attach(filled, "g", 3) == 0
    before = filled.dump()
    filled.topic_id = OTHER_TOPIC
    assert attach(filled, "g", 6, "move") == attach(filled, "h", 6) == detach(filled, "g") == GONE
    assert filled.dump() == before


def test_partition_that_is_being_deleted_takes_no_group_and_has_none_afterwards(filled: Log) -> None:
    assert attach(filled, "g", 3) == 0
    for _ in range(200):
        filled.append()
    assert filled.delete() == [0, 1]
    assert attach(filled, "h", 3) == detach(filled, "g") == GONE
    assert filled.server.fcall_ro("korvet_log_describe", 2, filled.log, filled.meta) == [GONE]
    while filled.delete()[1]:
        pass
    assert attach(filled, "g", 3) == GONE
    assert filled.dump() == {}


def test_stream_that_was_taken_away_is_not_made_by_a_group(filled: Log) -> None:
    filled.server.delete(filled.log)
    assert attach(filled, "g", 3, "move") == GONE
    assert filled.server.exists(filled.log) == 0


@pytest.mark.parametrize("args", [("-1", "keep"), ("1-0", "move"), ("", "keep"), ("3", "other"), (str(2**64), "move")])
def test_wrong_arguments_change_nothing(filled: Log, args: tuple[str, str]) -> None:
    assert attach(filled, "g", 3) == 0
    before = filled.dump()
    with pytest.raises(redis.ResponseError):
        attach(filled, "g", *args)
    with pytest.raises(redis.ResponseError):
        attach(filled, "h", *args)
    assert filled.dump() == before


def test_key_of_the_wrong_type_is_an_error_and_stays(filled: Log) -> None:
    filled.server.delete(filled.log)
    filled.server.set(filled.log, "mine")
    for mode in ("keep", "move"):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            attach(filled, "g", 3, mode)
    assert filled.server.get(filled.log) == b"mine"


def test_groups_are_made_moved_and_destroyed_by_a_full_server(filled: Log) -> None:
    filled.server.config_set("maxmemory", 1)
    assert attach(filled, "g", 3) == attach(filled, "g", 6, "move") == 0
    assert described(filled)["groups"]["g"]["position"] == "6"
    assert detach(filled, "g") == 0
    assert redis_groups(filled) == {}


def test_description_tells_what_is_there_and_how_far_groups_are_behind(filled: Log) -> None:
    assert attach(filled, "behind", 4) == attach(filled, "done", 15) == 0
    assert attach(filled, "ahead", 99, "move") == attach(filled, "below", 0) == 0
    filled.place(5, batch=b"p" * 100)
    assert filled.trim(6)[0] == 0
    found = described(filled)
    groups = found.pop("groups")
    assert found == {"topic_id": filled.topic_id, "start": 6, "end": 20, "epoch": 0, "batches": 4, "bytes": 115}
    assert {name: (one["position"], one["lag_records"], one["lag_batches"]) for name, one in groups.items()} == {
        "behind": ("4", 14, 4), "done": ("15", 5, 1), "ahead": ("99", 0, 0), "below": ("0", 14, 4),
    }  # fmt: skip


def test_description_of_an_empty_log(log: Log) -> None:
    found = described(log)
    assert (found["start"], found["end"], found["batches"], found["bytes"], found["groups"]) == (0, 0, 0, 0, {})
