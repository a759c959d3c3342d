"""SCRAM of korvet's own client, against korvet's server and against servers that cheat."""

from __future__ import annotations

import base64

import pytest

from korvet.security.scram import Credentials, LoginRefused, ScramServer, make_credential
from korvet.security.scram_client import MAX_ITERATIONS, UntrustedServer, scram_exchange
from korvet.store.security.users import CredentialKey
from tests.support.ported import kafka

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def server(mechanism: str, user: str, password: str, iterations: int = 4096) -> ScramServer:
    known = {CredentialKey(mechanism, user): make_credential(mechanism, password, iterations)}
    return ScramServer(mechanism, Credentials(known, b"secret"))


def nonce_of(first: bytes) -> str:
    return first.decode().rpartition(",r=")[2]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "right"), ("a=b,c", "päss,=word"), ("x", " ")])
def test_client_and_server_agree_on_a_login(mechanism: str, user: str, password: str) -> None:
    peer = server(mechanism, user, password, 8192)
    client = scram_exchange(mechanism, user, password)
    final = client.send(peer.step(next(client)))
    with pytest.raises(StopIteration):
        client.send(peer.step(final))
    assert peer.user == user


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_is_refused_by_the_server(mechanism: str) -> None:
    peer, client = server(mechanism, "alice", "right"), scram_exchange(mechanism, "alice", "wrong")
    final = client.send(peer.step(next(client)))
    with pytest.raises(LoginRefused):
        peer.step(final)


@kafka("ScramMessagesTest.invalidServerFirstMessage")
@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("r={nonce}more,s=c2FsdA==,i=-1", "first SCRAM message is wrong"),
        ("r={nonce}more,s=c2FsdA==,i=1234a", "first SCRAM message is wrong"),
        ("r={nonce}more,s==,i=4096", "not base64|message is wrong"),
        ("r={nonce}more,s=c2FsdA==", "first SCRAM message is wrong"),
        ("r={nonce}more,s=c2FsdA==,i=4095", "4095 iterations"),
        (f"r={{nonce}}more,s=c2FsdA==,i={MAX_ITERATIONS + 1}", "1000001 iterations"),
        ("r={nonce}more,s=c2FsdA==,i=9999999999", "9999999999 iterations"),
        ("r={nonce}more,s=c2FsdA==,i=99999999999", "first SCRAM message is wrong"),
        ("r={nonce}more,s=c2FsdA==,i=0", "first SCRAM message is wrong"),
        ("r={nonce},s=c2FsdA==,i=4096", "first SCRAM message is wrong"),
        ("r=other{nonce},s=c2FsdA==,i=4096", "first SCRAM message is wrong"),
        ("r={nonce}more,s=,i=4096", "first SCRAM message is wrong"),
        ("r={nonce}more,s=c2Fsd,i=4096", "not base64"),
        ("m=needed,r={nonce}more,s=c2FsdA==,i=4096", "first SCRAM message is wrong"),
        ("e=other-error", "first SCRAM message is wrong"),
        ("", "first SCRAM message is wrong"),
    ],
)
def test_first_answer_that_costs_too_much_or_fits_no_request_ends_the_login(answer: str, complaint: str) -> None:
    client = scram_exchange("SCRAM-SHA-256", "alice", "right")
    nonce = nonce_of(next(client))
    with pytest.raises(UntrustedServer, match=complaint):
        client.send(answer.format(nonce=nonce).encode())


@kafka("ScramMessagesTest.invalidServerFinalMessage")
@pytest.mark.parametrize(
    "last",
    [
        b"v=",
        b"v==",
        b"v=a;b",
        b"e=",
        b"x=y",
        b"v=" + base64.b64encode(bytes(32)),
        b"v=AAAA",
        b"v=A",
        b"e=no",
        b"",
        b"\xff",
    ],
)
def test_server_that_does_not_know_the_password_is_not_trusted(last: bytes) -> None:
    client = scram_exchange("SCRAM-SHA-256", "alice", "right")
    first = f"r={nonce_of(next(client))}more,s=c2FsdA==,i=4096"
    client.send(first.encode())
    with pytest.raises(UntrustedServer):
        client.send(last)


def test_answer_that_is_no_text_ends_the_login() -> None:
    client = scram_exchange("SCRAM-SHA-256", "alice", "right")
    next(client)
    with pytest.raises(UntrustedServer, match="UTF-8"):
        client.send(b"r=\xff")
