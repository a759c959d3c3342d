"""Bounds on connections, and memory that goes back after a peak."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.errors import ConfigError
from korvet.quotas.bucket import RateLimit
from korvet.quotas.entity import CONNECTION, Entity
from korvet.quotas.meters import Meters
from korvet.quotas.rules import Rules
from korvet.security.tls import Certificates, TlsFiles
from korvet.server.bounds import accepting
from korvet.server.bounds.connection_quotas import Bound, Bounds
from korvet.server.conversation.connection import Connection
from korvet.server.ground import machine
from korvet.server.ground.machine import FreedMemory
from korvet.server.ground.settings import limits_of
from tests.api.data import connected, fetch_request, offsets, partitions_of, produce_request, produced, records, wanted
from tests.api.raw import _receive, created
from tests.oracle.messages import request_frame
from tests.server.script import PLAIN, Script, named, serving, until
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority
from tests.support.ported import kafka
from tests.support.quotas import WINDOWS
from tests.support.wire import raw_client

MIB = 1 << 20


@pytest.mark.parametrize(
    "bounds", [Bounds(process=Bound(most=2)), Bounds(listeners={"default": Bound(most=2)})], ids=["process", "listener"]
)
@pytest.mark.anyio
async def test_connection_beyond_the_limit_waits_until_another_closes(bounds: Bounds) -> None:
    with capture_logs() as lines:
        async with serving(Script(), bounds=bounds) as running, raw_client(running.port) as last:
            async with raw_client(running.port) as first, raw_client(running.port) as other:
                clients = [last, first, other]
                for client in clients:
                    client.send(named(PLAIN, "a"))
                await until(lambda: running.server.connection_quotas.open == 2)
                await anyio.sleep(0.05)
                assert len(running.server.open_connections) == 2
            # The server serves the connection that waited when the others have left.
            assert (await last.answer())[0] == ord("a")
    assert [line["event"] for line in lines] == ["no more connections are accepted until others leave"]


@pytest.mark.anyio
async def test_connections_beyond_the_rate_of_an_address_use_up_no_rate_of_the_process() -> None:
    bounds = Bounds(process=Bound(rate=RateLimit("new", 1e-6, 1)))
    async with serving(Script(), bounds=bounds) as running, AsyncExitStack() as clients:
        settings = {Entity(ip="127.0.0.1"): {CONNECTION: 1e-6}}
        running.frontend.quotas.meters = Meters(Rules(settings, WINDOWS), lambda: None)
        for _ in range(5):
            await clients.enter_async_context(raw_client(running.port))
        await until(lambda: running.server.connection_quotas.open == 5)


@kafka("ConnectionQuotasTest.testMaxConnectionsPerIp")
@pytest.mark.anyio
async def test_connections_of_one_address_beyond_its_limit_are_closed() -> None:
    with capture_logs() as lines:
        async with serving(Script(), max_connections_per_ip=1) as running:
            async with raw_client(running.port) as first:
                first.send(named(PLAIN, "a"))
                await first.answer()
                async with raw_client(running.port) as second:
                    assert await second.is_closed_by_server()
                first.send(named(PLAIN, "b"))
                assert (await first.answer())[0] == ord("b")
            await until(lambda: running.server.connection_quotas.open == 0)
            async with raw_client(running.port) as third:
                third.send(named(PLAIN, "a"))
                assert (await third.answer())[0] == ord("a")
    assert [(line["client"], line["most"]) for line in lines] == [("127.0.0.1", 1)]


@pytest.mark.anyio
async def test_handshakes_of_one_address_count_for_its_limit(tmp_path: Path) -> None:
    pair = Authority.make(tmp_path).server()
    endpoint = {"tls": Certificates(TlsFiles(str(pair.cert), str(pair.key)), "default")}
    with capture_logs() as lines:
        async with serving(Script(), endpoint=endpoint, max_connections_per_ip=2) as running:
            async with raw_client(running.port) as silent, raw_client(running.port) as slow:
                slow.send(bytes([22, 3, 1]))
                await until(lambda: running.server.connection_quotas.open == 2)
                async with raw_client(running.port) as third:
                    assert await third.is_closed_by_server()
                silent.send(b"GET / HTTP/1.1")
                assert await silent.is_closed_by_server()
                async with raw_client(running.port) as fourth:
                    fourth.send(bytes([22, 3, 1]))
                    await until(lambda: running.server.connection_quotas.open == 2)
            await until(lambda: running.server.connection_quotas.open == 0)
    refused = [line for line in lines if line["event"].startswith("connection refused")]
    assert [line["most"] for line in refused] == [2]


@pytest.mark.anyio
async def test_connection_that_opens_during_a_drain_is_drained() -> None:
    """An accept or a handshake may end after the drain began."""
    script = Script()
    script.gate("a")
    async with serving(script, drain_s=60) as running, raw_client(running.port) as first:
        first.send(named(PLAIN, "a"))
        await until(lambda: script.handled == ["a"])
        running.stop.set()
        await until(running.frontend.draining.is_set)
        ours, theirs = socket.socketpair()
        with ours:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(running.server, running.listener, running.frontend), theirs
            )
            ours.settimeout(30)
            assert await asyncio.to_thread(ours.recv, 1) == b""
        script.open("a")
        assert (await first.answer())[0] == ord("a")


@pytest.mark.anyio
async def test_address_may_have_a_limit_of_its_own() -> None:
    overrides = limits_of({"max.connections.per.ip.overrides": "127.0.0.1:2, [::1]:0"}).max_connections_overrides
    assert overrides == {"127.0.0.1": 2, "::1": 0}
    async with (
        serving(Script(), max_connections_per_ip=0, max_connections_overrides=overrides) as running,
        raw_client(running.port) as client,
    ):
        client.send(named(PLAIN, "a"))
        assert (await client.answer())[0] == ord("a")


@pytest.mark.parametrize("text", ["localhost:1", "127.0.0.1", "127.0.0.1:-1", "127.0.0.1:x"])
def test_malformed_limit_of_an_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides"):
        limits_of({"max.connections.per.ip.overrides": text})


@pytest.fixture
def no_descriptors() -> Iterator[None]:
    """Restores the limit of file descriptors after the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.anyio
async def test_accepting_does_not_spin_without_file_descriptors(
    monkeypatch: pytest.MonkeyPatch, no_descriptors: None
) -> None:
    monkeypatch.setattr(accepting, "_REST_S", 0.1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with capture_logs() as lines, socket.socket() as client:
        async with serving(Script()) as running:
            # Clients of earlier tests close descriptors meanwhile, but none of the first three.
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            began_s = anyio.current_time()
            client.connect(("127.0.0.1", running.port))
            await until(lambda: len(lines) >= 3)
            assert len(lines) <= 2 + (anyio.current_time() - began_s) / 0.1
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await until(lambda: len(running.server.open_connections) == 1)
    assert {line["event"] for line in lines} == {"connections cannot be accepted"}


def test_file_descriptor_limit_is_raised_and_bounds_connections(no_descriptors: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    assert machine.most_connections() < 500
    machine.raise_descriptor_limit()
    assert machine.most_connections() > 500


def test_memory_is_given_back_once_a_peak_is_over() -> None:
    resident, in_use = [100 * MIB], [0]
    freed = FreedMemory(lambda: resident[0], lambda: in_use[0])
    resident[0], in_use[0] = 600 * MIB, 500 * MIB
    assert not freed.is_due() and not freed.is_due()
    in_use[0] = 0
    assert not freed.is_due()
    assert freed.is_due()
    # Memory that is needed does not ask for another trim.
    resident[0] = 300 * MIB
    freed.given_back()
    assert not freed.is_due() and not freed.is_due()
    resident[0] = 370 * MIB
    assert not freed.is_due()
    assert freed.is_due()


# ---------------------------------------------------------------------- with a broker


def fetch(topic: str, max_bytes: int = 55 * MIB, max_wait: int = 0, min_bytes: int = 1) -> dict[str, object]:
    """A Fetch of a topic's first partition from its start."""
    partition = {"fetch_offset": 0, "partition_max_bytes": max_bytes, "log_start_offset": -1}
    partition |= {"partition": 0, "current_leader_epoch": -1, "last_fetched_epoch": -1}
    return {
        "replica_id": -1, "max_wait": max_wait, "min_bytes": min_bytes, "max_bytes": max_bytes, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "topics": [{"topic": topic, "partitions": [partition]}],
        "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip


def exchanged(client: socket.socket) -> bytes:
    """An answer."""
    (size,) = struct.unpack(">i", _receive(client, 4))
    return _receive(client, size)


def resident_bytes(broker: KorvetServer) -> int:
    pages = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_slow_readers_take_bounded_memory_and_delay_no_other_client() -> None:
    bound = 32 * MIB
    with running_broker(broker={"korvet.queued.max.response.bytes": str(bound)}) as broker, ExitStack() as stack:
        large, small = created(broker.port), created(broker.port)
        with connected(broker.port) as client:
            data = request_frame(
                "produce", 12, produce_request(large, records(1, MIB - 1000), transactional_id=None), 1
            )
            client.socket.sendall(56 * data)
            for _ in range(56):
                exchanged(client.socket)
            client.ask("produce", 12, transactional_id=None, **produce_request(small, records(1, 100)))
            frame = request_frame("fetch", 12, fetch(large), 1)
            before = resident_bytes(broker)
            readers = []
            for _ in range(100):
                reader = stack.enter_context(socket.socket())
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                reader.connect(("127.0.0.1", broker.port))
                reader.sendall(5 * frame)
                readers.append(reader)
            peak = before
            for _ in range(30):
                (answer,) = client.ask("fetch", 12, **fetch(small))["responses"]
                assert answer["partitions"][0]["records"]
                peak = max(peak, resident_bytes(broker))
                time.sleep(0.05)
        # Without the bound it was more than a gigabyte. The cache and the batches read ahead come on top of the bound.
        assert peak - before < 5 * bound
        for reader in readers:
            reader.close()
        ends = time.monotonic() + 30
        while resident_bytes(broker) - before > 64 * MIB and time.monotonic() < ends:
            time.sleep(0.1)
        assert resident_bytes(broker) - before <= 64 * MIB


def test_fetch_that_waits_for_more_bytes_holds_no_memory() -> None:
    with running_broker(broker={"korvet.queued.max.response.bytes": str(32 * MIB)}) as broker, ExitStack() as stack:
        topic = created(broker.port)
        with connected(broker.port) as client:
            for _ in range(3):
                client.ask("produce", 12, transactional_id=None, **produce_request(topic, records(1, MIB - 1000)))
            for _ in range(4):
                time.sleep(0.2)
                waiting = stack.enter_context(connected(broker.port))
                waiting.send("fetch", 12, **fetch(topic, max_wait=600_000, min_bytes=50 * MIB))
            # If the waiting Fetches kept their three megabytes, others would get less than three for ten minutes.
            full, ends = 0, time.monotonic() + 60
            while full < 10 and time.monotonic() < ends:
                (answer,) = client.ask("fetch", 12, **fetch(topic))["responses"]
                full = full + 1 if len(answer["partitions"][0]["records"]) > 3 * (MIB - 1000) else 0
            assert full == 10


def test_fetch_of_many_partitions_does_not_wait_for_its_own_bytes() -> None:
    with running_broker(broker={"korvet.queued.max.response.bytes": str(MIB)}) as broker:
        topic = created(broker.port, partitions=501)
        for partition in (0, 500):
            produced(broker.port, topic, records(1, 900_000), partition=partition)
        everything = fetch_request(topic, *(wanted(0, partition) for partition in range(501)), max_bytes=55 * MIB)
        with connected(broker.port) as client:
            parts = partitions_of(client.ask("fetch", 12, **everything))
            assert [part["partition_index"] for part in parts if part["records"]] == [0]
            (part,) = partitions_of(client.ask("fetch", 12, **fetch_request(topic, wanted(0, 500))))
            assert offsets(part) == [0]


def test_front_end_that_keeps_no_batches_serves_every_reader() -> None:
    with running_broker(broker={"korvet.read.cache.max.bytes": "0"}) as broker:
        topic = created(broker.port)
        with connected(broker.port) as client:
            for size in (100, 100_000):
                client.ask("produce", 12, transactional_id=None, **produce_request(topic, records(1, size)))
        for _ in range(2):
            with connected(broker.port) as client:
                (answer,) = client.ask("fetch", 12, **fetch(topic))["responses"]
                assert len(answer["partitions"][0]["records"]) > 100_100


def test_read_cache_has_a_bound_of_its_own() -> None:
    assert limits_of({"korvet.read.cache.max.bytes": "4096"}).cache_bytes == 4096
    assert 0 < limits_of({}).cache_bytes <= 192 * MIB
