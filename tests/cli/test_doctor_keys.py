"""`korvet doctor` on keys that somebody deleted, cut or replaced by hand: it names them, and repairs what it can."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from korvet.cli import run
from korvet.cli.redis.connections import Node, ask, keys_of
from korvet.store.keys import Namespace
from tests.support.broker import BrokerFailed, running_broker
from tests.support.redis import Server
from tests.support.topologies import running_cluster

KEYS = Namespace().catalog
NAMESPACE = Namespace()
PARTITIONS = 3


@pytest.fixture(scope="module")
def _dumps(redis_server: Server) -> dict[bytes, bytes]:
    """The keys of the topics a and b, a group and a transactional id. Their front-end's lease has ended."""
    with redis_server.client() as client:
        client.flushall()
        with running_broker(redis_url=redis_server.url) as broker:
            _fill(broker.bootstrap)
        return {key: client.dump(key) for key in client.scan_iter() if not key.endswith(b":frontends")}


@pytest.fixture
def damaged(redis_server: Server, _dumps: dict[bytes, bytes]) -> Iterator[redis.Redis]:
    """A client of a server with these keys; no front-end runs."""
    with redis_server.client() as client:
        client.flushall()
        for key, dump in _dumps.items():
            client.restore(key, 0, dump)
        yield client


def _fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, PARTITIONS, config={"retention.ms": "5000000"}) for name in "ab"]
    for created in admin.create_topics(topics).values():
        created.result(10)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "app"})
    producer.init_transactions(10)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce("a", b"value", partition=partition)
    producer.commit_transaction(10)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("a", 0, 1)], asynchronous=False)
    consumer.close()


Doctor = Callable[..., tuple[int, list[tuple[str, str]]]]


@pytest.fixture
def doctor(redis_server: Server, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """A function that runs `korvet doctor`: the exit code, and verdict and text of each finding about keys."""

    def examine(*arguments: str) -> tuple[int, list[tuple[str, str]]]:
        code = run(["doctor", "--redis", redis_server.url, "--json", *arguments])
        found = json.loads(capsys.readouterr().out)
        return code, [(item["verdict"], item["text"]) for item in found if item["subject"] == "keys"]

    return examine


def _healed(doctor: Doctor, *words: str) -> None:
    """The doctor names damage and changes nothing; it repairs on request, and then finds none."""
    for _ in range(2):
        code, found = doctor()
        assert (code, [verdict for verdict, _ in found]) == (1, ["mend"] * len(found))
        assert all(any(word in text for _, text in found) for word in words), found
    _, found = doctor("--repair")
    assert {verdict for verdict, _ in found} == {"note"}
    assert doctor()[1] == [("ok", "none is damaged")]


def test_sound_keys_are_left_alone(damaged: redis.Redis, doctor: Doctor) -> None:
    before = {key: damaged.dump(key) for key in damaged.scan_iter()}
    assert doctor("--repair")[1] == [("ok", "none is damaged")]
    assert {key: damaged.dump(key) for key in damaged.scan_iter()} == before


def test_keys_that_come_and_go_while_the_doctor_looks_are_no_damage(
    damaged: redis.Redis, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan may miss a log that was made meanwhile. A group and a transactional id are deleted behind it."""
    new, group, transaction = NAMESPACE.partition("a", 0).log, NAMESPACE.group("g"), NAMESPACE.transaction("app")

    def scanned(node: Node, name: str) -> Iterator[list[bytes]]:
        for page in keys_of(node, name):
            yield [key for key in page if key != new.encode()]
        damaged.delete(*group, NAMESPACE.group_index_of("g"), *transaction)

    monkeypatch.setattr("korvet.cli.redis.key_checks.keys_of", scanned)
    assert doctor("--repair")[1] == [("ok", "none is damaged")]
    assert damaged.exists(NAMESPACE.group_index_of("g"), *transaction) == 0


@pytest.mark.parametrize("hurt", ["deleted", "of another type", "one entry deleted", "one entry cut"])
def test_topics_are_entered_again_from_their_partitions(
    damaged: redis.Redis, doctor: Doctor, redis_server: Server, hurt: str
) -> None:
    """With their ids, so that no partition begins anew. No record leaves them before somebody sets their retention."""
    before = {name: json.loads(text) for name, text in damaged.hgetall(KEYS.topics).items() if name}
    if hurt.startswith("one"):
        damaged.hdel(KEYS.topics, "a") if hurt.endswith("deleted") else damaged.hset(KEYS.topics, "a", "{")
    else:
        damaged.delete(KEYS.topics)
    if hurt == "of another type":
        damaged.set(KEYS.topics, "text")
    elif hurt == "deleted":
        with pytest.raises(BrokerFailed, match="korvet doctor --repair"), running_broker(redis_url=redis_server.url):
            pass
    _healed(doctor, KEYS.topics if not hurt.startswith("one") else "topic a has")
    found = {name: json.loads(text) for name, text in damaged.hgetall(KEYS.topics).items() if name}
    assert {name: (of["id"], of["partitions"]) for name, of in found.items()} == {
        name: (of["id"], of["partitions"]) for name, of in before.items()
    }
    assert found[b"a"]["configs"] == {"retention.ms": "-1", "retention.bytes": "-1"}
    with running_broker(redis_url=redis_server.url) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        assert admin.list_topics().topics.keys() == {"a", "b"}
        ends = admin.list_offsets({TopicPartition("a", at): OffsetSpec.latest() for at in range(PARTITIONS)})  # type: ignore[no-untyped-call]
        assert [found.result(10).offset for found in ends.values()] == [2] * PARTITIONS


def test_front_end_that_knows_deleted_topics_writes_them_back_at_the_doctors_word(
    damaged: redis.Redis, doctor: Doctor, redis_server: Server
) -> None:
    before = damaged.hgetall(KEYS.topics)
    with running_broker(redis_url=redis_server.url):
        damaged.delete(KEYS.topics)
        doctor("--repair")
    assert damaged.hgetall(KEYS.topics) == before


def test_partition_without_keys_of_a_topic_that_is_entered_again_is_named(damaged: redis.Redis, doctor: Doctor) -> None:
    damaged.hdel(KEYS.topics, "a")
    damaged.delete(*NAMESPACE.transaction_log("a", 1))
    _healed(doctor, "partition 1 has no keys and begins at offset 0")


def test_topic_of_partitions_of_several_topics_stays_away(damaged: redis.Redis, doctor: Doctor) -> None:
    damaged.hdel(KEYS.topics, "a")
    damaged.hset(NAMESPACE.partition("a", 1).meta, "topic_id", "c" * 32)
    code, ((verdict, text),) = doctor("--repair")
    assert (code, verdict) == (1, "mend")
    assert "its partitions are of several topics" in text
    assert not damaged.hexists(KEYS.topics, "a")


def test_deleted_log_is_named_with_the_command_that_lets_readers_go_on(damaged: redis.Redis, doctor: Doctor) -> None:
    damaged.delete(NAMESPACE.partition("a", 1).log)
    code, ((verdict, text),) = doctor("--repair")
    assert (code, verdict) == (1, "mend")
    assert "korvet topics trim 'a' --partition 1 --before 2 --execute" in text


def test_group_that_is_in_no_list_is_listed_again(damaged: redis.Redis, doctor: Doctor) -> None:
    damaged.delete(NAMESPACE.group_index_of("g"))
    _healed(doctor, "groups are in no list: g")
    assert damaged.sismember(NAMESPACE.group_index_of("g"), "g")


def test_transactional_id_without_a_deadline_gets_one(damaged: redis.Redis, doctor: Doctor) -> None:
    deadlines = NAMESPACE.transaction("app").deadlines
    damaged.delete(deadlines)
    _healed(doctor, "transactional ids without a deadline, whose transactions nobody ends: app")
    assert damaged.zscore(deadlines, "app")


def test_every_key_of_another_type_is_named_and_removed(damaged: redis.Redis, doctor: Doctor) -> None:
    partition, group = NAMESPACE.transaction_log("b", 0), NAMESPACE.group("g")
    keys = [*NAMESPACE.security, NAMESPACE.frontends, KEYS.configs, *partition[1:], *group[:3]]
    for key in keys:
        damaged.delete(key)
        damaged.geoadd(key, (0, 0, "x")) if key not in (
            partition.open,
            partition.aborted,
            group.sessions,
        ) else damaged.set(key, "text")
    _healed(doctor, *keys)


def test_user_who_may_not_list_keys_gets_a_note(redis_server: Server, doctor: Doctor, damaged: redis.Redis) -> None:
    ask(damaged, "ACL", "SETUSER", "default", "-scan")
    try:
        _, ((verdict, text),) = doctor()
        assert (verdict, "they were not looked at" in text) == ("note", True)
    finally:
        ask(damaged, "ACL", "SETUSER", "default", "+scan")


def test_damage_on_any_primary_of_a_cluster_is_repaired(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"t{number}" for number in range(6)]
    with running_cluster() as cluster, redis.RedisCluster("127.0.0.1", cluster.nodes[0].port) as client:
        url = f"redis+cluster://127.0.0.1:{cluster.nodes[0].port}"
        assert run(["functions", "load", "--redis", url]) == 0
        client.hset(KEYS.meta, "version", "1")
        for name in names:
            keys = NAMESPACE.transaction_log(name, 0)
            client.fcall("korvet_log_create", len(keys), *keys, "a" * 32, "")
            client.delete(keys.open)
            client.set(keys.open, "text")
            client.hset(NAMESPACE.group(name).group, "state", "Empty")
        assert run(["doctor", "--redis", url]) == 1
        run(["doctor", "--redis", url, "--repair"])
        assert "entered again: t0 of 1 partitions" in capsys.readouterr().out
        assert run(["doctor", "--redis", url, "--json"]) in (0, 1)
        found = [item["text"] for item in json.loads(capsys.readouterr().out) if item["subject"] == "keys"]
        assert found == ["none is damaged"]
        entries: dict[Any, Any] = client.hgetall(KEYS.topics)
        assert sorted(entries) == [b"", *map(str.encode, names)]
        client.hdel(KEYS.topics, "t0")
        with cluster.nodes[0].client() as node:
            ask(node, "CLUSTER", "DELSLOTS", 0)
        run(["doctor", "--redis", url, "--repair"])
        assert "some slots of the cluster have no node that answers" in capsys.readouterr().out
