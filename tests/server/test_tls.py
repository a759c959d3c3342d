"""Listeners with TLS: clients that speak it, and those that do not, or fall silent."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from korvet.errors import ConfigError
from korvet.security.protocol import ClientAuth, Security
from korvet.security.tls import CIPHER_SUITES
from korvet.server.bounds.handshakes import Handshakes
from korvet.server.ground.settings import ListenerSettings, check_security
from tests.api.raw import unique
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority, Pair
from tests.support.haproxy import running_haproxy
from tests.support.ports import free_port
from tests.support.tools import find_tool
from tests.support.waiting import until
from tests.support.wire import request

WITHIN_S = 30.0
API_VERSIONS = request(18, 0, 42)
PROXY = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 9092\r\n"
TLS, MUTUAL, PROXIED, PLAIN = range(4)


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.server()


def secured(authority: Authority, pair: Pair, name: str, **values: Any) -> ListenerSettings:
    files: dict[str, Any] = {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_client_ca": str(authority.cert)}
    return ListenerSettings(port=0, name=name, security=Security.TLS, **files, **values)


@pytest.fixture(scope="module", params=[1, 2], ids=["one-process", "two-workers"])
def server(request: pytest.FixtureRequest, authority: Authority, pair: Pair) -> Iterator[KorvetServer]:
    rules = "RULE:^CN=([^,]*),OU=Refused$/$1/,RULE:^CN=(.*)$/$1/U"
    doors = (
        secured(authority, pair, "tls"),
        secured(authority, pair, "mutual", tls_client_auth=ClientAuth.REQUIRED, principal_rules=rules),
        secured(authority, pair, "proxied", proxy_protocol=True),
        ListenerSettings(port=0, name="plain"),
    )
    with running_broker(listeners=doors, workers=request.param) as broker:
        yield broker
        assert broker.is_running
        assert "Traceback" not in broker.log


def trusting(authority: Authority, client: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    return context


def connect(server: KorvetServer, door: int = TLS) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.ports[door]), WITHIN_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def answer(client: socket.socket) -> bytes:
    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = client.recv(size - len(data))
            assert piece, "the server closed the connection"
            data += piece
        return data

    return exactly(int.from_bytes(exactly(4)))


def is_served(client: socket.socket) -> bool:
    client.sendall(API_VERSIONS)
    return answer(client)[:4] == struct.pack(">i", 42)


def is_refused(server: KorvetServer, context: ssl.SSLContext) -> bool:
    """Whether the listener for clients with certificates refuses a client, in the handshake or behind it."""
    try:
        with context.wrap_socket(connect(server, MUTUAL), server_hostname="localhost") as client:
            client.sendall(API_VERSIONS)
            return client.recv(1) == b""
    except OSError as error:
        return not isinstance(error, TimeoutError)


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except (ConnectionResetError, ssl.SSLError):
        return True


def plain(log: str) -> str:
    """A log without colours."""
    return re.sub(r"\x1b\[\d*m", "", log)


def hello(authority: Authority) -> bytes:
    """The first bytes that a TLS client sends."""
    sent = ssl.MemoryBIO()
    session = trusting(authority).wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return sent.read()


# ------------------------------------------------------------------ clients; more are in tests/kafka


def settings_of(server: KorvetServer, authority: Authority, door: int, client: Pair | None = None) -> dict[str, Any]:
    """The settings of librdkafka."""
    shown = (
        {} if client is None else {"ssl.certificate.location": str(client.cert), "ssl.key.location": str(client.key)}
    )
    where = {"bootstrap.servers": f"127.0.0.1:{server.ports[door]}", "security.protocol": "ssl"}
    return {**where, "ssl.ca.location": str(authority.cert), **shown}


@pytest.mark.parametrize("door", [TLS, MUTUAL], ids=["tls", "mutual"])
def test_confluent_kafka_produces_and_consumes_over_tls(server: KorvetServer, authority: Authority, door: int) -> None:
    topic = unique("t")
    settings = settings_of(server, authority, door, authority.client("alice") if door == MUTUAL else None)
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(WITHIN_S)
    producer = confluent_kafka.Producer({**settings, "linger.ms": 0})
    values = sorted(os.urandom(size) for size in (1, 100, 20_000, 700_000))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(WITHIN_S) == 0
    consumer = confluent_kafka.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < len(values):
        message = consumer.poll(WITHIN_S)
        assert message is not None and message.error() is None
        found.append(message.value() or b"")
    consumer.close()
    assert sorted(found) == values
    brokers = admin.list_topics(timeout=WITHIN_S).brokers.values()
    assert {broker.port for broker in brokers} == {server.ports[door]}


def test_client_works_over_tls_that_haproxy_passes_through(authority: Authority) -> None:
    """The front-end's listener advertises HAProxy's ports, each of which is a broker for clients."""
    with ExitStack() as stack:
        ports = [free_port()]
        balancer = stack.enter_context(running_haproxy(ports, proxy="check-ssl verify none"))
        host, first, last = balancer.address
        shown: dict[str, Any] = {"advertised_host": host, "advertised_port": first, "advertised_last_port": last}
        door = replace(secured(authority, authority.server(), "tls", proxy_protocol=True, **shown), port=ports[0])
        stack.enter_context(running_broker(listeners=[door]))
        balancer.wait_until_up()
        topic = unique("t")
        settings: dict[str, Any] = {"bootstrap.servers": balancer.bootstrap, "security.protocol": "ssl"}
        settings["ssl.ca.location"] = str(authority.cert)
        producer = confluent_kafka.Producer({**settings, "transactional.id": topic})
        producer.init_transactions(WITHIN_S)
        producer.begin_transaction()
        producer.produce(topic, b"value")
        producer.commit_transaction(WITHIN_S)
        for protocol in ("classic", "consumer"):
            group = {"group.id": f"{topic}-{protocol}", "group.protocol": protocol, "auto.offset.reset": "earliest"}
            consumer = confluent_kafka.Consumer({**settings, **group})
            consumer.subscribe([topic])
            message = consumer.poll(WITHIN_S)
            assert message is not None
            assert message.value() == b"value"
            consumer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_spoken(server: KorvetServer, authority: Authority, version: ssl.TLSVersion) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    with context.wrap_socket(connect(server), server_hostname="localhost") as client:
        assert is_served(client)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_older_versions_of_tls_are_refused(server: KorvetServer, authority: Authority, version: ssl.TLSVersion) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        context.wrap_socket(connect(server), server_hostname="localhost")


ECDSA_256, ECDSA_128 = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


@pytest.mark.parametrize("auth", [ClientAuth.NONE, ClientAuth.REQUIRED])
@pytest.mark.parametrize(
    ("values", "spoken"),
    [
        ({"tls_protocols": ("TLSv1.3",)}, {"TLSv1.3"}),
        ({"tls_protocols": ("TLSv1.2",)}, {"TLSv1.2"}),
        ({"tls_cipher_suites": (ECDSA_256,)}, {"TLSv1.2"}),
        ({"tls_cipher_suites": tuple(one for one in CIPHER_SUITES if "_WITH_" not in one)}, {"TLSv1.3"}),
    ],
)
def test_protocols_and_cipher_suites_are_those_that_the_listener_names(
    authority: Authority, pair: Pair, values: dict[str, Any], spoken: set[str], auth: ClientAuth
) -> None:
    named = secured(authority, pair, "named", tls_client_auth=auth, **values)
    found: set[tuple[str, str]] = set()
    with running_broker(listeners=[named]) as broker:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for suite in ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"):
                context = trusting(authority, authority.client("alice"))
                context.minimum_version = context.maximum_version = version
                context.set_ciphers(suite)
                with suppress(OSError), context.wrap_socket(connect(broker, 0), server_hostname="localhost") as client:
                    assert is_served(client)
                    cipher = client.cipher()
                    assert cipher is not None
                    found.add((str(client.version()), cipher[0]))
    assert {version for version, _ in found} == spoken
    if ECDSA_256 in values.get("tls_cipher_suites", ()):
        assert {suite for _, suite in found} == {"ECDHE-ECDSA-AES256-GCM-SHA384"}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"tls_cipher_suites": ("TLS_AES_256_GCM_SHA384",)}, "all or none of TLS_AES_128_GCM_SHA256, TLS_AES_256"),
        ({"tls_cipher_suites": (ECDSA_256,), "tls_protocols": ("TLSv1.3",)}, "none for any of tls-protocols"),
        ({"tls_client_crl": "crl.pem"}, "tls-client-crl needs tls-client-auth"),
        ({"tls_protocols": ("TLSv1.3",), "security": Security.PLAINTEXT}, "it has settings of TLS"),
    ],
)
def test_listener_that_could_take_no_handshake_as_it_says_is_refused(
    authority: Authority, pair: Pair, values: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        check_security(replace(secured(authority, pair, "tls"), **values))


def test_client_may_not_renegotiate(server: KorvetServer, authority: Authority) -> None:
    """OpenSSL's client asks for that at a line R. It is gone from TLS 1.3."""
    command = [find_tool("openssl"), "s_client", "-tls1_2", "-CAfile", str(authority.cert)]
    done = subprocess.run(
        [*command, "-connect", f"127.0.0.1:{server.ports[TLS]}"],
        input="R\n", capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert "RENEGOTIATING" in done.stderr
    assert "no renegotiation" in done.stderr


# ------------------------------------------------------------------ strangers


def test_request_without_tls_is_closed_with_one_line(server: KorvetServer) -> None:
    text = "the client does not speak TLS"
    before = server.log.count(text)
    with connect(server) as client:
        client.sendall(API_VERSIONS)
        assert is_closed(client)
    until(lambda: server.log.count(text) == before + 1, "the line is there")


def test_client_hello_may_come_byte_by_byte(server: KorvetServer, authority: Authority) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with connect(server) as client:
        while True:
            try:
                session.do_handshake()
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    client.sendall(bytes([byte]))
                incoming.write(client.recv(65536))
            else:
                break
        session.write(API_VERSIONS)
        client.sendall(outgoing.read())
        incoming.write(client.recv(65536))


def test_silent_handshakes_do_not_hold_up_a_client(server: KorvetServer, authority: Authority) -> None:
    """Some of the 300 send nothing, some begin a ClientHello, and some stop behind a whole one."""
    said = hello(authority)
    with ExitStack() as stack:
        working = stack.enter_context(trusting(authority).wrap_socket(connect(server), server_hostname="localhost"))
        for at in range(300):
            stranger = stack.enter_context(connect(server))
            stranger.sendall((b"", said[:1], said[:-1], said)[at % 4])
        assert is_served(working)
        with trusting(authority).wrap_socket(connect(server), server_hostname="localhost") as new:
            assert is_served(new)
        assert is_served(working)


@pytest.mark.parametrize("server", [1], indirect=True, ids=["one-process"])
def test_flood_of_connections_leaves_every_request_of_a_client_answered(
    server: KorvetServer, authority: Authority
) -> None:
    """Of the thousands that stall, 64 at most run their handshake at a time; the others come and go at once."""
    said = hello(authority)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 16
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, 4096)), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        working = stack.enter_context(trusting(authority).wrap_socket(connect(server), server_hostname="localhost"))
        for at in range(3000):
            stranger = connect(server)
            stays = at % 3 == 0
            if stays:
                stack.enter_context(stranger)
            stranger.sendall((b"", said[:1], said[:-1], said)[at // 3 % 4])
            if not stays:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", at % 2, 0))
                stranger.close()
            if at % 50 == 0:
                assert is_served(working)
        with trusting(authority).wrap_socket(connect(server), server_hostname="localhost") as new:
            assert is_served(new)
        assert is_served(working)


def test_rate_of_new_connections_bounds_the_handshakes_of_a_flood(authority: Authority, pair: Pair) -> None:
    """Attack: real ClientHellos by many connections at once. The server signs for each, and the flood never goes on."""
    rate, at_once, least, said, context = 10, 11, 30, hello(authority), trusting(authority)
    doors = [secured(authority, pair, "flooded"), secured(authority, pair, "tls"), ListenerSettings(port=0, name="in")]
    settings = {"listener.name.flooded.max.connection.creation.rate": str(rate), "quota.window.num": "2"}
    signed: list[int] = []
    is_over = threading.Event()

    def flood(broker: KorvetServer) -> None:
        while not is_over.is_set():
            with connect(broker) as client, suppress(OSError):
                client.sendall(said)
                signed.extend(client.recv(1))

    with running_broker(listeners=doors, broker=settings) as broker:
        began = time.monotonic()
        flooders = [threading.Thread(target=flood, args=(broker,)) for _ in range(20)]
        for flooder in flooders:
            flooder.start()
        try:
            with connect(broker, 2) as working:
                while len(signed) < least:
                    assert is_served(working)
                    with context.wrap_socket(connect(broker, 1), server_hostname="localhost") as new:
                        assert is_served(new)
        finally:
            is_over.set()
            for flooder in flooders:
                flooder.join()
        assert len(signed) <= at_once + rate * (time.monotonic() - began)
        assert set(signed) == {0x16}, "each answer is a ServerHello"
        assert "Traceback" not in broker.log


@pytest.mark.anyio
async def test_no_more_handshakes_run_at_a_time_than_there_are_turns() -> None:
    handshakes, running, most = Handshakes(3, patience_s=0.01), 0, 0

    async def shake() -> None:
        nonlocal running, most
        cut = anyio.Event()
        async with handshakes.turn(cut.set):
            running += 1
            most = max(most, running)
            # It stalls until others need its place.
            with anyio.move_on_after(0.2):
                await cut.wait()
            running -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(shake)
    assert most == 3


def test_silent_client_is_closed_in_time(server: KorvetServer) -> None:
    with connect(server) as silent, connect(server) as slow:
        slow.sendall(b"\x16\x03\x01")
        assert is_closed(silent)
        assert is_closed(slow)


def test_oversized_certificate_chain_is_refused(server: KorvetServer, authority: Authority, tmp_path: Path) -> None:
    """OpenSSL's bound is 100 KiB."""
    client = authority.client("alice")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(client.cert.read_bytes() + b"".join(authority.server().cert.read_bytes() for _ in range(400)))
    context = trusting(authority)
    context.load_cert_chain(chain, client.key)
    assert is_refused(server, context)


def test_failed_handshakes_leave_no_descriptor(authority: Authority, pair: Pair) -> None:
    said = hello(authority)
    with running_broker(listeners=[secured(authority, pair, "tls", proxy_protocol=True)]) as broker:
        assert broker.process is not None
        descriptors = Path(f"/proc/{broker.process.pid}/fd")
        if not descriptors.exists():
            pytest.skip("only Linux tells the descriptors of a process")
        before = len(list(descriptors.iterdir()))
        strange = (b"", PROXY[:9], b"GET / HTTP", PROXY, PROXY + b"GET", PROXY + said[:9], PROXY + said, said)
        for sent in strange * 10:
            with connect(broker) as client:
                client.sendall(sent)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", len(sent) % 2, 0))
        until(lambda: len(list(descriptors.iterdir())) <= before, "all descriptors are closed")
        assert "Traceback" not in broker.log


def test_drain_does_not_wait_for_handshakes(authority: Authority, pair: Pair) -> None:
    with running_broker(listeners=[secured(authority, pair, "tls")]) as broker, ExitStack() as stack:
        clients = [stack.enter_context(connect(broker)) for _ in range(80)]
        for client in clients[1:]:
            client.sendall(hello(authority))
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        assert is_closed(clients[0])
        stopping.join()
        assert "cut off" not in broker.log
        assert "Traceback" not in broker.log


# ------------------------------------------------------------------ behind a load balancer


@pytest.mark.parametrize("is_one_segment", [True, False], ids=["one-segment", "two-segments"])
def test_tls_behind_a_proxy_header_works(server: KorvetServer, authority: Authority, is_one_segment: bool) -> None:
    with connect(server, PROXIED) as raw:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            session.do_handshake()
        if is_one_segment:
            raw.sendall(PROXY + outgoing.read())
        else:
            raw.sendall(PROXY)
            raw.sendall(outgoing.read())
        while True:
            incoming.write(raw.recv(65536))
            try:
                session.do_handshake()
            except ssl.SSLWantReadError:
                continue
            break
        session.write(API_VERSIONS)
        raw.sendall(outgoing.read())
        data = b""
        while len(data) < 8:
            incoming.write(raw.recv(65536))
            try:
                data += session.read(65536)
            except ssl.SSLWantReadError:
                continue
        assert data[4:8] == struct.pack(">i", 42)


# ------------------------------------------------------------------ new files


def serial(server: KorvetServer) -> int:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    from cryptography import x509

    with context.wrap_socket(connect(server)) as client:
        shown = client.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


@pytest.mark.parametrize("by", ["poll", "sighup"])
def test_new_files_count_and_broken_ones_keep_the_old(authority: Authority, tmp_path: Path, by: str) -> None:
    own = Pair(cert=tmp_path / "own.pem", key=tmp_path / "own-key.pem")

    def put(pair: Pair) -> None:
        own.cert.write_bytes(pair.cert.read_bytes())
        own.key.write_bytes(pair.key.read_bytes())

    def tell(broker: KorvetServer) -> None:
        assert broker.process is not None
        if by == "sighup":
            os.kill(broker.process.pid, signal.SIGHUP)

    put(authority.server())
    with running_broker(listeners=[secured(authority, own, "tls")]) as broker:
        before = serial(broker)
        with trusting(authority).wrap_socket(connect(broker), server_hostname="localhost") as old:
            assert is_served(old)
            put(authority.server())
            tell(broker)
            until(lambda: serial(broker) != before, "the new certificate is shown")
            now = serial(broker)
            own.key.write_text("no key")
            tell(broker)
            until(lambda: "TLS files not taken" in broker.log, "the line is there")
            assert serial(broker) == now
            assert is_served(old)
        put(authority.server(ends_in_days=-1))
        tell(broker)
        until(lambda: "TLS certificate has expired" in broker.log, "the line is there")
        assert "Traceback" not in broker.log


# ------------------------------------------------------------------ principals


def test_subject_without_a_rule_closes_the_connection_with_one_line(authority: Authority, pair: Pair) -> None:
    door = secured(authority, pair, "mutual", tls_client_auth=ClientAuth.REQUIRED, principal_rules="RULE:^CN=a$/a/")
    with running_broker(listeners=[door]) as broker:
        with trusting(authority, authority.client("a")).wrap_socket(
            connect(broker), server_hostname="localhost"
        ) as client:
            assert is_served(client)
        with trusting(authority, authority.client("b")).wrap_socket(
            connect(broker), server_hostname="localhost"
        ) as client:
            assert is_closed(client)
        until(lambda: "no rule of principal-rules" in broker.log, "the reason is there")
        until(lambda: broker.log.count("connection refused") == 1, "the line is there")
