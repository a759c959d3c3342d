"""What tables of one shape have in common: users, access rules, quotas, tenants. Each has its version and channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.log import listening

SECURITY = "korvet:{default:@security}:"
TENANTS = "korvet:{@tenants}:"
TABLES = {
    "users": ("korvet_users_alter", f"{SECURITY}users", ("SCRAM-SHA-256:{}", "4096 c2FsdA== a2V5 a2V5")),
    "acls": ("korvet_acls_add", f"{SECURITY}acls", ('[2,3,"{}","User:a","*",3,3]',)),
    "quotas": ("korvet_quotas_alter", f"{SECURITY}quotas", ("user={} producer_byte_rate", "1")),
    "tenants": ("korvet_tenant_create", f"{TENANTS}tenants", ("{}", "id", "[]", "")),
}
"""The function that adds to each table, the table's key, and the arguments, with a name."""


class Table:
    """A table whose entries are told apart by a letter."""

    def __init__(self, server: redis.Redis, name: str) -> None:
        self.server, self.name = server, name
        self.function, self.key, self._args = TABLES[name]
        self.witness = f"{TENANTS if name == 'tenants' else SECURITY}secret"

    def add(self, letter: str) -> None:
        code, *_ = self.server.fcall(self.function, 1, self.key, *(arg.format(letter) for arg in self._args))
        assert code == 0

    def read(self, known: int = -1) -> tuple[int, list[bytes]]:
        _, version, fields = self.server.fcall_ro(f"korvet_{self.name}_read", 1, self.key, known)
        return version, fields

    def restore(self, fields: dict[bytes, bytes], secret: str = "secret") -> int:
        flat = [part for name, text in fields.items() if name for part in (name, text)]
        written: int = self.server.fcall("korvet_table_restore", 2, self.key, self.witness, secret, *flat)[1]
        return written


@pytest.fixture(params=TABLES)
def table(server: redis.Redis, request: pytest.FixtureRequest) -> Table:
    return Table(server, request.param)


def test_version_and_channel_show_each_change(table: Table) -> None:
    with listening(table.server, table.key) as next_message:
        table.add("a")
        version, fields = table.read()
        assert (int(next_message()), bool(fields), table.read(version)) == (version, True, (version, []))
        table.add("b")
        assert int(next_message()) == version + 1
    assert (table.read(version)[0], len(table.read(version)[1])) == (version + 1, 2 * len(fields))


def test_version_never_comes_again_even_if_the_key_was_deleted(table: Table) -> None:
    seen = []
    for _ in range(3):
        for letter in "ab":
            table.add(letter)
            seen.append(table.read()[0])
        table.server.delete(table.key)
        assert table.read() == (0, [])
    assert len(set(seen)) == len(seen) and seen == sorted(seen)


def test_version_grows_if_the_clock_of_the_server_went_back(table: Table) -> None:
    later = 9_000_000_000_000_000
    table.server.hset(table.key, "", later)
    table.add("a")
    assert table.read()[0] == later + 1


def test_deleted_table_is_written_back_unless_its_whole_unit_was_deleted(table: Table) -> None:
    table.add("a")
    version, before = table.read()
    fields: dict[Any, Any] = table.server.hgetall(table.key)
    table.server.delete(table.key)
    assert (table.restore(fields), table.server.exists(table.key)) == (0, 0)
    table.server.set(table.witness, "secret")
    assert (table.restore(fields, "a former unit's"), table.server.exists(table.key)) == (0, 0)
    assert (table.restore(fields), table.restore({b"x": b"1"})) == (1, 0)
    later, after = table.read(version)
    assert (later > version, after) == (True, before)


@pytest.mark.parametrize(
    "hurt",
    [lambda table: table.server.hset(table.key, "", "x"), lambda table: table.server.hdel(table.key, "")],
    ids=["unreadable", "missing"],
)
def test_table_without_a_version_gets_one_with_the_next_change(table: Table, hurt: Callable[[Table], Any]) -> None:
    table.add("a")
    hurt(table)
    assert table.read()[0] == 0
    table.add("b")
    assert table.read()[0] > 0
