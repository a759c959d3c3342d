"""Entities, their texts, and the changes that Kafka refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.quotas.entity import (
    CONNECTION,
    DEFAULT,
    PRODUCE,
    REQUEST,
    Entity,
    entity_of,
    field_of,
    parsed_field,
    value_problem,
)
from tests.support.ported import kafka

names = st.none() | st.text(min_size=1, max_size=20)


@given(names, names)
def test_every_entity_comes_back_from_its_field(user: str | None, client_id: str | None) -> None:
    for entity in (Entity(user, client_id), Entity(DEFAULT, client_id), Entity(user, DEFAULT)):
        if entity.parts:
            field = field_of(entity, PRODUCE)
            assert parsed_field(field) == (entity, PRODUCE)
            assert field.count(" ") == len(entity.parts)


def test_fields_show_names_and_defaults() -> None:
    assert field_of(Entity("al ice", DEFAULT), PRODUCE) == "user=al%20ice client-id=<default> producer_byte_rate"
    assert field_of(Entity(ip="10.0.0.1"), CONNECTION) == "ip=10.0.0.1 connection_creation_rate"


@pytest.mark.parametrize(
    "field",
    ["", "x", "producer_byte_rate", "user= x", "user=a%62 x", "moon=a x", "client-id=a user=b x", "user=a user=b x"],
)
def test_a_field_that_korvet_did_not_write_is_none(field: str) -> None:
    assert parsed_field(field) is None


@kafka(
    "ClientQuotasRequestTest.testAlterClientQuotasBadIp",
    "ClientQuotasRequestTest.testAlterClientQuotasInvalidRequests",
    "ClientQuotasRequestTest.testAlterClientQuotasInvalidEntityCombination",
)
@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"moon": "x"}, "Unhandled client quota entity type: moon"),
        ({"user": ""}, "Empty user not supported"),
        (
            {"ip": "10.0.0.1", "user": "u"},
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
        ({"ip": "no address"}, "no address is not a valid IP or resolvable host."),
        ({"user": None, "client-id": "c"}, Entity(DEFAULT, "c")),
        ({"ip": None}, Entity(ip=DEFAULT)),
    ],
)
def test_an_entity_that_cannot_be_is_refused(parts: dict[str, str | None], problem: str | Entity) -> None:
    assert entity_of(parts) == problem


@kafka("ClientQuotasRequestTest.testAlterClientQuotasInvalidRequests")
@pytest.mark.parametrize(
    ("entity", "key", "value", "problem"),
    [
        (Entity("u"), "bad", 1.0, "Invalid configuration key bad"),
        (Entity("u"), CONNECTION, 1.0, "Invalid configuration key connection_creation_rate"),
        (Entity(ip="1.2.3.4"), PRODUCE, 1.0, "Invalid configuration key producer_byte_rate"),
        (Entity("u"), PRODUCE, 0.0, "Quota producer_byte_rate must be greater than 0"),
        (Entity("u"), PRODUCE, -1.0, "Quota producer_byte_rate must be greater than 0"),
        (Entity("u"), PRODUCE, float("nan"), "Quota producer_byte_rate must be greater than 0"),
        (Entity("u"), PRODUCE, 10000.5, "producer_byte_rate cannot be a fractional value."),
        (Entity("u"), PRODUCE, 1e19, "Proposed value for producer_byte_rate is too large for a LONG."),
        (
            Entity(ip="1.2.3.4"),
            CONNECTION,
            2.0**31,
            "Proposed value for connection_creation_rate is too large for an INT.",
        ),
        (Entity("u"), REQUEST, 0.5, None),
        (Entity("u"), PRODUCE, 2.0**60, None),
    ],
)
def test_a_value_that_cannot_be_is_refused(entity: Entity, key: str, value: float, problem: str | None) -> None:
    assert value_problem(entity, key, value) == problem
