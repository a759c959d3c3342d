"""Access rules in Redis: each change is whole, may be repeated, is bounded, and is told to the front-ends."""

from __future__ import annotations

import json

import pytest
import redis

KEY = "korvet:{default:@security}:acls"
INVALID_REQUEST, POLICY_VIOLATION = 42, 44


def rule(name: str = "t", **other: object) -> str:
    fields = {"type": 2, "pattern": 3, "name": name, "principal": "User:a", "host": "*", "operation": 3, "allow": 3}
    return json.dumps(list((fields | other).values()), separators=(",", ":"))


def add(server: redis.Redis, *rules: str) -> list[int]:
    added: list[int] = server.fcall("korvet_acls_add", 1, KEY, *rules)
    return added


def read(server: redis.Redis, known: int = -1) -> tuple[int, set[str]]:
    _, version, rules = server.fcall_ro("korvet_acls_read", 1, KEY, known)
    return version, {one.decode() for one in rules}


def test_rules_are_there_once_however_often_they_are_added(server: redis.Redis) -> None:
    assert read(server) == (0, set())
    assert add(server, rule("a"), rule("b"), rule("a")) == [0, 2]
    assert add(server, rule("b")) == [0, 0]
    version, rules = read(server)
    assert rules == {rule("a"), rule("b")}
    assert read(server, known=version) == (version, set())


def test_removed_rules_are_gone_and_a_repeated_removal_changes_nothing(server: redis.Redis) -> None:
    add(server, rule("a"), rule("b"))
    assert server.fcall("korvet_acls_remove", 1, KEY, rule("a"), rule("c"), "") == [0, [1, 0, 1]]
    assert server.fcall("korvet_acls_remove", 1, KEY, rule("a")) == [0, [0]]
    assert read(server)[1] == {rule("b")}


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[]", "{}", "null", "[2,3]", rule(""), rule(type=1), rule(type=8), rule(type=2.5), rule(pattern=2),
        rule(operation=1), rule(operation=16), rule(allow=1), rule(principal=""), rule(host=""), rule(host=5),
    ],
)  # fmt: skip
def test_a_text_that_is_no_rule_is_refused_with_all_others_of_its_call(server: redis.Redis, text: str) -> None:
    assert add(server, rule("good"), text) == [INVALID_REQUEST, 0]
    assert not server.exists(KEY)


def test_no_call_makes_more_rules_or_longer_ones_than_the_bound(server: redis.Redis) -> None:
    assert add(server, rule("x" * 2048)) == [POLICY_VIOLATION, 0]
    assert add(server, rule()) == [0, 1]
    many = [rule(str(number)) for number in range(10_000)]
    assert add(server, *many) == [POLICY_VIOLATION, 0]
    assert read(server)[1] == {rule()}
    assert add(server, *many[:-1]) == [0, 9_999]
    assert add(server, rule("one more")) == [POLICY_VIOLATION, 0]
    assert add(server, many[0]) == [0, 0]
    assert server.fcall("korvet_acls_remove", 1, KEY, *many) == [0, [1] * 9_999 + [0]]
    assert read(server)[1] == {rule()}
    with pytest.raises(redis.ResponseError, match="at most 10000"):
        add(server, *many, rule("one more"))
