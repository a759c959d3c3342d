"""AlterClientQuotas and DescribeClientQuotas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.quotas import altered, component, described, entry, limit
from tests.api.raw import ask
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka

INVALID = "INVALID_REQUEST"
EXACT, DEFAULT, ANY = 0, 1, 2
KEY = "korvet:{default:@security}:quotas"


@pytest.fixture(scope="module")
def running() -> Iterator[KorvetServer]:
    with running_broker() as broker:
        yield broker


@pytest.fixture
def port(running: KorvetServer) -> int:
    """The port of a broker without quotas."""
    with running.redis() as redis:
        redis.delete(KEY)
    return running.port


def of(port: int, **entity: str | None) -> dict[str, float]:
    """The quotas of exactly this entity."""
    parts = [
        component(kind.replace("_", "-"), name, EXACT if name is not None else DEFAULT) for kind, name in entity.items()
    ]
    found = described(port, *parts, strict=True)
    assert len(found) <= 1
    return next(iter(found.values()), {})


def test_more_quotas_than_a_request_may_alter_are_refused_whole(port: int) -> None:
    outcomes = altered(port, *(entry({"user": f"u-{number}"}, producer_byte_rate=1) for number in range(1001)))
    assert {code for code, _ in outcomes} == {"POLICY_VIOLATION"}
    assert described(port) == {}
    assert altered(port, entry({"user": "x" * 2048}, producer_byte_rate=1))[0][0] == "POLICY_VIOLATION"


@kafka("ClientQuotasRequestTest.testClientQuotasSanitized", "ClientQuotasRequestTest.testClientQuotasForScramUsers")
@pytest.mark.parametrize("name", ["user with spaces", "a=b producer_byte_rate", "<default>", "ü%20", "x\n\0"])
def test_a_name_may_be_any_text(port: int, name: str) -> None:
    limit(port, {"user": name, "client_id": name}, producer_byte_rate=20000)
    assert of(port, user=name, client_id=name) == {"producer_byte_rate": 20000}
    assert of(port, user=None, client_id=None) == {}


USER_CLIENTS: dict[tuple[str | None, str | None] | tuple[str | None], float] = {
    ("user-1", "client-id-1"): 50.50,
    ("user-2", "client-id-1"): 51.51,
    ("user-3", "client-id-2"): 52.52,
    (None, "client-id-1"): 53.53,
    ("user-1", None): 54.54,
    ("user-3", None): 55.55,
    ("user-1",): 56.56,
    ("user-2",): 57.57,
    ("user-3",): 58.58,
    (None,): 59.59,
}


@pytest.fixture
def many(port: int) -> int:
    """The port of a broker with thirteen quotas."""
    entries = [
        entry(dict(zip(("user", "client_id"), names, strict=False)), request_percentage=rate)
        for names, rate in USER_CLIENTS.items()
    ]
    entries.append(entry({"client_id": "client-id-2"}, request_percentage=60.60))
    entries += [entry({"ip": ip}, connection_creation_rate=10) for ip in ("1.2.3.4", "2.3.4.5")]
    assert {code for code, _ in altered(port, *entries)} == {"NONE"}
    return port


@kafka("ClientQuotasRequestTest.testDescribeClientQuotasMatchExact")
def test_exact_filters_find_one_entity_or_none(many: int) -> None:
    for names, rate in USER_CLIENTS.items():
        entity = dict(zip(("user", "client_id"), names, strict=False))
        assert of(many, **entity) == {"request_percentage": rate}
    for missing in (("user-1", "client-id-2"), ("user-2", None), ("user-4",), (None, "client-id-2"), ("",)):
        assert of(many, **dict(zip(("user", "client_id"), missing, strict=False))) == {}


@kafka(
    "ClientQuotasRequestTest.testDescribeClientQuotasMatchPartial",
    "ClientQuotasRequestTest.testDescribeClientQuotasInvalidFilterCombination",
    "ClientQuotasRequestTest.testClientQuotasUnsupportedEntityTypes",
)
def test_other_filters_find_all_that_match(many: int) -> None:
    def count(*components: dict[str, Any], strict: bool = False) -> int:
        return len(described(many, *components, strict=strict))

    assert count(component("user", "user-1")) == 3
    assert count(component("user", "unknown")) == 0
    assert count(component("client-id", "client-id-2")) == 2
    assert count(component("user", how=DEFAULT)) == 2
    assert count(component("user", "user-2"), strict=True) == 1
    assert count(component("client-id", "client-id-1"), strict=True) == 0
    assert count(component("user", how=ANY), strict=True) == 4
    assert count(component("user", how=ANY)) == 10
    assert count(component("client-id", how=ANY), strict=True) == 1
    assert count(component("client-id", how=ANY)) == 7
    assert count(component("ip", how=ANY)) == 2
    assert count() == 13
    assert count(strict=True) == 0
    refused = ask(many, "describe_client_quotas", 1, components=[component("ip", how=ANY), component("user", how=ANY)])
    assert refused["error_code"] == INVALID and refused["entries"] is None
    unknown = ask(many, "describe_client_quotas", 1, components=[component("other", "name")])
    assert unknown["error_code"] == "UNSUPPORTED_VERSION"


def test_another_front_end_knows_a_quota_soon_and_a_restarted_one_at_once() -> None:
    with running_broker(workers=2) as broker:
        limit(broker.port, {"user": "u"}, producer_byte_rate=7)
        broker.restart(crash=True)
        assert {of(broker.port, user="u")["producer_byte_rate"] for _ in range(8)} == {7}
