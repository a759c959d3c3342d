"""Unmodified clients at each kind of listener by each mechanism, with right and wrong passwords and tokens."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from korvet.security.protocol import Security
from tests.kafka.client import ClientError
from tests.kafka.drivers.settings import confluent_settings
from tests.kafka.process import Driver
from tests.kafka.secured import MECHANISMS, WITHIN_S, Fleet, Visitors, add_tenant, running_fleet, seeing, write_hosts
from tests.kafka.traits import NAMES
from tests.server.test_tls import plain
from tests.support.certificates import Authority
from tests.support.ported import kafka

TENANTS = ("acme", "globex", "nobodys")
"""Two tenants, and the name of none."""
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


DISTRUSTS = {
    "confluent-kafka": "_SSL.*certificate verify failed",
    "kcat": "certificate verify failed",
    "java": "SslAuthenticationException: SSL handshake failed",
    "aiokafka": "CERTIFICATE_VERIFY_FAILED",
    "kafka-python": "CERTIFICATE_VERIFY_FAILED",
    "kafkajs": "Connection error: unable to verify the first certificate",
}
ALERTED = {
    "confluent-kafka": "alert unknown ca",
    "kcat": "alert unknown ca",
    "java": "SslAuthenticationException",
    # The event loop drops the alert.
    "aiokafka": "Connection at .* closed",
    "kafka-python": "ALERT_UNKNOWN_CA",
    "kafkajs": "alert unknown ca",
}
LOGGED = {
    "tlsv1 alert unknown ca",
    "sslv3 alert certificate unknown",
    "certificate verify failed: unable to get local issuer certificate",
    "the client left; it may not trust the listener's certificate",
}
"""The reasons in the log. It has at most five lines in ten seconds, and clients before may try on."""


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
    (librdkafka's pull request 4895). It is built without a source of tokens.
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
        for tenant in TENANTS[:2]:
            add_tenant(fleet.broker, tenant)
        yield fleet


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in the form of /etc/hosts with the names of all tenants."""
    hosts = tmp_path_factory.mktemp("names") / "hosts"
    write_hosts(hosts, TENANTS)
    return hosts


@pytest.fixture(scope="module")
def visitors(hosts: Path) -> Iterator[Visitors]:
    visitors = Visitors(hosts)
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


@pytest.mark.parametrize("client", ["java", "confluent-kafka", "kafkajs"])
def test_client_of_a_tenant_reads_only_what_its_tenant_wrote(fleet: Fleet, visitors: Visitors, client: str) -> None:
    """The topic, the group and the user have the same names in both tenants."""
    topic = f"visit-{uuid4().hex[:12]}"
    for tenant in ("acme", "globex"):
        values = [f"{tenant}-one", f"{tenant}-two"]
        assert visitors.visit(client, fleet.tenant_way(tenant), topic, values) == values
    with pytest.raises(ClientError, match=r"uthentication"):
        visitors.visit(client, fleet.tenant_way("nobodys"), topic, ["one"])


def test_java_chooses_its_tenant_by_the_name_of_the_server(fleet: Fleet, visitors: Visitors) -> None:
    """The bootstrap server and the nodes that it tells have names of the tenant's own. The user has none."""
    topic = f"visit-{uuid4().hex[:12]}"
    for tenant in TENANTS[:2]:
        values = [f"{tenant}-one", f"{tenant}-two"]
        assert visitors.visit("java", fleet.named_way(tenant), topic, values) == values
    with pytest.raises(ClientError, match=r"uthentication"):
        visitors.visit("java", fleet.named_way(TENANTS[2]), topic, ["one"])


def test_librdkafka_chooses_its_tenant_by_the_name_of_the_server(fleet: Fleet, hosts: Path) -> None:
    """It asks the system for addresses, so its process sees another /etc/hosts."""
    driver = Driver([*seeing(hosts), sys.executable, "-m", "tests.kafka.drivers.visiting"])

    def visit(tenant: str, values: list[str]) -> list[str]:
        way = asdict(fleet.named_way(tenant))
        found: list[str] = driver.call(
            "visit", client="confluent-kafka", connect=way, topic=topic, group="readers", values=values
        )
        return found

    topic = f"visit-{uuid4().hex[:12]}"
    try:
        for tenant in TENANTS[:2]:
            values = [f"{tenant}-one", f"{tenant}-two"]
            assert visit(tenant, values) == values
        with pytest.raises(ClientError, match=r"uthentication"):
            visit(TENANTS[2], ["one"])
    finally:
        driver.stop()


@pytest.mark.parametrize("case", [case for case in CASES if case.mechanism], ids=str)
def test_client_reports_that_its_login_was_refused(fleet: Fleet, visitors: Visitors, case: Case) -> None:
    with pytest.raises(ClientError) as caught:
        visitors.visit(case.client, fleet.way(case.kind, case.mechanism, right=False), "refused", ["one"])
    expected = REFUSED[case.client]
    if case.mechanism == "OAUTHBEARER":
        expected = NO_SECOND_STEP.get(case.client, expected)
    assert re.search(expected, str(caught.value)), caught.value


# ------------------------------------------------------------------ certificates that somebody does not trust


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that neither the broker nor its clients know."""
    return Authority.make(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def neighbour(fleet: Fleet) -> Iterator[AdminClient]:
    """A client of the same listener, which is served before the test and after it."""
    admin = AdminClient(confluent_settings(asdict(fleet.way(Security.TLS))))
    admin.list_topics(timeout=WITHIN_S)
    yield admin
    admin.list_topics(timeout=WITHIN_S)


def reasons(fleet: Fleet, before: int) -> set[str]:
    """Why handshakes failed since then, as the log tells."""
    assert "Traceback" not in fleet.broker.log
    lines = plain(fleet.broker.log[before:]).splitlines()
    told = [line for line in lines if "TLS handshake failed" in line and "audit=True" not in line]
    return {line.partition("reason=")[2].strip("'\"") for line in told}


@pytest.mark.parametrize("client", NAMES)
def test_client_shows_its_certificate_and_is_served(fleet: Fleet, visitors: Visitors, client: str) -> None:
    topic = f"visit-{uuid4().hex[:12]}"
    assert visitors.visit(client, fleet.mutual(fleet.authority.client("alice")), topic, ["one"]) == ["one"]


@pytest.mark.parametrize("client", NAMES)
def test_client_that_does_not_trust_the_authority_of_the_broker_ends_with_an_error(
    fleet: Fleet, visitors: Visitors, neighbour: AdminClient, stranger: Authority, client: str
) -> None:
    before = len(fleet.broker.log)
    with pytest.raises(ClientError, match=DISTRUSTS[client]):
        visitors.visit(client, replace(fleet.way(Security.TLS), ca=str(stranger.cert)), "refused", ["one"])
    logged = reasons(fleet, before)
    assert logged <= LOGGED
    assert logged or client != NAMES[0]


@pytest.mark.parametrize("client", NAMES)
def test_client_with_a_certificate_of_an_unknown_authority_ends_with_an_error(
    fleet: Fleet, visitors: Visitors, neighbour: AdminClient, stranger: Authority, client: str
) -> None:
    before = len(fleet.broker.log)
    with pytest.raises(ClientError, match=ALERTED[client]):
        visitors.visit(client, fleet.mutual(stranger.client("alice")), "refused", ["one"])
    assert reasons(fleet, before) <= LOGGED
