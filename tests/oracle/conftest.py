"""The two brokers of the oracle: Apache Kafka, and korvet or what KORVET_TEST_BOOTSTRAP names instead of it.

KORVET_TEST_BOOTSTRAP is host:port of a running broker, or `kafka` for a second Kafka process, which proves that the
harness reports nothing between two brokers that are equal.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.kafka import Kafka, running_kafka


@pytest.fixture(scope="session")
def kafka_address(kafka: Kafka) -> str:
    """host:port of the Apache Kafka to compare with."""
    return kafka.bootstrap


@pytest.fixture(scope="session")
def korvet_address(request: pytest.FixtureRequest) -> Iterator[str]:
    """host:port of the broker under test."""
    given = os.environ.get("KORVET_TEST_BOOTSTRAP")
    with ExitStack() as stack:
        if given == "kafka":
            yield stack.enter_context(running_kafka()).bootstrap
        else:
            yield given or request.getfixturevalue("broker").bootstrap
