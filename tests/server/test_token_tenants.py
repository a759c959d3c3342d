"""Namespaces that clients choose by a claim of their token."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from korvet.security.protocol import NamespaceFrom, Security
from korvet.server.ground.settings import ListenerSettings
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority
from tests.support.issuer import Issuer
from tests.support.tenants import connected, create_tenant, korvet, make_topic, shows_token, topics_of

LOGIN, SNI, FIXED = range(3)
BROKER = {
    "korvet.sasl.plain.without.tls": "true",
    "korvet.sasl.oauthbearer.without.tls": "true",
    "korvet.sasl.oauthbearer.namespace.claim.name": "tenant",
}


@pytest.fixture(scope="module")
def broker(authority: Authority, issuer: Issuer) -> Iterator[KorvetServer]:
    """A broker with the tenants acme and globex, of which globex is suspended, and with a fixed namespace."""
    pair = authority.server(["*.kafka.example"])
    plain: dict[str, Any] = {"security": Security.SASL_PLAINTEXT, "sasl": ("PLAIN", "OAUTHBEARER")}
    listeners = [
        ListenerSettings(port=0, name="login", namespace_from=NamespaceFrom.PRINCIPAL, **plain),
        ListenerSettings(
            port=0, name="sni", namespace_from=NamespaceFrom.SNI, security=Security.SASL_TLS, sasl=("OAUTHBEARER",),
            tls_cert=str(pair.cert), tls_key=str(pair.key), advertised_host="b{node}-{namespace}.kafka.example",
            advertised_port=9093,
        ),
        ListenerSettings(port=0, name="fixed", namespace="fixed", **plain),
    ]  # fmt: skip
    with running_broker(listeners=listeners, broker={**BROKER, **issuer.settings}) as running:
        create_tenant(running, "acme")
        create_tenant(running, "globex", users=())
        korvet(running, "tenants", "suspend", "globex")
        yield running
        assert "Traceback" not in running.log


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.cert))
    made.check_hostname = False
    return made


def test_claim_names_the_tenant_and_the_subject_is_the_user_as_it_is(broker: KorvetServer, issuer: Issuer) -> None:
    with connected(broker.port) as client, connected(broker.port, login="alice@acme") as other:
        assert shows_token(client, issuer.token("carol@example.org", tenant="acme"))
        assert make_topic(client, "of-carol") == "NONE"
        assert "of-carol" in topics_of(other)


@pytest.mark.parametrize(
    "tenant", ["nobodys", "globex", "", None, "ACME", "acme ", "@tenants", ["acme"], {"a": 1}, 7, "a" * 9000]
)
def test_token_of_another_an_unknown_or_a_suspended_tenant_looks_as_an_invalid_one(
    broker: KorvetServer, issuer: Issuer, tenant: Any
) -> None:
    """Attack: the subject names a tenant, and the claim none. `shows_token` sees the same steps and answers."""
    with connected(broker.port) as client:
        assert not shows_token(client, issuer.token("carol@acme", tenant=tenant))
    with connected(broker.port) as client:
        assert not shows_token(client, issuer.token("carol@acme", -3600, tenant="acme"))


@pytest.mark.parametrize(
    ("server_name", "tenant", "is_in"),
    [
        ("b1-acme.kafka.example", "acme", True),
        ("b1-acme.kafka.example", "globex", False),
        ("b1-acme.kafka.example", None, False),
        ("other.kafka.example", "acme", False),
    ],
)
def test_server_name_and_claim_have_to_agree(
    broker: KorvetServer, issuer: Issuer, context: ssl.SSLContext, server_name: str, tenant: str | None, is_in: bool
) -> None:
    """Attack: a token of one tenant is shown under the host name of another."""
    with connected(broker.ports[SNI], server_name, context) as client:
        assert shows_token(client, issuer.token("carol", tenant=tenant)) is is_in


@pytest.mark.parametrize(("tenant", "is_in"), [("fixed", True), (None, True), ("acme", False)])
def test_token_of_a_tenant_opens_no_fixed_namespace_of_another_name(
    broker: KorvetServer, issuer: Issuer, tenant: str | None, is_in: bool
) -> None:
    with connected(broker.ports[FIXED]) as client:
        assert shows_token(client, issuer.token("carol", tenant=tenant)) is is_in


def test_second_login_stays_in_its_tenant(broker: KorvetServer, issuer: Issuer) -> None:
    create_tenant(broker, "other", users=())
    with connected(broker.port) as client:
        assert shows_token(client, issuer.token("carol", tenant="acme"))
        assert not shows_token(client, issuer.token("carol", tenant="other"))
