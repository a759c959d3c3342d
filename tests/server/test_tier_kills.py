"""Front-ends and Redis are killed between two calls of a tierer: no record is lost or doubled, and garbage goes."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest
from confluent_kafka import Producer

from korvet.errors import KorvetError
from korvet.redis.client import Purpose
from korvet.store.activity import Activity
from korvet.store.keys import Namespace
from korvet.store.memory import Reserve
from korvet.tier.manifest import folder_of
from korvet.tier.objects import Directory
from korvet.tier.publishing import manifest
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot
from korvet.tier.survey import survey, verify
from korvet.tier.tier import Tier
from korvet.tier.tierer import Tierer
from tests.api.raw import ask
from tests.server.test_tier import consumed, create_tiered
from tests.store.logs import front
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server, running_server
from tests.support.tier import take_over
from tests.support.waiting import until

NAMESPACE = Namespace("default")
TOPIC = "t"
KEYS = NAMESPACE.partition(TOPIC, 0)
VALUE_BYTES = 5000
MOST_CALLS = 12
"""More than a segment takes."""
WITHIN_S = 60.0
_CALL = re.compile(rb'"(korvet_tier_(?!lease)\w+|waitaof)"', re.IGNORECASE)
OPTIONS = {
    "appendonly": "yes", "appendfsync": "everysec", "save": "", "auto-aof-rewrite-percentage": "0",
}  # fmt: skip


@pytest.fixture
def redis() -> Iterator[Server]:
    with running_server("valkey", options=OPTIONS) as server:
        yield server


class Play:
    """A front-end with a tier, its topic, and the records that producers were told to be stored."""

    def __init__(self, redis: Server, broker: KorvetServer, where: Path, chance: random.Random) -> None:
        self.redis, self.broker, self.where = redis, broker, where
        self.chance = chance
        self.stored: dict[int, int] = {}
        """The numbers of records by their offsets."""
        self.sent = 0

    def produce_until(self, is_over: Callable[[], bool], **settings: object) -> Producer:
        """Produce 2 MB a second until something is so."""
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "batch.size": 20_000, "linger.ms": 5, **settings}
        )
        deadline = time.monotonic() + WITHIN_S
        while not is_over():
            assert time.monotonic() < deadline, self.broker.log[-2000:]
            for _ in range(20):
                self.send(producer)
            time.sleep(0.05)
        return producer

    def send(self, producer: Producer) -> None:
        number, self.sent = self.sent, self.sent + 1

        def delivered(error: object, message: object) -> None:
            if error is None:
                self.stored[message.offset()] = number  # type: ignore[attr-defined]

        producer.produce(
            TOPIC, b"%d " % number + self.chance.randbytes(VALUE_BYTES), partition=0, on_delivery=delivered
        )
        producer.poll(0)

    def kill_at(self, kill: Callable[[], object], calls: int) -> threading.Event:
        """Kill a server as soon as Redis gets the given one of the next calls of a tierer."""
        killed = threading.Event()
        monitor = socket.socket(socket.AF_UNIX)
        monitor.connect(str(self.redis.socket_path))
        monitor.sendall(b"MONITOR\r\n")

        def watch() -> None:
            left = calls
            with monitor, monitor.makefile("rb") as lines:
                for line in lines:
                    left -= _CALL.search(line[:200]) is not None
                    if not left:
                        kill()
                        killed.set()
                        return

        threading.Thread(target=watch, daemon=True).start()
        return killed

    def end_lease(self) -> None:
        """A dead tierer's lease would last for half a minute."""
        with self.redis.client() as client:
            client.hdel(KEYS.meta, "tiering")

    def consumed(self) -> list[int]:
        """All records, each of them once and in order."""
        # Until Redis is compared with the tier there is no leader, which librdkafka takes for no partition.
        until(self._has_leader)
        found = consumed(TOPIC, self.broker.bootstrap)
        assert found == sorted(set(found))
        return found

    def _has_leader(self) -> bool:
        (topic,) = ask(self.broker.port, "metadata", 12, topics=[{"name": TOPIC, "topic_id": None}])["topics"]
        return [one["error_code"] for one in topic["partitions"]] == ["NONE"]

    def await_tier(self) -> None:
        """Wait until most records are only in the tier."""
        with self.redis.client() as client:
            until(lambda: int(client.hget(KEYS.meta, "local_start") or 0) > 0.7 * len(self.stored))


@pytest.fixture
def play(redis: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Play]:
    where = tmp_path / "tier"
    with running_broker(redis_url=redis.url, tier=str(where)) as broker:
        until(lambda: "the tier can be used" in broker.log)
        create_tiered(TOPIC, broker)
        yield Play(redis, broker, where, random.Random(request.node.name))


@pytest.mark.parametrize("number", [0, *(pytest.param(one, marks=pytest.mark.all) for one in range(1, 4))])
def test_front_end_may_be_killed_between_any_two_calls(play: Play, number: int) -> None:
    for calls in play.chance.sample(range(1, MOST_CALLS + 1), 3):
        killed = play.kill_at(partial(os.kill, play.broker.pid, signal.SIGKILL), calls)
        producer = play.produce_until(killed.is_set, **{"enable.idempotence": True})
        play.broker.kill()
        play.broker.start()
        play.end_lease()
        assert producer.flush(WITHIN_S) == 0
    play.await_tier()
    found = play.consumed()
    assert found == list(range(play.sent)) == [play.stored[offset] for offset in range(play.sent)]
    assert play.broker.stop() == 0
    play.end_lease()
    assert anyio.run(unlisted, play) == []


@pytest.mark.all
@pytest.mark.parametrize("number", range(3))
def test_redis_may_be_killed_between_any_two_calls_and_lose_what_is_not_on_its_disk(play: Play, number: int) -> None:
    tier_end = 0
    # A producer that sends nothing again doubles nothing.
    settings = {"retries": 0, "message.timeout.ms": 10_000}
    for calls in play.chance.sample(range(1, MOST_CALLS + 1), 4):
        play.produce_until(lambda reached=tier_end: published(play) > reached, **settings).flush(WITHIN_S)  # type: ignore[misc]
        with play.broker.redis_outage():
            producer = play.produce_until(play.kill_at(play.redis.kill, calls).is_set, **settings)
            tier_end = published(play)
            cut(play)
            play.redis.start()
            play.end_lease()
        producer.flush(WITHIN_S)
        take_over(play.redis, play.where)
        found = play.consumed()
        for offset, sent in play.stored.items():
            assert offset >= tier_end or found[offset] == sent
        play.stored = dict(enumerate(found))
    play.await_tier()
    assert dict(enumerate(play.consumed())) == play.stored
    assert play.broker.stop() == 0
    play.end_lease()
    # Redis alone knew which objects came to nothing.
    known = incremental(play.redis).read_bytes()
    assert [path for path in anyio.run(unlisted, play) if path.encode() in known] == []


def incremental(redis: Server) -> Path:
    """The file to which Redis appends its writes."""
    (log,) = (redis.directory / "appendonlydir").glob("*.incr.aof")
    return log


def cut(play: Play) -> None:
    """Cut the writes off at a random byte after those that a snapshot in the store shows to be on the disk."""
    log, newest = incremental(play.redis), anyio.run(newest_snapshot, play.where)
    assert newest is not None
    data, name = log.read_bytes(), newest.members[-1].name.encode()
    os.truncate(log, play.chance.randrange(data.rindex(name) + len(name), len(data)))


def published(play: Play) -> int:
    """The end of the newest snapshot; -1 without one."""
    newest = anyio.run(newest_snapshot, play.where)
    return newest.tier_end if newest is not None else -1


async def newest_snapshot(where: Path) -> Snapshot | None:
    objects = Directory(where)
    try:
        return (await survey(objects, NAMESPACE.name)).partitions.get((TOPIC, 0))
    except KorvetError:
        return None


async def unlisted(play: Play) -> list[str]:
    """Check all objects, and sweep after the quarantine. Returns the objects that are left and not listed."""
    objects = Directory(play.where)
    async with front(play.redis.url, NAMESPACE) as one, anyio.create_task_group() as tasks:
        tierer = Tierer(Tier(objects, tasks), NAMESPACE, one.catalog, one.log, Activity(), Reserve(one.store))
        assert await tierer.own()
        topic = one.catalog.topic(TOPIC)
        assert topic is not None
        partition = one.log.partition(topic, 0)
        await tierer.tend(partition)
        key = NAMESPACE.doomed
        for text in await one.store.call(Purpose.COORDINATE, key, "ZRANGE", key, 0, -1):
            await one.store.call(Purpose.COORDINATE, key, "ZADD", key, 1, text)
        await tierer.sweep()
        listed = await manifest(one.log, partition)
        assert listed is not None
        folder = folder_of(NAMESPACE.name, TOPIC, partition.topic_id, 0)
        newest = await Series(objects, folder, Snapshot.decoded).newest()
        assert newest is not None
        assert (await verify(objects, newest[1])).problems == []
        kept = {member.path(folder) for member in listed[1].members}
        there = [path for path in await objects.names(folder) if path.endswith((".segment", ".shelf"))]
        tasks.cancel_scope.cancel()
    return [path for path in there if path not in kept]
