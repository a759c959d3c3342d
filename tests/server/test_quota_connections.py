"""Quotas of addresses, and limits of connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.api.data import connected
from tests.api.quotas import limit
from tests.api.raw import ask
from tests.server.quotas import WINDOWS
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka
from tests.support.waiting import until


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running_broker(broker=WINDOWS) as broker:
        yield broker.port


def test_connections_beyond_the_rate_of_an_address_are_closed(port: int) -> None:
    limit(port, {"ip": "127.0.0.1"}, connection_creation_rate=3)
    try:
        outcomes = []
        for _ in range(20):
            with connected(port) as one:
                try:
                    one.ask("api_versions", 0)
                    outcomes.append(True)
                except ConnectionError:
                    outcomes.append(False)
        assert outcomes[0] and not all(outcomes)
    finally:
        until(lambda: _is_freed(port), "the address stays out")


def _is_freed(port: int) -> bool:
    try:
        limit(port, {"ip": "127.0.0.1"}, connection_creation_rate=None)
    except ConnectionError:
        return False
    return True


def test_connections_of_an_address_are_bounded_over_all_front_ends() -> None:
    """The connections that came first stay; those of a front-end that ends make room."""
    settings = {"max.connections.per.ip": "3"}
    with running_broker(broker=settings) as redis, ExitStack() as clients:
        url = f"unix://{redis.embedded_socket}"
        with (
            running_broker(broker=settings, redis_url=url) as one,
            running_broker(broker=settings, redis_url=url) as two,
        ):
            ports = [one.port, two.port, two.port]
            first = [clients.enter_context(connected(port)) for port in ports]
            assert all(client.ask("api_versions", 0)["api_keys"] for client in first)
            # Until Redis has heard of all three, a further one may come before the last of them.
            until(lambda: counted(redis) == 3, "front-ends do not tell of their connections")
            until(lambda: not is_served(one.port) and not is_served(two.port), "one more is served")
            assert all(client.ask("api_versions", 0)["api_keys"] for client in first)
            assert one.stop() == 0
            until(lambda: is_served(two.port), "a connection that ended still counts")
            assert "Traceback" not in one.log + two.log


def counted(broker: KorvetServer) -> int:
    """The connections of this address that Redis knows."""
    with broker.redis() as redis:
        return sum(map(int, redis.hvals("korvet:{default:@connections}:connections:ip:127.0.0.1")))


def is_served(port: int) -> bool:
    """Whether a new connection stays open for longer than front-ends need to hear of each other."""
    try:
        with connected(port) as client:
            client.ask("api_versions", 0)
            client.socket.settimeout(1.0)
            return client.socket.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


@kafka(
    "ConnectionQuotasTest.testBrokerConnectionRateLimitWhenActualRateAboveLimit",
    "ConnectionQuotasTest.testBrokerConnectionRateLimitWhenActualRateBelowLimit",
)
def test_connections_beyond_the_rate_of_a_front_end_wait() -> None:
    with running_broker(broker={"max.connection.creation.rate": "10", "quota.window.num": "2"}) as broker:
        began = time.monotonic()
        for _ in range(31):
            ask(broker.port, "api_versions", 0)
        assert time.monotonic() - began >= 1.9
