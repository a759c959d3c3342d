"""Namespaces that clients choose by their login, and what an unknown tenant gets."""

from __future__ import annotations

import re
import ssl
import time
from typing import Any

import pytest

from tests.server.choosing import CERTIFICATE, FIXED, LOGIN, failure
from tests.support.broker import KorvetServer
from tests.support.certificates import Authority
from tests.support.issuer import Issuer
from tests.support.tenants import PASSWORD, Closed, connected, make_topic, shows_token, topics_of


@pytest.fixture(scope="module")
def broker(tenants_broker: KorvetServer) -> KorvetServer:
    return tenants_broker


def test_login_names_the_namespace_and_its_user(broker: KorvetServer) -> None:
    with connected(broker.port, login="alice@acme") as acme, connected(broker.port, login="alice@globex") as globex:
        assert make_topic(acme, "orders") == "NONE"
        assert topics_of(acme) == {"orders"}
        assert topics_of(globex) == set()
        clusters = {client.ask("describe_cluster", 1)["cluster_id"] for client in (acme, globex)}
        assert len(clusters) == 2
    with connected(broker.port, login="alice@acme") as again:
        assert topics_of(again) == {"orders"}


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice@nobodys", PASSWORD), ("alice@acme", "wrong"), ("bob@acme", PASSWORD), ("alice", PASSWORD),
        ("alice@", PASSWORD), ("@acme", PASSWORD), ("alice@ACME", PASSWORD), ("alice@fixed", PASSWORD),
        ("alice@a:b", PASSWORD), ("alice@a}", PASSWORD), ("alice@%61cme", PASSWORD), ("alice@*", PASSWORD),
        ("alice@" + "a" * 60_000, PASSWORD), ("alice@@tenants", PASSWORD),
    ],
)  # fmt: skip
def test_unknown_tenant_looks_as_a_wrong_password_does(broker: KorvetServer, name: str, password: str) -> None:
    assert failure(broker, name, password) == failure(broker, "alice@acme", "wrong")


def test_scram_of_an_unknown_tenant_goes_to_its_last_step(broker: KorvetServer) -> None:
    first: dict[str, bytes] = {}
    for name in ("alice@acme", "bob@acme", "alice@nobodys", "alice@nobodys "):
        with connected(broker.port) as client:
            client.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
            told = client.ask("sasl_authenticate", 2, auth_bytes=f"n,,n={name},r=nonce".encode())
            assert (told["error_code"], told["error_message"]) == ("NONE", "")
            first[name] = told["auth_bytes"].partition(b",s=")[2]
            proof = b"c=biws,r=" + told["auth_bytes"].partition(b"r=")[2].partition(b",")[0] + b",p=AAAA"
            assert client.ask("sasl_authenticate", 2, auth_bytes=proof)["error_code"] == "SASL_AUTHENTICATION_FAILED"
    forms = {re.sub(rb"[0-9a-zA-Z+/=]{20,}", b"salt", text) for text in first.values()}
    assert forms == {b"salt,i=4096"}


def test_unknown_tenant_leaves_nothing_in_redis(broker: KorvetServer) -> None:
    for name in ("alice@nobodys", "alice@a:b"):
        failure(broker, name)
    with broker.redis() as client:
        assert not [key for key in client.scan_iter() if b"nobodys" in key or b"{a%3Ab" in key or b"{:" in key]


def test_token_names_the_namespace_and_its_user(broker: KorvetServer, issuer: Issuer) -> None:
    for name, is_in in (("carol@acme", True), ("carol@nobodys", False), ("carol", False)):
        with connected(broker.port) as client:
            assert shows_token(client, issuer.token(name)) is is_in
            assert not is_in or topics_of(client) is not None


@pytest.mark.parametrize(
    ("organization", "server_name", "is_served"),
    [
        ("acme", "b1-acme.kafka.example", True),
        ("acme", None, True),
        ("acme", "b1-globex.kafka.example", False),
        ("globex", "b1-acme.kafka.example", False),
        ("nobodys", "b1-acme.kafka.example", False),
        ("nobodys", "b1-nobodys.kafka.example", False),
    ],
)
def test_certificate_names_the_namespace_and_the_server_name_agrees(
    broker: KorvetServer, authority: Authority, context: ssl.SSLContext,
    organization: str, server_name: str | None, is_served: bool,
) -> None:  # fmt: skip
    """Attack: the certificate of one tenant's client at the server name of another."""
    own = authority.client(subject("carol", organization))
    context.load_cert_chain(own.cert, own.key)
    with connected(broker.ports[CERTIFICATE], server_name, context) as client:
        client.send("metadata", 12, topics=None)
        if is_served:
            assert client.frame()
        else:
            assert client.is_closed()


def subject(name: str, organization: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def test_second_login_may_not_be_in_another_namespace(broker: KorvetServer) -> None:
    with connected(broker.port, login="alice@acme") as client:
        time.sleep(1.1)
        assert client.log_in("alice@globex")["error_code"] == "SASL_AUTHENTICATION_FAILED"
        assert client.is_closed()
    with connected(broker.port, login="alice@acme") as client:
        time.sleep(1.1)
        assert client.log_in("alice@acme")["error_code"] == "NONE"
        assert topics_of(client) is not None


def test_fixed_namespace_needs_no_registration(broker: KorvetServer) -> None:
    with connected(broker.ports[FIXED]) as client:
        assert make_topic(client, "own") == "NONE"
        assert topics_of(client) == {"own"}


def test_client_of_a_chosen_namespace_gets_nothing_before_its_login(broker: KorvetServer) -> None:
    for port in (broker.ports[LOGIN],):
        with connected(port) as client:
            client.send("metadata", 12, topics=None)
            with pytest.raises(Closed):
                client.frame()
