"""TLS, logins and access rules together, as an operator would turn them on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from korvet.security.protocol import ClientAuth, Security
from korvet.server.ground.settings import ListenerSettings
from tests.server.sasl_session import PASSWORD
from tests.server.test_sasl import MECHANISMS, WITHIN_S, add_user
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority

RULES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[KorvetServer]:
    """A broker with the users admin and alice, over TLS alone; its second listener asks for certificates as well."""
    pair = authority.server()
    files = {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_client_ca": str(authority.cert)}
    common: dict[str, Any] = {"port": 0, "security": Security.SASL_TLS, "sasl": MECHANISMS, **files}
    listeners = [
        ListenerSettings(name="login", **common),
        ListenerSettings(name="both", tls_client_auth=ClientAuth.REQUIRED, **common),
    ]
    with running_broker(listeners=listeners, broker=RULES) as broker:
        for name in ("admin", "alice"):
            add_user(broker, name)
        yield broker


def settings(broker: KorvetServer, authority: Authority, user: str, mechanism: str, at: int = 0) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.ports[at]}",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.cert),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": PASSWORD,
    }


def produced(client: dict[str, Any], topic: str) -> KafkaError | None:
    """The outcome of a record."""
    outcomes: list[KafkaError | None] = []
    producer = Producer(client)
    producer.produce(topic, b"value", on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(WITHIN_S) == 0
    return outcomes[0]


def test_user_over_tls_may_do_what_a_rule_allows(broker: KorvetServer, authority: Authority) -> None:
    admin = AdminClient(settings(broker, authority, "admin", "SCRAM-SHA-512"))
    alice, topic = settings(broker, authority, "alice", "PLAIN"), "orders"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WITHIN_S)
    refused = produced(alice, topic)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    operations = (AclOperation.WRITE, AclOperation.READ)
    rules = [
        AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:alice", "*", one,
                   AclPermissionType.ALLOW) for one in operations
    ]  # fmt: skip
    rules.append(
        AclBinding(ResourceType.GROUP, "alices", ResourcePatternType.PREFIXED, "User:alice", "*", AclOperation.READ,
                   AclPermissionType.ALLOW)
    )  # fmt: skip
    for added in admin.create_acls(rules).values():
        added.result(WITHIN_S)
    assert produced(alice, topic) is None
    group = {"group.id": "alices-own", "auto.offset.reset": "earliest"}
    consumer = Consumer({**alice, **group})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(WITHIN_S)
        assert message is not None
        assert message.error() is None
        assert message.value() == b"value"
        consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()


def test_certificate_lets_in_but_the_login_names_the_user(broker: KorvetServer, authority: Authority) -> None:
    client = settings(broker, authority, "admin", "SCRAM-SHA-512", at=1)
    with pytest.raises(KafkaException):
        AdminClient(client).list_topics(timeout=3)
    pair = authority.client("alice")
    shown = {"ssl.certificate.location": str(pair.cert), "ssl.key.location": str(pair.key)}
    admin = AdminClient({**client, **shown})
    admin.create_topics([NewTopic("admins", 1, 1)])["admins"].result(WITHIN_S)
