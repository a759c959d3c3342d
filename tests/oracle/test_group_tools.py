"""Kafka's tools for groups print the same about korvet as about Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient

from tests.api.raw import unique
from tests.oracle.tools import ANY_GROUPS, GROUPS, WITHIN_S, Tools, produce

STABLE = ConsumerGroupState.STABLE


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    """The group protocol of `members`."""
    return str(request.param)


def member(broker: str, group: str, topic: str, protocol: str) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "me",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    return consumer


@contextmanager
def reading(tools: Tools, topic: str, protocol: str) -> Iterator[str]:
    """A group of one member on each broker, which has read and committed five of six records."""
    group = unique("group")
    with ExitStack() as stack:
        for broker in tools.brokers:
            produce(broker, topic, 5)
            consumer = member(broker, group, topic, protocol)
            stack.callback(consumer.close)
            assert len(consumer.consume(5, WITHIN_S)) == 5
            consumer.commit(asynchronous=False)
            produce(broker, topic, 1)
        yield group


@pytest.fixture
def members(tools: Tools, topic: str, protocol: str) -> Iterator[str]:
    with reading(tools, topic, protocol) as group:
        yield group


@pytest.fixture
def left(tools: Tools, topic: str, protocol: str) -> str:
    """The group of `members` after its member left."""
    with reading(tools, topic, protocol) as group:
        return group


@pytest.fixture
def upgraded(tools: Tools, topic: str) -> Iterator[str]:
    """A group on each broker of a classic member and one of the consumer protocol, each with a partition."""
    group = unique("group")
    with ExitStack() as stack:
        for broker in tools.brokers:
            consumers = []
            for protocol in ("classic", "consumer"):
                consumers.append(member(broker, group, topic, protocol))
                stack.callback(consumers[-1].close)
                await_settled(broker, group, consumers)
        yield group


def await_settled(broker: str, group: str, consumers: list[confluent_kafka.Consumer]) -> None:
    """Wait until a group's members share the topic's two partitions evenly, and the broker knows it."""
    admin, deadline = AdminClient({"bootstrap.servers": broker}), time.monotonic() + WITHIN_S
    while True:
        assert time.monotonic() < deadline, f"{group} did not settle"
        for consumer in consumers:
            told = consumer.poll(0.05)
            assert told is None, told.error() or told.value()
        is_even = [len(consumer.assignment()) for consumer in consumers] == [2 // len(consumers)] * len(consumers)
        if is_even and admin.describe_consumer_groups([group])[group].result(WITHIN_S).state == STABLE:
            return


def test_group_tools_print_groups_with_members_as_for_kafka(
    tools: Tools, topic: str, members: str, protocol: str
) -> None:
    one = ("--group", members)
    for more in ("--state", "--type"):
        assert members in tools.same(GROUPS, "--list", more, mine=members)
    for kind in ("classic", "consumer"):
        assert (members in tools.same(GROUPS, "--list", "--type", kind, mine=members)) == (kind == protocol)
    assert tools.same(GROUPS, "--list", mine=members) == f"{members}\n"
    name = "me-MEMBER" if protocol == "classic" else "MEMBER"
    assert f"{members} {topic} 0 5 6 1 {name} /127.0.0.1 me" in tools.same(GROUPS, "--describe", *one)
    for what in ("--members", "--state", "--offsets"):
        tools.same(GROUPS, "--describe", *one, what, "--verbose")
    tools.same(GROUPS, "--delete", *one)
    tools.same(GROUPS, "--reset-offsets", *one, "--topic", topic, "--to-earliest", "--execute")
    tools.same(GROUPS, "--delete-offsets", *one, "--topic", topic)
    tools.same(ANY_GROUPS, "--list", mine=members)
    assert members in tools.same(ANY_GROUPS, "--list", "--consumer", mine=members)
    assert members in tools.same(ANY_GROUPS, "--list", "--group-type", protocol, mine=members)
    assert members in tools.same(GROUPS, "--list", "--state", "stable,empty", mine=members)
    assert tools.same(GROUPS, "--list", "--state", "Empty", mine=members) == ""


def test_group_tools_print_groups_that_members_left_as_for_kafka(
    tools: Tools, topic: str, left: str, protocol: str
) -> None:
    one = ("--group", left)
    assert left in tools.same(GROUPS, "--list", "--state", "Empty", "--type", protocol, mine=left)
    for what in ("--members", "--state", "--offsets"):
        tools.same(GROUPS, "--describe", *one, what, "--verbose")
    for where in (("--to-earliest",), ("--to-current",), ("--to-offset", "99"), ("--by-duration", "PT1H")):
        tools.same(GROUPS, "--reset-offsets", *one, "--topic", topic, *where, "--dry-run")
    tools.same(GROUPS, "--reset-offsets", *one, "--topic", f"{topic}:0", "--to-offset", "2", "--execute")
    assert f"{left} {topic} 0 2 6 4 - - -" in tools.same(GROUPS, "--describe", *one)
    tools.same(GROUPS, "--delete-offsets", *one, "--topic", topic)
    tools.same(GROUPS, "--delete", *one)
    tools.same(GROUPS, "--describe", *one, "--state")


def test_group_tools_print_groups_of_both_protocols_as_for_kafka(tools: Tools, topic: str, upgraded: str) -> None:
    one = ("--group", upgraded)
    tools.same(ANY_GROUPS, "--list", mine=upgraded)
    assert f"{upgraded} HOST (1) uniform Stable 2 2 2" in tools.same(GROUPS, "--describe", *one, "--state", "--verbose")
    # Members are ordered by their ids, which each broker and each client chooses.
    kafka, korvet = (
        sorted(output.splitlines()) for _, output in tools.both(GROUPS, "--describe", *one, "--members", "--verbose")
    )
    assert korvet == kafka
    assert {line.split()[-1] for line in korvet if upgraded in line} == {"true", "false"}


def test_librdkafka_describes_groups_as_for_kafka(tools: Tools, members: str, protocol: str) -> None:
    told = []
    for broker in tools.brokers:
        admin = AdminClient({"bootstrap.servers": broker})
        group = admin.describe_consumer_groups([members])[members].result(WITHIN_S)
        partitions = [sorted((one.topic, one.partition) for one in member.assignment.topic_partitions)
                  for member in group.members]  # fmt: skip
        told.append((group.state, group.type, group.is_simple_consumer_group, group.partition_assignor, partitions))
    assert told[0] == told[1]
    assert told[1][1] == ConsumerGroupType[protocol.upper()]


def test_group_tools_print_groups_without_members_as_for_kafka(tools: Tools, topic: str) -> None:
    group = unique("group")
    one = ("--group", group)
    for broker in tools.brokers:
        produce(broker, topic, 6)
    tools.same(GROUPS, "--reset-offsets", *one, "--topic", topic, "--to-latest", "--execute")
    tools.same(GROUPS, "--reset-offsets", *one, "--all-topics", "--shift-by", "-2", "--execute")
    tools.same(GROUPS, "--reset-offsets", *one, "--topic", f"{topic}:0", "--to-earliest", "--dry-run")
    tools.same(GROUPS, "--reset-offsets", *one, "--topic", f"{topic}:0", "--to-datetime", "2023-11-14T22:13:20.003",
               "--export", "--dry-run")  # fmt: skip
    assert f"{group} {topic} 0 4 6 2 - - -" in tools.same(GROUPS, "--describe", *one)
    tools.same(GROUPS, "--delete-offsets", *one, "--topic", topic)
    tools.same(GROUPS, "--delete", *one)
    tools.same(GROUPS, "--delete", *one)
    tools.same(GROUPS, "--describe", *one)
