"""Tenants in Redis: their lives, their limits, and what the functions refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

KEY = "korvet:{@tenants}:tenants"
DONE, INVALID, POLICY, MISSING, THERE = 0, 42, 44, 91, 92


class Tenants:
    def __init__(self, server: redis.Redis) -> None:
        self.server = server

    def create(self, name: str, limits: str = "{}", super_users: str = "", id: str = "1") -> int:
        reply: Any = self.server.fcall("korvet_tenant_create", 1, KEY, name, id, limits, super_users)
        return int(reply[0])

    def configure(self, name: str, limits: str, *super_users: str) -> int:
        reply: Any = self.server.fcall("korvet_tenant_configure", 1, KEY, name, limits, *super_users)
        return int(reply[0])

    def switch(self, name: str, state: str, *id: str) -> int:
        reply: Any = self.server.fcall("korvet_tenant_switch", 1, KEY, name, state, *id)
        return int(reply[0])

    def forget(self, name: str, id: str = "1") -> int:
        reply: Any = self.server.fcall("korvet_tenant_forget", 1, KEY, name, id)
        return int(reply[0])

    def read(self, known: int = -1) -> tuple[int, dict[str, Any]]:
        _, version, flat = self.server.fcall_ro("korvet_tenants_read", 1, KEY, str(known))
        found = {name.decode(): json.loads(text) for name, text in zip(flat[::2], flat[1::2], strict=True)}
        return version, found


@pytest.fixture
def tenants(server: redis.Redis) -> Tenants:
    return Tenants(server)


def test_tenant_lives_from_its_creation_to_the_end_of_its_deletion(tenants: Tenants) -> None:
    assert tenants.create("acme", '{"topics": 5}', "User:admin") == DONE
    version, found = tenants.read()
    assert (found["acme"]["state"], found["acme"]["limits"]) == ("active", {"topics": 5})
    assert tenants.read(version) == (version, {})
    assert tenants.create("acme") == THERE
    assert [tenants.switch("acme", state) for state in ("suspended", "suspended", "active")] == [DONE] * 3
    assert tenants.read()[0] == version + 2
    assert tenants.forget("acme") == INVALID
    assert [tenants.switch("acme", state) for state in ("deleting", "deleting", "active")] == [DONE, DONE, INVALID]
    assert tenants.configure("acme", "{}") == MISSING
    assert tenants.forget("acme", id="of a later one") == DONE and "acme" in tenants.read()[1]
    assert [tenants.forget("acme"), tenants.forget("acme")] == [DONE, DONE]
    assert tenants.read()[1] == {}
    assert tenants.create("acme", id="2") == DONE


def test_switch_with_the_id_of_an_earlier_tenant_changes_nothing(tenants: Tenants) -> None:
    tenants.create("acme", id="2")
    version, _ = tenants.read()
    assert tenants.switch("acme", "deleting", "1") == MISSING
    assert tenants.read(version) == (version, {})
    assert [tenants.switch("acme", "deleting", "2"), tenants.switch("acme", "deleting", "1")] == [DONE, MISSING]


def test_changes_replace_the_named_limits_alone(tenants: Tenants) -> None:
    tenants.create("acme", '{"topics": 5, "bytes": 9007199254740991}', "User:admin")
    assert tenants.configure("acme", '{"topics": -1, "groups": 0}') == DONE
    found = tenants.read()[1]["acme"]
    assert (found["limits"], found["super_users"]) == ({"bytes": 9007199254740991, "groups": 0}, "User:admin")
    assert tenants.configure("acme", "{}", "") == DONE
    assert tenants.read()[1]["acme"]["super_users"] == ""


@pytest.mark.parametrize(
    "name",
    ["", "A", "a:b", "a}", "%7b", "%7B", "*", "a.b", "a_b", "-a", "a-", "@a", "a b", "a\n", "ä", "a" * 41, "a\0"],
)
def test_names_that_are_no_labels_of_host_names_are_refused(tenants: Tenants, name: str) -> None:
    assert tenants.create(name) == INVALID
    assert tenants.read() == (0, {})


@pytest.mark.parametrize("limits", ["", "5", '{"topics": -2}', '{"topics": 1.5}', '{"topics": "5"}', "[1", "nonsense",
                                    '{"topics": 9007199254740992}'])  # fmt: skip
def test_limits_that_are_none_change_nothing(tenants: Tenants, limits: str) -> None:
    assert tenants.create("acme", limits) == INVALID
    tenants.create("acme")
    before = tenants.read()
    assert tenants.configure("acme", limits) == INVALID
    assert tenants.read() == before


def test_settings_that_are_too_long_are_refused(tenants: Tenants) -> None:
    assert tenants.create("acme", "{}", "User:a;" * 1000) == POLICY
    tenants.create("acme")
    assert tenants.configure("acme", "{}", "User:a;" * 1000) == POLICY


def test_unknown_tenants_are_not_found(tenants: Tenants) -> None:
    assert [tenants.switch("acme", "suspended"), tenants.configure("acme", "{}"), tenants.switch("", "deleting")] == [
        MISSING, MISSING, MISSING,
    ]  # fmt: skip
