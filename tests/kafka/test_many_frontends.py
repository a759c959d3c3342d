"""Every client at three front-ends on one Redis, found by the registry or behind HAProxy; one front-end is killed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from korvet.store.keys import Namespace
from tests.api.raw import ask
from tests.kafka.builds import driver_command
from tests.kafka.client import Client, Member
from tests.kafka.options import MemberOptions, Outcome, ProduceOptions, failures
from tests.kafka.process import Administrator
from tests.kafka.records import Record
from tests.kafka.starting import running_clients
from tests.kafka.traits import MEMBERS
from tests.kafka.waiting import poll_until, wait_until
from tests.support.broker import KorvetServer
from tests.support.haproxy import HAProxy, running_haproxy
from tests.support.redis import Server, free_port

FRONT_ENDS = 3
PARTITIONS = 12
ROUNDS = 5
# When its coordinator's connection breaks, kafkajs joins again as a new member, and its former member must expire.
REJOINS = "kafkajs"
# aiokafka's own session is so short that its member may expire while it looks for another coordinator.
SESSIONS_MS = {REJOINS: 6000, "aiokafka": 30_000}
# When it closes, aiokafka looks for no other coordinator, and retries its last commit for ever at a dead one.
NOTICES_LATE = "aiokafka"
SEEN_BEFORE = 2 * PARTITIONS
# Metadata shows a dead front-end until its lease ends, and clients back off meanwhile.
WITHIN_S = 150.0


class Fleet:
    """Front-ends of one namespace. With a balancer they advertise its ports, otherwise they use the registry."""

    def __init__(self, stack: ExitStack, redis_url: str, namespace: str, balancer: HAProxy | None) -> None:
        self.namespace = namespace
        self.balancer = balancer
        ports = balancer.ports if balancer else [0] * FRONT_ENDS
        self.front_ends = []
        for port in ports:
            server = KorvetServer(
                Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv"))),
                redis_url=redis_url,
                port=port,
                namespace=namespace,
                advertised=balancer.address if balancer else None,
                proxy_protocol=balancer is not None,
                broker={"group.initial.rebalance.delay.ms": "0"},
            )
            stack.callback(server.kill)
            self.front_ends.append(server.start())
        self.port = balancer.port if balancer else self.front_ends[0].port
        self._stack = stack

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, name: str) -> Client:
        return self._stack.enter_context(running_clients(self.bootstrap)).named(name)

    def create_topic(self, topic: str) -> None:
        administrator = Administrator("confluent-kafka", driver_command("confluent-kafka", self.bootstrap))
        try:
            administrator.create_topic(topic, PARTITIONS)
            poll_until(lambda: administrator.serves(topic, PARTITIONS), f"the topic {topic}")
        finally:
            administrator.stop()

    def leaders(self, port: int, topic: str) -> list[int]:
        """The leaders of the partitions as a front-end on a port names them."""
        topics = [{"name": topic, "topic_id": None}]
        (found,) = ask(port, "metadata", 12, topics=topics, allow_auto_topic_creation=False)["topics"]
        return [partition["leader_id"] for partition in found["partitions"]]

    def agree(self, topic: str) -> bool:
        """Whether all front-ends name the same leaders, and each leads something: a second after the last one began."""
        told = [self.leaders(front_end.port, topic) for front_end in self.front_ends]
        return all(leaders == told[0] for leaders in told) and set(told[0]) == {1, 2, 3}

    def coordinated_elsewhere(self, name: str) -> tuple[str, KorvetServer]:
        """A group whose coordinator is not the front-end that clients start from, and that coordinator."""
        for number in range(100):
            group = f"{name}-{number}"
            (found,) = ask(self.port, "find_coordinator", 4, key_type=0, coordinator_keys=[group])["coordinators"]
            for front_end in self.front_ends[1:]:
                if front_end.port == found["port"]:
                    return group, front_end
        raise AssertionError("one front-end coordinates everything")

    def generation(self, group: str) -> int:
        with self.front_ends[0].redis() as client:
            found: Any = client.hget(Namespace(self.namespace).group(group).group, "generation")
            return int(found)


@pytest.fixture(scope="module")
def registered(valkey_server: Server) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack, valkey_server.url, "registered", None)


@pytest.fixture(scope="module")
def balanced(valkey_server: Server) -> Iterator[Fleet]:
    with ExitStack() as stack:
        balancer = stack.enter_context(running_haproxy([free_port() for _ in range(FRONT_ENDS)]))
        fleet = Fleet(stack, valkey_server.url, "behind-a-balancer", balancer)
        balancer.wait_until_up()
        yield fleet


@pytest.mark.parametrize("name", MEMBERS)
def test_client_finds_the_front_ends_and_survives_the_death_of_one(registered: Fleet, name: str) -> None:
    topic = f"found-{name}"
    registered.create_topic(topic)
    poll_until(lambda: registered.agree(topic), "all front-ends tell the same, and each leads something")
    group, victim = registered.coordinated_elsewhere(name)
    _produce_and_consume(registered, name, topic, group, victim)


@pytest.mark.parametrize("name", MEMBERS)
def test_client_behind_a_balancer_uses_all_and_survives_the_death_of_one(balanced: Fleet, name: str) -> None:
    assert balanced.balancer is not None
    topic = f"balanced-{name}"
    balanced.create_topic(topic)
    assert set(balanced.leaders(balanced.port, topic)) == {1, 2, 3}
    before = sum(one.connections_ever for one in balanced.balancer.backends())
    _produce_and_consume(balanced, name, topic, name, balanced.front_ends[1])
    # No client reconnects all the time; kcat connects most often, because each record has a kcat of its own.
    assert sum(one.connections_ever for one in balanced.balancer.backends()) - before < 1000
    balanced.balancer.wait_until_up()


def _listed(fleet: Fleet, topic: str) -> list[str]:
    """The groups that all nodes list, one node after another, out of ten new groups."""
    fleet.create_topic(topic)
    groups = {f"{topic}-{number}" for number in range(10)}
    partitions = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]
    for group in groups:
        usual = {"generation_id_or_member_epoch": -1, "topics": [{"name": topic, "partitions": partitions}]}
        ask(fleet.port, "offset_commit", 8, group_id=group, member_id="", **usual)
    shown = ask(fleet.port, "metadata", 12, topics=[], allow_auto_topic_creation=False)["brokers"]
    answers = [ask(node["port"], "list_groups", 4) for node in shown]
    assert len(answers) >= FRONT_ENDS
    return sorted(group["group_id"] for answer in answers for group in answer["groups"] if group["group_id"] in groups)


def test_each_group_is_listed_by_one_front_end(registered: Fleet) -> None:
    registered.create_topic("agreed")
    poll_until(lambda: registered.agree("agreed"), "all front-ends tell the same, and each leads something")
    assert _listed(registered, "listed") == sorted(f"listed-{number}" for number in range(10))


def test_each_group_is_listed_by_one_port_of_a_balancer(balanced: Fleet) -> None:
    assert _listed(balanced, "listed") == sorted(f"listed-{number}" for number in range(10))


def _produce_and_consume(fleet: Fleet, name: str, topic: str, group: str, victim: KorvetServer) -> None:
    """A client produces and a member consumes while a front-end is killed; no record is lost, no group rebalances."""
    client = fleet.client(name)
    records = [Record(value=f"{n}".encode(), partition=n % PARTITIONS) for n in range(ROUNDS * PARTITIONS)]
    options = MemberOptions(reset="earliest", session_timeout_ms=SESSIONS_MS.get(name))
    member = client.join(group, topic, options)
    try:
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(client.produce, topic, records, ProduceOptions(one_by_one=True))
            wait_until(lambda: len(member.seen.records) >= SEEN_BEFORE, "the first records", WITHIN_S)
            if fleet.balancer is not None:
                _await_spread(fleet.balancer)
            before = fleet.generation(group)
            victim.kill()
            outcomes = sending.result(2 * WITHIN_S)
            if name == "kcat":
                _send_again(client, topic, records, outcomes)
            else:
                assert failures(outcomes) == []
        _await_all(member, records)
        assert name == REJOINS or fleet.generation(group) == before
        if name == NOTICES_LATE:
            member.commit()
        member.leave()
    finally:
        member.kill()
        if not victim.is_running:
            victim.start()


def _send_again(client: Client, topic: str, records: list[Record], outcomes: list[Outcome]) -> None:
    """Send again the records of a kcat that gave up, with an exit code, because its only connection broke."""
    refused = [record for record, outcome in zip(records, outcomes, strict=True) if outcome.error]
    assert len(refused) < PARTITIONS
    assert failures(client.produce(topic, refused, ProduceOptions(one_by_one=True))) == []


def _await_spread(balancer: HAProxy) -> None:
    """Wait until one client's connections reach all front-ends."""
    balancer.wait_for(lambda: all(one.connections for one in balancer.backends()), "connections everywhere")


def _await_all(member: Member, records: list[Record]) -> None:
    wanted = {record.value for record in records}

    def missing() -> set[bytes | None]:
        return wanted - {record.value for record in member.seen.records}

    wait_until(lambda: not missing(), lambda: f"{missing()}: {member.seen.troubles}", WITHIN_S)
