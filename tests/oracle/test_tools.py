"""Kafka's own command line tools, from its jars, print the same about korvet as about Kafka.

Each command runs on both brokers, with topics, groups and transactional ids of its own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient

from tests.api.raw import ask, created, unique
from tests.kafka.builds import tools_command
from tests.kafka.process import Driver
from tests.support.broker import running_broker
from tests.support.kafka import KafkaUnavailable
from tests.support.scraping import scrape_until, total
from tests.support.tools import cannot_run

TOPICS, OFFSETS = "org.apache.kafka.tools.TopicCommand", "org.apache.kafka.tools.GetOffsetShell"
CONFIGS, LOG_DIRS = "kafka.admin.ConfigCommand", "org.apache.kafka.tools.LogDirsCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
ANY_GROUPS = "org.apache.kafka.tools.GroupsCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
WITHIN_S = 30.0
READING = {"--describe", "--list"}
"""The options of commands that only read."""
STABLE = ConsumerGroupState.STABLE
BEGAN_MS = int(time.time() * 1000)

# Values that belong to one broker, or to the clock.
MASKED = (
    (re.compile(r"127\.0\.0\.1:\d+"), "HOST"),
    (re.compile(r"(?<=TopicId: )[\w-]{22}"), "ID"),
    (re.compile(r"(?<=-)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "MEMBER"),
    # In the consumer protocol the client makes the member id.
    (re.compile(r"(?<= )[\w+/-]{22}(?= )"), "MEMBER"),
    (re.compile(r"(?<=\"logDir\":)\"[^\"]*\""), "DIRECTORY"),
    (re.compile(r"(?m)^\s+at .*\n"), ""),
    (re.compile(r"(?m)^.*\bkorvet\..*\n"), ""),
    (re.compile(r"[ \t]+"), " "),
)
# Columns that are compared only by presence.
NUMBERS = {
    "ProducerId", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "LastTimestamp", "CoordinatorId",
    "Coordinator", "CoordinatorEpoch",
}  # fmt: skip


class Tools:
    """Runs tools on both brokers."""

    def __init__(self, driver: Driver, kafka: str, korvet: str) -> None:
        self.brokers = (kafka, korvet)
        self._driver = driver

    def run(self, broker: str, tool: str, *arguments: str) -> tuple[int, str]:
        """The exit code and the printed text."""
        return self.run_as_it_is(tool, "--bootstrap-server", broker, *arguments)

    def run_as_it_is(self, tool: str, *arguments: str) -> tuple[int, str]:
        """As `run`, for a tool that is told the broker in another way."""
        told = self._driver.call("run", tool=tool, arguments=list(arguments))
        return told["exit"], told["output"]

    def both(self, tool: str, *arguments: str, mine: str = "") -> list[tuple[int, str]]:
        """Exit code and masked output of Kafka and korvet; with ``mine`` only the lines that hold it."""
        found = []
        for broker in self.brokers:
            code, output = self.run(broker, tool, *arguments)
            for pattern, instead in MASKED:
                output = pattern.sub(instead, output)
            found.append((code, "".join(line for line in output.splitlines(keepends=True) if mine in line)))
        return found

    def same(self, tool: str, *arguments: str, mine: str = "", code: int = 0) -> str:
        """Assert that a command ends alike on both brokers, with this code; returns the printed text, masked.

        A command that only reads is repeated until both agree: Apache Kafka answers a change before it shows it.
        """
        deadline = time.monotonic() + WITHIN_S
        kafka, korvet = self.both(tool, *arguments, mine=mine)
        while korvet != kafka and READING & set(arguments) and time.monotonic() < deadline:
            time.sleep(0.2)
            kafka, korvet = self.both(tool, *arguments, mine=mine)
        assert korvet == kafka
        assert korvet[0] == code, korvet[1]
        return korvet[1]

    def same_table(self, *arguments: str, mine: str = "\t") -> list[Mapping[str, str]]:
        """The rows that TransactionsCommand prints, without numbers that belong to one broker."""
        tables = [_table(self.run(broker, TRANSACTIONS, *arguments), mine) for broker in self.brokers]
        assert tables[0] == tables[1]
        return tables[1]


def _table(printed: tuple[int, str], mine: str) -> list[Mapping[str, str]]:
    code, output = printed
    assert code == 0, output
    header, *lines = [[cell.strip() for cell in line.split("\t")[:-1]] for line in output.splitlines() if "\t" in line]
    rows = [dict(zip(header, line, strict=True)) for line in lines if mine in "\t".join(line) + "\t"]
    return [
        {name: "(some)" if name in NUMBERS and cell.isdigit() else cell for name, cell in row.items()} for row in rows
    ]


@pytest.fixture(scope="module")
def tools(kafka_address: str, korvet_address: str) -> Iterator[Tools]:
    try:
        driver = Driver(tools_command())
    except KafkaUnavailable as error:
        cannot_run(str(error))
    with ExitStack() as stack:
        stack.callback(driver.stop)
        yield Tools(driver, kafka_address, korvet_address)


@pytest.fixture
def topic(tools: Tools) -> str:
    name = unique("tool")
    tools.same(TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=100000000")
    for broker in tools.brokers:
        await_topic(broker, name)
    return name


def await_topic(broker: str, topic: str) -> None:
    """Wait until a broker's metadata show a topic, which Apache Kafka may have answered before."""
    admin, deadline = AdminClient({"bootstrap.servers": broker}), time.monotonic() + WITHIN_S
    while topic not in admin.list_topics(timeout=WITHIN_S).topics:
        assert time.monotonic() < deadline, f"{broker} does not show {topic}"
        time.sleep(0.05)


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"value %d" % number, b"key", 0, timestamp=BEGAN_MS + number)
    assert producer.flush(WITHIN_S) == 0


def test_topic_tool_prints_as_for_kafka(tools: Tools, topic: str) -> None:
    one = ("--topic", topic)
    tools.same(TOPICS, "--create", *one, "--partitions", "1", code=1)
    tools.same(TOPICS, "--create", "--topic", f"{topic}-2", "--config", "retention.ms=long", code=1)
    assert tools.same(TOPICS, "--list", mine=topic) == f"{topic}\n"
    tools.same(TOPICS, "--describe", *one)
    tools.same(TOPICS, "--alter", *one, "--partitions", "3")
    tools.same(TOPICS, "--alter", *one, "--partitions", "2", code=1)
    assert "PartitionCount: 3 ReplicationFactor: 1 Configs: retention.ms=100000000" in tools.same(
        TOPICS, "--describe", *one
    )
    tools.same(TOPICS, "--describe", "--topics-with-overrides", mine=topic)
    tools.same(TOPICS, "--describe", "--under-replicated-partitions", mine=topic)
    tools.same(TOPICS, "--describe", "--unavailable-partitions", mine=topic)
    tools.same(TOPICS, "--describe", "--at-min-isr-partitions", mine=topic)
    tools.same(TOPICS, "--describe", "--topic", f"{topic}-2", code=1)
    tools.same(TOPICS, "--delete", *one)
    tools.same(TOPICS, "--delete", *one, "--if-exists")


def test_record_and_offset_tools_print_as_for_kafka(tools: Tools, topic: str, tmp_path: Path) -> None:
    for broker in tools.brokers:
        produce(broker, topic, 10)
    shown = ("print.key=true", "print.timestamp=true", "print.partition=true", "print.offset=true")
    options = [part for one in shown for part in ("--property", one)]
    read = tools.same(CONSOLE, "--topic", topic, "--from-beginning", "--max-messages", "10", *options)
    assert f"CreateTime:{BEGAN_MS + 9} Partition:0 Offset:9 key value 9\nProcessed a total of 10 messages\n" in read
    for when in ("latest", "earliest", "max-timestamp", str(BEGAN_MS + 4)):
        tools.same(OFFSETS, "--topic-partitions", f"{topic}:0-2", "--time", when)
    tools.same(OFFSETS, "--topic", f"{topic}-2", code=1)
    plan = tmp_path / "offsets.json"
    for offset in (4, 400):
        parts = [{"topic": topic, "partition": 0, "offset": offset}]
        plan.write_text(json.dumps({"version": 1, "partitions": parts}))
        tools.same(DELETE_RECORDS, "--offset-json-file", str(plan))
    assert tools.same(OFFSETS, "--topic", topic, "--time", "-2") == f"{topic}:0:4\n{topic}:1:0\n"


def test_log_directory_tool_prints_as_for_kafka(tools: Tools, topic: str) -> None:
    for broker in tools.brokers:
        # The test sends one record, because the client's timing decides how many records share a batch.
        produce(broker, topic, 1)
    told = json.loads(tools.same(LOG_DIRS, "--describe", "--topic-list", topic, mine="{").replace("DIRECTORY", '""'))
    sizes = {one["partition"]: one["size"] for one in told["brokers"][0]["logDirs"][0]["partitions"]}
    assert sizes[f"{topic}-0"] > 61
    assert sizes[f"{topic}-1"] == 0
    tools.same(LOG_DIRS, "--describe", "--broker-list", "1234567", code=1)


def test_config_tool_prints_topics_as_for_kafka(tools: Tools, topic: str) -> None:
    one = ("--entity-type", "topics", "--entity-name", topic)
    assert tools.same(CONFIGS, "--describe", *one, "--all").count("synonyms={") > 25
    tools.same(CONFIGS, "--alter", *one, "--add-config", "cleanup.policy=[compact,delete],segment.ms=600000")
    tools.same(CONFIGS, "--describe", *one)
    tools.same(CONFIGS, "--describe", "--entity-type", "topics", mine="Dynamic configs for topic " + topic)
    tools.same(CONFIGS, "--alter", *one, "--delete-config", "segment.ms")
    tools.same(CONFIGS, "--alter", *one, "--delete-config", "segment.ms", code=1)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "no.such=1", code=1)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "retention.ms=long", code=1)
    tools.same(CONFIGS, "--describe", *one)


def test_config_tool_prints_brokers_as_for_kafka(tools: Tools, topic: str) -> None:
    everywhere = ("--entity-type", "brokers", "--entity-default")
    tools.same(CONFIGS, "--alter", *everywhere, "--add-config", "log.retention.ms=200000000,message.max.bytes=2000000")
    try:
        tools.same(CONFIGS, "--describe", *everywhere)
        # A topic shows its own value and the broker's values behind it.
        shown = tools.same(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic, "--all")
        assert (
            "retention.ms=100000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=100000000, "
            "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=200000000, "
        ) in shown
        kafka, korvet = tools.both(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
    finally:
        tools.same(CONFIGS, "--alter", *everywhere, "--delete-config", "log.retention.ms,message.max.bytes")
    # Kafka's brokers have more configs: files, threads, controllers, security. korvet's are as Kafka's, except these.
    assert {line.split("=")[0].strip() for line in set(korvet[1].splitlines()) - set(kafka[1].splitlines())} == {
        "advertised.listeners",
        "allow.everyone.if.no.acl.found",
        "group.consumer.max.size",
        "group.max.size",
        "max.incremental.fetch.session.cache.slots",
        "offsets.topic.replication.factor",
        "sasl.oauthbearer.allow.unverified.audience",
        "sasl.oauthbearer.allow.unverified.issuer",
        "super.users",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
    }


def test_config_tool_prints_quotas_as_for_kafka(tools: Tools) -> None:
    user, client = (("--entity-type", kind, "--entity-name", unique("quota")) for kind in ("users", "clients"))
    for one in (user, client, (*user, *client), (*user, "--entity-type", "clients", "--entity-default")):
        tools.same(CONFIGS, "--describe", *one)
        tools.same(CONFIGS, "--alter", *one, "--add-config", "producer_byte_rate=1024,controller_mutation_rate=2.5")
        assert "producer_byte_rate=1024.0" in tools.same(CONFIGS, "--describe", *one)
        tools.same(CONFIGS, "--alter", *one, "--delete-config", "controller_mutation_rate")
        tools.same(CONFIGS, "--describe", *one)
        tools.same(CONFIGS, "--alter", *one, "--add-config", "consumer_byte_rate=1.5", code=1)
        tools.same(CONFIGS, "--alter", *one, "--add-config", "request_percentage=0", code=1)
        tools.same(CONFIGS, "--alter", *one, "--delete-config", "producer_byte_rate")
    tools.same(CONFIGS, "--describe", *user)


def test_config_tool_prints_quotas_of_addresses_as_for_kafka(tools: Tools) -> None:
    address = ("--entity-type", "ips", "--entity-name", "203.0.113.78")
    tools.same(CONFIGS, "--alter", *address, "--add-config", "connection_creation_rate=100")
    tools.same(CONFIGS, "--describe", *address)
    tools.same(CONFIGS, "--describe", "--entity-type", "ips")
    tools.same(CONFIGS, "--alter", *address, "--add-config", "producer_byte_rate=100", code=1)
    tools.same(CONFIGS, "--alter", *address, "--delete-config", "connection_creation_rate")
    tools.same(CONFIGS, "--describe", *address)


def test_client_metrics_tools_print_as_for_kafka(tools: Tools) -> None:
    name, prefix = unique("subscription"), "org.apache.kafka.producer."
    one = ("--entity-type", "client-metrics", "--entity-name", name)
    tools.same(CLIENT_METRICS, "--describe", "--name", name)
    tools.same(CLIENT_METRICS, "--alter", "--name", name, "--metrics", prefix, "--interval", "60000")
    tools.same(CLIENT_METRICS, "--alter", "--name", name, "--match", "client_id=no-such.*,client_software_name=none")
    assert prefix in tools.same(CLIENT_METRICS, "--describe", "--name", name)
    assert name in tools.same(CLIENT_METRICS, "--list", mine=name)
    tools.same(CLIENT_METRICS, "--describe", mine=name)
    tools.same(CONFIGS, "--describe", *one)
    tools.same(CONFIGS, "--describe", "--entity-type", "client-metrics", mine=name)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "interval.ms=99", code=1)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "match=[client_id=(]", code=1)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "no.such=1", code=1)
    tools.same(CONFIGS, "--alter", *one, "--delete-config", "match")
    tools.same(CLIENT_METRICS, "--delete", "--name", name)
    tools.same(CLIENT_METRICS, "--list", mine=name)


def test_java_producer_pushes_its_metrics(tools: Tools) -> None:
    """With its own settings: it pushes whatever it is asked for."""
    client, topic = unique("java"), unique("topic")
    subscription = ("--name", unique("all"), "--metrics", "*", "--interval", "100", "--match", f"client_id={client}")
    with running_broker(has_metrics=True) as korvet, ThreadPoolExecutor(1) as threads:
        # Too few replicas hold the producer's records up, and it waits for them before it prints its metrics. So it is
        # not closed, and pushes, until its figures were seen.
        created(korvet.port, topic, min_insync_replicas="2")
        assert tools.run(korvet.bootstrap, CLIENT_METRICS, "--alter", *subscription)[0] == 0
        sent = ("--topic", topic, "--num-records", "100", "--record-size", "100", "--throughput", "-1")
        options = (
            "--print-metrics",
            "--producer-props",
            f"bootstrap.servers={korvet.bootstrap}",
            f"client.id={client}",
        )
        producing = threads.submit(tools.run_as_it_is, PERFORMANCE, *sent, *options)
        figures = scrape_until(
            korvet.metrics_port,
            lambda found: (
                total(found, "kafka_client_producer_record_send_total", client_id=client) >= 100
                and total(found, "kafka_client_producer_record_retry_total", client_id=client) > 0
            ),
            "all records and their retries are told",
        )
        assert total(figures, "kafka_client_producer_record_error_total", client_id=client) == 0
        accept(korvet.port, topic)
        code, output = producing.result()
        assert code == 0, output
        assert "100 records sent" in output
    (info,) = [dict(labels) for name, labels in figures if name == "korvet_client_info"]
    assert (info["client_software_name"], info["client_software_version"]) == ("apache-kafka-java", "4.1.2")


def accept(port: int, topic: str) -> None:
    """Let a topic's records be stored without replicas."""
    one = {"name": "min.insync.replicas", "config_operation": 0, "value": "1"}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [one]}
    (answer,) = ask(port, "incremental_alter_configs", 1, resources=[resource])["responses"]
    assert answer["error_code"] == "NONE", answer


def test_java_producer_reports_its_throttle_time(tools: Tools, topic: str) -> None:
    korvet, client = tools.brokers[1], unique("quota")
    one = ("--entity-type", "clients", "--entity-name", client)
    assert tools.run(korvet, CONFIGS, "--alter", *one, "--add-config", "producer_byte_rate=20000")[0] == 0
    sent = ("--topic", topic, "--num-records", "25", "--record-size", "10000", "--throughput", "-1", "--print-metrics")
    code, output = tools.run_as_it_is(
        PERFORMANCE, *sent, "--producer-props", f"bootstrap.servers={korvet}", f"client.id={client}"
    )
    assert code == 0, output
    (longest,) = re.findall(r"^producer-metrics:produce-throttle-time-max:\S+\s*: ([\d.]+)", output, re.MULTILINE)
    assert float(longest) > 0
    assert tools.run(korvet, CONFIGS, "--alter", *one, "--delete-config", "producer_byte_rate")[0] == 0


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


def test_config_tool_prints_groups_as_for_kafka(tools: Tools) -> None:
    one = ("--entity-type", "groups", "--entity-name", unique("group"))
    tools.same(CONFIGS, "--describe", *one)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "consumer.session.timeout.ms=50000")
    tools.same(CONFIGS, "--alter", *one, "--add-config", "consumer.heartbeat.interval.ms=6000")
    assert "consumer.session.timeout.ms=50000" in tools.same(CONFIGS, "--describe", *one)
    tools.same(CONFIGS, "--describe", *one, "--all", mine=" consumer.")
    tools.same(CONFIGS, "--describe", "--entity-type", "groups", mine=one[-1])
    tools.same(CONFIGS, "--alter", *one, "--add-config", "consumer.session.timeout.ms=70000", code=1)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "no.such.config=1", code=1)
    tools.same(CONFIGS, "--alter", *one, "--delete-config", "consumer.session.timeout.ms")
    tools.same(CONFIGS, "--alter", *one, "--delete-config", "consumer.session.timeout.ms", code=1)
    tools.same(CONFIGS, "--describe", *one)


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


def test_transaction_tool_prints_as_for_kafka(tools: Tools, topic: str) -> None:
    mine = unique("txn")
    producers: list[Any] = []
    for broker in tools.brokers:
        # The tools take their time, and the transaction has to outlast them.
        settings = {"transactional.id": mine, "transaction.timeout.ms": 600_000}
        producers.append(confluent_kafka.Producer({"bootstrap.servers": broker, **settings}))
        producers[-1].init_transactions(WITHIN_S)
        producers[-1].begin_transaction()
        producers[-1].produce(topic, b"value", partition=0)
        assert producers[-1].flush(WITHIN_S) == 0
    assert [row["TransactionState"] for row in tools.same_table("list", mine=mine)] == ["Ongoing"]
    tools.same_table("list", "--transactional-id-pattern", f"{mine}.*")
    (described,) = tools.same_table("describe", "--transactional-id", mine)
    assert described["TopicPartitions"] == f"{topic}-0"
    tools.same(TRANSACTIONS, "describe", "--transactional-id", f"{mine}-2", code=1)
    partition = ("--topic", topic, "--partition", "0")
    kafka, korvet = (open_since(tools, broker, partition) for broker in tools.brokers)
    assert korvet == kafka == "0"
    tools.same_table("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    tools.same(TRANSACTIONS, "abort", *partition, "--start-offset", "7", code=1)
    tools.same(TRANSACTIONS, "abort", *partition, "--start-offset", "0")
    assert [open_since(tools, broker, partition) for broker in tools.brokers] == ["None", "None"]
    assert tools.same(OFFSETS, "--topic", topic) == f"{topic}:0:2\n{topic}:1:0\n"
    tools.same(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", mine)
    tools.same(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", f"{mine}-2")
    for producer in producers:
        with pytest.raises(confluent_kafka.KafkaException):
            producer.commit_transaction(WITHIN_S)


def open_since(tools: Tools, broker: str, partition: tuple[str, ...]) -> str:
    """The start of the one producer's transaction, as describe-producers prints it."""
    (row,) = _table(tools.run(broker, TRANSACTIONS, "describe-producers", *partition), "")
    return row["CurrentTransactionStartOffset"]


def test_topic_tool_adds_partitions_at_the_nodes_of_metadata(tools: Tools) -> None:
    one = ("--topic", unique("tool"))
    tools.same(TOPICS, "--create", *one, "--replica-assignment", "1,1")
    tools.same(TOPICS, "--alter", *one, "--partitions", "4", "--replica-assignment", "1,1,1,1")
    assert "PartitionCount: 4" in tools.same(TOPICS, "--describe", *one)


def test_election_tool_prints_as_for_kafka(tools: Tools, topic: str) -> None:
    kind = ("--election-type", "preferred")
    tools.same(ELECTION, *kind, "--all-topic-partitions")
    assert tools.same(ELECTION, *kind, "--topic", topic, "--partition", "0") == (
        f"Valid replica already elected for partitions {topic}-0\n"
    )
    tools.same(ELECTION, "--election-type", "unclean", "--topic", topic, "--partition", "99", code=1)


def test_reassignment_tool_prints_as_for_kafka(tools: Tools, topic: str, tmp_path: Path) -> None:
    assert tools.same(REASSIGN, "--list") == "No partition reassignments found.\n"
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    tools.same(REASSIGN, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1")
    for node_id, code in ((1, 0), (2, 1)):
        parts = [{"topic": topic, "partition": 0, "replicas": [node_id], "log_dirs": ["any"]}]
        plan.write_text(json.dumps({"version": 1, "partitions": parts}))
        tools.same(REASSIGN, "--execute", "--reassignment-json-file", str(plan), code=code)
        if code == 0:
            tools.same(REASSIGN, "--verify", "--reassignment-json-file", str(plan))
            tools.same(REASSIGN, "--cancel", "--reassignment-json-file", str(plan))


def test_quorum_tool_prints_as_for_kafka(tools: Tools) -> None:
    for how in ("--status", "--replication"):
        kafka, korvet = ([_words(line) for line in output.splitlines()] for _, output in tools.both(
            QUORUM, "describe", how))  # fmt: skip
        assert korvet == kafka
    assert [code for code, _ in tools.both(QUORUM, "describe", "--status")] == [0, 0]


def _words(line: str) -> list[str]:
    """The words of a line, with `#` for ids, numbers above 0, and names of listeners."""
    return [re.sub(r"[\w-]{22}|[1-9]\d*|\w+(?=://)", "#", word) for word in line.split()]


def test_config_tool_prints_quotas_and_users_as_for_kafka(tools: Tools) -> None:
    for kind in ("users", "clients", "ips"):
        assert tools.same(CONFIGS, "--describe", "--entity-type", kind) == ""


def test_feature_tool_prints_as_for_kafka(tools: Tools) -> None:
    kafkas = ("metadata.version", "3.3-IV3", "4.1-IV1")
    for name, least, top in (kafkas, ("transaction.version", 0, 2), ("group.version", 0, 1)):
        shown = f"Feature: {name} SupportedMinVersion: {least} SupportedMaxVersion: {top} FinalizedVersionLevel: {top}"
        for code, output in tools.both(FEATURES, "describe", mine=name):
            assert code == 0
            assert output.startswith(shown)
