"""Connections that front-ends count together, while Redis hears of them and its answers are lost."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.quotas.counting import Counting
from korvet.quotas.tally import Tally
from korvet.redis.client import Purpose
from korvet.store.security.connections import LEASE_S, Counter, Heard, StoredConnections
from tests.store.logs import NAMESPACE, Front, until

pytestmark = pytest.mark.anyio

KEYS = NAMESPACE.connections


class Unanswered(StoredConnections):
    """Calls that Redis hears, and whose answers are lost while ``is_away``."""

    is_away = False
    calls = 0

    async def publish(self, counts: Mapping[Counter, int], lease_s: float = LEASE_S) -> Heard:
        heard = await super().publish(counts, lease_s)
        self.calls += 1
        if self.is_away:
            raise StoreUnavailable("the answer is lost", outcome_unknown=True)
        return heard


class UnlimitedConnection:
    """A connection that nobody closes."""

    def abort(self) -> None:
        raise AssertionError("there are not too many")


async def counted(one: Front, name: str) -> int:
    """The connections of an address, as Redis knows them."""
    key = KEYS.counter("ip", name)
    return sum(map(int, await one.store.call(Purpose.COORDINATE, key, "HVALS", key)))


async def test_addresses_that_left_during_an_outage_are_neither_kept_nor_counted(one: Front) -> None:
    """Attack: connections from very many addresses come and go while Redis does not answer."""
    stored, tally = Unanswered(KEYS, one.store), Tally("ip", lambda _name: 50)
    counting = Counting(stored, [tally], lambda: 1)
    stays, leaves = UnlimitedConnection(), UnlimitedConnection()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(counting.publish)
        tally.increment("stays")
        tally.increment("leaves")
        tally.register("stays", stays)
        tally.register("leaves", leaves)
        await until(lambda: not tally.has_changes)
        stored.is_away = True
        for number in range(500):
            tally.increment(f"a{number}")
        calls = stored.calls
        await until(lambda: stored.calls >= calls + 2)
        for number in range(500):
            tally.decrement(f"a{number}")
        tally.decrement("leaves", leaves)
        calls = stored.calls
        await until(lambda: stored.calls >= calls + 2)
        # Only those of the first call without an answer may be counted.
        assert len(tally._stored) <= 102
        stored.is_away = False
        await until(lambda: tally._stored == {"stays"} and not tally.has_changes)
        names = ["stays", "leaves", *(f"a{number}" for number in range(500))]
        assert [await counted(one, name) for name in names] == [1] + [0] * 501
        tasks.cancel_scope.cancel()
