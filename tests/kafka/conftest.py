"""Fixtures of the client scenarios.

The scenarios run against korvet (fixture `broker`). With KORVET_TEST_BOOTSTRAP=HOST:PORT they run against another
broker, for example Apache Kafka with group.initial.rebalance.delay.ms=0: what fails there is wrong in the suite.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.kafka.builds import driver_command
from tests.kafka.client import Client, Member
from tests.kafka.kcat import Kcat
from tests.kafka.options import MemberOptions
from tests.kafka.process import Administrator, ProcessClient
from tests.kafka.traits import NAMES
from tests.kafka.waiting import poll_until
from tests.support.tools import find_tool

JoinGroup = Callable[[Client, str, str, MemberOptions | None], Member]
NewTopic = Callable[..., str]


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """HOST:PORT of the broker under test."""
    elsewhere = os.environ.get("KORVET_TEST_BOOTSTRAP")
    return elsewhere if elsewhere else str(request.getfixturevalue("broker").bootstrap)


@pytest.fixture(scope="session")
def client_named(bootstrap: str) -> Iterator[Callable[[str], Client]]:
    """Gives each client by its name; a driver starts when it is first asked for and lives as long as the session."""
    running: dict[str, Client] = {}

    def named(name: str) -> Client:
        if name not in running:
            if name == "kcat":
                running[name] = Kcat(find_tool("kcat"), bootstrap)
            else:
                running[name] = ProcessClient(name, driver_command(name, bootstrap))
        return running[name]

    with ExitStack() as stack:
        stack.callback(lambda: [client.stop() for client in running.values()])
        yield named


@pytest.fixture(params=NAMES)
def client(request: pytest.FixtureRequest, client_named: Callable[[str], Client]) -> Client:
    """Each client in turn; a test that is for some of them only parametrises this fixture indirectly."""
    return client_named(request.param)


@pytest.fixture(scope="session")
def administrator(bootstrap: str) -> Iterator[Administrator]:
    """Creates topics for the scenarios that are not about creating topics."""
    running = Administrator("confluent-kafka", driver_command("confluent-kafka", bootstrap))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def new_topic(administrator: Administrator) -> NewTopic:
    """Creates a topic of its own name and gives the name once it can be used: new_topic(partitions=1, **configs)."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"scenario-{uuid.uuid4().hex[:12]}"
        administrator.create_topic(name, partitions, {key.replace("_", "."): value for key, value in configs.items()})
        # kafkajs sends a whole request again when one of its partitions is not there yet, so some records come twice.
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
    """Starts group members; at the end of the test those that still run are killed."""
    members: list[Member] = []

    def start(client: Client, group: str, topic: str, options: MemberOptions | None = None) -> Member:
        member = client.join(group, topic, options)
        members.append(member)
        return member

    yield start
    for member in members:
        member.kill()
