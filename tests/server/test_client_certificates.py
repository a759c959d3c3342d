"""Listeners that ask clients for certificates: which of them let in, and for how long."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from korvet.security.protocol import ClientAuth
from tests.server.test_tls import MUTUAL, TLS, connect, is_refused, is_served, secured, trusting
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority, Pair
from tests.support.waiting import until

REQUESTED = 2


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.server()


@pytest.fixture(scope="module")
def server(authority: Authority, pair: Pair) -> Iterator[KorvetServer]:
    doors = (
        secured(authority, pair, "tls"),
        secured(authority, pair, "mutual", tls_client_auth=ClientAuth.REQUIRED),
        secured(authority, pair, "requested", tls_client_auth=ClientAuth.REQUESTED),
    )
    with running_broker(listeners=doors) as broker:
        yield broker
        assert broker.is_running
        assert "Traceback" not in broker.log


def test_client_without_a_certificate_is_refused(server: KorvetServer, authority: Authority) -> None:
    assert is_refused(server, trusting(authority))


@pytest.mark.parametrize("kind", ["expired", "of-another-authority"])
def test_wrong_certificate_is_refused(server: KorvetServer, authority: Authority, tmp_path: Path, kind: str) -> None:
    signer = authority if kind == "expired" else Authority.make(tmp_path)
    client = signer.client("alice", ends_in_days=-1 if kind == "expired" else 1)
    assert is_refused(server, trusting(authority, client))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_whose_certificate_is_refused_learns_why(
    server: KorvetServer, authority: Authority, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """Under TLS 1.3 it has sent its request before it can know."""
    context = trusting(authority, Authority.make(tmp_path).client("alice"))
    context.minimum_version = context.maximum_version = version
    for size in (1, 100_000):
        with (
            pytest.raises(ssl.SSLError, match="UNKNOWN_CA"),
            context.wrap_socket(connect(server, MUTUAL), server_hostname="localhost") as client,
        ):
            client.sendall(bytes(size))
            client.recv(1)
    assert "certificate verify failed" in server.log


def resumed(server: KorvetServer, door: int, context: ssl.SSLContext) -> list[bool]:
    """Whether each of some connections resumes the session of the one before, which is still open."""
    found: list[bool] = []
    session: ssl.SSLSession | None = None
    with ExitStack() as stack:
        for _ in range(4):
            wrapped = context.wrap_socket(connect(server, door), server_hostname="localhost", session=session)
            client = stack.enter_context(wrapped)
            assert is_served(client)
            found.append(bool(client.session_reused))
            session = client.session
    return found


@pytest.mark.parametrize("door", [MUTUAL, REQUESTED])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_session_is_not_resumed_when_clients_show_certificates(
    server: KorvetServer, authority: Authority, version: ssl.TLSVersion, door: int
) -> None:
    context = trusting(authority, authority.client("alice"))
    context.minimum_version = context.maximum_version = version
    assert resumed(server, door, context) == [False] * 4
    assert resumed(server, TLS, context) == [False, True, True, True]


def test_client_without_a_server_name_is_asked_for_its_certificate(server: KorvetServer, authority: Authority) -> None:
    context = trusting(authority, authority.client("alice"))
    context.check_hostname = False
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.minimum_version = context.maximum_version = version
        with context.wrap_socket(connect(server, MUTUAL)) as client:
            assert is_served(client)
    assert is_refused(server, trusting(authority))


def test_new_authority_of_clients_counts_and_the_former_one_no_longer(authority: Authority, tmp_path: Path) -> None:
    other, trusted = Authority.make(tmp_path), tmp_path / "trusted.pem"
    trusted.write_bytes(authority.cert.read_bytes())
    settings = secured(authority, authority.server(), "mutual", tls_client_auth=ClientAuth.REQUIRED)
    # The helper asks at the second door.
    doors = [replace(settings, name="other"), replace(settings, tls_client_ca=str(trusted))]
    former, new = (trusting(authority, one.client("alice")) for one in (authority, other))
    with running_broker(listeners=doors) as broker:

        def tell() -> None:
            assert broker.process is not None
            os.kill(broker.process.pid, signal.SIGHUP)

        assert not is_refused(broker, former) and is_refused(broker, new)
        with former.wrap_socket(connect(broker, MUTUAL), server_hostname="localhost") as open_one:
            assert is_served(open_one)
            trusted.write_bytes(other.cert.read_bytes())
            tell()
            until(lambda: not is_refused(broker, new), "the new authority counts")
            assert is_refused(broker, former)
            assert is_served(open_one)
        trusted.write_text("no authority")
        tell()
        until(lambda: "TLS files not taken" in broker.log, "the line is there")
        assert not is_refused(broker, new) and is_refused(broker, former)
        assert "Traceback" not in broker.log


@pytest.mark.parametrize("auth", [ClientAuth.REQUIRED, ClientAuth.REQUESTED])
def test_revoked_certificate_is_refused_and_a_new_list_counts(
    authority: Authority, tmp_path: Path, auth: ClientAuth
) -> None:
    crl, alice, bob = tmp_path / "crl.pem", authority.client("alice"), authority.client("bob")
    crl.write_bytes(authority.revoke(alice))
    settings = secured(authority, authority.server(), "mutual", tls_client_auth=auth, tls_client_crl=str(crl))
    contexts = {who: trusting(authority, pair) for who, pair in (("alice", alice), ("bob", bob))}
    with running_broker(listeners=[replace(settings, name="other"), settings]) as broker:

        def refused(version: ssl.TLSVersion) -> list[str]:
            for context in contexts.values():
                context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, version
            return [who for who, context in contexts.items() if is_refused(broker, context)]

        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            assert refused(version) == ["alice"]
        assert "certificate revoked" in broker.log
        crl.write_bytes(authority.revoke(alice, bob))
        until(lambda: refused(ssl.TLSVersion.TLSv1_3) == ["alice", "bob"], "the new list counts")
        crl.write_bytes(authority.cert.read_bytes())
        until(lambda: "it has no X509 CRL in PEM" in broker.log, "the line is there")
        crl.write_bytes(authority.revoke(ends_in_days=-1))
        until(lambda: "TLS revocation list has expired" in broker.log, "the line is there")
        assert refused(ssl.TLSVersion.TLSv1_3) == ["alice", "bob"]
