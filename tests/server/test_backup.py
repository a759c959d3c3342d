"""A backup of Redis is restored as docs/migration.md says; clients that ran on meanwhile go on with what is left."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.api.data import epoch_of
from tests.api.raw import created
from tests.api.rdkafka import Reader, Writer, numbered
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server, running_server
from tests.support.tools import find_tool
from tests.support.topologies import until

WITHIN_S = 60.0
BEFORE, AFTER = 100, 20
GROUP = "readers"


@pytest.fixture
def redis() -> Iterator[Server]:
    with running_server("valkey", tcp=True, options={"appendonly": "yes"}) as server:
        yield server


@pytest.fixture
def broker(redis: Server) -> Iterator[KorvetServer]:
    with running_broker(redis_url=redis.url) as server:
        yield server


def commit(bootstrap: str, topic: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def committed(bootstrap: str, topic: str) -> int | None:
    """The group's offset; None as long as no broker can tell."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=WITHIN_S)
        return int(found.offset)
    except confluent_kafka.KafkaException:
        return None
    finally:
        consumer.close()


def topics(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=WITHIN_S).topics)


def back_up(redis: Server, path: Path) -> None:
    """Take a backup with the page's command."""
    command = [find_tool("redis-cli"), "-p", str(redis.port), "--rdb", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=WITHIN_S)


def restore(redis: Server, backup: Path) -> None:
    """Lose the server's data, and restore the backup by the page's steps."""
    redis.kill()
    shutil.rmtree(redis.directory / "appendonlydir")
    shutil.copy(backup, redis.directory / "dump.rdb")
    redis.options = {**redis.options, "appendonly": "no"}
    redis.start()
    with redis.client() as client:
        client.config_set("appendonly", "yes")
        until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, "the append-only file is written")
    redis.options = {**redis.options, "appendonly": "yes"}
    redis.restart()


def test_clients_go_on_where_a_restored_backup_ends(redis: Server, broker: KorvetServer, tmp_path: Path) -> None:
    topic = created(broker.port)
    writer = Writer(broker.bootstrap, topic)
    with Reader(broker.bootstrap, topic) as reader:
        writer.write(numbered("before", BEFORE))
        commit(broker.bootstrap, topic, BEFORE - 40)
        back_up(redis, tmp_path / "korvet.rdb")
        epoch = epoch_of(broker.port, topic)
        writer.write(numbered("lost", AFTER))
        later = created(broker.port)
        commit(broker.bootstrap, topic, BEFORE + AFTER)
        reader.read_until(numbered("lost", AFTER)[-1])
        restore(redis, tmp_path / "korvet.rdb")
        until(lambda: committed(broker.bootstrap, topic) is not None, "the front-end is back")
        assert committed(broker.bootstrap, topic) == BEFORE - 40
        until(lambda: later not in topics(broker.bootstrap), "a topic made since the backup is gone")
        assert topic in topics(broker.bootstrap)
        # The same idempotent producer goes on, behind the records of the backup.
        writer.write(numbered("after", AFTER))
        assert writer.offsets[-AFTER:] == list(range(BEFORE, BEFORE + AFTER))
        assert epoch_of(broker.port, topic) > epoch
        # The reader had read further, and learns by the epoch that its history is gone.
        reader.read_until(numbered("after", AFTER)[-1])
        assert reader.values == numbered("before", BEFORE) + numbered("lost", AFTER) + numbered("after", AFTER)
    with Reader(broker.bootstrap, topic) as anew:
        anew.read_until(numbered("after", AFTER)[-1])
        assert anew.values == numbered("before", BEFORE) + numbered("after", AFTER)


def test_server_without_append_only_files_begins_empty_beside_a_snapshot(redis: Server, tmp_path: Path) -> None:
    """The page's warning."""
    with redis.client() as client:
        client.set("korvet:kept", "value")
    back_up(redis, tmp_path / "korvet.rdb")
    redis.kill()
    shutil.rmtree(redis.directory / "appendonlydir")
    shutil.copy(tmp_path / "korvet.rdb", redis.directory / "dump.rdb")
    redis.start()
    with redis.client() as client:
        assert client.dbsize() == 0
