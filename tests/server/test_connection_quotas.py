"""The bounds on connections of a process and of its listeners, at real listening sockets.

Rates are so low that no token comes during a test, or so high that one comes at once: no test waits for a clock.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.configs.types import INT_MAX
from korvet.errors import ConfigError
from korvet.quotas.bucket import RateLimit
from korvet.quotas.entity import CONNECTION, DEFAULT, Entity
from korvet.quotas.meters import Meters
from korvet.quotas.rules import Rules
from korvet.server.bounds.accepting import Accepting
from korvet.server.bounds.connection_quotas import Bound, Bounds, ConnectionQuotas, bounds_of
from korvet.server.ground.sockets import bind, port_of
from tests.server.script import PLAIN, Script, named, serving, until
from tests.support.ported import kafka
from tests.support.quotas import WINDOWS
from tests.support.wire import raw_client

SELDOM, OFTEN = 1e-6, 1e6


def seldom(at_once: int) -> Bound:
    """A bound of so many new connections and one more, for which a bucket goes into debt."""
    return Bound(rate=RateLimit("new", SELDOM, at_once))


class AcceptingSockets:
    """Listening sockets by their listeners' names, and clients of theirs."""

    def __init__(self, quotas: ConnectionQuotas) -> None:
        self.quotas = quotas
        self.accepted: list[str] = []
        """The listeners of the connections that were accepted, in order."""
        self.judge: Callable[[str], None] = lambda _name: None
        """Called with the listener of each connection."""
        self._bound: dict[str, socket.socket] = {}
        self._kept = contextlib.ExitStack()

    @classmethod
    @asynccontextmanager
    async def open(cls, bounds: Bounds, *names: str) -> AsyncIterator[AcceptingSockets]:
        async with anyio.create_task_group() as tasks:
            sockets = cls(ConnectionQuotas(bounds))
            opened = []
            for name in names:
                bound = sockets._bound[name] = bind("127.0.0.1", 0)
                opened.append(Accepting(sockets.quotas, name, pytest.fail, tasks, bound, partial(sockets._take, name)))
            for one in opened:
                one.listen(1024)
            try:
                yield sockets
            finally:
                for one in opened:
                    one.close()
                sockets._kept.close()

    async def _take(self, name: str, accepted: socket.socket) -> None:
        self._kept.enter_context(accepted)
        self.accepted.append(name)
        self.judge(name)

    def connect(self, name: str, count: int = 1) -> None:
        """Have clients connect, which wait in the backlog."""
        for _ in range(count):
            self._kept.enter_context(socket.create_connection(("127.0.0.1", port_of(self._bound[name]))))

    async def has_accepted(self, count: int) -> None:
        """Wait until so many connections were accepted, and see that it is not one more."""
        await until(lambda: len(self.accepted) >= count)
        for _ in range(20):
            await anyio.sleep(0.001)
        assert len(self.accepted) == count


@kafka("ConnectionQuotasTest.testNoConnectionLimitsByDefault")
@pytest.mark.anyio
async def test_all_connections_are_accepted_without_bounds() -> None:
    with capture_logs() as lines:
        async with AcceptingSockets.open(bounds_of({}), "a", "b") as sockets:
            sockets.connect("a", 100)
            sockets.connect("b", 100)
            await sockets.has_accepted(200)
            assert sockets.quotas.open == 200
    assert not lines


@kafka("ConnectionQuotasTest.testMaxBrokerWideConnectionLimit")
@pytest.mark.anyio
async def test_connection_beyond_the_process_waits_at_each_listener() -> None:
    bounds = bounds_of({"max.connections": "3"})
    with capture_logs() as lines:
        async with AcceptingSockets.open(bounds, "a", "b") as sockets:
            sockets.connect("a", 3)
            await sockets.has_accepted(3)
            sockets.connect("b")
            await sockets.has_accepted(3)
            sockets.quotas.left("a")
            await sockets.has_accepted(4)
    assert [(line["event"], line["connections"]) for line in lines] == [
        ("no more connections are accepted until others leave", 3)
    ]


@kafka("ConnectionQuotasTest.testMaxListenerConnectionLimits")
@pytest.mark.anyio
async def test_connection_beyond_its_listener_waits_and_others_get_in() -> None:
    settings = {
        "max.connections": "100",
        "listener.name.a.max.connections": "2",
        "listener.name.b.max.connections": "1",
    }
    with capture_logs() as lines:
        async with AcceptingSockets.open(bounds_of(settings), "A", "b", "c") as sockets:
            sockets.connect("A", 4)
            sockets.connect("b", 2)
            await sockets.has_accepted(3)
            sockets.connect("c", 5)
            await sockets.has_accepted(8)
            sockets.quotas.left("c")
            await sockets.has_accepted(8)
            sockets.quotas.left("A")
            await sockets.has_accepted(9)
            assert (sockets.accepted.count("A"), sockets.accepted.count("b"), sockets.quotas.open) == (3, 1, 7)
    assert sorted(line["listener"] for line in lines) == ["A", "b"]


@kafka("ConnectionQuotasTest.testListenerConnectionRateLimitWhenActualRateAboveLimit")
@pytest.mark.anyio
async def test_connections_beyond_the_rate_of_a_listener_wait() -> None:
    async with AcceptingSockets.open(Bounds(listeners={"a": seldom(4)}), "a", "b") as sockets:
        sockets.connect("a", 20)
        sockets.connect("b", 20)
        await sockets.has_accepted(25)
        assert sockets.accepted.count("a") == 5


@kafka("ConnectionQuotasTest.testListenerConnectionRateLimitWhenActualRateBelowLimit")
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": fast}) for fast in (False, True)])
@pytest.mark.anyio
async def test_socket_goes_on_once_the_rates_allow_it() -> None:
    often = Bound(rate=RateLimit("new", OFTEN, 0))
    async with AcceptingSockets.open(Bounds(process=often, listeners={"a": often}), "a") as sockets:
        sockets.connect("a", 50)
        await sockets.has_accepted(50)


@kafka("ConnectionQuotasTest.testNonDefaultConnectionCountLimitAndRateLimit")
@pytest.mark.anyio
async def test_number_and_rate_of_connections_count_together() -> None:
    bound = Bound(most=10, rate=RateLimit("new", SELDOM, 11))
    async with AcceptingSockets.open(Bounds(process=bound), "a") as sockets:
        sockets.connect("a", 20)
        await sockets.has_accepted(10)
        sockets.quotas.left("a")
        await sockets.has_accepted(11)
        # Two more have room, but one of them comes too fast.
        sockets.quotas.left("a")
        sockets.quotas.left("a")
        await sockets.has_accepted(12)


@kafka("ConnectionQuotasTest.testMaxListenerConnectionRateReconfiguration")
@pytest.mark.anyio
async def test_bound_that_ends_or_begins_counts_at_once() -> None:
    async with AcceptingSockets.open(Bounds(listeners={"a": seldom(0)}), "a") as sockets:
        sockets.connect("a", 30)
        await sockets.has_accepted(1)
        sockets.quotas.configure(Bounds())
        await sockets.has_accepted(30)
        sockets.quotas.configure(Bounds(listeners={"a": seldom(4)}))
        sockets.connect("a", 30)
        await sockets.has_accepted(35)


@kafka("ConnectionQuotasTest.testMaxBrokerConnectionRateReconfiguration")
@pytest.mark.anyio
async def test_other_rate_of_the_process_keeps_what_was_used() -> None:
    async with AcceptingSockets.open(Bounds(process=seldom(4)), "a") as sockets:
        sockets.connect("a", 30)
        await sockets.has_accepted(5)
        sockets.quotas.configure(Bounds(process=seldom(100)))
        await sockets.has_accepted(5)
        sockets.quotas.configure(Bounds(process=Bound(rate=RateLimit("new", OFTEN, 100))))
        await sockets.has_accepted(30)


@kafka("ConnectionQuotasTest.testRejectedIpConnectionUnrecordedFromConnectionRateQuotas")
@pytest.mark.anyio
async def test_connection_that_its_address_may_not_make_uses_up_no_rate() -> None:
    both = Bounds(process=seldom(0), listeners={"a": seldom(0)})
    async with AcceptingSockets.open(both, "a") as sockets:
        sockets.connect("a", 4)
        for count in range(1, 4):
            await sockets.has_accepted(count)
            sockets.quotas.forget_new("a")
            sockets.quotas.left("a")
        await sockets.has_accepted(4)


@kafka("ConnectionQuotasTest.testIpConnectionRateWithListenerConnectionRate")
@pytest.mark.parametrize("takes_turns", [True, False])
@pytest.mark.anyio
async def test_rate_of_a_listener_counts_beside_those_of_addresses(takes_turns: bool) -> None:
    """Each address may make 26 and the listener take 36. So one address at most meets its own bound."""
    rates = Rules({Entity(ip=DEFAULT): {CONNECTION: 25 * SELDOM}}, WINDOWS._replace(num=2, size_s=int(1 / SELDOM)))
    meters = Meters(rates, lambda: None)
    async with AcceptingSockets.open(Bounds(listeners={"a": seldom(35)}), "a") as sockets:
        hosts = ["10.0.0.1", "10.0.0.2"] * 35 if takes_turns else ["10.0.0.1"] * 35 + ["10.0.0.2"] * 35
        let_in: list[str] = []
        refused: list[str] = []

        def judge(name: str) -> None:
            host = hosts[len(let_in) + len(refused)]
            if meters.connection_wait_s(host):
                refused.append(host)
                sockets.quotas.forget_new(name)
            else:
                let_in.append(host)

        sockets.judge = judge
        sockets.connect("a", 70)
        await until(lambda: len(let_in) >= 36)
        for _ in range(20):
            await anyio.sleep(0.001)
    assert len(let_in) == 36
    assert set(refused) <= {"10.0.0.1"}
    assert len(refused) == (0 if takes_turns else 9)


@pytest.mark.anyio
async def test_flood_at_one_listener_shuts_no_other_out() -> None:
    """Attack: so many connections to one listener that one of them always waits for the process."""
    async with AcceptingSockets.open(Bounds(process=Bound(most=1)), "flooded", "quiet", "idle") as sockets:
        sockets.connect("flooded", 50)
        await sockets.has_accepted(1)
        sockets.connect("quiet", 3)
        for count in range(2, 8):
            sockets.quotas.left(sockets.accepted[-1])
            await sockets.has_accepted(count)
        assert sockets.accepted[1:] == ["flooded", "quiet"] * 3


@pytest.mark.anyio
async def test_full_listener_keeps_no_other_one_waiting() -> None:
    full, slow = {"full": Bound(most=0)}, Bound(rate=RateLimit("new", 5, 0))
    async with AcceptingSockets.open(Bounds(process=seldom(0), listeners=full), "full", "free") as sockets:
        sockets.connect("full")
        await sockets.has_accepted(0)
        sockets.connect("free", 2)
        await sockets.has_accepted(1)
        # The full one is looked at first, and while the process still has to wait.
        sockets.quotas.configure(Bounds(process=slow, listeners=full))
        await sockets.has_accepted(2)


@pytest.mark.anyio
async def test_lowered_number_closes_those_that_were_idle_longest() -> None:
    with capture_logs() as lines:
        async with (
            serving(Script()) as running,
            raw_client(running.port) as first,
            raw_client(running.port) as second,
            raw_client(running.port) as third,
        ):
            for client in (first, second, third, first):
                client.send(named(PLAIN, "a"))
                await client.answer()
                await anyio.sleep(0.02)
            running.server.configure(Bounds(process=Bound(most=2)))
            assert await second.is_closed_by_server()
            for client in (first, third):
                client.send(named(PLAIN, "b"))
                assert (await client.answer())[0] == ord("b")
            assert running.server.connection_quotas.open == 2
    assert [(line["event"], line["closed"]) for line in lines] == [
        ("connections are closed: there are more than max.connections", 1)
    ]


def test_bounds_of_listeners_are_by_their_names_in_any_letters() -> None:
    bounds = bounds_of(
        {
            "max.connections": "9",
            "quota.window.num": "3",
            "quota.window.size.seconds": "2",
            "listener.name.Out.side.max.connections": "7",
            "listener.name.out.side.max.connection.creation.rate": "5",
        }
    )
    rate = RateLimit("max.connection.creation.rate", 5, 20)
    assert bounds == Bounds(process=Bound(most=9), listeners={"out.side": Bound(most=7, rate=rate)})
    assert bounds_of({"max.connections": str(INT_MAX)}) == Bounds()


@kafka("ConnectionQuotasTest.testMaxListenerConnectionListenerMustBeAboveZero")
@pytest.mark.parametrize("prefix", ["", "listener.name.a."])
def test_rate_of_no_connections_is_refused(prefix: str) -> None:
    name = f"{prefix}max.connection.creation.rate"
    words = f"Invalid value 0 for configuration {name}: Value must be at least 1"
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}$"):
        bounds_of({name: "0"})


def test_two_spellings_of_one_listeners_bound_are_refused() -> None:
    settings = {"listener.name.out.max.connections": "7", "listener.name.Out.max.connections": "8"}
    with pytest.raises(ConfigError, match=r"^listener\.name\.Out\.max\.connections: listener\.name\.out\.max\.conn"):
        bounds_of(settings)
    settings = {"listener.name.out.max.connections": "7", "listener.name.Out.max.connection.creation.rate": "8"}
    assert bounds_of(settings).listeners["out"].most == 7
