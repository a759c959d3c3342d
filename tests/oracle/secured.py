"""Two brokers with access rules: Apache Kafka with its StandardAuthorizer, and korvet.

Each has two listeners: a plain one, whose clients are super users, and one on which users log in by PLAIN, or by the
tokens of an issuer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from korvet.security.authorizer import STANDARD
from korvet.security.protocol import Security
from korvet.server.ground.settings import ListenerSettings
from tests.api.raw import ask
from tests.oracle.script import PASSWORD
from tests.support.broker import running_broker
from tests.support.issuer import Issuer
from tests.support.kafka import TEST_JVM, running_kafka
from tests.support.ports import free_port

ADMIN = "admin"
"""A user who may do everything."""
_SECURITY = "org.apache.kafka.common.security"
PLAIN_LOGIN = f"{_SECURITY}.plain.PlainLoginModule"
_BEARER = f"{_SECURITY}.oauthbearer.OAuthBearer"
_SETTINGS = {
    "authorizer.class.name": STANDARD,
    "super.users": f"User:ANONYMOUS;User:{ADMIN}",
    "auto.create.topics.enable": "false",
}
_SALT, _ITERATIONS, _SHA_256 = b"salt", 4096, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A broker's addresses, host:port: of the super users' plain listener, and of the one for logins."""

    plain: str
    login: str

    @property
    def port(self) -> int:
        """The port of the plain listener."""
        return int(self.plain.rpartition(":")[2])


@contextmanager
def secured_kafka(users: Sequence[str], issuer: Issuer, version: str) -> Iterator[Secured]:
    """An Apache Kafka with these users and the admin; all have the same password. Raises KafkaUnavailable."""
    known = " ".join(f'user_{user}="{PASSWORD}"' for user in (*users, ADMIN))
    login = "listener.name.sasl_plaintext"
    settings = {
        **_SETTINGS,
        **issuer.settings,
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        f"{login}.plain.sasl.jaas.config": f"{PLAIN_LOGIN} required {known};",
        f"{login}.oauthbearer.sasl.jaas.config": f"{_BEARER}LoginModule required;",
        f"{login}.oauthbearer.sasl.server.callback.handler.class": f"{_BEARER}ValidatorCallbackHandler",
    }
    address = f"127.0.0.1:{free_port()}"
    allowed = {"urls": issuer.url, "files": str(issuer.path)}
    jvm = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{name}={value}" for name, value in allowed.items()]
    listeners = [f"SASL_PLAINTEXT://{address}"]
    with running_kafka(version=version, jvm=(*TEST_JVM, *jvm), settings=settings, listeners=listeners) as running:
        yield Secured(plain=running.bootstrap, login=address)


@contextmanager
def secured_korvet(users: Sequence[str], issuer: Issuer) -> Iterator[Secured]:
    """A korvet as `secured_kafka`."""
    listeners = [
        ListenerSettings(port=0, name="plain"),
        ListenerSettings(port=0, name="login", security=Security.SASL_PLAINTEXT, sasl=("PLAIN", "OAUTHBEARER")),
    ]
    settings = {
        **_SETTINGS,
        **issuer.settings,
        "korvet.sasl.plain.without.tls": "true",
        "korvet.sasl.oauthbearer.without.tls": "true",
        "group.initial.rebalance.delay.ms": "0",
    }
    with running_broker(listeners=listeners, broker=settings) as running:
        plain, login = (f"127.0.0.1:{port}" for port in running.ports)
        broker = Secured(plain=plain, login=login)
        salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), _SALT, _ITERATIONS)
        same = {"mechanism": _SHA_256, "iterations": _ITERATIONS, "salt": _SALT, "salted_password": salted}
        upsertions = [{"name": user, **same} for user in (*users, ADMIN)]
        answer = ask(broker.port, "alter_user_scram_credentials", 0, deletions=[], upsertions=upsertions)
        assert {one["error_code"] for one in answer["results"]} == {"NONE"}
        yield broker
