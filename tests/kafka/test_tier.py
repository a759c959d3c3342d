"""Clients read a topic of which only the newest records are in Redis: the same records as before."""

from __future__ import annotations

import os
import random
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from confluent_kafka import Producer

from korvet.api.list_offsets import EARLIEST_LOCAL, LATEST
from korvet.tier.segment import batches
from tests.api.data import connected, fetch_request, partitions_of, wanted
from tests.api.raw import ask, create_topics
from tests.kafka.builds import driver_command, java_command
from tests.kafka.client import At, Client, Offsets
from tests.kafka.example_builds import go_program
from tests.kafka.options import MemberOptions
from tests.kafka.process import Driver
from tests.kafka.records import Record
from tests.kafka.starting import running_clients
from tests.kafka.traits import BY_BOTH_PROTOCOLS, CODECS, NAMES
from tests.kafka.waiting import TIMEOUT_S, poll_until
from tests.support.broker import KorvetServer, running_broker
from tests.support.mirror import running_mirror

RECORDS = 2000
TIERED = 1900
"""Those that only the tier has: they are a day old, and the later ones some minutes."""
VALUE_BYTES = 10_000
WITHIN_S = 240.0
SEGMENT_BYTES = 1 << 20
TRANSACTIONAL = ("confluent-kafka", "java", "aiokafka", "kafka-python")
COMMITTED = ("kafkajs", "kcat")
"""Theirs read committed ones, and no others."""
UNCOMMITTED = ("java", "aiokafka", "kafka-python")
"""Their consumers read uncommitted records by default."""
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "log.retention.check.interval.ms": "1000"}


class Tiered(NamedTuple):
    """A topic, its records, its batches as they were read from Redis, and the local start now."""

    topic: str
    records: Sequence[Record]
    batches: Sequence[bytes]
    local_start: int


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KorvetServer]:
    with running_broker(tier=str(tmp_path_factory.mktemp("tier")), broker=SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def named(broker: KorvetServer) -> Iterator[Callable[[str], Client]]:
    with running_clients(broker.bootstrap) as clients:
        yield clients.named


def new_topic(broker: KorvetServer, **others: str) -> str:
    configs = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES)}
    configs |= {name.replace("_", "."): value for name, value in others.items()}
    named = [{"name": name, "value": value} for name, value in configs.items()]
    name = f"tiered-{uuid.uuid4().hex[:8]}"
    topic = {"name": name, "num_partitions": 1, "configs": named}
    # The first front-end with a tier makes it the namespace's.
    poll_until(lambda: create_topics(broker.port, topic)[0]["error_code"] == "NONE", "the topic")
    return name


def written(count: int) -> list[Record]:
    """Records of which a half can be compressed, a second apart."""
    chance, start_ms = random.Random(1), int(time.time() * 1000) - 86_400_000
    return [
        Record(
            key=b"%d" % number, value=chance.randbytes(VALUE_BYTES // 2) + b"v" * (VALUE_BYTES // 2), partition=0,
            offset=number, timestamp_ms=start_ms + 1000 * number,
        )
        for number in range(count)
    ]  # fmt: skip


def produce(broker: KorvetServer, topic: str, records: Sequence[Record], codec: str = "none") -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 5,
                         "queue.buffering.max.kbytes": 1 << 20, "batch.size": 200_000})  # fmt: skip
    for one in records:
        producer.produce(topic, one.value, one.key, partition=0, timestamp=one.timestamp_ms or 0)
    assert producer.flush(60) == 0


def read_batches(broker: KorvetServer, topic: str, most_bytes: int = 1 << 20) -> list[bytes]:
    """All batches as Fetch serves them."""
    found: list[bytes] = []
    offset = 0
    with connected(broker.port) as consumer:
        while True:
            asked = fetch_request(topic, wanted(offset, max_bytes=most_bytes), max_wait=20_000)
            (part,) = partitions_of(consumer.ask("fetch", 12, **asked))
            assert part["error_code"] == "NONE"
            for batch, data in batches(part["records"]):
                found.append(bytes(data))
                offset = batch.base_offset + batch.last_offset_delta + 1
            if offset == part["high_watermark"]:
                return found


FEW: Mapping[str, str] = {"local.retention.bytes": "1"}


def leave_to_the_tier(broker: KorvetServer, topic: str, least: float, kept: Mapping[str, str] = FEW) -> int:
    """Have Redis keep few bytes, and wait until only the tier has a share of the records. Returns the local start.

    :param kept: the settings of what Redis keeps.
    """
    configs = [{"name": name, "config_operation": 0, "value": value} for name, value in kept.items()]
    resource = {"resource_type": 2, "resource_name": topic, "configs": configs}
    (answer,) = ask(broker.port, "incremental_alter_configs", 1, resources=[resource])["responses"]
    assert answer["error_code"] == "NONE", answer
    end = offset_at(broker, topic, LATEST)
    poll_until(lambda: offset_at(broker, topic, EARLIEST_LOCAL) >= least * end, "the local start")
    return offset_at(broker, topic, EARLIEST_LOCAL)


def offset_at(broker: KorvetServer, topic: str, timestamp: int) -> int:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    asked = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [part]}], "timeout": 0}
    ((found,),) = (one["partitions"] for one in ask(broker.port, "list_offsets", 10, **asked)["topics"])
    assert found["error_code"] == "NONE", found
    return int(found["offset"])


@pytest.fixture(scope="module")
def tiered(broker: KorvetServer) -> Tiered:
    """Batches of all codecs."""
    topic, old = new_topic(broker), written(RECORDS)
    young = [replace(one, timestamp_ms=(one.timestamp_ms or 0) + 84_000_000) for one in old[TIERED:]]
    records, share = [*old[:TIERED], *young], TIERED // len(CODECS)
    for number, codec in enumerate(CODECS):
        produce(broker, topic, records[number * share : (number + 1) * share], codec)
    produce(broker, topic, young)
    hot = read_batches(broker, topic)
    local_start = leave_to_the_tier(broker, topic, TIERED / RECORDS, {"local.retention.ms": "3600000"})
    assert local_start == TIERED
    return Tiered(topic, records, hot, local_start)


def digests(records: Sequence[Record]) -> list[tuple[int | None, int | None, str]]:
    return [
        (one.offset, one.timestamp_ms, sha256((one.key or b"") + b" " + (one.value or b"")).hexdigest())
        for one in records
    ]


@pytest.mark.parametrize("most_bytes", [1, 100_000, 1 << 20, 50 << 20])
def test_every_batch_has_the_bytes_that_it_had_in_redis(broker: KorvetServer, tiered: Tiered, most_bytes: int) -> None:
    assert read_batches(broker, tiered.topic, most_bytes) == tiered.batches


@pytest.mark.parametrize("name", NAMES)
def test_client_reads_all_records_across_the_local_start(
    named: Callable[[str], Client], tiered: Tiered, name: str
) -> None:
    found = named(name).consume(tiered.topic, "earliest", RECORDS)
    assert digests(found) == digests(tiered.records)


@pytest.mark.parametrize("name", NAMES)
def test_client_finds_offsets_and_times_in_the_tier(named: Callable[[str], Client], tiered: Tiered, name: str) -> None:
    client = named(name)
    for number in (7, tiered.local_start // 2, tiered.local_start - 1, tiered.local_start, RECORDS - 3):
        found = client.consume(tiered.topic, Offsets({0: number}), 3)
        assert digests(found[:3]) == digests(tiered.records[number : number + 3])
        at = tiered.records[number].timestamp_ms or 0
        found = client.consume(tiered.topic, At(at - 1), 3)
        assert digests(found[:3]) == digests(tiered.records[number : number + 3])


def test_records_that_redis_stores_one_by_one_read_the_same(
    broker: KorvetServer, named: Callable[[str], Client]
) -> None:
    topic, records = new_topic(broker, korvet_storage="record"), written(500)
    produce(broker, topic, records, "lz4")
    leave_to_the_tier(broker, topic, 0.5)
    for name in NAMES:
        found = named(name).consume(topic, "earliest", len(records))
        assert digests(found) == digests(records)
        found = named(name).consume(topic, Offsets({0: 123}), 3)
        assert digests(found[:3]) == digests(records[123:126])


@pytest.mark.parametrize("name", BY_BOTH_PROTOCOLS)
def test_group_at_the_beginning_and_group_at_the_end_both_get_theirs(
    broker: KorvetServer, named: Callable[[str], Client], name: str
) -> None:
    topic, records = new_topic(broker), written(400)
    produce(broker, topic, records)
    leave_to_the_tier(broker, topic, 0.7)
    client = named(name)
    groups = [f"group-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    late, early = (
        client.join(group, topic, MemberOptions(reset=reset))
        for group, reset in zip(groups, ("latest", "earliest"), strict=True)
    )
    try:
        poll_until(lambda: late.seen.assignment == [0], "the member at the end")
        time.sleep(1)
        more = written(420)[400:]
        for one in more:
            produce(broker, topic, [one])
        everything = early.await_records(420)
        assert sorted(one.offset or 0 for one in everything) == list(range(420))
        assert {(one.offset, one.value) for one in everything} == {
            (number, one.value) for number, one in enumerate([*records, *more])
        }
        found = late.await_records(1)
        assert all(one.offset is not None and one.offset >= 400 for one in found)
        poll_until(lambda: any(one.offset == 419 for one in late.seen.records), "the last record at the end")
    finally:
        late.kill()
        early.kill()


@pytest.fixture(scope="module")
def transactions(broker: KorvetServer) -> Iterator[tuple[str, list[str], list[str], Callable[[str], Driver]]]:
    """A topic of transactions that is in the tier: the committed values, and all."""
    running: dict[str, Driver] = {}

    def driver(name: str) -> Driver:
        if name not in running:
            running[name] = Driver(driver_command(name, broker.bootstrap))
        return running[name]

    topic, committed, everything = new_topic(broker), [], []
    for name in TRANSACTIONAL:
        driver(name).call("begin", transactional_id=f"id-{uuid.uuid4().hex[:8]}", timeout_ms=60_000)
        for number, outcome in enumerate(("commit", "abort", "commit", "abort", "abort", "commit")):
            values = [f"{name}-{number}-{at}-" + os.urandom(10_000).hex() for at in range(5)]
            driver(name).call("transact", topic=topic, values=values, outcome=outcome, group=None, offset=5)
            everything += values
            committed += values if outcome == "commit" else []
        driver(name).call("end")
    produce(broker, topic, [Record(value=b"v" * VALUE_BYTES, timestamp_ms=0)] * 300)
    leave_to_the_tier(broker, topic, 0.5)
    yield topic, committed, everything, driver
    for one in running.values():
        one.stop()


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_reader_of_committed_records_gets_no_aborted_ones_from_the_tier(
    transactions: tuple[str, list[str], list[str], Callable[[str], Driver]], name: str
) -> None:
    topic, committed, _, driver = transactions
    found = driver(name).call("read_committed", topic=topic, count=len(committed), timeout_ms=20_000)
    assert [sha256(one.encode()).hexdigest() for one in found[: len(committed)]] == [
        sha256(one.encode()).hexdigest() for one in committed
    ]


@pytest.mark.parametrize("name", COMMITTED)
def test_reader_by_default_gets_committed_records_from_the_tier(
    transactions: tuple[str, list[str], list[str], Callable[[str], Driver]], named: Callable[[str], Client], name: str
) -> None:
    topic, committed, _, _ = transactions
    found = named(name).consume(topic, "earliest", len(committed))
    assert [one.value for one in found[: len(committed)]] == [one.encode() for one in committed]


@pytest.mark.parametrize("name", UNCOMMITTED)
def test_reader_of_uncommitted_records_gets_all_from_the_tier(
    transactions: tuple[str, list[str], list[str], Callable[[str], Driver]], named: Callable[[str], Client], name: str
) -> None:
    topic, _, everything, _ = transactions
    found = named(name).consume(topic, "earliest", len(everything))
    assert [one.value for one in found[: len(everything)]] == [one.encode() for one in everything]


def franz_go(
    broker: KorvetServer, topic: str, start: str, count: int, isolation: str = "read_uncommitted"
) -> list[tuple[int | None, int | None, str]]:
    """What franz-go reads, as `digests` of it."""
    command = [*go_program("read"), broker.bootstrap, topic, start, str(count), isolation]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return [
        (int(offset), int(timestamp), digest) for offset, timestamp, digest in map(str.split, done.stdout.splitlines())
    ]


@pytest.mark.all
def test_franz_go_reads_all_records_and_finds_offsets_and_times(broker: KorvetServer, tiered: Tiered) -> None:
    expected = digests(tiered.records)
    assert franz_go(broker, tiered.topic, "0", RECORDS) == expected
    for number in (7, TIERED - 1, TIERED):
        for start in (str(number), f"@{tiered.records[number].timestamp_ms}"):
            assert franz_go(broker, tiered.topic, start, 3)[:3] == expected[number : number + 3]


@pytest.mark.all
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_franz_go_reads_transactions_from_the_tier(
    broker: KorvetServer, transactions: tuple[str, list[str], list[str], Callable[[str], Driver]], isolation: str
) -> None:
    topic, committed, everything, _ = transactions
    values = committed if isolation == "read_committed" else everything
    found = franz_go(broker, topic, "0", len(values), isolation)[: len(values)]
    assert [digest for _, _, digest in found] == [sha256(b" " + one.encode()).hexdigest() for one in values]


@pytest.mark.all
def test_streams_restores_a_table_from_its_topic_in_the_tier(broker: KorvetServer, tmp_path: Path) -> None:
    topic, name = new_topic(broker), f"table-{uuid.uuid4().hex[:8]}"
    records = [
        replace(one, key=b"%d" % (number % 150), value=(one.value or b"").hex()[:VALUE_BYTES].encode())
        for number, one in enumerate(written(800))
    ]
    produce(broker, topic, records)
    assert leave_to_the_tier(broker, topic, 0.6) < len(records)
    table = {one.key or b"": one.value or b"" for one in records}
    expected = {"keys": len(table), "sum": sum(crc32(key + b" " + value) for key, value in table.items())}
    # The second instance has lost the state of the first one, and its group has read the whole topic.
    for instance, restored in (("first", 0), ("second", len(records))):
        seen: list[dict[str, Any]] = []
        (tmp_path / instance).mkdir()
        command = java_command("korvet.streams.Table", "streams")
        command.insert(1, f"-Djava.io.tmpdir={tmp_path / instance}")
        driver = Driver([*command, broker.bootstrap, name, str(tmp_path / instance / "state"), topic], seen.append)
        try:
            wanted = {"event": "table", "restored": restored, **expected}
            poll_until(lambda seen=seen, wanted=wanted: wanted in seen[-1:], "the whole table")  # type: ignore[misc]
            assert driver.stop() == 0
        finally:
            driver.kill()
    # The table has no changelog of its own.
    topics = ask(broker.port, "metadata", 12, topics=None)["topics"]
    assert [one["name"] for one in topics if one["name"].startswith(name)] == []


def test_mirror_maker_copies_a_topic_and_its_settings_out_of_the_tier(
    broker: KorvetServer, tiered: Tiered, tmp_path: Path
) -> None:
    with (
        running_broker(tier=str(tmp_path / "other"), broker=SETTINGS) as target,
        running_clients(target.bootstrap) as clients,
    ):
        poll_until(lambda: "the tier can be used" in target.log, "the tier")
        overrides = {
            "kafka.bootstrap.servers": broker.bootstrap, "korvet.bootstrap.servers": target.bootstrap,
            "kafka->korvet.topics": tiered.topic, "kafka->korvet.groups": "none", "offset.flush.interval.ms": "1000",
        }  # fmt: skip
        reader = clients.named("confluent-kafka")
        with running_mirror(tmp_path, overrides) as output:
            poll_until(lambda: tiered.topic in reader.topics(), "the topic", WITHIN_S)
            poll_until(lambda: offset_at(target, tiered.topic, LATEST) == RECORDS, output.read_text()[-1000:], WITHIN_S)
        assert digests(reader.consume(tiered.topic, "earliest", RECORDS)) == digests(tiered.records)
        # There they are old, too.
        poll_until(lambda: offset_at(target, tiered.topic, EARLIEST_LOCAL) == TIERED, "the local start")
