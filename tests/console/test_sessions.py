"""Sessions and attempts of logins, by a clock of the test."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from korvet.cli.console import visitors
from korvet.cli.console.clients import FRESH_S, Clients
from korvet.cli.console.complaints import Complaints
from korvet.cli.console.guard import loopback_hosts
from korvet.cli.console.login import COMPLAINS_EVERY_S, EVERY_S, MOST_AT_ONCE, page_inside
from korvet.cli.console.visitors import MOST_OF_USER, MOST_SESSIONS, Sessions, TooManySessions, Visitor
from korvet.cli.kafka.client import Client
from korvet.metrics.hosts import public_hosts
from korvet.security.attempts import MOST_NAMES, Attempts
from korvet.security.origins import origin_of

IDLE_S = 100.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Noted(Client):
    """A client that notes that it was closed."""

    is_closed = False

    def __exit__(self, *_error: object) -> None:
        self.is_closed = True


def visitor(user: str) -> Visitor:
    return Visitor(clients=Clients(Client), user=user)


def test_session_ends_when_nobody_used_it() -> None:
    clock = Clock()
    sessions = Sessions(IDLE_S, clock)
    id = sessions.open(alice := visitor("alice"))
    clock.now += IDLE_S - 1
    assert sessions.find(id, is_use=True) is alice
    clock.now += IDLE_S - 1
    assert sessions.find(id, is_use=False) is alice
    clock.now += 1
    assert sessions.find(id, is_use=True) is None


def test_session_ends_however_busy_it_is() -> None:
    clock = Clock()
    sessions = Sessions(IDLE_S, clock)
    id = sessions.open(visitor("alice"))
    until = clock.now + visitors.LASTS_S
    while clock.now < until - 1:
        assert sessions.find(id, is_use=True) is not None
        clock.now = min(clock.now + IDLE_S - 1, until)
    assert sessions.find(id, is_use=True) is None


def test_ended_session_closes_its_connections() -> None:
    clock = Clock()
    sessions = Sessions(IDLE_S, clock)
    clients = Clients(Noted)
    sessions.open(Visitor(clients=clients, user="alice"))
    with clients.borrow() as idle:
        pass
    with clients.borrow() as again:
        assert again is idle
        clock.now += IDLE_S
        sessions.end_old()
    assert isinstance(idle, Noted)
    assert idle.is_closed


def test_sessions_of_a_user_push_out_only_his_own() -> None:
    sessions = Sessions(IDLE_S, Clock())
    bob = sessions.open(visitor("bob"))
    ids = [sessions.open(visitor("alice")) for _ in range(MOST_OF_USER + 1)]
    found = [sessions.find(id, is_use=True) is not None for id in (bob, *ids)]
    assert found == [True, False, *[True] * MOST_OF_USER]


def test_sessions_have_a_bound() -> None:
    clock = Clock()
    sessions = Sessions(IDLE_S, clock)
    for number in range(MOST_SESSIONS):
        sessions.open(visitor(f"user-{number}"))
    with pytest.raises(TooManySessions):
        sessions.open(visitor("one more"))
    clock.now += IDLE_S
    assert sessions.open(visitor("one more"))


def test_address_that_fails_too_often_waits() -> None:
    clock = Clock()
    tries = Attempts(MOST_AT_ONCE, EVERY_S, clock)
    assert [tries.take("192.0.2.1") for _ in range(MOST_AT_ONCE + 1)] == [True] * 10 + [False]
    assert tries.take("192.0.2.2")
    clock.now += EVERY_S
    assert [tries.take("192.0.2.1") for _ in range(2)] == [True, False]


def test_login_that_succeeds_costs_no_attempt_and_forgives_none() -> None:
    tries = Attempts(MOST_AT_ONCE, EVERY_S, Clock())
    for _ in range(100):
        assert tries.take("192.0.2.1")
        tries.give_back("192.0.2.1")
    failed = 0
    while tries.take("192.0.2.1"):
        failed += 1
        if tries.take("192.0.2.1"):
            tries.give_back("192.0.2.1")
    assert failed == MOST_AT_ONCE


def test_complaints_about_the_broker_are_few_whatever_strangers_try() -> None:
    clock = Clock()
    complaints = Complaints(COMPLAINS_EVERY_S, clock)
    with capture_logs() as lines:
        for _ in range(100):
            complaints.say("no broker")
        clock.now += COMPLAINS_EVERY_S
        complaints.say("no broker")
    assert [line["event"] for line in lines] == ["no broker"] * 2


def test_network_of_ipv6_counts_as_one_address() -> None:
    tries = Attempts(MOST_AT_ONCE, EVERY_S, Clock())
    found = [tries.take(origin_of(f"2001:db8:1:2::{number:x}")) for number in range(MOST_AT_ONCE + 1)]
    assert found[-1] is False
    assert tries.take(origin_of("2001:db8:1:3::1"))


def test_attempts_of_many_addresses_have_a_bound() -> None:
    tries = Attempts(MOST_AT_ONCE, EVERY_S, Clock())
    for number in range(MOST_NAMES + 10):
        tries.take(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(tries._full_at) == MOST_NAMES


def test_idle_client_is_used_again_only_while_it_is_fresh() -> None:
    clock = Clock()
    clients = Clients(Noted, clock)
    with clients.borrow() as first:
        pass
    clock.now += FRESH_S
    with clients.borrow() as again:
        assert again is first
    clock.now += FRESH_S + 1
    with clients.borrow() as other:
        assert other is not first
    assert isinstance(first, Noted)
    assert first.is_closed


@pytest.mark.parametrize(
    "target",
    ["//evil.example/topics", "https://evil.example/topics", "/\\evil.example", "evil", "javascript:alert(1)", "", "/x",
     "http://[", "/topics/../x"],
)  # fmt: skip
def test_login_leads_to_no_other_site(target: str) -> None:
    assert page_inside(target, frozenset({"/", "/topics"})) == "/"


def test_login_leads_to_a_page_with_its_question() -> None:
    assert page_inside("/topics?q=a&page=2", frozenset({"/topics"})) == "/topics?q=a&page=2"


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("console.example:9080", True), ("Console.Example", True), ("127.0.0.1:1", True), ("[::1]:9080", True),
        ("192.0.2.1", True), ("evil.example:9080", False), ("", False), ("127.0.0.1.evil.example", False),
        ("console.example.", True), ("[console.example]", False),
    ],
)  # fmt: skip
def test_public_console_is_at_its_names_and_at_addresses(host: str, is_ours: bool) -> None:
    assert public_hosts(frozenset({"console.example"}))(host) is is_ours


def test_loopback_console_is_at_its_port_alone() -> None:
    hosts = loopback_hosts(9080)
    assert hosts("localhost:9080")
    assert not hosts("localhost:9081")
    assert not hosts("192.0.2.1:9080")
