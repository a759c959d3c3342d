"""Which quota counts for a client, and who shares it."""

from __future__ import annotations

from itertools import product

import pytest

from korvet.quotas.bucket import RateLimit
from korvet.quotas.entity import CONNECTION, DEFAULT, FETCH, MUTATION, PRODUCE, REQUEST, Entity
from korvet.quotas.rules import RateLimits, Rules, Settings
from tests.support.ported import kafka
from tests.support.quotas import WINDOWS

LEVELS = (
    Entity("u", "c"),
    Entity("u", DEFAULT),
    Entity("u"),
    Entity(DEFAULT, "c"),
    Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT),
    Entity(None, "c"),
    Entity(None, DEFAULT),
)
"""The entities that may limit the user u with the client id c, the strongest first."""


def only(limits: RateLimits) -> RateLimit | None:
    """The one limit, if there is one."""
    assert len(limits) <= 1
    return limits[0] if limits else None


def produce(settings: Settings, user: str, client_id: str) -> RateLimit | None:
    return only(Rules(settings, WINDOWS).meter(user, client_id).produce)


@kafka("ClientQuotaManagerTest.testQuotaConfigPrecedence")
@pytest.mark.parametrize("present", list(product((True, False), repeat=8)))
def test_the_strongest_level_that_has_a_quota_counts(present: tuple[bool, ...]) -> None:
    there = [(rate, entity) for rate, (entity, is_there) in enumerate(zip(LEVELS, present, strict=True), 1) if is_there]
    limit = produce({entity: {PRODUCE: float(rate)} for rate, entity in there}, "u", "c")
    assert (None if limit is None else limit.rate) == (there[0][0] if there else None)


@kafka(
    "ClientQuotaManagerTest.testClientIdQuotaParsing",
    "ClientQuotaManagerTest.testUserQuotaParsing",
    "ClientQuotaManagerTest.testUserClientIdQuotaParsing",
    "ClientQuotaManagerTest.testUserQuotaParsingWithDefaultClientIdQuota",
    "ClientQuotaManagerTest.testUserClientQuotaParsingIdWithDefaultClientIdQuota",
)
@pytest.mark.parametrize(
    ("own", "default"),
    [
        (Entity(None, "p1"), Entity(None, DEFAULT)),
        (Entity("User1"), Entity(DEFAULT)),
        (Entity("User1", "p1"), Entity(DEFAULT, DEFAULT)),
    ],
)
def test_a_quota_of_its_own_comes_before_the_default_one(own: Entity, default: Entity) -> None:
    settings = {own: {PRODUCE: 2000.0}}
    assert produce(settings, "RandomUser", "random-client-id") is None
    assert produce(settings, "User1", "p1") is not None
    both = {**settings, default: {PRODUCE: 4000.0}}
    rates = [getattr(produce(both, *client), "rate", None) for client in (("User1", "p1"), ("User2", "p2"))]
    assert rates == [2000.0, 4000.0]
    without_id = produce({Entity(None, DEFAULT): {PRODUCE: 4000.0}}, "ANONYMOUS", "")
    assert without_id is not None and without_id.rate == 4000.0


def test_each_kind_of_quota_is_looked_for_alone() -> None:
    meter = Rules({Entity("u"): {FETCH: 5.0}, Entity(DEFAULT): {PRODUCE: 7.0, FETCH: 9.0}}, WINDOWS).meter("u", "c")
    assert [limit.rate for limit in meter.fetch + meter.produce] == [5.0, 7.0]
    assert meter.request == meter.mutation == ()


@pytest.mark.parametrize(
    ("entity", "sharers"),
    [
        (Entity("u", "c"), 1),
        (Entity("u", DEFAULT), 2),
        (Entity("u"), 3),
        (Entity(DEFAULT, DEFAULT), 4),
        (Entity(DEFAULT), 3),
        (Entity(None, DEFAULT), 2),
    ],
)
def test_the_level_says_who_shares_a_bucket(entity: Entity, sharers: int) -> None:
    """Of the users u and v with the client ids c and d; for u with c, d and e the user's alone."""
    rules = Rules({entity: {PRODUCE: 1.0}}, WINDOWS)
    clients = [("u", "c"), ("u", "d"), ("v", "c"), ("v", "d")]
    buckets = {limit.bucket for client in clients for limit in rules.meter(*client).produce}
    expected = {1: 1, 2: 2, 3: 2 if entity.user == DEFAULT else 1, 4: 4}[sharers]
    assert len(buckets) == expected


@kafka("ClientQuotaManagerTest.testClientIdNotSanitized")
def test_names_cannot_make_anothers_bucket() -> None:
    rules = Rules({Entity(DEFAULT, DEFAULT): {PRODUCE: 1.0}}, WINDOWS)
    clients = [
        ("a", "b client-id=c"),
        ("a client-id=b", "c"),
        ("a", "b"),
        ("<default>", "<default>"),
        ("", "%3Cdefault%3E"),
    ]
    assert len({limit.bucket for client in clients for limit in rules.meter(*client).produce}) == len(clients)


@kafka("ClientQuotaManagerTest.testGetMaxValueInQuotaWindowWithNonDefaultQuotaWindow")
def test_windows_say_how_much_may_be_used_at_once() -> None:
    settings = {Entity(DEFAULT): {PRODUCE: 10.0, REQUEST: 50.0, MUTATION: 2.0}}
    meter = Rules(settings, WINDOWS._replace(num=4, controller_num=5, controller_size_s=2)).meter("u", "c")
    found = [(limit.rate, limit.capacity) for limit in meter.produce + meter.request + meter.mutation]
    assert found == [(10.0, 30.0), (0.5, 1.5), (2.0, 20.0)]


def test_ceilings_of_a_tenant_have_the_units_of_quotas() -> None:
    ceilings = {PRODUCE: 10.0, REQUEST: 50.0}
    meter = Rules({}, WINDOWS._replace(num=4), ceilings).meter("u", "c")
    found = [(limit.bucket, limit.rate, limit.capacity) for limit in meter.produce + meter.request]
    assert found == [("producer_byte_rate tenant", 10.0, 30.0), ("request_percentage tenant", 0.5, 1.5)]
    assert meter.fetch == meter.mutation == ()


def test_an_address_has_its_own_rate_or_the_default_one_in_any_spelling() -> None:
    settings = {Entity(ip="10.0.0.1"): {CONNECTION: 5.0}, Entity(ip="2001:DB8::1"): {CONNECTION: 7.0}}
    rules = Rules({**settings, Entity(ip=DEFAULT): {CONNECTION: 9.0}}, WINDOWS)
    found = {one: rules.connections(one) for one in ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8:0::1", "10.0.0.2")}
    assert [limit.rate for limits in found.values() for limit in limits] == [5.0, 5.0, 7.0, 9.0]
    assert Rules(settings, WINDOWS).connections("10.0.0.2") == ()
