"""What is kept of names that clients choose."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from korvet.name_cache import NameCache
from korvet.redis.topology import slot_of
from tests.server.played import Played
from tests.support.memory import MEGABYTE, traced_memory

pytestmark = pytest.mark.anyio

LOOKUPS: dict[str, Callable[[Played], Callable[[str], object]]] = {
    "a group's keys": lambda played: played.groups.consumers._calls.keys,
    "a transactional id's keys": lambda played: played.frontend.transactions._keys,
    "a key's slot": lambda _: slot_of,
}


@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=LOOKUPS)
async def test_long_names_that_clients_invent_are_not_kept(lookup: Callable[[Played], Callable[[str], object]]) -> None:
    look_up = lookup(Played())
    with traced_memory() as held:
        for number in range(2000):
            look_up(f"{number}{'x' * 1000}")
        assert held() < MEGABYTE


def test_value_of_a_name_is_computed_once_until_too_many_are_kept() -> None:
    computed: list[str] = []

    def length(name: str) -> int:
        computed.append(name)
        return len(name)

    lengths = NameCache(length, most=2)
    assert [lengths[name] for name in ("a", "bb", "a", "bb", "ccc", "ccc", "a")] == [1, 2, 1, 2, 3, 3, 1]
    assert computed == ["a", "bb", "ccc", "a"]
