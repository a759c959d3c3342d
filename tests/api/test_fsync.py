"""korvet.acks.fsync: acks=all and commits of transactions are answered when Redis has flushed them to its disk."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.api.data import batches_of, fetch, produce, records, wanted
from tests.api.raw import created
from tests.api.transactions import producer
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server, running_server
from tests.support.topologies import running_cluster

WITHIN_S = 30


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Valkey with an append-only file, by default one that it flushes when the test says so."""
    with running_server(
        "valkey", options={"appendonly": "yes", "appendfsync": getattr(request, "param", "no")}
    ) as server:
        yield server


@pytest.fixture
def broker(server: Server) -> Iterator[KorvetServer]:
    with running_broker(redis_url=server.url) as broker:
        yield broker


def code(port: int, topic: str, acks: int) -> str:
    answer = produce(port, topic, records(1), acks=acks, timeout=500)
    return str(answer["error_code"])


def test_nothing_is_acknowledged_before_it_is_on_the_disk(server: Server, broker: KorvetServer) -> None:
    port = broker.port
    topic, other = created(port, korvet_acks_fsync="true"), created(port)
    assert [code(port, topic, -1), code(port, topic, 1)] == ["NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NONE"]
    assert code(port, other, -1) == "NONE"
    with server.client() as client, ThreadPoolExecutor(1) as threads:
        client.config_set("appendfsync", "always")
        assert code(port, topic, -1) == "NONE"
        mine = producer(port)
        assert mine.send(topic)["error_code"] == "NONE"
        client.config_set("appendfsync", "no")
        ended = threads.submit(mine.end)
        poll_until(lambda: committed(port, topic) == 5, "it is committed")
        assert not ended.done()
        client.config_set("appendfsync", "always")
        assert ended.result(WITHIN_S) == "NONE"


def committed(port: int, topic: str) -> int:
    """The batches and markers that readers of committed records get."""
    (part,) = fetch(port, topic, wanted(0), isolation_level=1)
    return len(batches_of(part))


@pytest.mark.parametrize("server", ["always"], indirect=True)
def test_nothing_is_stored_or_committed_without_a_file_to_wait_for(server: Server, broker: KorvetServer) -> None:
    port = broker.port
    topic, other = created(port, korvet_acks_fsync="true"), created(port)
    mine = producer(port)
    mine.sent(other)
    with server.client() as client:
        client.config_set("appendonly", "no")
        poll_until(lambda: code(port, topic, -1) == "NOT_ENOUGH_REPLICAS", "the front-end knows")
        (part,) = fetch(port, topic, wanted(0))
        before = part["high_watermark"]
        assert code(port, topic, -1) == "NOT_ENOUGH_REPLICAS"
        (part,) = fetch(port, topic, wanted(0))
        assert part["high_watermark"] == before
        assert mine.end() == "COORDINATOR_NOT_AVAILABLE"
        assert committed(port, other) == 0
        assert "appendonly is no" in broker.log
        client.config_set("appendonly", "yes")
        poll_until(lambda: code(port, topic, -1) == "NONE", "the front-end knows")
        assert mine.end() == "NONE"


def test_commit_waits_for_the_disk_of_every_node() -> None:
    """The group whose offsets a transaction commits may lie on a node without any topic that asks for it."""
    with running_cluster() as cluster, running_broker(redis_url=cluster.url) as broker:
        for node in cluster.nodes:
            for name, value in (("appendonly", "yes"), ("appendfsync", "always")):
                cluster.ask(node, "CONFIG", "SET", name, value)
        topic = created(broker.port, korvet_acks_fsync="true")
        mine = producer(broker.port)
        mine.sent(topic)
        for node in cluster.nodes:
            cluster.ask(node, "CONFIG", "RESETSTAT")
        assert mine.end() == "NONE"
        for node in cluster.nodes:
            with node.client() as client:
                assert client.info("commandstats")["cmdstat_waitaof"]["calls"] > 0


def flushes(pid: int) -> int:
    """A number that grows with each flush of a server: of the thread that makes them."""
    (thread,) = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text() == "bio_aof\n"]
    (line,) = [line for line in (thread / "status").read_text().splitlines() if line.startswith("voluntary_ctxt")]
    return int(line.split()[1])


def test_everysec_confirms_no_batch_and_no_commit_before_a_flush() -> None:
    """Valkey answers WAITAOF at once if a flush began less than a second ago."""
    with running_broker() as broker:
        topic, pid = created(broker.port, korvet_acks_fsync="true"), broker.embedded_pid
        mine = producer(broker.port)
        for _ in range(2):
            counts = [flushes(pid)]
            assert produce(broker.port, topic, records(1), acks=-1, timeout=20_000)["error_code"] == "NONE"
            counts.append(flushes(pid))
            mine.sent(topic)
            counts.append(flushes(pid))
            assert mine.end() == "NONE"
            counts.append(flushes(pid))
            assert counts == sorted(set(counts))
