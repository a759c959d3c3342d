"""Front-ends' calls to Redis while no client does anything."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka.admin import AdminClient

from tests.api.data import connected
from tests.api.raw import unique
from tests.support.broker import KorvetServer
from tests.support.redis import Server, running_server
from tests.support.topologies import until

FRONTENDS = 3
WATCHED_S = 12.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of this module's own: all that is counted there is its front-ends'."""
    with running_server("valkey") as started:
        yield started


@pytest.fixture(scope="module")
def ports(server: Server) -> Iterator[list[int]]:
    """The ports of front-ends of one namespace."""
    namespace, ports = unique("idle"), []
    with ExitStack() as stack:
        for _ in range(FRONTENDS):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
            started = KorvetServer(directory, redis_url=server.url, namespace=namespace)
            stack.callback(started.kill)
            ports.append(started.start().port)
        yield ports


def counted(client: redis.Redis) -> Counter[str]:
    """Calls by command, with the calls of functions."""
    stats: Any = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): told["calls"] for name, told in stats.items()})


def watched(server: Server) -> tuple[Counter[str], float]:
    """The calls of some seconds, and the seconds."""
    with server.client() as client:
        time.sleep(2)
        began, before = time.monotonic(), counted(client)
        time.sleep(WATCHED_S)
        return counted(client) - before, time.monotonic() - began


def test_front_ends_read_nothing_of_a_namespace_with_health_checks_alone(server: Server, ports: list[int]) -> None:
    with ExitStack() as stack:
        for port in ports:
            checker = stack.enter_context(connected(port))
            assert checker.ask("api_versions", 0)["error_code"] == "NONE"
        calls, seconds = watched(server)
    # A probe of each front-end every second, and the server's memory every other second.
    assert FRONTENDS <= calls["fcall"] <= FRONTENDS * (seconds + 2)
    assert calls["info"] <= 2 * FRONTENDS * (seconds + 2)
    assert calls["hgetall"] == calls["exists"] == calls["zrangebyscore"] == 0
    # The version of the library every five seconds.
    assert calls["fcall_ro"] <= FRONTENDS * (seconds / 5 + 2)


def test_front_ends_of_a_namespace_with_a_client_renew_and_share_the_sweep(server: Server, ports: list[int]) -> None:
    with connected(ports[0]) as client:
        client.ask("metadata", 12, topics=[], allow_auto_topic_creation=False)
        calls, seconds = watched(server)
    # A renewal and a probe of each front-end every second; a look for shards every five seconds of one of them.
    # A busy machine may be late with some of them.
    assert (FRONTENDS - 0.5) * seconds <= calls["hgetall"] <= FRONTENDS * (seconds + 2)
    assert calls["fcall"] <= 2 * FRONTENDS * (seconds + 2)
    assert 1 <= calls["exists"] <= seconds / 5 + 2
    assert calls["zrangebyscore"] == 0


def test_client_of_an_idle_namespace_is_soon_shown_no_front_end_that_died(server: Server) -> None:
    namespace, front_ends = unique("idle"), []
    with ExitStack() as stack:
        for _ in range(FRONTENDS):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
            started = KorvetServer(directory, redis_url=server.url, namespace=namespace)
            stack.callback(started.kill)
            front_ends.append(started.start())
        dead, *alive = front_ends
        dead.kill()
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{alive[0].port}"})

        def shown() -> set[int]:
            return {broker.port for broker in admin.list_topics(timeout=10).brokers.values()}

        until(lambda: shown() == {one.port for one in alive}, "the dead front-end is shown no more")
