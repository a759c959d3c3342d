"""The newest Kafka's tools for share groups print the same about korvet as about Kafka, and consume the same."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import confluent_kafka
import pytest

from tests.api.raw import unique
from tests.oracle.tools import ANY_GROUPS, FEATURES, TOPICS, WITHIN_S, Tools, await_topic, produce

SHARES = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
VERIFIABLE = "org.apache.kafka.tools.VerifiableShareConsumer"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"


@pytest.fixture
def tools(newest_tools: Tools) -> Tools:
    return newest_tools


@pytest.fixture
def topic(tools: Tools) -> str:
    """A topic on each broker, with five records in the first of two partitions."""
    name = unique("share-tool")
    tools.same(TOPICS, "--create", "--topic", name, "--partitions", "2")
    for broker in tools.brokers:
        await_topic(broker, name)
        produce(broker, name, 5)
    return name


@pytest.fixture
def group(tools: Tools) -> str:
    """A group that will begin at the first record."""
    name = unique("sharers")
    entity = ("--entity-type", "groups", "--entity-name", name)
    tools.same(CONFIGS, "--alter", *entity, "--add-config", "share.auto.offset.reset=earliest")
    assert "share.auto.offset.reset=earliest" in tools.same(CONFIGS, "--describe", *entity)
    return name


@contextmanager
def members(tools: Tools, topic: str, group: str) -> Iterator[None]:
    """A member on each broker, which has acknowledged all records."""
    with ExitStack() as stack:
        for broker in tools.brokers:
            own = confluent_kafka.ShareConsumer({"bootstrap.servers": broker, "group.id": group, "client.id": "me"})
            stack.callback(own.close)
            own.subscribe([topic])
            count, deadline = 0, time.monotonic() + WITHIN_S
            while count < 5:
                assert time.monotonic() < deadline, broker
                count += len(own.poll(1.0))
            own.commit_sync()
        yield


def test_tools_print_the_version_of_share_groups_and_settings_of_dead_letters_as_for_kafka(tools: Tools) -> None:
    for _, shown in tools.both(FEATURES, "describe", mine="share.version"):
        assert "SupportedMinVersion: 0 SupportedMaxVersion: 2 FinalizedVersionLevel: 2" in shown
    broker = ("--entity-type", "brokers", "--entity-name", "1", "--all")
    shown = tools.same(CONFIGS, "--describe", *broker, mine="errors.deadletterqueue")
    assert "errors.deadletterqueue.topic.name.prefix=dlq. sensitive=false" in shown


def test_share_group_tools_print_groups_with_members_as_for_kafka(tools: Tools, topic: str, group: str) -> None:
    one = ("--group", group)
    with members(tools, topic, group):
        assert tools.same(SHARES, "--list", "--state", mine=group) == f"{group} Stable\n"
        assert f"{group} MEMBER /127.0.0.1 me 2 {topic}:0,1" in tools.same(SHARES, "--describe", *one, "--members")
        assert f"{group} HOST (1) Stable 1" in tools.same(SHARES, "--describe", *one, "--state")
        tools.same(SHARES, "--reset-offsets", *one, "--topic", topic, "--to-earliest", "--execute", code=1)
        tools.same(SHARES, "--delete-offsets", *one, "--topic", topic)
        tools.same(SHARES, "--delete", *one)
        for kind in ((), ("--share",), ("--group-type", "share")):
            assert tools.same(ANY_GROUPS, "--list", *kind, mine=group).split() == [group, "Share", "share"]


def test_share_group_tools_print_groups_that_members_left_as_for_kafka(tools: Tools, topic: str, group: str) -> None:
    one = ("--group", group)
    limits = ("--max-messages", "5", "--timeout-ms", "60000")
    read = tools.same(CONSOLE, "--topic", topic, *one, *limits, "--formatter-property", "print.delivery=true")
    assert read.count("Delivery:1") == 5
    for state, shown in (("Empty", f"{group} Empty\n"), ("Stable,Dead", "")):
        assert tools.same(SHARES, "--list", "--state", state, mine=group) == shown
    for what in ("--members", "--state"):
        tools.same(SHARES, "--describe", *one, what)
    for where in (("--to-latest",), ("--to-datetime", "2023-11-14T22:13:20.003"), ("--to-earliest",)):
        tools.same(SHARES, "--reset-offsets", *one, "--topic", topic, *where, "--dry-run")
        tools.same(SHARES, "--reset-offsets", *one, "--all-topics", *where, "--execute")
    assert f"{group} {topic} 0 0 5" in tools.same(SHARES, "--describe", *one)
    tools.same(SHARES, "--describe", *one, "--offsets", "--verbose")
    for _ in range(2):
        tools.same(SHARES, "--delete-offsets", *one, "--topic", topic)
    tools.same(SHARES, "--describe", *one)
    for _ in range(2):
        tools.same(SHARES, "--delete", *one)
    tools.same(SHARES, "--describe", *one)
    tools.same(SHARES, "--reset-offsets", "--group", unique("none"), "--topic", topic, "--to-earliest", "--dry-run")


@pytest.mark.parametrize("mode", ["auto", "sync", "async"])
def test_verifiable_share_consumer_reports_the_same_as_for_kafka(tools: Tools, topic: str, mode: str) -> None:
    arguments = ("--topic", topic, "--group-id", unique("sharers"), "--max-messages", "5")
    modes = ("--offset-reset-strategy", "earliest", "--acknowledgement-mode", mode)
    kafka, korvet = (re.sub(r'"timestamp":\d+', "", output) for _, output in tools.both(VERIFIABLE, *arguments, *modes))
    assert korvet == kafka
    assert '"offsets_acknowledged","count":5' in korvet
