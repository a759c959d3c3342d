"""A Redis that lost what the tier has: clients are refused, and `korvet tier recover` restores it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from redis import Redis

from korvet.store.keys import Namespace
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server, running_server
from tests.support.topologies import until

WITHIN_S = 60.0
TOPIC = "orders"
CONFIGS = {"remote.storage.enable": "true", "local.retention.ms": "1000", "segment.bytes": "1048576"}
BACKUP = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('DUMP', key)
end
return found
"""
"""All keys and their values of one moment, as a snapshot of Redis has them."""
Content = dict[int | None, bytes | None]


@pytest.fixture
def redis() -> Iterator[Server]:
    with running_server("valkey", tcp=True, options={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def broker(redis: Server, where: Path) -> Iterator[KorvetServer]:
    with running_broker(redis_url=redis.url, tier=str(where)) as server:
        yield server


def create(broker: KorvetServer, configs: dict[str, str]) -> str:
    """Create the topic. Returns the error, or an empty text."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = admin.create_topics([NewTopic(TOPIC, 1, config=configs)]).values()
    try:
        future.result(WITHIN_S)
        return ""
    except confluent_kafka.KafkaException as error:
        return str(error)


def produce(broker: KorvetServer, values: Sequence[bytes], timeout_ms: int = 60_000) -> int:
    """Produce values one batch each; returns how many were stored."""
    stored: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "message.timeout.ms": timeout_ms}
    )
    for value in values:
        producer.produce(TOPIC, value, partition=0, on_delivery=lambda e, m: None if e else stored.append(m.offset()))
        producer.flush(WITHIN_S)
    return len(stored)


def content(broker: KorvetServer, count: int) -> Content:
    """The records from the beginning on, by their offsets."""
    reader = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    reader.assign([confluent_kafka.TopicPartition(TOPIC, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: Content = {}

    def read() -> bool:
        for message in reader.consume(1000, timeout=1.0):
            if message.error() is None:
                found[message.offset()] = message.value()
        return len(found) >= count

    until(read, f"{count} records are read")
    reader.close()
    return found


def restore(client: Redis, backup: list[bytes]) -> None:
    for key, value in zip(backup[::2], backup[1::2], strict=True):
        client.restore(key, 0, value)


def described(where: Path) -> tuple[int, int]:
    """Log start and end of the tier as ``korvet tier describe`` has them; -1 without a snapshot."""
    done = korvet("describe", TOPIC, "--tier", str(where), "--json")
    if done.returncode != 0 or not (parts := json.loads(done.stdout)["partitions"]):
        return -1, -1
    return parts[0]["log_start"], parts[0]["tier_end"]


def korvet(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "korvet.cli", "tier", *words],
        capture_output=True,
        text=True,
        timeout=2 * WITHIN_S,
        check=False,
    )


def recover(redis: Server, where: Path, *flags: str) -> None:
    done = korvet("recover", "--tier", str(where), "--redis", redis.url, "--execute", *flags)
    assert done.returncode == 0, done.stdout + done.stderr


def values(name: str, count: int = 30) -> list[bytes]:
    return [b"%s %d " % (name.encode(), number) + bytes(1000) for number in range(count)]


def test_every_tiered_record_is_at_its_offset_after_an_emptied_redis_is_recovered(
    redis: Server, where: Path, broker: KorvetServer
) -> None:
    until(lambda: create(broker, CONFIGS) == "", "the topic is created")
    first = values("first")
    assert produce(broker, first) == 30
    until(lambda: described(where)[1] == 30, "all records are in the tier")
    with redis.client() as client:
        client.flushall()
    until(lambda: "does not know: korvet tier recover" in create(broker, {}), "the name is refused")
    assert produce(broker, values("other", 1), timeout_ms=3000) == 0
    recover(redis, where)
    assert content(broker, 30) == dict(enumerate(first))
    second = values("second", 5)
    assert produce(broker, second) == 5
    assert content(broker, 35) == dict(enumerate([*first, *second]))
    recover(redis, where)
    assert content(broker, 35) == dict(enumerate([*first, *second]))
    done = korvet("verify", "--tier", str(where))
    assert done.returncode == 0, done.stdout + done.stderr


def test_redis_restored_from_an_old_backup_gives_no_offset_a_second_content(
    redis: Server, where: Path, broker: KorvetServer
) -> None:
    until(lambda: create(broker, CONFIGS) == "", "the topic is created")
    first, second = values("first", 10), values("second")
    assert produce(broker, first) == 10
    with redis.client() as client:
        backup = {key: client.dump(key) for key in client.keys("*")}
    assert produce(broker, second) == 30
    until(lambda: described(where)[1] == 40, "all records are in the tier")
    with redis.client() as client:
        client.flushall()
        for key, value in backup.items():
            client.restore(key, 0, value)
    redis.restart()
    assert produce(broker, values("other", 1), timeout_ms=5000) == 0
    until(lambda: "Redis went back" in broker.log, "the loss is logged")
    # Without the flag it waits for the run before the restart.
    recover(redis, where, "--take-over")
    assert content(broker, 40) == dict(enumerate([*first, *second]))
    third = values("third", 3)
    assert produce(broker, third) == 3
    assert content(broker, 43) == dict(enumerate([*first, *second, *third]))


@pytest.mark.all
def test_copy_of_a_running_redis_reads_the_tier_and_changes_nothing_there(
    redis: Server, where: Path, broker: KorvetServer
) -> None:
    until(lambda: create(broker, CONFIGS) == "", "the topic is created")
    first, second, third = values("first"), values("second", 5), values("third")
    assert produce(broker, first) == 30
    until(lambda: described(where)[1] == 30, "all records are in the tier")
    with running_server("valkey", tcp=True) as copied:
        with redis.client() as client, copied.client() as copy:
            restore(copy, client.eval(BACKUP, 0))
            # Else clients of the copy go on at the owner's front-end, until its time there is over.
            copy.delete(Namespace("default").frontends)
        before = segments(where)
        with running_broker(redis_url=copied.url, tier=str(where)) as beside:
            until(lambda: "the tier waits for its former owner" in beside.log, "the copy asks for the tier")
            assert produce(beside, second) == 5
            assert content(beside, 35) == dict(enumerate([*first, *second]))
            until(lambda: len(list(where.glob("*/owner/*.json"))) > 1, "the owner answers")
            assert segments(where) == before
            assert produce(broker, third) == 30
            until(lambda: described(where)[1] == 60, "the owner goes on")
            done = korvet("recover", "--tier", str(where), "--redis", copied.url, "--execute")
            assert (done.returncode, "the owner of the tier still runs" in done.stderr) == (1, True), done.stderr
    assert segments(where).items() >= before.items()
    assert content(broker, 60) == dict(enumerate([*first, *third]))
    done = korvet("verify", "--tier", str(where), "--redis", redis.url)
    assert done.returncode == 0, done.stdout + done.stderr


def segments(where: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in where.rglob("*.segment")}
