"""The buckets of a front-end: whatever client ids clients make up, there are not too many."""

from __future__ import annotations

from collections.abc import Mapping

from korvet.quotas.bucket import RateLimit
from korvet.quotas.entity import CONNECTION, DEFAULT, FETCH, PRODUCE, Entity
from korvet.quotas.meters import Meters
from korvet.quotas.rules import NO_CEILINGS, Rules, Settings
from tests.support.ported import kafka
from tests.support.quotas import WINDOWS


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Buckets:
    """Meters with a clock, and how often they had something to report."""

    def __init__(self, settings: Settings, most: int = 10_000, ceilings: Mapping[str, float] = NO_CEILINGS) -> None:
        self.clock = Clock()
        self.signals = 0
        self.meters = Meters(Rules(settings, WINDOWS, ceilings), self._signal, most=most, now=self.clock)

    def _signal(self) -> None:
        self.signals += 1

    def produce(self, user: str, client_id: str, size: float) -> float:
        """Take bytes; the wait in seconds."""
        limits = self.meters.meter(f"User:{user}", client_id).produce
        self.meters.consume(limits, size)
        return self.meters.wait_s(limits)


@kafka(
    "ClientQuotaManagerTest.testSetAndRemoveDefaultUserQuota",
    "ClientQuotaManagerTest.testSetAndRemoveUserQuota",
    "ClientQuotaManagerTest.testSetAndRemoveUserClientQuota",
)
def test_changed_quotas_count_for_what_was_used_before() -> None:
    for entity in (Entity(DEFAULT), Entity("u"), Entity("u", "c")):
        buckets = Buckets({entity: {PRODUCE: 10.0}})
        assert buckets.produce("u", "c", 110) == 1.0
        buckets.meters.rules = Rules({entity: {PRODUCE: 20.0}}, WINDOWS)
        assert buckets.produce("u", "c", 0) == 0.5
        buckets.meters.rules = Rules({}, WINDOWS)
        assert buckets.produce("u", "c", 1000) == 0.0


def test_new_client_ids_share_a_bucket_when_there_are_too_many() -> None:
    """Attack: a client id for each request."""
    buckets = Buckets({Entity(None, DEFAULT): {PRODUCE: 10.0}}, most=100)
    waits = [buckets.produce("u", f"made-up-{number}", 60) for number in range(1000)]
    assert len(buckets.meters) <= 101
    assert waits[:100] == [0.0] * 100
    assert waits[-1] == (900 * 60 - 100) / 10


def test_full_buckets_make_room_for_others() -> None:
    buckets = Buckets({Entity(None, DEFAULT): {PRODUCE: 10.0}}, most=10)
    for number in range(10):
        buckets.produce("u", f"early-{number}", 50)
    list(buckets.meters.reports(100))
    buckets.clock.now += 60
    assert buckets.produce("u", "late", 101) == 0.1
    assert len(buckets.meters) == 1


def test_a_bucket_with_something_to_report_is_not_forgotten() -> None:
    buckets = Buckets({Entity(None, DEFAULT): {PRODUCE: 10.0}}, most=1)
    buckets.produce("u", "a", 50)
    buckets.clock.now += 60
    buckets.produce("u", "b", 50)
    assert [used for _, used in buckets.meters.reports(10)] == [50, 50]


def test_use_is_reported_once_and_signalled_once() -> None:
    buckets = Buckets({Entity("u"): {PRODUCE: 10.0}, Entity("v"): {PRODUCE: 10.0}})
    for user in ("u", "u", "v"):
        buckets.produce(user, "c", 5)
    assert buckets.signals == 1 and buckets.meters.has_reports
    assert [(limit.bucket, used) for limit, used in buckets.meters.reports(1)] == [("producer_byte_rate user=u", 10.0)]
    assert [used for _, used in buckets.meters.reports(10)] == [5.0]
    assert list(buckets.meters.reports(10)) == []


def test_what_other_front_ends_used_counts() -> None:
    buckets = Buckets({Entity("u"): {PRODUCE: 10.0}})
    assert buckets.produce("u", "c", 50) == 0.0
    ((limit, _),) = buckets.meters.reports(10)
    buckets.meters.heard({limit.bucket: -30.0, "forgotten": -1.0})
    assert buckets.produce("u", "c", 0) == 3.0


def test_a_fetch_is_no_larger_than_the_quota_allows_at_once() -> None:
    buckets = Buckets({Entity("u"): {FETCH: 1000.0}})
    assert buckets.meters.most_fetched("User:u", "c") == 10_000
    for used, left in ((4_000, 6_000), (5_999, 100), (1_000, 100)):
        buckets.meters.consume(buckets.meters.meter("User:u", "c").fetch, used)
        assert buckets.meters.most_fetched("User:u", "c") == left
    assert buckets.meters.most_fetched("User:v", None) == 2**31 - 1


@kafka(
    "ConnectionQuotasTest.testIpConnectionRateWhenActualRateBelowLimit",
    "ConnectionQuotasTest.testIpConnectionRateWhenActualRateAboveLimit",
    "ConnectionQuotasTest.testRejectedIpConnectionUnrecordedFromConnectionRateQuotas",
)
def test_connections_beyond_the_rate_of_an_address_do_not_count() -> None:
    buckets = Buckets({Entity(ip="10.0.0.1"): {CONNECTION: 2.0}})
    waits = [buckets.meters.connection_wait_s("10.0.0.1") for _ in range(100)]
    assert waits[:21] == [0.0] * 21
    assert set(waits[21:]) == {0.5}
    assert buckets.meters.connection_wait_s("10.0.0.2") == 0.0
    buckets.clock.now += 0.5
    assert buckets.meters.connection_wait_s("10.0.0.1") == 0.0


@kafka("ConnectionQuotasTest.testIpConnectionRateMetricUpdate")
def test_rate_of_an_address_is_its_own_or_else_the_default() -> None:
    def rates(of_default: float | None, own: float | None) -> list[list[float]]:
        set_ = {Entity(ip=DEFAULT): of_default, Entity(ip="10.0.0.1"): own}
        rules = Rules({entity: {CONNECTION: rate} for entity, rate in set_.items() if rate is not None}, WINDOWS)
        return [[limit.rate for limit in rules.connections(address)] for address in ("10.0.0.1", "10.0.0.2")]

    assert rates(50, None) == [[50], [50]]
    assert rates(50, 30) == [[30], [50]]
    assert rates(20, 30) == [[30], [20]]
    assert rates(None, 30) == [[30], []]
    assert rates(None, None) == [[], []]


@kafka("ConnectionQuotasTest.testEnforcedIpConnectionRateQuotaUpdate")
def test_other_rate_of_an_address_counts_at_once() -> None:
    buckets = Buckets({Entity(ip="10.0.0.1"): {CONNECTION: 2.0}})

    def let_in(address: str, seconds: int) -> int:
        """Those of 20 a second that come in."""
        count = 0
        for _ in range(20 * seconds):
            buckets.clock.now += 0.05
            count += not buckets.meters.connection_wait_s(address)
        return count

    buckets.meters.consume(buckets.meters.rules.connections("10.0.0.1"), 20)
    assert let_in("10.0.0.1", 10) in (20, 21)
    buckets.meters.rules = Rules({Entity(ip="10.0.0.1"): {CONNECTION: 3.0}}, WINDOWS)
    assert let_in("10.0.0.1", 10) in (30, 31)
    buckets.meters.rules = Rules({}, WINDOWS)
    assert let_in("10.0.0.1", 10) == let_in("10.0.0.2", 10) == 200
    buckets.meters.rules = Rules({Entity(ip=DEFAULT): {CONNECTION: 2.0}}, WINDOWS)
    assert let_in("10.0.0.2", 20) in (60, 61), "as many at once as ten seconds give, and then the rate"


def test_all_clients_of_a_tenant_share_its_ceilings_beside_their_own_quotas() -> None:
    buckets = Buckets({Entity("u"): {PRODUCE: 10.0}}, ceilings={PRODUCE: 20.0, FETCH: 30.0, CONNECTION: 1.0})
    assert buckets.produce("v", "c", 150) == 0.0
    assert buckets.produce("u", "c", 60) == 0.5, "the ceiling is 10 of 20 a second in debt"
    assert buckets.produce("u", "c", 50) == 3.0, "the ceiling is 60 of 20 a second in debt"
    assert buckets.produce("v", "other", 0) == 3.0
    assert [limit.bucket for limit, _ in buckets.meters.reports(10)] == [
        "producer_byte_rate tenant", "producer_byte_rate user=u",
    ]  # fmt: skip
    assert buckets.meters.most_fetched("User:w", None) == 300
    waits = [buckets.meters.connection_wait_s(f"10.0.0.{number}") for number in range(12)]
    assert waits == [0.0] * 11 + [1.0], "each address has connected once"


def test_nobody_waits_longer_for_a_connection_than_a_window() -> None:
    buckets = Buckets({Entity(ip=DEFAULT): {CONNECTION: 0.1}})
    limit = RateLimit("connection_creation_rate ip=1.1.1.1", 0.1, 1.0)
    buckets.meters.consume((limit,), 5)
    assert buckets.meters.connection_wait_s("1.1.1.1") == 1
