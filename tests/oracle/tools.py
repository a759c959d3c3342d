"""Kafka's own command line tools, from its jars, run on Apache Kafka and on korvet.

Each command runs on both brokers, with topics, groups and transactional ids of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

import confluent_kafka
from confluent_kafka.admin import AdminClient

from tests.kafka.process import Driver

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
WITHIN_S = 120.0
READING = {"--describe", "--list"}
"""The options of commands that only read."""
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
    # Kafka's broker lists a user's mechanisms in the order of a hash map, which changes from start to start.
    (re.compile(r"(SCRAM-SHA-512=\S+), (SCRAM-SHA-256=\S+)"), r"\2, \1"),
)
NEWER = (
    # What Kafka 4.4 prints, and 4.1 does not.
    (re.compile(r"(?m)^\s*(errors\.deadletterqueue|consumer\.assign(ment\.interval|or\.offload))\..*\n"), ""),
    (re.compile(r"(DYNAMIC_GROUP_CONFIG:[^,}]*), DEFAULT_CONFIG:[^}]*"), r"\1"),
)
# Columns that are compared only by presence.
NUMBERS = {
    "ProducerId", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "LastTimestamp", "CoordinatorId",
    "Coordinator", "CoordinatorEpoch",
}  # fmt: skip


class Tools:
    """Runs tools on both brokers.

    :param is_newest: the tools and Kafka are those of the newest version.
    """

    def __init__(self, driver: Driver, kafka: str, korvet: str, *, is_newest: bool = False) -> None:
        self.brokers = (kafka, korvet)
        self._driver = driver
        self._masked = MASKED if is_newest else MASKED + NEWER

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
            for pattern, instead in self._masked:
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
        assert korvet == kafka, f"Kafka: {kafka[0]}\n{kafka[1]}\nkorvet: {korvet[0]}\n{korvet[1]}"
        assert korvet[0] == code, korvet[1]
        return korvet[1]

    def same_table(self, *arguments: str, mine: str = "\t") -> list[Mapping[str, str]]:
        """The rows that TransactionsCommand prints, without numbers that belong to one broker."""
        tables = [table(self.run(broker, TRANSACTIONS, *arguments), mine) for broker in self.brokers]
        assert tables[0] == tables[1], f"Kafka: {tables[0]}\nkorvet: {tables[1]}"
        return tables[1]


def table(printed: tuple[int, str], mine: str) -> list[Mapping[str, str]]:
    """The rows that a tool printed and that hold ``mine``, without numbers that belong to one broker."""
    code, output = printed
    assert code == 0, output
    header, *lines = [[cell.strip() for cell in line.split("\t")[:-1]] for line in output.splitlines() if "\t" in line]
    rows = [dict(zip(header, line, strict=True)) for line in lines if mine in "\t".join(line) + "\t"]
    return [
        {name: "(some)" if name in NUMBERS and cell.isdigit() else cell for name, cell in row.items()} for row in rows
    ]


def await_topic(broker: str, topic: str) -> None:
    """Wait until a broker's metadata show a topic, which Apache Kafka may have answered before."""
    admin, deadline = AdminClient({"bootstrap.servers": broker}), time.monotonic() + WITHIN_S
    while topic not in admin.list_topics(timeout=WITHIN_S).topics:
        assert time.monotonic() < deadline, f"{broker} does not show {topic}"
        time.sleep(0.05)


def produce(bootstrap: str, topic: str, count: int) -> None:
    """Write records to partition 0, a millisecond apart from `BEGAN_MS` on."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"value %d" % number, b"key", 0, timestamp=BEGAN_MS + number)
    assert producer.flush(WITHIN_S) == 0
