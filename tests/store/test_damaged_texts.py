"""Texts of tenants and quotas that korvet did not write: they count for nothing, and nothing ends by them."""

from __future__ import annotations

import pytest

from korvet.quotas.quotas import parse_settings
from korvet.store.tenants import parse_tenants

WHOLE = b'{"id":"a","state":"active","created_ms":1,"limits":{"topics":5},"super_users":""}'


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"5",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b'{"id":"a"}',
        WHOLE.replace(b'"active"', b'"asleep"'),
        WHOLE.replace(b":1,", b":1e999,"),
        WHOLE.replace(b":1,", b":NaN,"),
        WHOLE.replace(b"5", b"1e999"),
        WHOLE.replace(b'{"topics":5}', b"5"),
        WHOLE.replace(b'{"topics":5}', b"null"),
    ],
)
def test_a_damaged_tenant_is_none_and_the_others_are_there(text: bytes) -> None:
    found = parse_tenants([b"", b"17", b"acme", WHOLE, b"other", text, b"\xff", WHOLE])
    assert list(found) == ["acme"]
    assert found["acme"].limits == {"topics": 5}


@pytest.mark.parametrize("text", [b"", b"x", b"nan", b"inf", b"-inf", b"0", b"-1", b"\xff"])
def test_a_damaged_quota_limits_nobody_and_the_others_count(text: bytes) -> None:
    fields = {b"": b"17", b"user=alice producer_byte_rate": b"1000", b"user=bob producer_byte_rate": text}
    ((entity, quotas),) = parse_settings(fields).items()
    assert quotas == {"producer_byte_rate": 1000.0}
    assert "alice" in repr(entity)
