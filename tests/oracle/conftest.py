"""The brokers of the oracle: Apache Kafka in two versions, and korvet or the broker that KORVET_TEST_BOOTSTRAP names.

KORVET_TEST_BOOTSTRAP is host:port of a running broker, or `kafka` for a second Kafka process. The latter proves that
the harness reports nothing between two brokers that are equal.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.api.raw import unique
from tests.kafka.builds import tools_command
from tests.kafka.process import Driver
from tests.oracle import secured
from tests.oracle.rights import CLIENTS
from tests.oracle.secured import Secured
from tests.oracle.tools import TOPICS, Tools, await_topic
from tests.support.broker import running_broker
from tests.support.issuer import Issuer
from tests.support.kafka import NEWEST, VERSION, KafkaUnavailable, running_kafka
from tests.support.tools import cannot_run

SETTINGS = {
    "group.min.session.timeout.ms": "500", "group.max.size": "3", "group.consumer.max.size": "3",
    "group.consumer.min.session.timeout.ms": "1000", "group.consumer.min.heartbeat.interval.ms": "500",
    "log.retention.check.interval.ms": "86400000",
}  # fmt: skip
"""The settings of both brokers, so that scripts see expired sessions and full groups, and keep records of 1970."""


@pytest.fixture(scope="package")
def kafka_address() -> Iterator[str]:
    """host:port of the Apache Kafka to compare with. Without Java or Maven, tests are skipped, or fail in CI."""
    yield from _kafka_address(VERSION)


@pytest.fixture(scope="package")
def newest_kafka_address() -> Iterator[str]:
    """As `kafka_address`, of the newest Kafka."""
    yield from _kafka_address(NEWEST)


def _kafka_address(version: str) -> Iterator[str]:
    with ExitStack() as stack:
        try:
            running = stack.enter_context(running_kafka(version=version, settings=SETTINGS))
        except KafkaUnavailable as error:
            cannot_run(str(error))
        yield running.bootstrap


@pytest.fixture(scope="package")
def korvet_address() -> Iterator[str]:
    """host:port of the broker under test."""
    given = os.environ.get("KORVET_TEST_BOOTSTRAP")
    with ExitStack() as stack:
        if given == "kafka":
            yield stack.enter_context(running_kafka(settings=SETTINGS)).bootstrap
        else:
            yield given or stack.enter_context(running_broker(broker=SETTINGS)).bootstrap


USERS = [client.user for client in CLIENTS]
"""The users of both brokers with access rules."""


@pytest.fixture(scope="package")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    """The issuer whose tokens both brokers with access rules take."""
    return Issuer(tmp_path_factory.mktemp("issuer") / "keys.json")


@pytest.fixture(scope="package")
def secured_kafka(issuer: Issuer) -> Iterator[Secured]:
    """An Apache Kafka with access rules, for as long as tests need it."""
    yield from _secured_kafka(issuer, VERSION)


@pytest.fixture(scope="package")
def newest_secured_kafka(issuer: Issuer) -> Iterator[Secured]:
    """As `secured_kafka`, of the newest version."""
    yield from _secured_kafka(issuer, NEWEST)


def _secured_kafka(issuer: Issuer, version: str) -> Iterator[Secured]:
    with ExitStack() as stack:
        try:
            running = stack.enter_context(secured.secured_kafka(USERS, issuer, version))
        except KafkaUnavailable as error:
            cannot_run(str(error))
        yield running


@pytest.fixture(scope="package")
def secured_korvet(issuer: Issuer) -> Iterator[Secured]:
    """A korvet with access rules."""
    with secured.secured_korvet(USERS, issuer) as running:
        yield running


@pytest.fixture(scope="package")
def korvet_as_newest(issuer: Issuer) -> Iterator[Secured]:
    """As `secured_korvet`, but with what requests to the newest Kafka leave, and none of those to the other one."""
    with secured.secured_korvet(USERS, issuer) as running:
        yield running


@pytest.fixture(scope="package")
def driver() -> Iterator[Driver]:
    """The one process that runs Kafka's tools."""
    yield from _driver(VERSION)


@pytest.fixture(scope="package")
def newest_driver() -> Iterator[Driver]:
    """As `driver`, of the newest tools."""
    yield from _driver(NEWEST)


def _driver(version: str) -> Iterator[Driver]:
    try:
        driver = Driver(tools_command(version))
    except KafkaUnavailable as error:
        cannot_run(str(error))
    with ExitStack() as stack:
        stack.callback(driver.stop)
        yield driver


@pytest.fixture(scope="package")
def tools(driver: Driver, kafka_address: str, korvet_address: str) -> Tools:
    """Kafka's tools at both brokers."""
    return Tools(driver, kafka_address, korvet_address)


@pytest.fixture(scope="package")
def newest_tools(newest_driver: Driver, newest_kafka_address: str, korvet_address: str) -> Tools:
    """The newest tools at both brokers."""
    return Tools(newest_driver, newest_kafka_address, korvet_address, is_newest=True)


@pytest.fixture
def topic(tools: Tools) -> str:
    """A topic of two partitions, and a retention of its own, on both brokers."""
    name = unique("tool")
    tools.same(TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=100000000")
    for broker in tools.brokers:
        await_topic(broker, name)
    return name
