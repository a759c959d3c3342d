"""korvet_frontend_renew and _leave: node ids, leases and who is told of whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import redis

KEY = "korvet:{default:catalog}:frontends"
BEGAN_S = 1_700_000_000
DAY_S = 86_400


class Renewed(NamedTuple):
    """A reply of korvet_frontend_renew."""

    node_id: int
    outages: str
    live: dict[int, str]


class Registry:
    """The registry of one namespace, in a time that stands still."""

    def __init__(self, server: redis.Redis, set_clock: Callable[[float], None]) -> None:
        self.server = server
        self.now_s: float = BEGAN_S
        self._set_clock = set_clock

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self._set_clock(self.now_s)

    def renew(self, address: str) -> Renewed:
        reply: Any = self.server.fcall("korvet_frontend_renew", 1, KEY, address, "3000")
        code, node_id, outages, live = reply
        assert code == 0
        return Renewed(node_id, outages.decode(), dict(zip(live[::2], map(bytes.decode, live[1::2]), strict=True)))

    def leave(self, address: str) -> None:
        assert self.server.fcall("korvet_frontend_leave", 1, KEY, address) == [0]

    def fields(self) -> dict[str, str]:
        found: Any = self.server.hgetall(KEY)
        return {name.decode(): text.decode() for name, text in found.items()}


@pytest.fixture
def registry(server: redis.Redis, set_clock: Callable[[float], None]) -> Registry:
    return Registry(server, set_clock)


def test_new_addresses_get_ids_from_one_on_and_keep_them(registry: Registry) -> None:
    assert [registry.renew(address).node_id for address in ("c:1", "a:1", "b:1", "a:1", "c:1")] == [1, 2, 3, 2, 1]
    assert registry.renew("b:1").live == {1: "c:1", 2: "a:1", 3: "b:1"}


def test_lease_ends_three_seconds_after_its_last_renewal(registry: Registry) -> None:
    registry.renew("a:1")
    registry.renew("b:1")
    registry.pass_time(2.999)
    assert registry.renew("b:1").live == {1: "a:1", 2: "b:1"}
    registry.pass_time(0.001)
    assert registry.renew("b:1").live == {2: "b:1"}
    assert registry.renew("a:1").live == {1: "a:1", 2: "b:1"}


def test_id_is_kept_for_a_day_and_then_the_smallest_free_ones_to_take(registry: Registry) -> None:
    for address in ("a:1", "b:1", "c:1"):
        registry.renew(address)
    registry.pass_time(3 + DAY_S)
    assert registry.renew("d:1").node_id == 4
    registry.pass_time(0.001)
    assert registry.renew("c:1").node_id == 3
    assert registry.renew("e:1").node_id == 1
    # Who lost its id is a new address, and who did not keeps its own however long it was away.
    assert registry.renew("a:1").node_id == 2
    assert registry.renew("b:1").node_id == 5
    assert registry.fields().keys() == {"", "a:1", "b:1", "c:1", "d:1", "e:1"}
    registry.pass_time(10 * DAY_S)
    assert registry.renew("b:1").node_id == 5


def test_who_leaves_is_shown_no_more_and_comes_back_as_the_same(registry: Registry) -> None:
    registry.renew("a:1")
    registry.renew("b:1")
    registry.leave("a:1")
    registry.leave("nobody:1")
    assert registry.renew("b:1").live == {2: "b:1"}
    assert registry.renew("c:1").node_id == 3
    assert registry.renew("a:1").node_id == 1
    registry.pass_time(10)
    before = registry.fields()
    registry.leave("a:1")
    assert registry.fields() == before


def test_everybody_learns_when_nobody_was_there(registry: Registry) -> None:
    began = BEGAN_S * 1000
    assert registry.renew("") == (-1, "", {})
    registry.pass_time(2.5)
    assert registry.renew("a:1") == (1, "", {1: "a:1"})
    registry.pass_time(60)
    first = f"{began + 2500}-{began + 62_500}"
    assert registry.renew("a:1").outages == first
    registry.pass_time(1)
    assert registry.renew("").outages == first
    for _ in range(4):
        registry.pass_time(10)
        last = registry.renew("b:1").outages.split()
    assert last == [f"{began + start}-{began + start + 10_000}" for start in range(63_500, 103_500, 10_000)]
    assert registry.fields().keys() == {"", "a:1", "b:1"}


def test_clock_that_went_back_shows_nobody_who_is_gone(registry: Registry) -> None:
    registry.renew("gone:1")
    registry.renew("here:1")
    registry.pass_time(-3600)
    assert registry.renew("here:1") == (2, "", {2: "here:1"})


@pytest.mark.parametrize("text", ["", "1", "0 1", "-1 5", "2147483648 5", "x y", "1 99999999999999999999", "1 2 3"])
def test_broken_field_counts_for_nothing_and_is_mended_by_its_owner(registry: Registry, text: str) -> None:
    registry.server.hset(KEY, mapping={"a:1": text, "b:1": text, "": text + "x"})
    assert registry.renew("a:1") == (1, "", {1: "a:1"})
    assert registry.renew("c:1").node_id == 2
    registry.leave("b:1")
    assert registry.fields()["b:1"] == text


def test_id_that_two_had_for_a_day_and_nobody_has_now_has_one_owner(registry: Registry) -> None:
    registry.server.hset(KEY, mapping={"a:1": "1 1000", "b:1": "1 2000"})
    assert registry.renew("c:1").node_id == 1
    assert registry.fields().keys() == {"", "c:1"}


def test_key_of_another_type_is_left_alone(registry: Registry) -> None:
    registry.server.set(KEY, "mine")
    for function, args in (("renew", ("a:1", "3000")), ("leave", ("a:1",))):
        with pytest.raises(redis.ResponseError, match="wrong kind of value"):
            registry.server.fcall(f"korvet_frontend_{function}", 1, KEY, *args)
    assert registry.server.get(KEY) == b"mine"


def test_leases_are_renewed_and_ended_at_maxmemory(registry: Registry) -> None:
    registry.server.config_set("maxmemory", 1)
    assert registry.renew("a:1").node_id == 1
    registry.leave("a:1")
