"""Namespaces that clients choose: by their login, by a server name, and what an unknown or a suspended tenant gets."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from subprocess import CalledProcessError
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, Producer

from korvet.cli import run
from korvet.security.protocol import ClientAuth, NamespaceFrom, Security
from korvet.server.settings import ListenerSettings
from korvet.store.keys import TENANTS
from korvet.wire.proxy_header import V2_BEGIN
from tests.api.data import fetch_request, records, wanted
from tests.api.quotas import entry
from tests.server.sasl_session import Session
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority
from tests.support.haproxy import running_haproxy
from tests.support.issuer import Issuer
from tests.support.tenants import (
    PASSWORD,
    WITHIN_S,
    Client,
    Closed,
    connected,
    create_tenant,
    korvet,
    make_topic,
    shows_token,
    topics_of,
)

LOGIN, BOTH, SNI, CERTIFICATE, FIXED, TERMINATED, PASSED = range(7)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
BROKER = {"korvet.sasl.plain.without.tls": "true", "korvet.sasl.oauthbearer.without.tls": "true"}
LISTENER = ListenerSettings(
    port=0, name="login", namespace_from=NamespaceFrom.PRINCIPAL, security=Security.SASL_PLAINTEXT, sasl=MECHANISMS
)
HOST = "b{node}-{namespace}.kafka.example"


@pytest.fixture(scope="module")
def broker(authority: Authority, issuer: Issuer) -> Iterator[KorvetServer]:
    """A broker with the tenants acme and globex, both with the user alice, and with a fixed namespace."""
    pair = authority.server(["*.kafka.example"])
    tls: dict[str, Any] = {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_client_ca": str(authority.cert)}
    by_login, by_name = NamespaceFrom.PRINCIPAL, NamespaceFrom.SNI
    named: dict[str, Any] = {"advertised_host": HOST, "advertised_port": 9093, **tls}
    required = {"tls_client_auth": ClientAuth.REQUIRED, "principal_rules": r"RULE:^CN=([^,]+),O=([^,]+)$/$1@$2/"}
    listeners = [
        replace(LISTENER, sasl=(*MECHANISMS, "OAUTHBEARER")),
        ListenerSettings(port=0, name="both", namespace_from=by_login, security=Security.SASL_TLS,
                         sasl=(*MECHANISMS, "OAUTHBEARER"), **named),
        ListenerSettings(port=0, name="sni", namespace_from=by_name, security=Security.SASL_TLS, sasl=MECHANISMS,
                         **named),
        ListenerSettings(port=0, name="certificate", namespace_from=by_login, security=Security.TLS, **tls,
                         **required),  # type: ignore[arg-type]
        ListenerSettings(port=0, name="fixed", namespace="fixed"),
        ListenerSettings(port=0, name="terminated", namespace_from=by_name, security=Security.SASL_TLS,
                         sasl=MECHANISMS, tls_terminated=True, proxy_protocol=True, advertised_host=HOST,
                         advertised_port=9093),
        ListenerSettings(port=0, name="passed", namespace_from=by_name, security=Security.SASL_TLS, sasl=MECHANISMS,
                         proxy_protocol=True, **named),
    ]  # fmt: skip
    with running_broker(listeners=listeners, broker={**BROKER, **issuer.settings}) as running:
        for name in ("acme", "globex"):
            create_tenant(running, name)
        yield running
        assert "Traceback" not in running.log


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.cert))
    made.check_hostname = False
    return made


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def failure(broker: KorvetServer, name: str, password: str = PASSWORD, at: int = LOGIN) -> Any:
    """The answer to a login that fails; afterwards the connection is closed."""
    with connected(broker.ports[at]) as client:
        answer = client.log_in(name, password)
        assert client.is_closed()
        return answer


def is_let_in(broker: KorvetServer, name: str) -> bool:
    """Whether a login succeeds; else the connection ends without an answer, after which clients try again."""
    with connected(broker.port) as client:
        try:
            answer = client.log_in(name)
        except Closed:
            return False
        assert answer["error_code"] == "NONE"
        return True


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


@pytest.mark.parametrize(
    ("server_name", "name", "error"),
    [
        ("b1-acme.kafka.example", "alice@acme", "NONE"),
        (None, "alice@acme", "NONE"),
        ("b1-globex.kafka.example", "alice@acme", "SASL_AUTHENTICATION_FAILED"),
        ("b1-nobodys.kafka.example", "alice@acme", "SASL_AUTHENTICATION_FAILED"),
    ],
)
def test_server_name_and_login_must_agree(
    broker: KorvetServer, context: ssl.SSLContext, server_name: str | None, name: str, error: str
) -> None:
    with connected(broker.ports[BOTH], server_name, context) as client:
        assert client.log_in(name)["error_code"] == error


def test_server_name_tells_the_namespace_and_its_clients_are_told_its_host_names(
    broker: KorvetServer, context: ssl.SSLContext
) -> None:
    for namespace, topic in (("acme", "of-acme"), ("globex", "of-globex")):
        with connected(broker.ports[SNI], f"b0-{namespace}.kafka.example", context, login="alice") as client:
            assert make_topic(client, topic) == "NONE"
            answer = client.ask("metadata", 12, topics=None)
            assert {"of-acme", "of-globex"} & {one["name"] for one in answer["topics"]} == {topic}
            hosts = {one["node_id"]: (one["host"], one["port"]) for one in answer["brokers"]}
            assert hosts == {node: (f"b{node}-{namespace}.kafka.example", 9093) for node in range(1, 7)}


def test_group_is_listed_by_the_node_whose_name_was_asked_for(broker: KorvetServer, context: ssl.SSLContext) -> None:
    port, found = broker.ports[SNI], []
    with connected(port, "b0-acme.kafka.example", context, login="alice") as client:
        topics = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 0}]}]
        make_topic(client, "orders")
        client.ask("offset_commit", 8, group_id="listed", generation_id_or_member_epoch=-1, member_id="", topics=topics)
    for node in range(7):
        with connected(port, f"b{node}-acme.kafka.example", context, login="alice") as client:
            groups = client.ask("list_groups", 4)["groups"]
            found += [node] if "listed" in {group["group_id"] for group in groups} else []
    assert found[0] == 0 and len(found) == 2


@pytest.mark.parametrize(
    "server_name", ["b1-nobodys.kafka.example", "acme.kafka.example", "b1-fixed.kafka.example", None]
)
def test_unknown_server_name_looks_as_a_wrong_password_does(
    broker: KorvetServer, context: ssl.SSLContext, server_name: str | None
) -> None:
    with connected(broker.ports[SNI], server_name, context) as client:
        refused = client.log_in("alice")
        assert client.is_closed()
    with connected(broker.ports[SNI], "b1-acme.kafka.example", context) as client:
        assert client.log_in("alice", "wrong") == refused


def test_haproxy_that_passes_tls_on_leaves_the_choice_to_the_server_name(
    broker: KorvetServer, context: ssl.SSLContext
) -> None:
    with running_haproxy([broker.ports[PASSED]], proxy="check-ssl verify none") as haproxy:
        haproxy.wait_until_up()
        for namespace in ("acme", "globex"):
            name = f"through-{namespace}"
            with connected(haproxy.port, f"b0-{namespace}.kafka.example", context, login="alice") as client:
                assert make_topic(client, name) == "NONE"
                assert {one for one in topics_of(client) if one.startswith("through-")} == {name}
        with connected(haproxy.port, "b0-nobodys.kafka.example", context) as client:
            assert client.log_in("alice")["error_code"] == "SASL_AUTHENTICATION_FAILED"


@pytest.mark.parametrize(
    ("server_name", "error"),
    [(b"b2-acme.kafka.example", "NONE"), (b"b2-nobodys.kafka.example", "SASL_AUTHENTICATION_FAILED"),
     (b"", "SASL_AUTHENTICATION_FAILED")],
)  # fmt: skip
def test_load_balancer_where_tls_ended_tells_the_server_name(
    broker: KorvetServer, server_name: bytes, error: str
) -> None:
    over_tls = struct.pack(">BHBI", 0x20, 5, 1, 0)
    named = struct.pack(">BH", 2, len(server_name)) + server_name if server_name else b""
    addresses = bytes(8) + struct.pack(">HH", 50000, 9093)
    told = addresses + over_tls + named
    with connected(broker.ports[TERMINATED]) as client:
        client.socket.sendall(V2_BEGIN + b"\x21\x11" + struct.pack(">H", len(told)) + told)
        assert client.log_in("alice")["error_code"] == error
        if error == "NONE":
            brokers = client.ask("metadata", 12, topics=[])["brokers"]
            assert {one["host"] for one in brokers} == {f"b{node}-acme.kafka.example" for node in range(1, 7)}


def test_token_names_the_namespace_and_its_user(broker: KorvetServer, issuer: Issuer) -> None:
    for name, is_in in (("carol@acme", True), ("carol@nobodys", False), ("carol", False)):
        with connected(broker.port) as client:
            assert shows_token(client, issuer.token(name)) is is_in
            assert not is_in or topics_of(client) is not None


def test_certificate_names_the_namespace_and_its_user(
    broker: KorvetServer, authority: Authority, context: ssl.SSLContext
) -> None:
    for organization, is_served in (("acme", True), ("nobodys", False)):
        own = authority.client(subject("carol", organization))
        context.load_cert_chain(own.cert, own.key)
        with connected(broker.ports[CERTIFICATE], "x.kafka.example", context) as client:
            client.send("metadata", 12, topics=None)
            if is_served:
                assert client.frame()
            else:
                assert client.is_closed()


def subject(name: str, organization: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
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


def test_suspended_tenant_loses_its_connections_and_gets_them_back(broker: KorvetServer) -> None:
    create_tenant(broker, "soon")
    with connected(broker.port, login="alice@soon") as client, connected(broker.port, login="alice@acme") as other:
        assert make_topic(client, "kept") == "NONE"
        korvet(broker, "tenants", "suspend", "soon")
        assert client.is_closed()
        assert failure(broker, "alice@soon") == failure(broker, "alice@acme", "wrong")
        assert topics_of(other) is not None
    korvet(broker, "tenants", "resume", "soon")

    def is_in() -> bool:
        with connected(broker.port) as client:
            return bool(client.log_in("alice@soon")["error_code"] == "NONE" and topics_of(client) == {"kept"})

    eventually(is_in)


def test_new_user_may_log_in_at_once_and_a_deleted_one_is_cut_off(broker: KorvetServer) -> None:
    korvet(broker, "users", "add", "dave", "--namespace", "acme", stdin=PASSWORD)
    with connected(broker.port, login="dave@acme") as client, connected(broker.port, login="alice@acme") as other:
        assert topics_of(client) is not None
        korvet(broker, "users", "remove", "dave", "--namespace", "acme")
        assert client.is_closed()
        assert topics_of(other) is not None


def test_deleted_tenant_leaves_no_key_and_its_name_can_be_used_again(broker: KorvetServer) -> None:
    create_tenant(broker, "gone")
    with connected(broker.port, login="alice@gone") as client:
        make_topic(client, "t", 3)
        assert "give --execute" in korvet(broker, "tenants", "delete", "gone")
        with pytest.raises(CalledProcessError, match="exit status 1"):
            korvet(broker, "tenants", "create", "gone")
        korvet(broker, "tenants", "delete", "gone", "--execute")
        assert client.is_closed()
    with broker.redis() as redis:
        assert list(redis.scan_iter(match="korvet:{gone:*")) == []
    assert "gone" not in korvet(broker, "tenants", "list")
    create_tenant(broker, "gone")

    def is_empty() -> bool:
        with connected(broker.port) as client:
            return bool(client.log_in("alice@gone")["error_code"] == "NONE" and topics_of(client) == set())

    eventually(is_empty)


def test_half_done_login_does_not_enter_a_later_tenant_of_the_same_name(broker: KorvetServer) -> None:
    create_tenant(broker, "again")
    with Session(broker.port) as half, broker.redis() as redis:
        half.begin("SCRAM-SHA-256")
        final = half.scram_final("alice@again", PASSWORD, "SCRAM-SHA-256")
        # The steps of a deletion, without its pause.
        _, tenant_id = redis.fcall("korvet_tenant_switch", 1, TENANTS.tenants, "again", "deleting")
        redis.delete(*redis.scan_iter(match="korvet:{again:*"))
        redis.fcall("korvet_tenant_forget", 1, TENANTS.tenants, "again", tenant_id)
        create_tenant(broker, "again")

        def is_known() -> bool:
            with connected(broker.port) as client:
                return bool(client.log_in("alice@again")["error_code"] == "NONE")

        eventually(is_known)
        assert half.step(final)["error_code"] == "SASL_AUTHENTICATION_FAILED"
        assert half.is_closed()


def test_clients_that_leave_while_they_enter_do_not_count(
    broker: KorvetServer, issuer: Issuer, context: ssl.SSLContext
) -> None:
    create_tenant(broker, "hasty", "connections=2")
    with connected(broker.port, login="alice@hasty") as client:
        assert topics_of(client) == set()
    message = f"n,,\x01auth=Bearer {issuer.token('carol@hasty')}\x01\x01".encode()
    # Over TLS the broker sees at once that a client has left, also while it answers.
    leaving = [Client(broker.ports[BOTH], "b1-hasty.kafka.example", context) for _ in range(2)]
    for one in leaving:
        assert one.ask("sasl_handshake", 1, mechanism="OAUTHBEARER")["error_code"] == "NONE"
    with broker.redis() as redis:
        redis.client_pause(1000)
    for one in leaving:
        one.send("sasl_authenticate", 2, auth_bytes=message)
    time.sleep(0.3)
    for one in leaving:
        one.socket.close()

    def is_in() -> bool:
        with connected(broker.port) as client, connected(broker.port) as other:
            return all(one.log_in("alice@hasty")["error_code"] == "NONE" for one in (client, other))

    eventually(is_in)


def test_limits_of_topics_partitions_groups_and_connections_hold(broker: KorvetServer) -> None:
    create_tenant(broker, "small", "topics=2", "partitions=4", "connections=2", "groups=1", "transactional-ids=16")
    with connected(broker.port, login="alice@small") as client:
        made = [make_topic(client, name, count) for name, count in (("a", 3), ("b", 2), ("b", 1), ("c", 1))]
        assert made == ["NONE", "POLICY_VIOLATION", "NONE", "POLICY_VIOLATION"]
        asked = [{"name": "a", "count": 4, "assignments": None}]
        (grown,) = client.ask("create_partitions", 3, topics=asked, timeout=10_000)["results"]
        assert (grown["error_code"], grown["error_message"]) == (
            "POLICY_VIOLATION", "There are as many topics or partitions as the limits of this tenant allow.",
        )  # fmt: skip
        topics = [{"name": "a", "partitions": [{"partition_index": 0, "committed_offset": 0}]}]
        codes = []
        for group in ("first", "second"):
            values = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
            answer = client.ask("offset_commit", 8, group_id=group, **values)
            codes.append(answer["topics"][0]["partitions"][0]["error_code"])
        assert codes == ["NONE", "POLICY_VIOLATION"]
        with connected(broker.port, login="alice@small"):
            assert not is_let_in(broker, "alice@small")
        with connected(broker.port, login="alice@acme") as other:
            assert make_topic(other, "not-limited", 9) == "NONE"
        korvet(broker, "tenants", "limit", "small", "topics=none", "partitions=none")
        eventually(lambda: make_topic(client, "c", 9) in ("NONE", "TOPIC_ALREADY_EXISTS"))


def test_connections_of_a_tenant_are_bounded_over_all_front_ends(broker: KorvetServer) -> None:
    create_tenant(broker, "narrow", "connections=2")
    with (
        running_broker(listeners=[replace(LISTENER, port=0)], broker=BROKER, redis_url=url_of(broker)) as other,
        connected(broker.port, login="alice@narrow") as one,
        connected(other.port, login="alice@narrow"),
    ):
        with broker.redis() as redis:
            eventually(lambda: redis.hlen("korvet:{@tenants}:connections:tenant:narrow") == 2)
        eventually(lambda: not is_let_in(broker, "alice@narrow") and not is_let_in(other, "alice@narrow"))
        assert topics_of(one) == set()
        korvet(broker, "tenants", "limit", "narrow", "connections=3")
        eventually(lambda: is_let_in(broker, "alice@narrow") and is_let_in(other, "alice@narrow"))


def url_of(broker: KorvetServer) -> str:
    return f"unix://{broker.embedded_socket}"


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


def put(client: Client, topic: str, size: int = 5000) -> str:
    """The code of a produced record."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records(1, size)}]}]
    answer = client.ask("produce", 9, acks=-1, timeout=1000, topic_data=data, transactional_id=None)
    return str(answer["responses"][0]["partition_responses"][0]["error_code"])


def throttle_of(client: Client, topic: str, size: int) -> int:
    """The throttle time in ms that a produced record is answered with."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records(1, size)}]}]
    return int(client.ask("produce", 9, acks=-1, timeout=1000, topic_data=data, transactional_id=None)["throttle_time"])


def test_rates_of_a_tenant_count_for_all_its_clients_above_its_own_quotas(broker: KorvetServer) -> None:
    create_tenant(broker, "fast", "producer-byte-rate=5000", "consumer-byte-rate=1000", users=("alice", "bob"))
    with (
        connected(broker.port, login="alice@fast") as alice,
        connected(broker.port, login="bob@fast") as bob,
        connected(broker.port, login="alice@acme") as other,
    ):
        assert make_topic(alice, "t") == "NONE" and make_topic(other, "not-fast") == "NONE"
        quota = entry({"user": "bob"}, producer_byte_rate=10**9)
        assert (
            bob.ask("alter_client_quotas", 1, entries=[quota], validate_only=False)["entries"][0]["error_code"]
            == "NONE"
        )
        assert throttle_of(alice, "t", 45_000) == 0, "ten seconds' worth may be used at once"
        assert throttle_of(bob, "t", 10_000) > 0, "a tenant's own quota lifts no ceiling"
        assert throttle_of(other, "not-fast", 100_000) == 0
        fetch = fetch_request("t", wanted(0))
        assert alice.ask("fetch", 11, **fetch)["throttle_time"] == 0
        eventually(lambda: alice.ask("fetch", 11, **fetch)["throttle_time"] > 0)
    korvet(broker, "tenants", "limit", "fast", "producer-byte-rate=none", "consumer-byte-rate=none")


def test_partitions_that_a_tenant_makes_and_deletes_have_a_rate(broker: KorvetServer) -> None:
    create_tenant(broker, "makers", "controller-mutation-rate=1")

    def made(name: str) -> str:
        # A refusal throttles its connection for minutes.
        with connected(broker.port, login="alice@makers") as another:
            return make_topic(another, name)

    with connected(broker.port, login="alice@makers") as alice:
        assert make_topic(alice, "t", partitions=400) == "NONE", "any number fits while the quota is not used up"
        assert made("u") == "THROTTLING_QUOTA_EXCEEDED"
        asked = alice.ask("metadata", 12, topics=[{"topic_id": None, "name": "v"}])["topics"]
        assert [topic["error_code"] for topic in asked] == ["UNKNOWN_TOPIC_OR_PARTITION"]
        assert topics_of(alice) == {"t"}
        korvet(broker, "tenants", "limit", "makers", "controller-mutation-rate=none")
        eventually(lambda: made("u") == "NONE")


@pytest.mark.parametrize("limits", [["producer-byte-rate=0"], ["connection-rate=x"], ["connection-rate"]])
def test_rates_that_would_stop_everything_are_refused(limits: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tenants", "limit", "acme", *limits, "--redis", "redis://127.0.0.1:1"]) == 2
    assert limits[0] in capsys.readouterr().err


def test_connections_of_a_tenant_come_no_faster_than_its_rate(broker: KorvetServer) -> None:
    create_tenant(broker, "often", "connection-rate=1")
    # A wait may let one in, so there are more than the eleven that come at once.
    assert not all(is_let_in(broker, "alice@often") for _ in range(100))
    assert is_let_in(broker, "alice@acme")
    eventually(lambda: is_let_in(broker, "alice@often"))


def test_quota_of_an_address_within_a_tenant_counts_when_its_client_enters(broker: KorvetServer) -> None:
    create_tenant(broker, "addressed")
    with connected(broker.port, login="alice@addressed") as client:
        quota = entry({"ip": None}, connection_creation_rate=1)
        altered = client.ask("alter_client_quotas", 1, entries=[quota], validate_only=False)
        assert altered["entries"][0]["error_code"] == "NONE"
        assert not all(is_let_in(broker, "alice@addressed") for _ in range(100))
        assert is_let_in(broker, "alice@acme")


def test_quota_of_the_lobby_counts_before_a_client_says_anything(broker: KorvetServer) -> None:
    korvet(broker, "quotas", "set", "--lobby", "--ip", "127.0.0.1", "connection_creation_rate=1")

    def is_closed() -> bool:
        with connected(broker.port) as client:
            client.socket.settimeout(0.2)
            try:
                return client.is_closed()
            except TimeoutError:
                return False

    try:
        eventually(is_closed)
    finally:
        korvet(broker, "quotas", "remove", "--lobby", "--ip", "127.0.0.1")
    eventually(lambda: not is_closed())


def test_producers_of_a_tenant_with_too_many_bytes_wait_and_all_else_goes_on(broker: KorvetServer) -> None:
    create_tenant(broker, "heavy", "bytes=20000")
    with connected(broker.port, login="alice@heavy") as client, connected(broker.port, login="alice@acme") as other:
        assert make_topic(client, "t") == "NONE" and make_topic(other, "not-heavy") == "NONE"
        eventually(lambda: put(client, "t") == "KAFKA_STORAGE_ERROR")
        assert put(other, "not-heavy") == "NONE"
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        values = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        answer = client.ask("offset_commit", 8, group_id="g", **values)
        assert answer["topics"][0]["partitions"][0]["error_code"] == "NONE"
        asked = [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 1000, "fetch_offset": 0}]}]
        read = client.ask("fetch", 12, replica_id=-1, max_wait=100, min_bytes=1, max_bytes=9999, session_epoch=-1,
                          topics=asked)  # fmt: skip
        assert read["responses"][0]["partitions"][0]["records"]
        deleted = [{"name": "t", "partitions": [{"partition_index": 0, "offset": -1}]}]
        client.ask("delete_records", 2, topics=deleted, timeout=10_000)
        eventually(lambda: put(client, "t", 10) == "NONE")


def test_aiokafka_finds_its_tenant_by_host_names_alone(
    broker: KorvetServer, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, find = broker.ports[SNI], socket.getaddrinfo

    def resolve(host: Any, *args: Any, **more: Any) -> Any:
        # All host names of the tenants lead to this broker, as its DNS would say.
        return find("127.0.0.1", port, *args[1:], **more) if "kafka.example" in str(host) else find(host, *args, **more)

    async def round_trip(namespace: str) -> None:
        login: dict[str, Any] = {
            "bootstrap_servers": f"b0-{namespace}.kafka.example:9093", "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "alice", "sasl_plain_password": PASSWORD,
            "ssl_context": context,
        }  # fmt: skip
        async with aiokafka.AIOKafkaProducer(**login) as producer:
            await producer.send_and_wait("by-name", f"of {namespace}".encode())
        consumer = aiokafka.AIOKafkaConsumer("by-name", group_id="g", auto_offset_reset="earliest", **login)
        async with consumer:
            record = await asyncio.wait_for(consumer.getone(), WITHIN_S)
            assert record.value == f"of {namespace}".encode() and record.offset == 0

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for namespace in ("acme", "globex"):
        asyncio.run(round_trip(namespace))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in_to_its_tenant(broker: KorvetServer, mechanism: str) -> None:
    topic = f"of-librdkafka-{mechanism.lower()}"
    for namespace in ("acme", "globex"):
        login = {
            "bootstrap.servers": f"127.0.0.1:{broker.port}", "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism, "sasl.username": f"alice@{namespace}", "sasl.password": PASSWORD,
        }  # fmt: skip
        producer = Producer(login)
        producer.produce(topic, namespace.encode())
        assert producer.flush(WITHIN_S) == 0
        consumer = Consumer({**login, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        message = consumer.poll(WITHIN_S)
        assert message is not None and (message.value(), message.offset()) == (namespace.encode(), 0)
        consumer.close()
