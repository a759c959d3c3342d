"""``korvet serve --tier``."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from korvet.cli.serve import make_settings
from korvet.errors import ConfigError
from korvet.settings.file import ConfigFile
from korvet.store.keys import Namespace
from korvet.tier.ownership import WAIT_S
from korvet.tier.tierer import LEASE_MS
from tests.support.broker import BrokerFailed, KorvetServer, running_broker
from tests.support.object_store import running_object_store
from tests.support.redis import running_server
from tests.support.tenants import WITHIN_S
from tests.support.waiting import until


def test_front_end_tries_its_tier_out_at_the_start(tmp_path: Path) -> None:
    with running_broker(tier=str(tmp_path / "tier")) as broker:
        until(lambda: "the tier can be used" in broker.log)


def test_unreachable_tier_delays_no_start_and_is_reported() -> None:
    with running_broker(tier="http://127.0.0.1:1/bucket") as broker:
        until(lambda: "the tier cannot be used yet" in broker.log)


@pytest.mark.parametrize("where", ["nothing://here", "/dev/null/tier"])
def test_tier_that_is_no_store_is_refused_in_one_line(where: str) -> None:
    with pytest.raises(BrokerFailed) as refused, running_broker(tier=where):
        pass
    assert where in str(refused.value)


@pytest.mark.all
def test_records_move_to_a_bucket_while_front_ends_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        bucket = stack.enter_context(running_object_store(tmp_path))
        for name, value in {
            "AWS_ENDPOINT_URL": bucket.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        redis = stack.enter_context(running_server("valkey"))
        tier = f"s3://{bucket.bucket}/prefix"
        brokers = [stack.enter_context(running_broker(redis_url=redis.url, tier=tier)) for _ in range(2)]
        servers = ",".join(one.bootstrap for one in brokers)
        # A busy bucket takes longer than a client waits for its topic.
        until(lambda: "the tier can be used" in brokers[0].log)
        create_tiered("t", brokers[0])
        producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "batch.size": 20_000}
        )
        for number in range(RECORDS):
            producer.produce("t", b"%d " % number + os.urandom(VALUE_BYTES), partition=0)
            if number % (RECORDS // 8) == 0:
                # The other one goes on.
                dying = brokers[number // (RECORDS // 8) % 2]
                dying.kill()
                dying.start()
            producer.poll(0)
        assert producer.flush(120) == 0
        meta = Namespace("default").partition("t", 0).meta
        # The lease of one that died lasts for a while.
        deadline = time.monotonic() + LEASE_MS / 1000 + 3 * WITHIN_S
        with redis.client() as client:
            while int(client.hget(meta, "local_start") or 0) <= RECORDS * 0.8:
                assert time.monotonic() < deadline, [one.log[-2000:] for one in brokers]
                time.sleep(0.1)
        assert consumed("t", servers) == list(range(RECORDS))


RECORDS = 4000
VALUE_BYTES = 5000


def create_tiered(topic: str, broker: KorvetServer) -> None:
    """A topic in the tier with small segments."""
    configs = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.bytes": "1048576"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result()


def consumed(topic: str, servers: str) -> list[int]:
    """The numbers at the beginning of all values of partition 0, from its begin to its end."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False})
    try:
        partition = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=60)
        consumer.assign([partition])
        found: list[int] = []
        errors: list[KafkaError] = []
        deadline = time.monotonic() + 120
        while len(found) < end and time.monotonic() < deadline:
            for message in consumer.consume(1000, timeout=1):
                if (error := message.error()) is not None:
                    # Also of a connection, although the consumer goes on with the other front-end.
                    errors.append(error)
                    continue
                assert message.offset() == len(found), errors
                found.append(int((message.value() or b"").split(b" ", 1)[0]))
        assert len(found) == end, errors
        return found
    finally:
        consumer.close()


def test_cache_without_a_tier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no tier"):
        make_settings({"tier_cache": str(tmp_path)}, ConfigFile())


@pytest.mark.all
def test_tier_goes_on_after_redis_lost_its_last_writes(tmp_path: Path) -> None:
    options = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
    with (
        running_server("valkey", options=options) as redis,
        running_broker(redis_url=redis.url, tier=str(tmp_path / "tier")) as broker,
    ):
        create_tiered("t", broker)
        keys = Namespace("default").partition("t", 0)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "batch.size": 20_000})

        def produce(numbers: range) -> None:
            for number in numbers:
                producer.produce("t", b"%d " % number + os.urandom(VALUE_BYTES), partition=0)
                # The first one alone: a client that has to send it again after Redis started may send others before.
                assert number > numbers[0] or producer.flush(120) == 0
                producer.poll(0)
            assert producer.flush(120) == 0

        def field(name: str) -> int:
            with redis.client() as client:
                return int(client.hget(keys.meta, name) or 0)

        produce(range(1000))
        until(lambda: field("local_start") > 700)
        # A snapshot of what is sealed is there, so the rest alone can be lost.
        until(lambda: any(tmp_path.rglob(f"{keys.log.split(':')[2]}/*/0/*.snapshot")))
        tier_end = field("tier_end")
        produce(range(1000, 1100))
        redis.kill()
        (log,) = (redis.directory / "appendonlydir").glob("*.incr.aof")
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size - random.randrange(1, 50 * VALUE_BYTES))
        redis.start()
        produce(range(2000, 3000))
        found = consumed("t", broker.bootstrap)
        assert found[:tier_end] == list(range(tier_end))
        assert found == sorted(set(found))
        assert found[-1000:] == list(range(2000, 3000))
        # The next run of Redis becomes the owner, and goes on where the segments end.
        deadline = time.monotonic() + 3 * WAIT_S + WITHIN_S
        while field("local_start") <= tier_end + 500:
            assert time.monotonic() < deadline, broker.log[-2000:]
            time.sleep(0.1)
        assert consumed("t", broker.bootstrap) == found
