"""The principal that a request's context has: of a certificate shown here, or of a load balancer's words about one."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from korvet.security.mapping import PrincipalRules
from korvet.security.protocol import ClientAuth
from korvet.security.tls import Certificates, TlsFiles
from korvet.server.bounds.connection_quotas import Bound, Bounds
from korvet.wire.proxy_header import V2_BEGIN
from tests.server.script import BEGUN, PLAIN, REPEATED, SILENT, STARTED, Running, Script, named, serving, until
from tests.support.certificates import Authority, Pair
from tests.support.haproxy import running_haproxy

pytestmark = pytest.mark.anyio

WITHIN_S = 20.0
RULES = PrincipalRules("RULE:^CN=([a-z]+),O=Acme$/$1/U, DEFAULT")
TCP4 = b"\x21\x11"
ADDRESSES = b"\xc0\x00\x02\x08\xc6\x33\x64\x01\xdc\x04\x23\x84"
ANONYMOUS, REFUSED = "User:ANONYMOUS", None


@asynccontextmanager
async def serving_tls(script: Script, authority: Authority, auth: ClientAuth) -> AsyncIterator[Running]:
    pair = authority.server()
    files = TlsFiles(str(pair.cert), str(pair.key), str(authority.cert), auth)
    async with serving(script, endpoint={"tls": Certificates(files, "tls"), "rules": RULES}) as running:
        yield running


def asked(port: int, context: ssl.SSLContext | None = None, before: bytes = b"", key: int = PLAIN) -> bool:
    """Whether a client that sends some bytes and then a request gets an answer."""
    try:
        with ExitStack() as stack:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), WITHIN_S))
            client.sendall(before)
            if context is not None:
                client = stack.enter_context(context.wrap_socket(client, server_hostname="localhost"))
            client.sendall(named(key, "a"))
            return bool(client.recv(1))
    except TimeoutError:
        raise
    except OSError:
        return False


async def principal(script: Script, port: int, *args: Any) -> str | None:
    """The principal of a client's request; None if its connection is closed instead."""
    script.principals.clear()
    is_answered = await anyio.to_thread.run_sync(asked, port, *args)
    assert is_answered == ("a" in script.principals)
    return script.principals.get("a")


def trusting(authority: Authority, client: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    return context


@pytest.mark.parametrize(
    ("auth", "subject", "expected"),
    [
        (ClientAuth.NONE, "alice", ANONYMOUS),
        (ClientAuth.REQUESTED, None, ANONYMOUS),
        (ClientAuth.REQUESTED, "alice", "User:CN=alice"),
        (ClientAuth.REQUIRED, None, REFUSED),
        (ClientAuth.REQUIRED, "al,O=Acme", r"User:CN=al\,O\=Acme"),
    ],
)
async def test_principal_is_the_subject_of_the_clients_certificate(
    authority: Authority, auth: ClientAuth, subject: str | None, expected: str | None
) -> None:
    script = Script()
    context = trusting(authority, None if subject is None else authority.client(subject))
    async with serving_tls(script, authority, auth) as running:
        assert await principal(script, running.port, context) == expected


async def test_rule_shortens_the_subject(authority: Authority) -> None:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parts = ((NameOID.ORGANIZATION_NAME, "Acme"), (NameOID.COMMON_NAME, "alice"))
    subject = x509.Name([x509.NameAttribute(*part) for part in parts])
    script = Script()
    async with serving_tls(script, authority, ClientAuth.REQUIRED) as running:
        context = trusting(authority, authority.client(subject))
        assert await principal(script, running.port, context) == "User:ALICE"


# ------------------------------------------------------------------ a load balancer's words


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def told(client: int = 0, verify: int = 0, name: bytes | None = None) -> bytes:
    """What a header tells of TLS."""
    shown = b"" if name is None else tlv(0x22, name)
    return tlv(0x20, struct.pack(">BI", client, verify) + shown) + tlv(0x02, b"kafka.example")


def header(tlvs: bytes) -> bytes:
    return V2_BEGIN + TCP4 + struct.pack(">H", len(ADDRESSES) + len(tlvs)) + ADDRESSES + tlvs


LOCAL = V2_BEGIN + b"\x20\x00\x00\x00"
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 9092\r\n"


@pytest.mark.parametrize(
    ("auth", "before", "expected"),
    [
        (ClientAuth.REQUIRED, header(told(7, 0, b"alice")), "User:CN=alice"),
        (ClientAuth.REQUIRED, header(told(5, 0, b"a,O=b")), r"User:CN=a\,O\=b"),
        (ClientAuth.REQUIRED, header(told(7, 1, b"alice")), REFUSED),
        (ClientAuth.REQUIRED, header(told(1, 0, b"alice")), REFUSED),
        (ClientAuth.REQUIRED, header(told(7, 0)), REFUSED),
        (ClientAuth.REQUIRED, header(told(6, 0, b"alice")), REFUSED),
        (ClientAuth.REQUIRED, header(told(7, 0, b"\xff")), REFUSED),
        (ClientAuth.REQUIRED, header(told(7, 0, b"a") + told(7, 0, b"b")), REFUSED),
        (ClientAuth.REQUIRED, header(told(7, 0, b"alice")[:-1]), REFUSED),
        (ClientAuth.REQUIRED, header(tlv(0x20, b"\x07")), REFUSED),
        (ClientAuth.REQUIRED, header(b""), REFUSED),
        (ClientAuth.REQUIRED, V1, REFUSED),
        (ClientAuth.REQUIRED, LOCAL, ANONYMOUS),
        (ClientAuth.REQUESTED, header(told(1)), ANONYMOUS),
        (ClientAuth.REQUESTED, header(told(7, 1, b"alice")), ANONYMOUS),
        (ClientAuth.NONE, header(told(7, 0, b"alice")), ANONYMOUS),
        (ClientAuth.NONE, header(told(0)), REFUSED),
    ],
)
async def test_balancers_words_count_on_a_listener_that_says_so(
    auth: ClientAuth, before: bytes, expected: str | None
) -> None:
    script = Script()
    endpoint = {"is_terminated": True, "client_auth": auth, "rules": RULES}
    async with serving(script, proxy_protocol=True, endpoint=endpoint) as running:
        assert await principal(script, running.port, None, before) == expected


async def test_balancers_words_do_not_count_elsewhere() -> None:
    script = Script()
    async with serving(script, proxy_protocol=True) as running:
        assert await principal(script, running.port, None, header(told(7, 0, b"admin"))) == ANONYMOUS


@pytest.mark.parametrize("is_terminated", [True, False])
async def test_balancer_that_speaks_for_itself_gets_apiversions_alone(
    is_terminated: bool, authority: Authority
) -> None:
    """Attack: a client says LOCAL, of which no balancer has to tell TLS or a certificate."""
    endpoints: list[dict[str, Any]] = [{"is_terminated": is_terminated, "client_auth": ClientAuth.REQUIRED}]
    if not is_terminated:
        pair = authority.server()
        endpoints.append({"tls": Certificates(TlsFiles(str(pair.cert), str(pair.key)), "tls")})
    for endpoint in endpoints:
        script, context = Script(), trusting(authority) if "tls" in endpoint else None
        async with serving(script, proxy_protocol=True, endpoint=endpoint) as running:
            assert await principal(script, running.port, context, LOCAL) == ANONYMOUS
            for key in (STARTED, BEGUN, REPEATED, SILENT):
                assert await principal(script, running.port, context, LOCAL, key) == REFUSED
            assert not script.started and not script.begun


async def test_header_counts_from_the_balancers_that_the_listener_names() -> None:
    script, sent = Script(), header(told(7, 0, b"alice"))
    for networks, expected in ((("127.0.0.0/8", "::1"), "User:CN=alice"), (("10.0.0.1",), REFUSED)):
        endpoint = {
            "is_terminated": True,
            "client_auth": ClientAuth.REQUIRED,
            "balancers": tuple(map(ip_network, networks)),
        }
        async with serving(script, proxy_protocol=True, endpoint=endpoint) as running:
            assert await principal(script, running.port, None, sent) == expected
            assert (await principal(script, running.port, None, LOCAL) is None) == (expected is REFUSED)


async def test_connection_with_tls_and_a_login_takes_one_place_of_those_before_a_login(authority: Authority) -> None:
    script, pair = Script(), authority.server()
    endpoint = {"tls": Certificates(TlsFiles(str(pair.cert), str(pair.key)), "tls")}
    async with serving(script, sasl=["PLAIN"], endpoint=endpoint) as running:
        running.server.configure(Bounds(process=Bound(most=2)))
        assert await anyio.to_thread.run_sync(asked, running.port, trusting(authority))


async def test_address_that_no_listener_trusts_connects_and_leaves_without_a_line() -> None:
    """A kubelet's probe closes its connection, other health checks reset it: then it has no address any more."""
    endpoint = {"balancers": (ip_network("10.0.0.1"),)}
    with capture_logs() as lines:
        async with serving(Script(), proxy_protocol=True, endpoint=endpoint) as running:

            def probe() -> None:
                for at in range(60):
                    with socket.create_connection(("127.0.0.1", running.port)) as client:
                        if at % 2:
                            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

            await anyio.to_thread.run_sync(probe)
            await until(lambda: not running.server.unidentified and not running.server.connection_quotas.open)
    assert lines == []


async def test_certificates_are_in_the_audit_log_with_their_outcome(authority: Authority, tmp_path: Path) -> None:
    script, pair = Script(), authority.server()
    files = TlsFiles(str(pair.cert), str(pair.key), str(authority.cert), ClientAuth.REQUIRED)
    rules = PrincipalRules("RULE:^CN=(alice)$/$1/")
    endpoint = {"tls": Certificates(files, "tls"), "rules": rules, "client_auth": ClientAuth.REQUIRED}
    with capture_logs() as lines:
        async with serving(script, endpoint=endpoint) as running:
            for client in (authority.client("alice"), authority.client("bob"), None):
                await anyio.to_thread.run_sync(asked, running.port, trusting(authority, client))
    audited = [line for line in lines if line.get("audit")]
    assert [(line["event"], line["outcome"], line.get("principal")) for line in audited] == [
        ("logged in", "done", "User:alice"),
        ("login failed", "failed", None),
        ("login failed", "failed", None),
    ]
    assert all(
        (line["host"], line["listener"], line["mechanism"]) == ("127.0.0.1", "default", "TLS") for line in audited
    )
    assert "CN=bob" in audited[1]["reason"] and "did not return a certificate" in audited[2]["reason"]


@pytest.mark.parametrize("subject", ["alice", None])
async def test_haproxy_that_ends_tls_passes_the_verified_name(
    authority: Authority, tmp_path: Path, subject: str | None
) -> None:
    pair, script = authority.server(), Script()
    both = tmp_path / "both.pem"
    both.write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    bind = f"ssl crt {both} ca-file {authority.cert} verify optional"
    endpoint = {"is_terminated": True, "client_auth": ClientAuth.REQUIRED, "rules": RULES}
    async with serving(script, proxy_protocol=True, endpoint=endpoint) as running:

        def through() -> bool:
            with running_haproxy([running.port], bind=bind, proxy="proxy-v2-options ssl,cert-cn,authority") as balancer:
                # The health check may ask nothing of the script, which answers ApiVersions with no error code.
                balancer.command("set server kafka/korvet-1 health up")
                balancer.command("disable health kafka/korvet-1")
                context = trusting(authority, None if subject is None else authority.client(subject))
                return asked(balancer.port, context)

        is_answered = await anyio.to_thread.run_sync(through)
        assert is_answered == (subject is not None)
        assert script.principals.get("a") == (None if subject is None else "User:CN=alice")


async def test_name_in_a_header_does_not_count_beside_a_certificate(authority: Authority) -> None:
    pair, script = authority.server(), Script()
    files = TlsFiles(str(pair.cert), str(pair.key), str(authority.cert), ClientAuth.REQUIRED)
    endpoint = {"tls": Certificates(files, "tls"), "rules": RULES}
    async with serving(script, proxy_protocol=True, endpoint=endpoint) as running:
        context = trusting(authority, authority.client("alice"))
        assert await principal(script, running.port, context, header(told(7, 0, b"admin"))) == "User:CN=alice"
