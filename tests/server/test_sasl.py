"""Logins at a broker with SASL: real clients, re-authentication, deleted users, and what the gate refuses."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import aiokafka
import pytest
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, Producer

from korvet.security.protocol import Security
from korvet.server.ground.settings import ListenerSettings
from tests.oracle.messages import request_frame
from tests.server.sasl_session import PASSWORD, Session
from tests.server.test_tls import plain
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka
from tests.support.tenants import korvet

WITHIN_S = 60.0
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    """A broker with the user alice, whose sessions last 3 s."""
    listener = ListenerSettings(port=0, security=Security.SASL_PLAINTEXT, sasl=MECHANISMS)
    settings = {"connections.max.reauth.ms": "3000", "korvet.sasl.plain.without.tls": "true"}
    with running_broker(listeners=[listener], broker=settings) as broker:
        for mechanism in MECHANISMS[:2]:
            add_user(broker, "alice", mechanism)
        yield broker


def add_user(broker: KorvetServer, name: str, mechanism: str = "SCRAM-SHA-512") -> None:
    korvet(broker, "users", "add", name, "--mechanism", mechanism, stdin=PASSWORD)


def login(broker: KorvetServer, mechanism: str, password: str = PASSWORD, user: str = "alice") -> dict[str, str]:
    """librdkafka's settings."""
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


Connect = Callable[[], Session]


@pytest.fixture
def connect(broker: KorvetServer) -> Iterator[Connect]:
    """A function that opens a raw connection, which the test's end closes."""
    with ExitStack() as stack:

        def connect() -> Session:
            session = Session(broker.port)
            stack.callback(session.socket.close)
            return session

        yield connect


@pytest.fixture
def session(connect: Connect) -> Session:
    return connect()


@kafka("SaslAuthenticatorTest.testRepeatedValidSaslPlainOverSsl")
def test_clients_log_in_and_go_on_over_the_ends_of_their_sessions(broker: KorvetServer) -> None:
    lost: list[object] = []
    producers = {f"t-{uuid4().hex[:8]}": (Producer(login(broker, one)), login(broker, one)) for one in MECHANISMS}
    ends, sent = time.monotonic() + 7, 0
    while time.monotonic() < ends:
        sent += 1
        for topic, (producer, _) in producers.items():
            producer.produce(topic, b"x", callback=lambda error, _: lost.append(error) if error else None)
            producer.poll(0.01)
    for topic, (producer, settings) in producers.items():
        assert producer.flush(WITHIN_S) == 0 and not lost
        consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        seen, ends = 0, time.monotonic() + WITHIN_S
        while seen < sent and time.monotonic() < ends:
            seen += sum(message.error() is None for message in consumer.consume(500, 1.0))
        consumer.close()
        assert seen == sent


def test_login_that_is_half_done_does_not_end_with_the_former_password(broker: KorvetServer, connect: Connect) -> None:
    mechanism = "SCRAM-SHA-256"
    korvet(broker, "users", "add", "renewed", "--mechanism", mechanism, stdin="former")
    half = connect()
    half.begin(mechanism)
    final = half.scram_final("renewed", "former", mechanism)
    add_user(broker, "renewed", mechanism)
    deadline = time.monotonic() + WITHIN_S
    while connect().log_in_by_scram("renewed")["error_code"] != "NONE":
        assert time.monotonic() < deadline
    assert half.step(final)["error_code"] == "SASL_AUTHENTICATION_FAILED"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_passwords_and_unknown_users_are_refused_alike(broker: KorvetServer, mechanism: str) -> None:
    async def refused(user: str, password: str) -> str:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=password,
        )
        try:
            await producer.start()
        except KafkaError as error:
            return str(error)
        finally:
            await producer.stop()
        return ""

    texts = {asyncio.run(refused(user, "wrong")) for user in ("alice", "nobody")}
    assert len(texts) == 1 and texts != {""}
    assert asyncio.run(refused("alice", PASSWORD)) == ""


def test_session_of_a_deleted_user_ends(broker: KorvetServer, connect: Connect, session: Session) -> None:
    name = f"u-{uuid4().hex[:8]}"
    add_user(broker, name)
    assert session.log_in(name)["error_code"] == "NONE"
    korvet(broker, "users", "remove", name, "--execute")
    assert session.is_closed()
    again = connect()
    assert again.log_in(name)["error_code"] == "SASL_AUTHENTICATION_FAILED" and again.is_closed()


@pytest.mark.parametrize("steps", [["metadata"], ["api_versions", "metadata"], ["sasl_handshake", "metadata"]])
def test_other_requests_before_the_login_close_the_connection(session: Session, steps: list[str]) -> None:
    values: dict[str, Any] = {"sasl_handshake": {"mechanism": "PLAIN"}, "metadata": {"topics": None}}
    for step in steps[:-1]:
        session.ask(step, 1, **values.get(step, {}))
    session.send(steps[-1], 1, **values[steps[-1]])
    assert session.is_closed()


def test_second_api_versions_handshake_or_step_out_of_turn_closes_the_connection(connect: Connect) -> None:
    for api, values in (("api_versions", {}), ("sasl_handshake", {"mechanism": "PLAIN"})):
        session = connect()
        session.ask(api, 1, **values)
        session.send(api, 1, **values)
        assert session.is_closed()
    session = connect()
    session.send("sasl_authenticate", 2, auth_bytes=b"\0alice\0right")
    assert session.is_closed()


def test_client_that_means_another_cluster_is_told_so_after_its_login(session: Session) -> None:
    meant = {"client_software_name": "a", "client_software_version": "1", "cluster_id": "another", "node_id": 1}
    assert session.ask("api_versions", 5, **meant)["error_code"] == "NONE"
    assert session.log_in()["error_code"] == "NONE"
    assert session.ask("api_versions", 5, **meant)["error_code"] == "REBOOTSTRAP_REQUIRED"


def test_large_frame_is_refused_before_the_login_and_taken_after_it(connect: Connect, session: Session) -> None:
    other = connect()
    other.socket.sendall(struct.pack(">i", 524_289))
    assert other.is_closed()
    assert session.log_in()["error_code"] == "NONE"
    names = [{"name": f"{number:0200}"} for number in range(3000)]
    answer = session.ask("metadata", 4, topics=names, allow_auto_topic_creation=False)
    assert len(answer["topics"]) == 3000


def test_requests_after_a_login_wait_for_it(connect: Connect) -> None:
    for password, is_let_in in ((PASSWORD, True), ("wrong", False)):
        session = connect()
        steps: list[tuple[str, int, dict[str, Any]]] = [
            ("sasl_handshake", 1, {"mechanism": "PLAIN"}),
            ("sasl_authenticate", 2, {"auth_bytes": f"\0alice\0{password}".encode()}),
            ("metadata", 1, {"topics": []}),
        ]
        session.socket.sendall(b"".join(request_frame(api, version, values, 7) for api, version, values in steps))
        session.receive("sasl_handshake", 1)
        outcome = session.receive("sasl_authenticate", 2)
        if is_let_in:
            assert outcome["error_code"] == "NONE" and outcome["session_lifetime"] == 3000
            assert session.receive("metadata", 1)["brokers"]
        else:
            assert outcome["error_code"] == "SASL_AUTHENTICATION_FAILED" and session.is_closed()


def test_unknown_mechanism_is_answered_with_the_enabled_ones(session: Session) -> None:
    answer = session.ask("sasl_handshake", 1, mechanism="GSSAPI")
    assert (answer["error_code"], sorted(answer["mechanisms"])) == ("UNSUPPORTED_SASL_MECHANISM", sorted(MECHANISMS))
    assert session.is_closed()


def test_login_again_keeps_mechanism_and_user_and_comes_at_most_once_a_second(
    broker: KorvetServer, connect: Connect
) -> None:
    add_user(broker, "bob")
    session = connect()
    session.log_in()
    assert session.log_in()["error_code"] == "NONE"
    assert session.ask("sasl_handshake", 1, mechanism="PLAIN")["error_code"] == "ILLEGAL_SASL_STATE"
    assert session.ask("metadata", 1, topics=[])["brokers"]
    other = connect()
    other.log_in()
    assert other.log_in("bob")["error_code"] == "SASL_AUTHENTICATION_FAILED" and other.is_closed()
    third = connect()
    third.log_in()
    assert third.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-512")["error_code"] == "SASL_AUTHENTICATION_FAILED"
    assert third.is_closed()


def test_request_that_waits_does_not_keep_an_expired_session(session: Session) -> None:
    session.log_in()
    topic = f"t-{uuid4().hex[:8]}"
    session.ask("metadata", 4, topics=[{"name": topic}], allow_auto_topic_creation=True)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    wanted = [{"topic": topic, "partitions": [partition]}]
    answer = session.ask("fetch", 4, replica_id=-1, max_wait=3300, min_bytes=1, max_bytes=1000, isolation_level=0,
                         topics=wanted)  # fmt: skip
    assert answer["responses"]
    session.send("metadata", 1, topics=[])
    assert session.is_closed()


def test_logins_and_refusals_are_in_the_audit_log(broker: KorvetServer, connect: Connect) -> None:
    name = f"u-{uuid4().hex[:8]}"
    add_user(broker, name)
    forged = f"{name}\n2026-01-01T00:00:00Z [info     ] logged in audit=True"
    before = len(broker.log)
    assert connect().log_in(name)["error_code"] == "NONE"
    assert connect().log_in_by_scram(name, mechanism="SCRAM-SHA-512")["error_code"] == "NONE"
    connect().log_in(forged, "wrong")
    refused = connect()
    refused.log_in_by_scram(name, "wrong", "SCRAM-SHA-512")
    assert refused.is_closed()
    written = [line for line in plain(broker.log[before:]).splitlines() if name in line]
    told = [(line.split("] ")[1].split("  ")[0], line.rpartition("mechanism=")[2].split()[0]) for line in written]
    assert sorted(told) == [
        (event, way) for event in ("logged in", "login failed") for way in ("PLAIN", "SCRAM-SHA-512")
    ]
    for line in written:
        assert all(word in line for word in ("audit=True", "host=127.0.0.1", "listener=default", "namespace=default"))
        assert (f"principal=User:{name}" in line) == ("logged in  " in line)
        assert ("reason=" in line and "[warning" in line) == ("login failed" in line)


def test_log_never_holds_a_password(broker: KorvetServer, session: Session) -> None:
    password = f"p-{uuid4().hex}"
    session.log_in("alice", password)
    assert session.is_closed()
    assert "login failed" in broker.log and password not in broker.log and "Traceback" not in broker.log
