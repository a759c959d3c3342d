"""kafka-configs prints the same about korvet as about Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.raw import unique
from tests.kafka.process import Driver
from tests.oracle.rights import CLIENTS
from tests.oracle.script import PASSWORD
from tests.oracle.secured import ADMIN, PLAIN_LOGIN, Secured
from tests.oracle.tools import CONFIGS, Tools


def test_config_tool_prints_topics_as_for_kafka(tools: Tools, topic: str) -> None:
    one = ("--entity-type", "topics", "--entity-name", topic)
    assert tools.same(CONFIGS, "--describe", *one, "--all").count("synonyms={") > 25
    tools.same(CONFIGS, "--alter", *one, "--add-config", "cleanup.policy=[compact,delete],segment.ms=600000")
    tools.same(CONFIGS, "--describe", *one)
    tools.same(CONFIGS, "--describe", "--entity-type", "topics", mine="Dynamic configs for topic " + topic)
    tools.same(CONFIGS, "--alter", *one, "--delete-config", "segment.ms")
    assert "segment.ms" not in tools.same(CONFIGS, "--describe", *one)
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
        # Kafka 4.1 has them for itself.
        "group.share.max.delivery.count.limit",
        "group.share.max.partition.max.record.locks",
        "group.share.min.delivery.count.limit",
        "group.share.min.partition.max.record.locks",
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


def test_config_tool_prints_one_brokers_configs_as_for_kafka(tools: Tools) -> None:
    one = ("--entity-type", "brokers", "--entity-name", "1")
    tools.same(CONFIGS, "--alter", *one, "--add-config", "log.cleaner.threads=2,message.max.bytes=2000000")
    try:
        assert "message.max.bytes=2000000" in tools.same(CONFIGS, "--describe", *one)
        tools.same(CONFIGS, "--alter", *one, "--add-config", "log.cleaner.threads=many", code=1)
        tools.same(CONFIGS, "--alter", *one, "--delete-config", "message.max.bytes")
        assert "message.max.bytes" not in tools.same(CONFIGS, "--describe", *one)
    finally:
        tools.same(CONFIGS, "--alter", *one, "--delete-config", "log.cleaner.threads")
    tools.same(CONFIGS, "--describe", *one)


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


def test_config_tool_prints_groups_as_for_kafka(tools: Tools) -> None:
    one = ("--entity-type", "groups", "--entity-name", unique("group"))
    tools.same(CONFIGS, "--describe", *one)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "consumer.session.timeout.ms=50000")
    tools.same(CONFIGS, "--alter", *one, "--add-config", "consumer.heartbeat.interval.ms=6000")
    assert "consumer.session.timeout.ms=50000" in tools.same(CONFIGS, "--describe", *one)
    tools.same(CONFIGS, "--describe", *one, "--all", mine=" consumer.")
    kafka, korvet = tools.both(CONFIGS, "--describe", "--entity-type", "groups", mine=one[-1])
    # A group of the empty name, for which a script commits, ends the listing of either broker, each at another place.
    assert (kafka[0], korvet[0]) == (1, 1) or kafka == korvet
    tools.same(CONFIGS, "--alter", *one, "--add-config", "consumer.session.timeout.ms=70000", code=1)
    tools.same(CONFIGS, "--alter", *one, "--add-config", "no.such.config=1", code=1)
    tools.same(CONFIGS, "--alter", *one, "--delete-config", "consumer.session.timeout.ms")
    assert "consumer.session.timeout.ms" not in tools.same(CONFIGS, "--describe", *one)
    tools.same(CONFIGS, "--alter", *one, "--delete-config", "consumer.session.timeout.ms", code=1)
    tools.same(CONFIGS, "--describe", *one)


def test_config_tool_prints_quotas_and_users_as_for_kafka(tools: Tools) -> None:
    for kind in ("users", "clients", "ips"):
        assert tools.same(CONFIGS, "--describe", "--entity-type", kind) == ""


# ------------------------------------------------------------------ users who log in


@pytest.fixture(scope="module")
def secured_tools(driver: Driver, secured_kafka: Secured, secured_korvet: Secured) -> Tools:
    """Kafka's tools at the listeners for logins."""
    return Tools(driver, secured_kafka.login, secured_korvet.login)


def login(directory: Path, user: str) -> tuple[str, str]:
    """The option for the settings of a user."""
    config = directory / f"{user}.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN_LOGIN} required username="{user}" password="{PASSWORD}";\n'
    )
    return "--command-config", str(config)


def test_config_tool_prints_passwords_of_users_as_for_kafka(secured_tools: Tools, tmp_path: Path) -> None:
    admin, nobody = (login(tmp_path, user) for user in (ADMIN, CLIENTS[0].user))
    user = ("--entity-type", "users", "--entity-name", unique("scram"))

    def same(*arguments: str, code: int = 0) -> str:
        return secured_tools.same(CONFIGS, *admin, *arguments, code=code)

    one, other = "SCRAM-SHA-256=[iterations=8192,password=secret]", "SCRAM-SHA-512=[password=secret]"
    same("--describe", *user)
    same("--alter", *user, "--add-config", f"{one},{other}", code=1)
    for added in (one, other):
        same("--alter", *user, "--add-config", added)
    shown = same("--describe", *user)
    assert "SCRAM-SHA-256=iterations=8192" in shown and "SCRAM-SHA-512=iterations=4096" in shown
    same("--alter", *user, "--add-config", "SCRAM-SHA-512=[iterations=4095,password=secret]", code=1)
    same("--alter", *user, "--add-config", "SCRAM-SHA-1=[password=secret]", code=1)
    same("--alter", *user, "--add-config", "producer_byte_rate=1024")
    assert "producer_byte_rate=1024.0" in same("--describe", *user)
    for gone in ("SCRAM-SHA-256", "producer_byte_rate"):
        same("--alter", *user, "--delete-config", gone)
    assert "SCRAM-SHA-256" not in same("--describe", *user)
    same("--alter", *user, "--delete-config", "SCRAM-SHA-256", code=1)
    same("--alter", *user, "--delete-config", "SCRAM-SHA-512")
    same("--describe", *user)
    for code, printed in secured_tools.both(CONFIGS, *nobody, "--alter", *user, "--add-config", one):
        assert code == 1 and "ClusterAuthorizationException" in printed
