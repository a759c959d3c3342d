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
def test_redis_group_is_made_at_an_offset_and_has_a_lag(
    filled: Log, mode: str, offset: int, read: int, lag: int
) -> None:
    assert attach(filled, "g", offset, mode) == 0
    assert redis_groups(filled) == {"g": (f"{offset}-0", read, lag)}


def test_group_on_an_empty_log_has_no_lag_until_something_comes(log: Log) -> None:
    assert attach(log, "g", 0) == 0
    assert redis_groups(log) == {"g": ("0-0", 0, 0)}
    log.place(2)
    assert redis_groups(log) == {"g": ("0-0", 0, 1)}


def test_existing_redis_group_keeps_its_position(filled: Log) -> None:
    assert attach(filled, "g", 6) == 0
    assert attach(filled, "g", 12) == 0
    assert redis_groups(filled) == {"g": ("6-0", 2, 3)}


@pytest.mark.parametrize(("offset", "read", "lag"), [(12, 4, 1), (7, 2, 3), (0, 0, 5)])
def test_redis_group_moves_forward_and_back(filled: Log, offset: int, read: int, lag: int) -> None:
    assert attach(filled, "g", 9) == 0
    for _ in range(2):
        assert attach(filled, "g", offset, "move") == 0
        assert redis_groups(filled) == {"g": (f"{offset}-0", read, lag)}


def test_fetch_outside_of_the_log_gets_no_group(filled: Log) -> None:
    """The client gets an error, and reads from another offset."""
    assert filled.trim(6)[0] == 0
    assert attach(filled, "g", 5) == attach(filled, "g", 16) == OFFSET_OUT_OF_RANGE
    assert redis_groups(filled) == {}


@pytest.mark.parametrize(("offset", "read"), [(2, 2), (100, 5), (2**63 - 1, 5)])
def test_redis_group_follows_a_commit_outside_the_log(filled: Log, offset: int, read: int) -> None:
    """Kafka takes any offset in a commit."""
    assert filled.trim(6)[0] == 0
    assert attach(filled, "g", offset, "move") == 0
    assert redis_groups(filled) == {"g": (f"{offset}-0", read, 5 - read)}


def test_lag_is_right_after_a_trim_and_in_a_log_that_was_emptied(filled: Log) -> None:
    assert filled.trim(7)[0] == 0
    assert attach(filled, "inside", 8) == 0
    assert redis_groups(filled)["inside"] == ("8-0", 2, 3)
    assert filled.trim(-1)[0] == 0
    assert attach(filled, "emptied", 15) == 0
    assert redis_groups(filled)["emptied"] == ("15-0", 5, 0)
    assert filled.append(2).code == 0
    assert redis_groups(filled)["emptied"] == ("15-0", 5, 1)


def test_group_below_a_trim_shows_the_trimmed_lag_until_it_moves(filled: Log) -> None:
    """Redis subtracts the entries read from the entries ever added; korvet's description counts existing ones."""
    assert attach(filled, "g", 0) == 0
    assert filled.trim(6)[0] == 0
    assert redis_groups(filled)["g"] == ("0-0", 0, 5)
    assert described(filled)["groups"]["g"]["lag_batches"] == 3
    assert attach(filled, "g", 0, "move") == 0
    assert redis_groups(filled)["g"] == ("0-0", 2, 3)


@pytest.mark.parametrize("name", ["korvet", "", "with space {and} brace", "группа", "x" * 200, "a\nb:c"])
def test_redis_group_takes_any_group_id_as_its_name(filled: Log, name: str) -> None:
    assert attach(filled, name, 3) == attach(filled, name, 6, "move") == 0
    assert filled.create() == 0
    assert filled.append(1).code == 0
    assert redis_groups(filled)[name] == ("6-0", 2, 4)
    assert list(described(filled)["groups"]) == [name]
    assert detach(filled, name) == 0
    assert redis_groups(filled) == {}


def test_redis_clients_read_on_from_the_position_of_a_group(filled: Log) -> None:
    assert attach(filled, "g", 7) == 0
    read: Any = filled.server.xreadgroup("g", "someone", {filled.log: ">"})
    assert [name for name, _ in read[0][1]] == [b"9-0", b"12-0", b"15-0"]


def test_repeated_detach_destroys_one_redis_group(filled: Log) -> None:
    for name in ("mine", "other"):
        assert attach(filled, name, 3) == 0
    for _ in range(2):
        assert detach(filled, "mine") == 0
        assert list(redis_groups(filled)) == ["other"]


def test_call_leaves_another_topic_alone(filled: Log) -> None:
    assert attach(filled, "g", 3) == 0
    before = filled.dump()
    filled.topic_id = OTHER_TOPIC
    assert attach(filled, "g", 6, "move") == attach(filled, "h", 6) == detach(filled, "g") == GONE
    assert filled.dump() == before


def test_partition_under_deletion_takes_and_keeps_no_redis_group(filled: Log) -> None:
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


def test_attach_does_not_make_a_missing_stream(filled: Log) -> None:
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


def test_full_server_makes_moves_and_destroys_redis_groups(filled: Log) -> None:
    filled.server.config_set("maxmemory", 1)
    assert attach(filled, "g", 3) == attach(filled, "g", 6, "move") == 0
    assert described(filled)["groups"]["g"]["position"] == "6"
    assert detach(filled, "g") == 0
    assert redis_groups(filled) == {}


def test_description_has_offsets_sizes_and_lags(filled: Log) -> None:
    assert attach(filled, "behind", 4) == attach(filled, "done", 15) == 0
    assert attach(filled, "ahead", 99, "move") == attach(filled, "below", 0) == 0
    filled.place(5, batch=b"p" * 100)
    assert filled.trim(6)[0] == 0
    found = described(filled)
    groups = found.pop("groups")
    assert found.pop("groups_count") == len(groups)
    assert found == {"topic_id": filled.topic_id, "start": 6, "end": 20, "epoch": 0, "batches": 4, "bytes": 115}
    assert {name: (one["position"], one["lag_records"], one["lag_batches"]) for name, one in groups.items()} == {
        "behind": ("4", 14, 4), "done": ("15", 5, 1), "ahead": ("99", 0, 0), "below": ("0", 14, 4),
    }  # fmt: skip


def test_description_shows_an_empty_log(log: Log) -> None:
    found = described(log)
    assert (found["start"], found["end"], found["batches"], found["bytes"], found["groups"]) == (0, 0, 0, 0, {})


def test_description_counts_the_groups_that_it_leaves_out(filled: Log) -> None:
    with filled.server.pipeline(transaction=False) as pipeline:
        for number in range(501):
            pipeline.xgroup_create(filled.log, f"g{number}", "0")
        pipeline.execute()
    found = described(filled)
    assert (found["groups"], found["groups_count"]) == ({}, 501)
    assert detach(filled, "g0") == 0
    assert len(described(filled)["groups"]) == 500


def test_description_without_groups_reads_none_of_them(filled: Log) -> None:
    assert attach(filled, "g", 3) == 0
    before = filled.server.info("commandstats").get("cmdstat_xinfo|groups", {"calls": 0})["calls"]
    code, *flat = filled.server.fcall_ro("korvet_log_describe", 2, filled.log, filled.meta, 1)
    assert (code, flat[flat.index(b"groups") + 1]) == (0, [])
    assert filled.server.info("commandstats").get("cmdstat_xinfo|groups", {"calls": 0})["calls"] == before
