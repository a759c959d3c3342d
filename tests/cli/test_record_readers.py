"""``topics consume`` as a member of a group, and as a process that goes on or is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace as Facts
from typing import Any

import confluent_kafka
import pytest

from korvet.cli.kafka import membership
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.consume import Cursor, Item, Reader
from korvet.cli.kafka.errors import ConnectionLost
from korvet.cli.kafka.groups import describe_group
from korvet.cli.kafka.membership import GroupReader
from korvet.cli.kafka.offsets import TopicPartition, committed_offsets
from korvet.cli.kafka.produce import Producer
from korvet.cli.kafka.records import Record, Unsent
from korvet.cli.records.consume import _show
from korvet.errors import KorvetError
from tests.api.raw import created
from tests.cli.conftest import Korvet, Produce
from tests.cli.records import consuming, store
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server
from tests.support.terminal import terminal
from tests.support.times import MIDNIGHT_MS


@pytest.fixture
def own(valkey_server: Server) -> Iterator[KorvetServer]:
    """A broker that may be killed."""
    with running_broker(redis_url=valkey_server.url) as broker:
        yield broker


def test_group_goes_on_where_it_was(korvet: Korvet, send: Produce, ask: Callable[..., Any], topic: str) -> None:
    send(topic, b"a\nb\nc\n")

    def read(*flags: str) -> str:
        code, out, err = korvet("topics", "consume", topic, "--group", topic, *flags)
        assert (code, err) == (0, "")
        return out

    assert read("-n", "2") == "a\nb\n"
    assert read("-n", "1") == "c\n"
    (described,) = ask("groups", "describe", topic)
    assert [(one["partition"], one["current_offset"]) for one in described["partitions"]] == [(0, 3)]
    assert (described["type"], described["state"]) == ("consumer", "Empty")
    code, _, err = korvet("topics", "consume", topic, "--group", topic, "--partition", "0")
    assert (code, err.startswith("korvet: --group reads on at the group's offsets")) == (2, True)


def test_members_of_a_group_share_a_topic(broker: KorvetServer, name: str) -> None:
    created(broker.port, name, partitions=2)
    with Client(broker.bootstrap) as one, Client(broker.bootstrap) as two:
        first, second = (GroupReader(client, name, name, from_end=False, committed=True) for client in (one, two))

        def read(*readers: GroupReader) -> list[tuple[int, bytes | None]]:
            found: list[tuple[int, bytes | None]] = []
            for reader in readers:
                reader._beat_at = 0  # As if the interval were over.
                found += [
                    (partition.partition, item.value) for partition, item in reader.read() if isinstance(item, Record)
                ]
                reader.shown()
            return found

        def settled() -> bool:
            read(first, second)
            return [len(reader._owned) for reader in (first, second)] == [1, 1]

        poll_until(lambda: read(first) == [] and len(first._owned) == 2, "both partitions at the first")
        poll_until(settled, "a partition at each")
        for partition in (0, 1):
            Producer(one, [TopicPartition(name, 0), TopicPartition(name, 1)], 0).send(
                [Unsent(None, b"%d" % partition, [], MIDNIGHT_MS)], partition
            )
        assert sorted(read(first, second)) == [(0, b"0"), (1, b"1")]
        first.close()
        poll_until(lambda: read(second) == [] and len(second._owned) == 2, "both partitions at the second")
        second.close()
        assert committed_offsets(two, name) == {TopicPartition(name, 0): 1, TopicPartition(name, 1): 1}


def test_member_reads_offsets_again_that_it_did_not_learn(
    broker: KorvetServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(broker.port, name)
    store(broker, name, b"a")

    def lost(*_: object) -> dict[TopicPartition, int]:
        monkeypatch.undo()
        raise ConnectionLost("as if the connection broke")

    monkeypatch.setattr(membership, "committed_offsets", lost)
    with Client(broker.bootstrap) as client:
        reader = GroupReader(client, name, name, from_end=False, committed=True)
        found: list[Item] = []

        def read() -> bool:
            found.extend(item for _, item in reader.read())
            return bool(found)

        poll_until(read, "the record")
        reader.close()


def test_records_before_an_error_are_shown(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    partition, record = TopicPartition("t", 0), Record(0, 0, None, b"a", [])

    class Failing(Reader):
        def __init__(self) -> None:
            self._cursors = [Cursor(partition=partition, position=0, stop=None)]

        def read(self, wait_s: float = 0) -> Iterator[tuple[TopicPartition, Item]]:
            yield partition, record
            raise KorvetError("partition t-1: TOPIC_AUTHORIZATION_FAILED")

    with pytest.raises(KorvetError):
        _show(Failing(), lambda _partition, item: (item.value or b"") + b"\n", False, None)
    assert capfdbinary.readouterr().out == b"a\n"


def test_partitions_whose_records_do_not_fit_an_answer_are_read_whole(
    korvet: Korvet, bootstrap: str, name: str
) -> None:
    partitions, records = 12, 2
    assert korvet("topics", "create", name, "--partitions", str(partitions))[0] == 0
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(partitions * records):
        producer.produce(name, bytes(900_000), partition=number % partitions)
    assert producer.flush(60) == 0
    _, out, _ = korvet("topics", "consume", name, "--format", "%p ")
    assert Counter(out.split()) == {str(partition): records for partition in range(partitions)}


def test_group_commits_no_record_that_was_not_shown(broker: KorvetServer, name: str) -> None:
    created(broker.port, name)
    store(broker, name, b"a")
    read_end, write_end = os.pipe()
    os.close(read_end)
    with consuming(broker, name, "--group", name, stdout=write_end) as process:
        os.close(write_end)
        assert process.wait(60) == 1
    with Client(broker.bootstrap) as client:
        assert committed_offsets(client, name) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_member_that_a_signal_stops_commits_and_leaves_its_group(
    broker: KorvetServer, name: str, number: signal.Signals
) -> None:
    created(broker.port, name)
    store(broker, name, b"a")
    with consuming(broker, name, "--group", name, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"a\n"
        process.send_signal(number)
        # As after kafka-console-consumer.sh, whose JVM adds 128, too.
        assert (process.wait(60), process.stderr.read().strip()) == (128 + number, b"")
    with Client(broker.bootstrap) as client:
        described = describe_group(client, name)
        assert (described.state, described.members) == ("Empty", ())
        assert committed_offsets(client, name) == {TopicPartition(name, 0): 1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_member_whose_output_is_stuck_is_stopped_and_leaves_its_group(
    broker: KorvetServer, name: str, number: signal.Signals
) -> None:
    created(broker.port, name)
    store(broker, name, *[b"0123456789"] * 50_000)
    read_end, write_end = os.pipe()
    with consuming(broker, name, "--group", name, stdout=write_end) as process:
        poll_until(lambda: not select.select([], [write_end], [], 0)[1], "the pipe is full")
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    os.close(read_end)
    os.close(write_end)
    with Client(broker.bootstrap) as client:
        described = describe_group(client, name)
    assert (described.state, described.members) == ("Empty", ())


def test_follower_goes_on_after_a_brokers_restart_and_ends_with_ctrl_c(own: KorvetServer, name: str) -> None:
    created(own.port, name)

    with terminal() as screen, consuming(own, name, "--follow", stdout=screen.end) as process:
        store(own, name, b"\x1b[2J\x07evil\xff")
        screen.read_until("\\x1b[2J\\x07evil\\xff", process)
        own.kill()
        own.start()
        store(own, name, b"back")
        screen.read_until("back", process)
        process.send_signal(signal.SIGINT)
        screen.read_to_end(process)
        assert process.stderr is not None
        assert (process.returncode, process.stderr.read().strip()) == (130, b"")
    assert "\x1b" not in screen.shown


def test_reader_of_records_that_goes_away_is_no_traceback(broker: KorvetServer, name: str) -> None:
    created(broker.port, name)
    store(broker, name, *[b"0123456789"] * 50_000)
    with consuming(broker, name, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"0123456789\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_producer_that_is_not_answered_says_that_records_may_be_stored(name: str) -> None:
    class Unanswering(Client):
        def ask(self, *arguments: Any, **more: Any) -> Any:
            raise ConnectionLost("lost the connection to there during Produce")

        def topics(self, names: Any = None) -> Any:
            return {name: Facts(name=name, partitions=[Facts(partition_index=0, leader_id=1)])}

    producer = Producer(Unanswering("127.0.0.1:1"), [TopicPartition(name, 0)], 0)
    with pytest.raises(KorvetError, match="the last records may be stored or not"):
        producer.send([Unsent(None, b"x", [], MIDNIGHT_MS)])
