"""``korvet_apply``: commands and the place in the topic behind them move in one step, whatever comes twice or late."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
import redis

APPLIED, TOTAL, NAMES, OTHER = "{shop}:applied", "{shop}:total", "{shop}:names", "{shop}:other"
WHOSE = "billing", "AbC-_9", 0
FIELD = "billing AbC-_9 0"
NOTHING, FIRST, SECOND = (-1, -1), (4, 10), (4, 17)
ADD = "INCRBY", TOTAL, 5
PUSH = "RPUSH", NAMES, "a"
Command = Sequence[str | bytes | int]


def plain(reply: list[Any]) -> list[Any]:
    return [one.decode() if isinstance(one, bytes) else one for one in reply]


def claim(server: redis.Redis, owner: str = "me", key: str = APPLIED) -> list[int]:
    found: list[int] = server.fcall("korvet_apply_claim", 1, key, *WHOSE, owner)
    return found


def apply(
    server: redis.Redis,
    previous: tuple[int, int],
    place: tuple[int, int],
    *commands: Command,
    owner: str = "me",
    keys: Sequence[str] = (TOTAL, NAMES),
) -> list[Any]:
    words = [word for command in commands for word in (len(command), *command)]
    args = (*WHOSE, owner, *previous, *place, *words)
    return plain(server.fcall("korvet_apply", 1 + len(keys), APPLIED, *keys, *args))


def state(server: redis.Redis) -> str | None:
    text: Any = server.hget(APPLIED, FIELD)
    return None if text is None else str(text.decode())


@pytest.fixture
def owned(server: redis.Redis) -> redis.Redis:
    """A server on which `me` owns the partition, and has applied its first record."""
    assert claim(server) == [-1, -1, 0]
    assert apply(server, NOTHING, FIRST, ADD, PUSH) == ["APPLIED", *FIRST]
    return server


def test_commands_and_the_place_move_together(owned: redis.Redis) -> None:
    assert (owned.get(TOTAL), owned.lrange(NAMES, 0, -1)) == (b"5", [b"a"])
    assert state(owned) == "me 4 10 0 -"
    assert claim(owned, "me") == [4, 10, 0]


def test_what_comes_twice_is_skipped(owned: redis.Redis) -> None:
    for place in (FIRST, (4, 9), (3, 500)):
        assert apply(owned, NOTHING, place, ADD) == ["SKIPPED", *FIRST]
    assert owned.get(TOTAL) == b"5"


def test_former_owner_is_fenced_and_the_next_one_goes_on(owned: redis.Redis) -> None:
    assert claim(owned, "next") == [4, 10, 0]
    assert apply(owned, FIRST, SECOND, ADD) == ["FENCED"]
    assert apply(owned, FIRST, SECOND, ADD, owner="next") == ["APPLIED", *SECOND]
    assert owned.get(TOTAL) == b"10"


def test_owner_without_a_place_is_fenced(server: redis.Redis) -> None:
    assert apply(server, NOTHING, FIRST, ADD) == ["FENCED"]
    assert server.dbsize() == 0


def test_caller_learns_of_writes_that_the_server_lost(owned: redis.Redis) -> None:
    kept: dict[str, Any] = {key: owned.dump(key) for key in (APPLIED, TOTAL, NAMES)}
    assert apply(owned, FIRST, SECOND, ADD) == ["APPLIED", *SECOND]
    for key, dumped in kept.items():
        owned.restore(key, 0, dumped, replace=True)
    assert apply(owned, SECOND, (4, 18), ADD) == ["MOVED", *FIRST]
    assert apply(owned, FIRST, SECOND, ADD) == ["APPLIED", *SECOND]
    assert owned.get(TOTAL) == b"10"


def test_offsets_that_a_topic_gives_out_again_are_applied(owned: redis.Redis) -> None:
    assert apply(owned, FIRST, (5, 3), ADD) == ["APPLIED", 5, 3]
    assert apply(owned, (5, 3), (4, 11), ADD) == ["SKIPPED", 5, 3]
    assert owned.get(TOTAL) == b"10"


def test_offsets_alone_count_for_a_client_without_epochs(owned: redis.Redis) -> None:
    assert apply(owned, FIRST, (-1, 10), ADD) == ["SKIPPED", *FIRST]
    assert apply(owned, FIRST, (-1, 11), ADD) == ["APPLIED", -1, 11]
    assert apply(owned, (-1, 11), (4, 11), ADD) == ["SKIPPED", -1, 11]
    assert apply(owned, (-1, 11), (4, 12), ADD) == ["APPLIED", 4, 12]
    assert owned.get(TOTAL) == b"15"


def test_each_topic_partition_and_application_has_a_place_of_its_own(owned: redis.Redis) -> None:
    for whose in (("other", "AbC-_9", 0), ("billing", "AbC-_8", 0), ("billing", "AbC-_9", 1)):
        assert owned.fcall("korvet_apply_claim", 1, APPLIED, *whose, "me") == [-1, -1, 0]
    assert owned.hlen(APPLIED) == 4


def test_place_moves_on_without_commands(owned: redis.Redis) -> None:
    assert apply(owned, FIRST, SECOND, keys=()) == ["APPLIED", *SECOND]
    assert claim(owned) == [*SECOND, 0]


def test_every_command_of_the_list_is_applied(server: redis.Redis) -> None:
    claim(server)
    raw: Any = server
    commands: list[tuple[Command, tuple[str, str]]] = [
        (("SET", "{shop}:s", "1"), ("GET", "{shop}:s")), (("append", "{shop}:s", "2"), ("GET", "{shop}:s")),
        (("INCRBY", "{shop}:s", 3), ("GET", "{shop}:s")), (("UNLINK", "{shop}:s"), ("EXISTS", "{shop}:s")),
        (("HSET", "{shop}:h", "f", 1), ("HLEN", "{shop}:h")), (("HINCRBY", "{shop}:h", "f", 1), ("HLEN", "{shop}:h")),
        (("HDEL", "{shop}:h", "f"), ("HLEN", "{shop}:h")), (("SADD", "{shop}:m", "a"), ("SCARD", "{shop}:m")),
        (("SREM", "{shop}:m", "a"), ("SCARD", "{shop}:m")), (("ZADD", "{shop}:z", 1, "a"), ("ZCARD", "{shop}:z")),
        (("ZINCRBY", "{shop}:z", 1, "b"), ("ZCARD", "{shop}:z")), (("ZREM", "{shop}:z", "a"), ("ZCARD", "{shop}:z")),
        (("LPUSH", "{shop}:l", "a"), ("LLEN", "{shop}:l")), (("RPUSH", "{shop}:l", "b"), ("LLEN", "{shop}:l")),
        (("XADD", "{shop}:x", "*", "f", "v"), ("XLEN", "{shop}:x")),
        (("PFADD", "{shop}:p", "a"), ("PFCOUNT", "{shop}:p")), (("PEXPIREAT", "{shop}:p", 1), ("EXISTS", "{shop}:p")),
    ]  # fmt: skip
    seen, previous = [], NOTHING
    for offset, (command, question) in enumerate(commands):
        assert apply(server, previous, (0, offset), command, keys=[str(command[1])]) == ["APPLIED", 0, offset]
        previous = (0, offset)
        seen.append(raw.execute_command(*question))
    assert seen == [b"1", b"12", b"15", 0, 1, 1, 0, 1, 0, 1, 2, 1, 1, 2, 1, 1, 0]


# ------------------------------------------------------------------ a command that fails


def test_commands_before_a_failed_one_are_done_once(owned: redis.Redis) -> None:
    commands: list[Command] = [ADD, ("RPUSH", TOTAL, "b"), PUSH]
    for _ in range(2):
        reply = apply(owned, FIRST, SECOND, *commands)
        assert reply[:2] == ["FAILED", 2] and reply[2].startswith("WRONGTYPE")
        assert (owned.get(TOTAL), owned.llen(NAMES)) == (b"10", 1)
    assert claim(owned, "next") == [*FIRST, 1]
    assert apply(owned, FIRST, SECOND, ADD, PUSH, PUSH, owner="next") == ["APPLIED", *SECOND]
    assert (owned.get(TOTAL), owned.llen(NAMES), state(owned)) == (b"10", 3, "next 4 17 0 -")


def test_retry_goes_on_with_a_shorter_or_longer_part_of_the_topic(owned: redis.Redis) -> None:
    assert apply(owned, FIRST, SECOND, ADD, PUSH, ("RPUSH", TOTAL, "b"))[:2] == ["FAILED", 3]
    assert apply(owned, FIRST, (4, 12), ADD) == ["CONFLICT", 2]
    assert apply(owned, FIRST, (4, 14), ADD, PUSH) == ["APPLIED", 4, 14]
    assert apply(owned, (4, 14), (4, 30), PUSH) == ["APPLIED", 4, 30]
    assert (owned.get(TOTAL), owned.llen(NAMES)) == (b"10", 3)


def test_other_commands_than_those_that_are_done_conflict(owned: redis.Redis) -> None:
    assert apply(owned, FIRST, SECOND, ("RPUSH", NAMES, "1", "2"), ("RPUSH", TOTAL, "b"))[:2] == ["FAILED", 2]
    others: list[Command] = [("RPUSH", NAMES, "12"), ("RPUSH", NAMES, "1", "3"), ("RPUSH", NAMES, "1"), ADD]
    for other in others:
        assert apply(owned, FIRST, SECOND, other, ADD) == ["CONFLICT", 1]
    assert apply(owned, FIRST, SECOND, keys=()) == ["CONFLICT", 1]
    assert apply(owned, FIRST, SECOND, ("rpush", NAMES, "1", "2"), ADD) == ["APPLIED", *SECOND]


def test_failure_of_the_first_command_changes_nothing(owned: redis.Redis) -> None:
    before = state(owned)
    assert apply(owned, FIRST, SECOND, ("RPUSH", TOTAL, "b"), ADD)[:2] == ["FAILED", 1]
    assert state(owned) == before


def test_digest_is_of_the_words_and_their_lengths(owned: redis.Redis) -> None:
    apply(owned, FIRST, SECOND, ADD, ("RPUSH", TOTAL, "b"))
    digest = hashlib.sha1(f"3;6:INCRBY{len(TOTAL)}:{TOTAL}1:5".encode()).hexdigest()
    assert state(owned) == f"me 4 10 1 {digest}"


# ------------------------------------------------------------------ calls that are refused before anything is done


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("GET", TOTAL), "command 2, GET, is not one that can be applied"),
        (("FLUSHALL", TOTAL), "FLUSHALL, is not one"), (("EVAL", TOTAL), "EVAL, is not one"),
        (("BLPOP", NAMES, 0), "BLPOP, is not one"), (("SPUBLISH", NAMES, "a"), "SPUBLISH, is not one"),
        (("SET", OTHER, "a"), "the key of command 2, {shop}:other, is not given as a key"),
        (("HSET", APPLIED, "a", "b"), "the key of command 2, {shop}:applied, is not given as a key"),
        (("UNLINK", TOTAL, NAMES), "command 2 removes several keys"),
        (("SADD", NAMES, *map(str, range(999))), "command 2 cannot have 1001 words"),
        (("SET", TOTAL, "x" * 1048576), "at most 100 commands and 1048576 bytes"),
    ],
)  # fmt: skip
def test_command_that_cannot_be_applied_refuses_the_call(owned: redis.Redis, command: Command, problem: str) -> None:
    with pytest.raises(redis.ResponseError, match=problem):
        apply(owned, FIRST, SECOND, ADD, command)
    assert (owned.get(TOTAL), state(owned)) == (b"5", "me 4 10 0 -")


def test_call_has_at_most_100_commands(owned: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="at most 100 commands"):
        apply(owned, FIRST, SECOND, *[ADD] * 101)
    assert apply(owned, FIRST, SECOND, *[ADD] * 100) == ["APPLIED", *SECOND]
    assert owned.get(TOTAL) == b"505"


@pytest.mark.parametrize(
    "words", [["1", "SET"], ["3", "SET", TOTAL], ["x", "SET", TOTAL], ["2.5", "SET", TOTAL], ["-1"]]
)
def test_list_of_commands_that_is_none_is_refused(owned: redis.Redis, words: list[str]) -> None:
    with pytest.raises(redis.ResponseError, match=r"cannot have .* words|is not an integer"):
        owned.fcall("korvet_apply", 2, APPLIED, TOTAL, *WHOSE, "me", *FIRST, *SECOND, *words)
    assert state(owned) == "me 4 10 0 -"


@pytest.mark.parametrize("keys", [[APPLIED], ["korvet:{default:orders:0}:log"]])
def test_keys_of_korvet_and_the_applied_hash_are_no_data(owned: redis.Redis, keys: list[str]) -> None:
    with pytest.raises(redis.ResponseError, match="is not one of the data"):
        apply(owned, FIRST, SECOND, keys=keys)
    with pytest.raises(redis.ResponseError, match="is not one of the data"):
        claim(owned, key="korvet:{default:@catalog}:topics")


@pytest.mark.parametrize(
    "whose",
    [("", "t", 0, "o"), ("a b", "t", 0, "o"), ("a", "t" * 250, 0, "o"), ("a", "t", -1, "o"), ("a", "t", 0, "o" * 33)],
)
def test_names_that_a_field_cannot_hold_are_refused(server: redis.Redis, whose: tuple[str | int, ...]) -> None:
    with pytest.raises(redis.ResponseError, match="must"):
        server.fcall("korvet_apply_claim", 1, APPLIED, *whose)
    assert server.dbsize() == 0


@pytest.mark.parametrize("place", [(-2, 5), (1 << 31, 5), (4, 1 << 54), (4, -2)])
def test_places_that_are_none_are_refused(owned: redis.Redis, place: tuple[int, int]) -> None:
    with pytest.raises(redis.ResponseError, match="is no leader epoch and offset"):
        apply(owned, FIRST, place, ADD)


def test_field_that_cannot_be_read_is_named(owned: redis.Redis) -> None:
    owned.hset(APPLIED, FIELD, "anything")
    with pytest.raises(redis.ResponseError, match=f"field {FIELD} of {APPLIED} cannot be read"):
        apply(owned, FIRST, SECOND, ADD)
    owned.set(APPLIED, "anything")
    with pytest.raises(redis.ResponseError, match=f"WRONGTYPE Operation against {APPLIED}"):
        claim(owned)


@pytest.mark.parametrize("right", ["-incrby", "-hset", "%R~{shop}:applied", "%R~{shop}:total"])
def test_rights_of_the_caller_count_before_anything_is_done(owned: redis.Redis, right: str) -> None:
    raw: Any = owned
    keys = [f"~{key}" for key in (APPLIED, TOTAL, NAMES) if key not in right]
    raw.execute_command("ACL", "SETUSER", "app", "reset", "on", "nopass", "+@all", *keys, right)
    raw.execute_command("AUTH", "app", "any")
    try:
        with pytest.raises(redis.ResponseError, match=r"NOPERM|No permissions|no permissions|may not"):
            apply(owned, FIRST, SECOND, PUSH, ADD)
    finally:
        raw.execute_command("AUTH", "default", "any")
        raw.execute_command("ACL", "DELUSER", "app")
    assert (owned.lrange(NAMES, 0, -1), state(owned)) == ([b"a"], "me 4 10 0 -")


def test_call_at_maxmemory_is_refused_before_anything_is_done(owned: redis.Redis) -> None:
    owned.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError, match=r"used memory > 'maxmemory'|OOM"):
        apply(owned, FIRST, SECOND, ADD)
    owned.config_set("maxmemory", 0)
    assert (owned.get(TOTAL), state(owned)) == (b"5", "me 4 10 0 -")
