"""A server that comes back without its last writes, made so on purpose: its files are set back to an earlier copy.

Clients that run meanwhile must notice by the leader epoch, and go on as they do on Kafka after a truncation. No client
may read batches of the lost history out of a front-end's memory, and no producer id may be handed out twice.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import pytest

from tests.api.data import (
    connected,
    epoch_end,
    epoch_of,
    fetch,
    fetch_request,
    offsets,
    partitions_of,
    produced,
    records,
    wanted,
)
from tests.api.raw import ask, created
from tests.api.rdkafka import Reader, Writer, numbered
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Kind, Server, ServerUnavailable, running_server, unavailable
from tests.support.waiting import until

DURABLE = {"appendonly": "yes", "appendfsync": "always"}


@dataclass(slots=True)
class Rewindable:
    """A front-end over a server whose data can be set back to their state at `remember`."""

    broker: KorvetServer
    server: Server

    @property
    def port(self) -> int:
        return self.broker.port

    @property
    def _files(self) -> tuple[Path, Path]:
        return self.server.directory / "appendonlydir", self.server.directory / "earlier"

    def remember(self) -> None:
        shutil.copytree(*self._files)

    def rewind(self) -> None:
        """Crash the server and start it on the remembered data, and wait until the front-end uses it."""
        with self.broker.redis_outage():
            self.server.kill()
            current, earlier = self._files
            shutil.rmtree(current)
            earlier.rename(current)
            self.server.start()


@pytest.fixture(params=["valkey", "redis"])
def rewindable(request: pytest.FixtureRequest) -> Iterator[Rewindable]:
    kind: Kind = request.param
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_server(kind, options=DURABLE))
        except ServerUnavailable as error:
            unavailable(error)
        yield Rewindable(stack.enter_context(running_broker(redis_url=server.url)), server)


def is_served(port: int, topic: str) -> bool:
    (read,) = fetch(port, topic, wanted(0))
    return bool(read["error_code"] == "NONE")


def test_readers_of_a_lost_history_are_fenced_and_learn_its_end(rewindable: Rewindable) -> None:
    port = rewindable.port
    topic = created(port)
    produced(port, topic, records(3), records(3))
    rewindable.remember()
    produced(port, topic, records(3))
    rewindable.rewind()
    until(lambda: is_served(port, topic))
    # Nothing was appended yet; a reader's question alone begins the new epoch.
    (beyond,) = fetch(port, topic, wanted(9, epoch=0))
    assert beyond["error_code"] == "FENCED_LEADER_EPOCH"
    epoch = epoch_of(port, topic)
    assert epoch > 1
    assert epoch_end(port, topic, 0) == (0, 6)
    produced(port, topic, records(5), records(5))
    for offset in (0, 6, 9, 16):
        (read,) = fetch(port, topic, wanted(offset, epoch=0))
        assert read["error_code"] == "FENCED_LEADER_EPOCH"
    (read,) = fetch(port, topic, wanted(9, epoch=epoch, last=0))
    assert read["diverging_epoch"] == {"epoch": 0, "end_offset": 6}
    (read,) = fetch(port, topic, wanted(0, epoch=epoch))
    assert offsets(read) == [0, 3, 6, 11]
    assert epoch_of(port, topic) == epoch


def test_second_rewind_to_the_same_offset_gets_a_higher_epoch(rewindable: Rewindable) -> None:
    port = rewindable.port
    topic = created(port)
    produced(port, topic, records(3))
    epochs = [epoch_of(port, topic)]
    for _ in range(2):
        rewindable.remember()
        produced(port, topic, records(3))
        rewindable.rewind()
        until(lambda: is_served(port, topic))
        epochs.append(epoch_of(port, topic))
        # The epoch of a lost history is not handed out again: they count in seconds.
        until(lambda: time.time() % 1 < 0.05)
    assert epochs == sorted(set(epochs))


def test_front_end_never_serves_a_lost_history_from_memory(rewindable: Rewindable) -> None:
    port = rewindable.port
    topic = created(port)
    with connected(port) as consumer:
        rewindable.remember()
        for turn in range(3):
            consumer.send("fetch", 12, **fetch_request(topic, wanted(turn), max_wait=20_000))
            produced(port, topic, records(1, key=b"lost"))
            assert offsets(partitions_of(consumer.receive())[0]) == [turn]
        rewindable.rewind()
        until(lambda: is_served(port, topic))
        (read,) = partitions_of(consumer.ask("fetch", 12, **fetch_request(topic, wanted(0))))
        assert (read["high_watermark"], read["records"]) == (0, b"")
        produced(port, topic, records(1, key=b"kept"))
        (read,) = partitions_of(consumer.ask("fetch", 12, **fetch_request(topic, wanted(0))))
        assert (offsets(read), b"kept" in read["records"], b"lost" in read["records"]) == ([0], True, False)
        (read,) = partitions_of(consumer.ask("fetch", 12, **fetch_request(topic, wanted(2))))
        assert read["error_code"] == "OFFSET_OUT_OF_RANGE"


def test_no_producer_id_is_handed_out_twice(rewindable: Rewindable) -> None:
    port = rewindable.port

    def init() -> int:
        answer = ask(
            port, "init_producer_id", 4, transactional_id=None, transaction_timeout=1, producer_id=-1, producer_epoch=-1
        )
        return int(answer["producer_id"])

    before = [init() for _ in range(5)]
    rewindable.remember()
    before += [init() for _ in range(200)]
    rewindable.rewind()
    after: list[int] = []

    def init_again() -> bool:
        producer_id = init()
        if producer_id >= 0:
            after.append(producer_id)
        return producer_id >= 0

    until(init_again)
    after += [init() for _ in range(200)]
    assert len({*before, *after}) == len(before) + len(after)
    assert min(after) > max(before)


@pytest.mark.parametrize("regrown", [False, True], ids=["shorter", "longer than before"])
def test_running_librdkafka_clients_go_on(rewindable: Rewindable, regrown: bool) -> None:
    topic = created(rewindable.port)
    kept, lost, new = numbered("kept", 50), numbered("lost", 50), numbered("new", 100 if regrown else 20)
    bootstrap = rewindable.broker.bootstrap
    writer = Writer(bootstrap, topic)
    with Reader(bootstrap, topic) as reader:
        writer.write(kept)
        reader.read_until(kept[-1])
        rewindable.remember()
        writer.write(lost)
        reader.read_until(lost[-1])
        assert reader.values == kept + lost
        if regrown:
            reader.consumer.pause([confluent_kafka.TopicPartition(topic, 0)])
        rewindable.rewind()
        writer.write(new)
        if regrown:
            reader.consumer.resume([confluent_kafka.TopicPartition(topic, 0)])
        reader.read_until(new[-1])
        after = reader.values[len(kept + lost) :]
        # A consumer may begin anew anywhere after a truncation; it must see all new records.
        assert [value for value in after if value in new] == new
        assert not set(after) & set(lost)
    (read,) = fetch(rewindable.port, topic, wanted(0))
    assert read["high_watermark"] == len(kept + new)
