"""Unmodified clients at each kind of listener by each mechanism, with right and wrong passwords and tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from uuid import uuid4

import pytest

from korvet.security.protocol import Security
from tests.kafka.client import ClientError
from tests.kafka.secured import MECHANISMS, Fleet, Visitors, running_fleet
from tests.kafka.traits import NAMES
from tests.support.ported import kafka

GENERAL = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
TOKEN = re.escape('{"status":"invalid_token"}')
REFUSED = {
    "confluent-kafka": rf"_AUTHENTICATION.*({GENERAL}|{TOKEN})",
    "kcat": rf"Local: Authentication failure: .*{GENERAL}",
    "java": rf"SaslAuthenticationException: ({GENERAL}|{TOKEN})",
    "aiokafka": rf"SaslAuthenticationFailed: {GENERAL}",
    "kafka-python": rf"SaslAuthenticationFailedError: ({GENERAL}|{TOKEN})",
    "kafkajs": rf"KafkaJSSASLAuthenticationError: .*{GENERAL}",
}
NO_SECOND_STEP = {"aiokafka": "Connection at .* closed", "kafkajs": "Closed connection"}
"""Clients that take a token's status for success, send their next request, and tell that the connection was closed."""


class Case(NamedTuple):
    """A client's way to a kind of listener."""

    client: str
    kind: Security
    mechanism: str | None

    def __str__(self) -> str:
        return "-".join(filter(None, (self.client, self.kind.value, self.mechanism)))


def knows(client: str, mechanism: str | None) -> bool:
    """Whether a client knows a mechanism.

    kcat is built on librdkafka 2.0 here. That repeats the client's nonce in SCRAM, so Kafka 4 refuses it, too
    (librdkafka's pull request 4895), and it is built without a source of tokens.
    """
    return client != "kcat" or mechanism in (None, "PLAIN")


CASES = [
    Case(client, kind, mechanism)
    for client in NAMES
    for kind in Security
    for mechanism in (MECHANISMS if kind.has_sasl else (None,))
    if knows(client, mechanism)
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("secured"), {}) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def visitors() -> Iterator[Visitors]:
    visitors = Visitors()
    yield visitors
    visitors.stop()


@kafka(
    "SaslAuthenticatorTest.testValidSaslPlainOverSsl",
    "SaslAuthenticatorTest.testValidSaslPlainOverPlaintext",
    "SaslAuthenticatorTest.testValidSaslScramSha256",
    "SaslAuthenticatorTest.testValidSaslScramMechanisms",
    "SaslAuthenticatorTest.testValidSaslOauthBearerMechanism",
    "SaslAuthenticatorTest.testMultipleServerMechanisms",
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_client_writes_and_reads_in_a_group(fleet: Fleet, visitors: Visitors, case: Case) -> None:
    topic = f"visit-{uuid4().hex[:12]}"
    assert visitors.visit(case.client, fleet.way(case.kind, case.mechanism), topic, ["one", "two"]) == ["one", "two"]


@pytest.mark.parametrize("case", [case for case in CASES if case.mechanism], ids=str)
def test_client_tells_that_its_login_was_refused(fleet: Fleet, visitors: Visitors, case: Case) -> None:
    with pytest.raises(ClientError) as caught:
        visitors.visit(case.client, fleet.way(case.kind, case.mechanism, right=False), "refused", ["one"])
    expected = REFUSED[case.client]
    if case.mechanism == "OAUTHBEARER":
        expected = NO_SECOND_STEP.get(case.client, expected)
    assert re.search(expected, str(caught.value)), caught.value
