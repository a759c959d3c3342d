"""Bounds of quotas, their names, and other front-ends. The oracle compares the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.quotas import altered, component, described, entry, limit
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka

EXACT, DEFAULT = 0, 1
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


def test_another_front_end_knows_a_quota_soon_and_a_restarted_one_at_once() -> None:
    with running_broker(workers=2) as broker:
        limit(broker.port, {"user": "u"}, producer_byte_rate=7)
        broker.restart(crash=True)
        assert {of(broker.port, user="u")["producer_byte_rate"] for _ in range(8)} == {7}
