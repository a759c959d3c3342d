"""The example that applies orders to Redis, while it is killed, and while the topic is made again or loses its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import redis
from confluent_kafka.admin import AdminClient

from korvet.store.library import library_source
from tests.api.test_history import Rewindable, rewindable
from tests.kafka.conftest import SETTINGS
from tests.kafka.example_builds import EXAMPLES
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server, running_server

__all__ = ["rewindable"]

pytestmark = pytest.mark.all

TOPIC, CUSTOMERS, ORDERS = "example-applied", 3, 10
ONCE = Counter(range(ORDERS))
WITHIN_S = 120.0


@pytest.fixture
def quick() -> Iterator[KorvetServer]:
    """A broker that soon misses a consumer that was killed."""
    with running_broker(broker={**SETTINGS, "group.consumer.session.timeout.ms": "3000"}) as server:
        yield server


@pytest.fixture
def store() -> Iterator[Server]:
    """A Valkey with the library, which is not the broker's."""
    with running_server("valkey", tcp=True) as server, server.client() as client:
        client.function_load(library_source().decode())
        yield server


def start(broker: KorvetServer, store: Server) -> subprocess.Popen[bytes]:
    """Start the example, which writes ten orders and applies all that are there."""
    given = {"BROKER": broker.bootstrap, "REDIS": store.tcp_url}
    return subprocess.Popen([sys.executable, str(EXAMPLES / "python" / "orders_applied.py")], env=os.environ | given)


def run(broker: KorvetServer, store: Server) -> None:
    with start(broker, store) as running:
        assert running.wait(WITHIN_S) == 0


def applied(store: Server) -> Counter[int]:
    """How often each order was applied; the amounts in Redis are theirs."""
    with store.client() as client:
        return Counter(_applied(client))


def _applied(client: redis.Redis) -> Iterator[int]:
    for number in range(CUSTOMERS):
        tag = f"{{customer-{number}}}"
        with client.pipeline() as both:
            both.lrange(f"{tag}:orders", 0, -1)
            both.get(f"{tag}:amount")
            listed, amount = both.execute()
        orders = [int(one) for one in listed]
        assert int(amount or 0) == 10 * sum(orders)
        yield from orders


def test_orders_are_applied_once_although_the_consumer_is_killed(quick: KorvetServer, store: Server) -> None:
    for most in (0, 11, 17):
        with start(quick, store) as running:
            while applied(store).total() <= most and running.poll() is None:
                time.sleep(0.001)
            running.kill()
    run(quick, store)
    found = applied(store)
    assert found.keys() == ONCE.keys()
    assert max(found.values()) <= 4
    run(quick, store)
    assert applied(store) == found + ONCE


def test_topic_that_is_made_again_is_applied_from_its_start(quick: KorvetServer, store: Server) -> None:
    admin = AdminClient({"bootstrap.servers": quick.bootstrap})
    for _ in range(2):
        run(quick, store)
        admin.delete_topics([TOPIC])[TOPIC].result(WITHIN_S)
    assert applied(store) == ONCE + ONCE


@pytest.mark.parametrize("rewindable", ["valkey"], indirect=True)
def test_orders_after_a_lost_end_of_the_topic_are_applied_at_offsets_that_were_applied_before(
    rewindable: Rewindable, store: Server
) -> None:
    run(rewindable.broker, store)
    rewindable.remember()
    run(rewindable.broker, store)
    rewindable.rewind()
    run(rewindable.broker, store)
    # The second orders were lost, and stay applied.
    assert applied(store) == ONCE + ONCE + ONCE
