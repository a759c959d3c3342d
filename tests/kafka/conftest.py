"""Fixtures of the client scenarios.

The scenarios run against korvet (fixture `broker`). With KORVET_TEST_BOOTSTRAP=HOST:PORT they run against another
broker, for example Apache Kafka with SETTINGS and group.initial.rebalance.delay.ms=0. A scenario that fails there has
a mistake.
"""

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.kafka.builds import driver_command
from tests.kafka.client import Client, Member
from tests.kafka.options import MemberOptions
from tests.kafka.process import Administrator
from tests.kafka.starting import running_clients
from tests.kafka.traits import NAMES
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer, running_broker

JoinGroup = Callable[[Client, str, str, MemberOptions | None], Member]
NewTopic = Callable[..., str]
ClientNamed = Callable[[str], Client]


# Members of the consumer protocol learn of changes at their next heartbeat, by default every five seconds.
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.max.session.timeout.ms": "120000",
}


@pytest.fixture(scope="session")
def broker() -> Iterator[KorvetServer]:
    """One broker with the embedded server for the scenarios."""
    with running_broker(broker=SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """HOST:PORT of the broker under test."""
    elsewhere = os.environ.get("KORVET_TEST_BOOTSTRAP")
    return elsewhere if elsewhere else str(request.getfixturevalue("broker").bootstrap)


@pytest.fixture(scope="session")
def client_named(bootstrap: str) -> Iterator[ClientNamed]:
    """Gives each client by name; a driver starts when a test first asks for it, and lives as long as the session."""
    with running_clients(bootstrap) as clients:
        yield clients.named


@pytest.fixture(params=NAMES)
def client(request: pytest.FixtureRequest, client_named: ClientNamed) -> Client:
    """Each client in turn; a test for some clients only parametrises this fixture indirectly."""
    return client_named(request.param)


@pytest.fixture(scope="session")
def administrator(bootstrap: str) -> Iterator[Administrator]:
    """Creates topics for scenarios on other subjects."""
    running = Administrator("confluent-kafka", driver_command("confluent-kafka", bootstrap))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def new_topic(administrator: Administrator) -> NewTopic:
    """Creates a topic with a new name, and returns the name when it can be used: new_topic(partitions=1, **configs)."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"scenario-{uuid.uuid4().hex[:12]}"
        administrator.create_topic(name, partitions, {key.replace("_", "."): value for key, value in configs.items()})
        # kafkajs sends a whole request again if one of its partitions is missing, so some records would come twice.
        poll_until(lambda: administrator.serves(name, partitions), f"the topic {name}")
        return name

    return create


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    """A new topic with one partition."""
    return new_topic()


@pytest.fixture
def group() -> str:
    """The name of a new group."""
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def join() -> Iterator[JoinGroup]:
    """Starts group members; at the end of the test it kills those that still run."""
    members: list[Member] = []

    def start(client: Client, group: str, topic: str, options: MemberOptions | None = None) -> Member:
        member = client.join(group, topic, options)
        members.append(member)
        return member

    yield start
    for member in members:
        member.kill()
