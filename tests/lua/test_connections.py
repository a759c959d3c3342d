"""Connections in Redis: front-ends with a lease add up, and what others left behind goes."""

from __future__ import annotations

import time

import pytest
import redis

LEASES = "korvet:{default:@connections}:leases"
COUNTERS = [f"korvet:{{default:@connections}}:connections:ip:{name}" for name in "ab"]


def tell(server: redis.Redis, front_end: str, *counts: int, lease_ms: int = 60_000) -> tuple[bool, list[int]]:
    """Whether the front-end had a lease, and the connections of others."""
    keys = [LEASES, *COUNTERS[: len(counts)]]
    _, had_lease, others = server.fcall("korvet_connections_count", len(keys), *keys, front_end, lease_ms, *counts)
    return bool(had_lease), others


def test_front_ends_hear_of_each_other(server: redis.Redis) -> None:
    assert tell(server, "one", 3, 1) == (False, [0, 0])
    assert tell(server, "two", 2) == (False, [3])
    assert tell(server, "one", 4, 0) == (True, [2, 0])
    assert tell(server, "three", 0, 0) == (False, [6, 0])
    assert server.hgetall(COUNTERS[0]) == {b"one": b"4", b"two": b"2"}
    assert not server.exists(COUNTERS[1])


def test_a_call_that_comes_twice_changes_nothing(server: redis.Redis) -> None:
    tell(server, "one", 3)
    for _ in range(2):
        assert tell(server, "two", 2)[1] == [3]
    assert tell(server, "one", 3) == (True, [2])


def test_front_end_whose_lease_ended_does_not_count_and_is_cleared_away(server: redis.Redis) -> None:
    tell(server, "dead", 5, 5, lease_ms=1)
    time.sleep(0.01)
    assert tell(server, "one", 1) == (False, [0])
    assert server.hgetall(COUNTERS[0]) == {b"one": b"1"}
    assert tell(server, "dead", lease_ms=60_000) == (False, [])
    assert tell(server, "one", 1, 0)[1] == [0, 5]
    assert 0 < server.pttl(COUNTERS[1]) <= 3_600_000


def test_front_end_that_leaves_ends_its_lease(server: redis.Redis) -> None:
    tell(server, "one", 5)
    assert tell(server, "one", lease_ms=0) == (True, [])
    assert tell(server, "two", 1) == (False, [0])


def test_damaged_counters_count_nothing(server: redis.Redis) -> None:
    tell(server, "one", 1)
    server.hset(COUNTERS[0], "one", "many")
    assert tell(server, "two", 1)[1] == [0]


@pytest.mark.parametrize("arguments", [["1"], ["1", "2", "3"], ["x", "1"]])
def test_counts_that_fit_no_counter_are_refused(server: redis.Redis, arguments: list[str]) -> None:
    with pytest.raises(redis.ResponseError, match="korvet_connections_count"):
        server.fcall("korvet_connections_count", 3, LEASES, *COUNTERS, "one", "1000", *arguments)
    assert not server.exists(LEASES)
