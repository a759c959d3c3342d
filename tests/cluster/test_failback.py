"""A primary is demoted, loses writes that its replica lacks, and leads again as the same process: a new history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.api.data import epoch_end, epoch_of, fetch, produce, produced, records, wanted
from tests.api.raw import created
from tests.api.rdkafka import Reader, Writer, numbered
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import KINDS, Server, ServerUnavailable, unavailable
from tests.support.topologies import Replicated, running_replicas, until


@dataclass(frozen=True, slots=True)
class Pair:
    """A front-end of a primary that has one replica."""

    broker: KorvetServer
    servers: Replicated

    @property
    def port(self) -> int:
        return self.broker.port

    def promote(self) -> None:
        """Make the replica a primary with a history of its own."""
        (replica,) = self.servers.replicas
        until(lambda: _offset(replica) == _offset(self.servers.primary), "the replica has everything")
        _order(replica, "NO", "ONE")

    def fail_back(self) -> None:
        """Make the former primary follow the replica, and then lead again."""
        primary, (replica,) = self.servers.primary, self.servers.replicas
        _order(primary, "127.0.0.1", replica.port)
        with primary.client() as client:
            until(lambda: client.info("replication")["master_link_status"] == "up", "the primary follows")
        _order(primary, "NO", "ONE")


def _order(server: Server, *words: str | int) -> None:
    with server.client() as client:
        client.execute_command("REPLICAOF", *words)


def _offset(server: Server) -> int:
    with server.client() as client:
        return int(client.info("replication")["master_repl_offset"])


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        try:
            servers = stack.enter_context(running_replicas(request.param))
        except ServerUnavailable as error:
            unavailable(error)
        yield Pair(stack.enter_context(running_broker(redis_url=servers.primary.url)), servers)


def test_reader_beyond_the_end_is_fenced_before_the_next_append(pair: Pair) -> None:
    topic = created(pair.port)
    produced(pair.port, topic, records(10))
    epoch = epoch_of(pair.port, topic)
    pair.promote()
    produced(pair.port, topic, records(10))
    pair.fail_back()
    codes: set[str] = set()

    def answered() -> bool:
        # A probe that meets the demoted server makes the front-end open its connections anew.
        (beyond,) = fetch(pair.port, topic, wanted(20, epoch=epoch))
        codes.add(beyond["error_code"])
        return bool(beyond["error_code"] != "NOT_LEADER_OR_FOLLOWER")

    until(answered, "the reader has an answer")
    assert codes - {"NOT_LEADER_OR_FOLLOWER"} == {"FENCED_LEADER_EPOCH"}
    assert epoch_end(pair.port, topic, epoch) == (epoch, 10)


def test_append_begins_an_epoch_before_the_front_end_knows_of_the_failback(pair: Pair) -> None:
    topic = created(pair.port)
    produced(pair.port, topic, records(10))
    epoch = epoch_of(pair.port, topic)
    pair.promote()
    produced(pair.port, topic, records(10))
    pair.fail_back()
    until(lambda: bool(produce(pair.port, topic, records(10))["error_code"] == "NONE"), "it is appended")
    assert epoch_end(pair.port, topic, epoch) == (epoch, 10)
    assert epoch_of(pair.port, topic) > epoch


def test_running_consumer_misses_no_record_after_a_failback(pair: Pair) -> None:
    topic = created(pair.port)
    kept, lost, new = numbered("kept", 10), numbered("lost", 10), numbered("new", 30)
    writer = Writer(pair.broker.bootstrap, topic)
    with Reader(pair.broker.bootstrap, topic) as reader:
        writer.write(kept)
        pair.promote()
        writer.write(lost)
        reader.read_until(lost[-1])
        pair.fail_back()
        writer.write(new)
        reader.read_until(new[-1])
    after = reader.values[len(kept + lost) :]
    assert [value for value in after if value in new] == new


def test_replica_that_comes_and_goes_begins_one_epoch(pair: Pair) -> None:
    """A primary gets a new replication id when its first replica comes; each front-end learns of it separately."""
    topic = created(pair.port)
    produced(pair.port, topic, records(1))
    _order(pair.servers.replicas[0], "NO", "ONE")
    epochs = []
    with running_broker(redis_url=pair.servers.primary.url) as other:
        for _ in range(5):
            for port in (pair.port, other.port):
                produced(port, topic, records(1))
                (read,) = fetch(port, topic, wanted(0))
                assert read["error_code"] == "NONE"
                epochs.append(epoch_of(port, topic))
    assert epochs == sorted(epochs)
    assert len(set(epochs)) <= 2
