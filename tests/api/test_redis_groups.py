"""Kafka groups as seen from Redis, through several front-ends: by raw requests, and by real clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import confluent_kafka
import pytest
import redis
from confluent_kafka.admin import AdminClient

from korvet.store.keys import Namespace
from tests.api.consumers import Member
from tests.api.data import connected, fetch, fetch_request, partitions_of, produced, records, wanted
from tests.api.groups import commit, deleted, entered, leave, sync
from tests.api.raw import created, unique
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server
from tests.support.waiting import until

WITHIN_S = 30.0


class Fleet:
    """Three front-ends on one Redis, in which a new group waits for no further member."""

    def __init__(self, fronts: list[KorvetServer], redis: redis.Redis) -> None:
        self.fronts = fronts
        self.redis = redis
        self.ports = [front.port for front in fronts]

    def topic(self, partitions: int = 1, batches: int = 3) -> str:
        """A new topic with batches of three records in each partition."""
        name = created(self.ports[0], partitions=partitions)
        for index in range(partitions):
            produced(self.ports[0], name, *(records(3) for _ in range(batches)), partition=index)
        return name

    def seen(self, topic: str, partition: int = 0) -> dict[str, tuple[str, int]]:
        """Name -> last-delivered-id and lag, as XINFO GROUPS shows them."""
        found: Any = self.redis.xinfo_groups(Namespace().partition(topic, partition).log)
        return {one["name"].decode(): (one["last-delivered-id"].decode(), one["lag"]) for one in found}

    def shows(self, topic: str, *expected: dict[str, tuple[str, int]]) -> None:
        """Wait until partitions 0, 1, … show these groups."""
        until(lambda: self._are_seen(topic, *expected))

    def shows_after(self, read: Callable[[], object], topic: str, *expected: dict[str, tuple[str, int]]) -> int:
        """Fetch until partitions 0, 1, … show these groups. Returns the number of Fetches.

        If Redis gives no answer within a second, the Fetch goes on without the group, and a later one makes it.
        """
        reads = 0

        def is_attached() -> bool:
            nonlocal reads
            reads += 1
            read()
            return self._are_seen(topic, *expected)

        until(is_attached)
        return reads

    def _are_seen(self, topic: str, *expected: dict[str, tuple[str, int]]) -> bool:
        return [self.seen(topic, index) for index in range(len(expected))] == list(expected)


@pytest.fixture(scope="module")
def fleet(redis_server: Server) -> Iterator[Fleet]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with redis_server.client() as client:
        client.flushall()
        with (
            running_broker(redis_url=redis_server.url, broker=settings) as one,
            running_broker(redis_url=redis_server.url, broker=settings) as two,
            running_broker(redis_url=redis_server.url, broker=settings) as three,
        ):
            yield Fleet([one, two, three], client)


def assignment(topic: str, *partitions: int) -> bytes:
    """A ConsumerProtocolAssignment of one topic."""
    name = topic.encode()
    indexes = b"".join(index.to_bytes(4, "big") for index in partitions)
    head = b"\0\1\0\0\0\1" + len(name).to_bytes(2, "big") + name + len(partitions).to_bytes(4, "big")
    return head + indexes + b"\xff\xff\xff\xff"


def joined(port: int, group: str, topic: str, *partitions: int) -> str:
    """The only member of a Stable group, which reads these partitions."""
    answer = entered(port, group)
    member: str = answer["member_id"]
    assigned = assignment(topic, *partitions)
    assert sync(port, group, member, answer["generation_id"], {member: assigned})["assignment"] == assigned
    return member


def read_from(port: int, topic: str, offset: int) -> None:
    """Fetch from partition 0, on a connection of its own."""
    (read,) = fetch(port, topic, wanted(offset))
    assert read["error_code"] == "NONE"


def test_redis_group_follows_a_client_of_three_front_ends(fleet: Fleet) -> None:
    one, two, three = fleet.ports
    topic, group = fleet.topic(2), unique("g")
    member = joined(one, group, topic, 0)
    assert fleet.seen(topic) == {}
    fleet.shows_after(lambda: read_from(two, topic, 3), topic, {group: ("3-0", 2)})
    assert commit(three, group, topic, 7, member_id=member, generation_id_or_member_epoch=1) == ["NONE"]
    fleet.shows(topic, {group: ("7-0", 1)}, {})
    assert deleted(two, group) == ["NON_EMPTY_GROUP"]
    leave(one, group, member)
    assert deleted(two, group, "unknown") == ["NONE", "GROUP_ID_NOT_FOUND"]
    fleet.shows(topic, {}, {})
    assert fleet.redis.keys(f"*{group}*") == []


def test_partition_of_a_connection_is_attached_once(fleet: Fleet) -> None:
    one, two, _ = fleet.ports
    topic, group = fleet.topic(2), unique("g")
    member = joined(one, group, topic, 0, 1)
    with connected(two) as connection, fleet.redis.monitor() as monitor:  # type: ignore[no-untyped-call]

        def sought() -> int:
            """The number of a front-end's questions for readers' groups since the last call."""
            fleet.redis.echo("until here")
            commands = iter(lambda: str(monitor.next_command()["command"]), "ECHO until here")
            return sum("korvet_reader_find" in command for command in commands)

        first = fetch_request(topic, wanted(3))
        reads = fleet.shows_after(lambda: connection.ask("fetch", 12, **first), topic, {group: ("3-0", 2)}, {})
        assert 1 <= sought() <= reads
        for _ in range(100):
            (read,) = partitions_of(connection.ask("fetch", 12, **fetch_request(topic, wanted(6))))
            assert read["error_code"] == "NONE"
        assert sought() == 0
        both, shown = fetch_request(topic, wanted(6), wanted(6, 1)), ({group: ("3-0", 2)}, {group: ("6-0", 1)})
        reads = fleet.shows_after(lambda: connection.ask("fetch", 12, **both), topic, *shown)
        assert 1 <= sought() <= reads
    leave(one, group, member)
    assert deleted(one, group) == ["NONE"]


def test_first_fetch_out_of_range_is_no_position(fleet: Fleet) -> None:
    one, two, _ = fleet.ports
    topic, group = fleet.topic(), unique("g")
    member = joined(one, group, topic, 0)
    with connected(two) as connection:
        (read,) = partitions_of(connection.ask("fetch", 12, **fetch_request(topic, wanted(99))))
        assert (read["error_code"], fleet.seen(topic)) == ("OFFSET_OUT_OF_RANGE", {})
        request = fetch_request(topic, wanted(9))
        fleet.shows_after(lambda: connection.ask("fetch", 12, **request), topic, {group: ("9-0", 0)})
    leave(one, group, member)
    assert deleted(one, group) == ["NONE"]


def test_commits_right_before_the_end_of_a_front_end_are_followed(fleet: Fleet) -> None:
    topic, group = fleet.topic(), unique("g")
    front = fleet.fronts[2]
    for offset in range(10):
        assert commit(front.port, group, topic, offset) == ["NONE"]
    front.restart()
    assert fleet.seen(topic) == {group: ("9-0", 0)}
    assert deleted(front.port, group) == ["NONE"]
    assert fleet.seen(topic) == {}


def by_librdkafka(fleet: Fleet, topic: str, group: str, shows: Callable[[int], None]) -> None:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer: Any = confluent_kafka.Consumer({**settings, "bootstrap.servers": fleet.fronts[0].bootstrap})
    try:
        consumer.subscribe([topic])
        got = 0
        while got < 9:
            message = consumer.poll(WITHIN_S)
            assert message is not None and message.error() is None
            got += 1
        shows(0)
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 5)], asynchronous=False)
        shows(5)
    finally:
        consumer.close()


def by_aiokafka(fleet: Fleet, topic: str, group: str, shows: Callable[[int], None]) -> None:
    asyncio.run(_by_aiokafka(fleet, topic, group, shows))


async def _by_aiokafka(fleet: Fleet, topic: str, group: str, shows: Callable[[int], None]) -> None:
    settings: Any = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer: Any = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=fleet.fronts[1].bootstrap, **settings)
    await consumer.start()
    try:
        for _ in range(9):
            await asyncio.wait_for(consumer.getone(), WITHIN_S)
        await asyncio.to_thread(shows, 0)
        await consumer.commit({aiokafka.TopicPartition(topic, 0): 5})
        await asyncio.to_thread(shows, 5)
    finally:
        await consumer.stop()


@pytest.mark.parametrize("consume", [by_librdkafka, by_aiokafka])
@pytest.mark.parametrize("name", ["plain", "with space {and} brace", "группа"])
def test_group_of_a_client_is_made_moved_and_destroyed(
    fleet: Fleet, consume: Callable[[Fleet, str, str, Callable[[int], None]], None], name: str
) -> None:
    topic, group = fleet.topic(), f"{unique('g')} {name}"
    lags = {0: 3, 5: 2}
    consume(fleet, topic, group, lambda offset: fleet.shows(topic, {group: (f"{offset}-0", lags[offset])}))
    admin: Any = AdminClient({"bootstrap.servers": fleet.fronts[2].bootstrap})
    for future in admin.delete_consumer_groups([group]).values():
        assert future.result(WITHIN_S) is None
    # The mirror of the last commit may attach it once more. It then sees that the group is gone.
    fleet.shows(topic, {})


def test_redis_group_follows_a_member_of_the_consumer_protocol(fleet: Fleet) -> None:
    """A heartbeat at one front-end assigns partitions, and another front-end knows them at the Fetch."""
    one, two, three = fleet.ports
    topic, group = fleet.topic(2), unique("g")
    member = Member(one, group, subscribed_topic_names=[topic])
    member.join()
    assert fleet.seen(topic) == {}
    fleet.shows_after(lambda: read_from(two, topic, 3), topic, {group: ("3-0", 2)})
    epoch: dict[str, Any] = {"member_id": member.id, "generation_id_or_member_epoch": member.epoch}
    assert commit(three, group, topic, 7, **epoch) == ["NONE"]
    fleet.shows(topic, {group: ("7-0", 1)}, {})
    member.leave()
    assert deleted(two, group) == ["NONE"]
    fleet.shows(topic, {}, {})
    assert fleet.redis.keys(f"*{group}*") == []
