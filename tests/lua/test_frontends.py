"""korvet_frontend_renew and _leave: node ids, leases, and the front-ends that a reply lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import redis

KEY = "korvet:{default:@catalog}:frontends"
BEGAN_S = 1_700_000_000
DAY_S = 86_400


class Renewed(NamedTuple):
    """A reply of korvet_frontend_renew."""

    node_id: int
    outages: str
    live: dict[int, str]


class Registry:
    """The registry of one namespace; time stands still."""

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

    def has_turn(self, token: str) -> bool:
        """Whether a front-end that renews has the turn to sweep."""
        reply: Any = self.server.fcall("korvet_frontend_renew", 1, KEY, "", "3000", token)
        return bool(reply[4])

    def renew_idle(self, address: str, sweeper: str = "") -> tuple[int, int]:
        """Renew without clients: 1 if the front-end has the turn to sweep, and the lease in ms."""
        reply: Any = self.server.fcall("korvet_frontend_renew", 1, KEY, address, "3000", sweeper, "none")
        return reply[4], reply[5]

    def leave(self, address: str) -> None:
        assert self.server.fcall("korvet_frontend_leave", 1, KEY, address) == [0]

    def fields(self) -> dict[str, str]:
        found: Any = self.server.hgetall(KEY)
        return {name.decode(): text.decode() for name, text in found.items()}


@pytest.fixture
def registry(server: redis.Redis, set_clock: Callable[[float], None]) -> Registry:
    return Registry(server, set_clock)


def test_new_addresses_get_ids_from_1_on_and_keep_them(registry: Registry) -> None:
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


def test_id_stays_reserved_for_a_day_and_is_then_given_to_another(registry: Registry) -> None:
    for address in ("a:1", "b:1", "c:1"):
        registry.renew(address)
    registry.pass_time(3 + DAY_S)
    assert registry.renew("d:1").node_id == 4
    registry.pass_time(0.001)
    assert registry.renew("c:1").node_id == 3
    assert registry.renew("e:1").node_id == 1
    # An address that lost its id is new. An address that did not lose it keeps it for any time.
    assert registry.renew("a:1").node_id == 2
    assert registry.renew("b:1").node_id == 5
    assert registry.fields().keys() == {"", "@active", "a:1", "b:1", "c:1", "d:1", "e:1"}
    registry.pass_time(10 * DAY_S)
    assert registry.renew("b:1").node_id == 5


def test_front_end_that_leaves_is_hidden_and_returns_with_its_id(registry: Registry) -> None:
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


def test_all_front_ends_learn_the_times_without_any_renewal(registry: Registry) -> None:
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
    assert registry.fields().keys() == {"", "@active", "a:1", "b:1"}


def test_clock_that_goes_back_revives_no_dead_front_end(registry: Registry) -> None:
    registry.renew("gone:1")
    registry.renew("here:1")
    registry.pass_time(-3600)
    assert registry.renew("here:1") == (2, "", {2: "here:1"})


@pytest.mark.parametrize("text", ["", "1", "0 1", "-1 5", "2147483648 5", "x y", "1 99999999999999999999", "1 2 3"])
def test_broken_field_is_ignored_and_its_owner_mends_it(registry: Registry, text: str) -> None:
    registry.server.hset(KEY, mapping={"a:1": text, "b:1": text, "": text + "x"})
    assert registry.renew("a:1") == (1, "", {1: "a:1"})
    assert registry.renew("c:1").node_id == 2
    registry.leave("b:1")
    assert registry.fields()["b:1"] == text


def test_expired_id_of_two_addresses_goes_to_one_new_address(registry: Registry) -> None:
    registry.server.hset(KEY, mapping={"a:1": "1 1000", "b:1": "1 2000"})
    assert registry.renew("c:1").node_id == 1
    assert registry.fields().keys() == {"", "@active", "c:1"}


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


def test_one_of_two_front_ends_sweeps_until_its_lease_ends(registry: Registry) -> None:
    assert registry.has_turn("one")
    assert not registry.has_turn("two")
    registry.pass_time(2)
    assert registry.has_turn("one")
    registry.pass_time(2.999)
    assert not registry.has_turn("two")
    registry.pass_time(0.001)
    assert registry.has_turn("two")
    assert not registry.has_turn("one")


def test_turn_to_sweep_ends_only_when_its_holder_leaves(registry: Registry) -> None:
    assert registry.has_turn("one")
    assert registry.server.fcall("korvet_frontend_leave", 1, KEY, "", "two") == [0]
    assert not registry.has_turn("two")
    assert registry.server.fcall("korvet_frontend_leave", 1, KEY, "", "one") == [0]
    assert registry.has_turn("two")


@pytest.mark.parametrize("text", ["", "soon one", "1700000000000", f"{(BEGAN_S + DAY_S) * 1000} one", "x" * 100])
def test_turn_is_free_if_its_field_is_broken_or_the_clock_went_back(registry: Registry, text: str) -> None:
    registry.server.hset(KEY, "@sweep", text)
    assert registry.has_turn("two")
    assert not registry.has_turn("three")


def test_turn_is_no_address_and_calls_without_a_token_get_the_old_reply(registry: Registry) -> None:
    assert registry.has_turn("one")
    assert registry.renew("a:1").live == {1: "a:1"}


IDLE_S = 360


def test_lease_is_120_times_as_long_while_no_front_end_has_clients(registry: Registry) -> None:
    assert registry.renew_idle("a:1") == (0, IDLE_S * 1000)
    registry.pass_time(IDLE_S - 1)
    assert registry.renew_idle("b:1", "one") == (1, IDLE_S * 1000)
    assert registry.fields()["a:1"] == f"1 {(BEGAN_S + IDLE_S) * 1000}"
    reply: Any = registry.server.fcall("korvet_frontend_renew", 1, KEY, "b:1", "3000", "", "none")
    assert reply[3] == [1, b"a:1", 2, b"b:1"]
    registry.pass_time(1)
    reply = registry.server.fcall("korvet_frontend_renew", 1, KEY, "b:1", "3000", "", "none")
    assert reply[3] == [2, b"b:1"]


@pytest.mark.parametrize("told", [("", "some"), ("one", "some"), ("one",), ()])
def test_renewal_for_clients_cuts_all_leases_and_wakes_once(registry: Registry, told: tuple[str, ...]) -> None:
    registry.renew_idle("dead:1")
    registry.renew_idle("", "dead")
    with registry.server.pubsub() as heard:  # type: ignore[no-untyped-call]
        heard.execute_command("SSUBSCRIBE", KEY)
        assert heard.parse_response()[0] == b"ssubscribe"
        for _ in range(2):
            reply: Any = registry.server.fcall("korvet_frontend_renew", 1, KEY, "here:1", "3000", *told)
            assert reply[3] == [1, b"dead:1", 2, b"here:1"]
        # The last reply comes after all messages.
        heard.execute_command("SUNSUBSCRIBE", KEY)
        assert [heard.parse_response()[0] for _ in range(2)] == [b"smessage", b"sunsubscribe"]
    registry.pass_time(2.999)
    assert not registry.has_turn("two")
    registry.pass_time(0.001)
    assert registry.has_turn("two")
    assert registry.renew("here:1").live == {2: "here:1"}


def test_leases_are_short_for_a_minute_after_the_last_renewal_for_clients(registry: Registry) -> None:
    registry.renew("here:1")
    for _ in range(20):
        registry.pass_time(2.9)
        assert registry.renew_idle("too:1") == (0, 3000)
    registry.pass_time(1.999)
    assert registry.renew_idle("too:1") == (0, 3000)
    assert registry.fields()["too:1"] == f"2 {BEGAN_S * 1000 + 62_999}"
    registry.pass_time(0.001)
    assert registry.renew_idle("too:1") == (0, IDLE_S * 1000)


def test_silence_counts_after_the_only_front_end_with_clients_died(registry: Registry) -> None:
    """Its clients move to the other front-end, which dies before they arrive."""
    registry.renew("died:1")
    registry.pass_time(4)
    assert registry.renew_idle("other:1", "other") == (1, 3000)
    began_ms = round(registry.now_s * 1000)
    registry.pass_time(50)
    assert registry.renew("other:1").outages.split()[-1] == f"{began_ms}-{began_ms + 50_000}"


def test_active_namespace_is_idle_at_once_if_the_clock_went_back(registry: Registry) -> None:
    registry.renew("here:1")
    registry.pass_time(-3600)
    assert registry.renew_idle("here:1") == (0, IDLE_S * 1000)


def test_outage_in_an_idle_namespace_begins_at_the_end_of_its_lease(registry: Registry) -> None:
    registry.renew_idle("a:1")
    registry.pass_time(60)
    registry.renew_idle("a:1")
    registry.pass_time(IDLE_S + 2.5)
    assert registry.renew("").outages == ""
    registry.renew_idle("a:1")
    registry.pass_time(60)
    registry.renew_idle("a:1")
    registry.pass_time(IDLE_S + 10)
    ended_ms = round(registry.now_s * 1000)
    assert registry.renew("a:1").outages.split()[-1] == f"{ended_ms - 10_000}-{ended_ms}"
    registry.pass_time(3)
    assert registry.renew("a:1").outages.split()[-1] == f"{ended_ms}-{ended_ms + 3000}"


def test_clock_that_goes_back_revives_no_dead_front_end_if_idle(registry: Registry) -> None:
    registry.renew_idle("gone:1", "gone")
    registry.pass_time(-3600)
    assert registry.renew("here:1").live == {2: "here:1"}
    assert registry.has_turn("here")


def test_empty_token_takes_no_turn(registry: Registry) -> None:
    assert not registry.has_turn("")
    assert registry.has_turn("one")
    assert not registry.has_turn("")
    assert registry.has_turn("one")


def test_listeners_of_live_front_ends_are_returned_to_callers_that_name_theirs(registry: Registry) -> None:
    def told(address: str, listeners: str) -> dict[bytes, bytes]:
        reply: Any = registry.server.fcall("korvet_frontend_renew", 1, KEY, address, "3000", "", "some", listeners)
        return dict(zip(reply[6][::2], reply[6][1::2], strict=True))

    assert told("a:1", "of a") == {}
    assert told("b:1", "") == {b"a:1": b"of a"}
    assert told("c:1", "of c") == {b"a:1": b"of a"}
    assert told("b:1", "") == {b"a:1": b"of a", b"c:1": b"of c"}
    assert told("c:1", "") == {b"a:1": b"of a", b"c:1": b"of c"}
    assert told("b:1", "") == {b"a:1": b"of a"}
    # A front-end of an older korvet tells none.
    registry.renew("a:1")
    assert told("b:1", "") == {}


def test_listeners_of_an_address_go_with_its_node_id(registry: Registry) -> None:
    registry.server.fcall("korvet_frontend_renew", 1, KEY, "a:1", "3000", "", "some", "of a")
    assert "@listeners a:1" in registry.fields()
    registry.pass_time(4 + DAY_S)
    assert registry.renew("b:1").node_id == 1
    assert registry.fields().keys() == {"", "@active", "b:1"}


def test_listeners_look_like_no_lease_and_have_a_bound(registry: Registry) -> None:
    registry.server.fcall("korvet_frontend_renew", 1, KEY, "a:1", "3000", "", "some", "7 1700000003000")
    assert registry.renew("b:1").live == {1: "a:1", 2: "b:1"}
    with pytest.raises(redis.ResponseError, match="listeners are longer"):
        registry.server.fcall("korvet_frontend_renew", 1, KEY, "a:1", "3000", "", "some", "x" * 65_537)
