"""Kafka Streams, unmodified, with processing.guarantee=exactly_once_v2: the word count of its tutorial."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.api.raw import ask
from tests.kafka.builds import java_command, tools_command
from tests.kafka.process import Driver
from tests.kafka.test_many_frontends import Fleet
from tests.kafka.waiting import TIMEOUT_S, poll_until
from tests.support.broker import KorvetServer
from tests.support.redis import Server

pytestmark = pytest.mark.all

LINES, COUNTS, PARTITIONS = "lines", "counts", 4
STORE = "KSTREAM-AGGREGATE-STATE-STORE-0000000003"
WORDS = [f"word{number}" for number in range(40)]
WITHIN_S = 240.0
# Without a cache the store sends on each count, with one the last count of a transaction.
EVERY_COUNT = {"statestore.cache.max.bytes": "0"}
# The traces of a dead instance end soon, and Streams purges the repartition topic during the test.
SHORT = {
    "session.timeout.ms": "15000",
    "heartbeat.interval.ms": "1000",
    "transaction.timeout.ms": "15000",
    "repartition.purge.interval.ms": "500",
    # Kafka's admin client waits this long for a node that died before a request to it.
    "admin.request.timeout.ms": "15000",
    "admin.default.api.timeout.ms": "15000",
}


class WordCount:
    """An application of its own: its topics and instances, the given words, and the counts."""

    def __init__(self, stack: ExitStack, bootstrap: str, directory: Path) -> None:
        self.name = f"words-{uuid.uuid4().hex[:12]}"
        self.given: Counter[str] = Counter()
        self.counted: defaultdict[str, list[int]] = defaultdict(list)
        self.troubles: list[str] = []
        self._stack, self._bootstrap, self._directory = stack, bootstrap, directory
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(self.topic(name), PARTITIONS, 1) for name in (LINES, COUNTS)]
        for made in self.admin.create_topics(topics).values():
            made.result(TIMEOUT_S)
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_committed"}
        )
        stack.callback(self._consumer.close)
        partitions = [confluent_kafka.TopicPartition(self.topic(COUNTS), index, 0) for index in range(PARTITIONS)]
        self._consumer.assign(partitions)

    def topic(self, name: str) -> str:
        return f"{self.name}-{name}"

    def start(self, instance: str, **settings: str) -> Driver:
        """Start an instance with a state directory of its name; it is ready when it would answer a command."""
        directory = self._directory / instance
        directory.mkdir()
        command = java_command("korvet.streams.WordCount", "streams")
        # RocksDB unpacks its library there, and an instance that is killed leaves it.
        command.insert(1, f"-Djava.io.tmpdir={directory}")
        topics = [self.topic(LINES), self.topic(COUNTS)]
        options = [f"{name}={value}" for name, value in settings.items()]
        driver = Driver([*command, self._bootstrap, self.name, str(directory / "state"), *topics, *options], self._note)
        self._stack.callback(driver.kill)
        return driver

    def _note(self, event: dict[str, Any]) -> None:
        if event["event"] == "trouble":
            self.troubles.append(event["message"])

    def kill(self, instance: str, driver: Driver) -> None:
        """Kill an instance with SIGKILL; its disk is lost."""
        driver.kill()
        shutil.rmtree(self._directory / instance)

    def give(self, lines: int) -> None:
        """Produce more lines, of eight words each."""
        for _ in range(lines):
            at = self.given.total() // 8
            words = [WORDS[(at * 7 + step * step) % len(WORDS)] for step in range(8)]
            self.given.update(words)
            self._producer.produce(self.topic(LINES), " ".join(words), partition=at % PARTITIONS)
            self._producer.poll(0)
        assert self._producer.flush(WITHIN_S) == 0

    def read_until(self, condition: Callable[[], bool], what: str) -> None:
        """Note committed counts, in the order of each partition, until a condition holds."""

        def holds() -> bool:
            for message in self._consumer.consume(500, 0.1):
                assert message.error() is None, message.error()
                self.counted[(message.key() or b"").decode()].append(int(message.value() or b""))
            assert self.troubles == []
            return condition()

        poll_until(holds, f"{what} of {self.given.total()}", WITHIN_S)

    def read_all(self) -> None:
        """Read until all given words are counted, and then assert that no more counts come."""
        self.read_until(lambda: self.latest() == self.given, "all words are counted")
        assert self._consumer.consume(1, 0.5) == []

    def latest(self) -> Counter[str]:
        return Counter({word: counts[-1] for word, counts in self.counted.items()})

    def total(self) -> int:
        return self.latest().total()

    def starts(self, topic: str) -> list[int]:
        """The offsets at which a topic's partitions begin."""
        partitions = [confluent_kafka.TopicPartition(topic, index) for index in range(PARTITIONS)]
        bounds = [self._consumer.get_watermark_offsets(partition, TIMEOUT_S) for partition in partitions]
        return [bound[0] for bound in bounds if bound is not None]

    def configs_of(self, topic: str) -> dict[str, str]:
        """The configs that are set for a topic."""
        (found,) = self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        set_here = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: one.value for name, one in found.result(TIMEOUT_S).items() if one.source == set_here}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def test_word_count_runs_with_its_defaults_and_again_after_a_reset(
    stack: ExitStack, bootstrap: str, tmp_path: Path
) -> None:
    application = WordCount(stack, bootstrap, tmp_path)
    application.give(300)
    instance = application.start("first")
    application.read_all()
    assert all(counts == sorted(set(counts)) for counts in application.counted.values())
    application.give(300)
    application.read_all()
    assert instance.stop() == 0
    # The topics that Streams created have the configs that it asked for.
    assert application.configs_of(f"{application.name}-{STORE}-changelog") == {
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
    }
    assert application.configs_of(f"{application.name}-{STORE}-repartition") == {
        "cleanup.policy": "delete",
        "message.timestamp.type": "CreateTime",
        "retention.ms": "-1",
        "segment.bytes": "52428800",
    }
    reset(stack, bootstrap, application)
    application.counted.clear()
    application.start("second")
    application.read_all()


def reset(stack: ExitStack, bootstrap: str, application: WordCount) -> None:
    """Reset an application with Kafka's tool, which also deletes the topics that the application created."""
    tools = Driver(tools_command())
    stack.callback(tools.stop)
    # The tool needs --force, because Streams does not leave its group when it ends.
    arguments = ["--bootstrap-server", bootstrap, "--application-id", application.name, "--force"]
    arguments += ["--input-topics", application.topic(LINES)]
    told = tools.call("run", tool="org.apache.kafka.tools.StreamsResetter", arguments=arguments)
    assert told["exit"] == 0, told["output"]
    topics = application.admin.list_topics(timeout=TIMEOUT_S).topics
    assert {name for name in topics if application.name in name} == {
        application.topic(name) for name in (LINES, COUNTS)
    }


def test_each_count_comes_once_though_an_instance_and_a_front_end_die(
    stack: ExitStack, valkey_server: Server, tmp_path: Path
) -> None:
    fleet = Fleet(stack, valkey_server.url, "streams", None)
    fleet.create_topic("agreed")
    poll_until(lambda: fleet.agree("agreed"), "all front-ends tell the same, and each leads something")
    application = WordCount(stack, ",".join(one.bootstrap for one in fleet.front_ends), tmp_path)
    settings = {**EVERY_COUNT, **SHORT}
    dying = application.start("dying", **settings)
    application.start("other", **settings)
    application.give(100)
    application.read_until(lambda: application.total() == application.given.total(), "both count")
    application.give(600)
    application.read_until(lambda: application.total() > application.given.total() * 0.3, "some counts")
    application.kill("dying", dying)
    application.start("again", **settings)
    application.read_until(lambda: application.total() > application.given.total() * 0.4, "some more counts")
    coordinator_of(fleet, application.name).kill()
    application.give(100)
    application.read_all()
    for word, counts in application.counted.items():
        assert counts == list(range(1, application.given[word] + 1)), word
    assert any(start > 0 for start in application.starts(f"{application.name}-{STORE}-repartition"))


def coordinator_of(fleet: Fleet, group: str) -> KorvetServer:
    (found,) = ask(fleet.port, "find_coordinator", 4, key_type=0, coordinator_keys=[group])["coordinators"]
    return next(one for one in fleet.front_ends if one.port == found["port"])
