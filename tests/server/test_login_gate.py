"""The gate before a login, against clients that do not keep to the protocol, and logins that others pretend."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from korvet.security.protocol import Security
from korvet.server.ground.settings import ListenerSettings
from tests.oracle.messages import request_frame
from tests.server.sasl_session import PASSWORD, WITHIN_S, Session, final_message
from tests.server.test_sasl import add_user
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority
from tests.support.issuer import Issuer, KeyServer, answer_with
from tests.support.ported import kafka

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
SPECIAL = "special user= test,scram"
STRONG = "strong"
LARGEST = 524_288
GENERAL = "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"

Connect = Callable[[], Session]


@pytest.fixture(scope="module")
def broker(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KorvetServer]:
    """Two workers. The user ``strong`` has SCRAM-SHA-512 alone, all others SCRAM-SHA-256. Keys come by https."""
    authority = Authority.make(tmp_path_factory.mktemp("authority"))
    keys = KeyServer(authority.server(), lambda handler: answer_with(issuer.path.read_bytes())(handler))
    listener = ListenerSettings(port=0, security=Security.SASL_PLAINTEXT, sasl=MECHANISMS)
    settings = {
        **issuer.settings,
        "sasl.oauthbearer.jwks.endpoint.url": keys.url,
        "korvet.sasl.plain.without.tls": "true",
        "korvet.sasl.oauthbearer.without.tls": "true",
        "connection.failed.authentication.delay.ms": "10",
    }
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("SSL_CERT_FILE", str(authority.cert))
        stack.enter_context(keys.running())
        broker = stack.enter_context(running_broker(listeners=[listener], broker=settings, workers=2))
        for name in ("alice", "bob", SPECIAL):
            add_user(broker, name, "SCRAM-SHA-256")
        add_user(broker, STRONG, "SCRAM-SHA-512")
        yield broker


@pytest.fixture
def connect(broker: KorvetServer) -> Iterator[Connect]:
    """A function that opens a raw connection, which the test's end closes."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Session(broker.port))


def is_good(connect: Connect) -> bool:
    """Whether the broker still serves others."""
    session = connect()
    return session.log_in()["error_code"] == "NONE" and session.is_served()


# ------------------------------------------------------------------ before the login


@kafka(
    "SaslAuthenticatorTest.testUnauthenticatedApiVersionsRequestOverPlaintextHandshakeVersion1",
    "SaslAuthenticatorTest.testValidApiVersionsRequest",
    "SaslServerAuthenticatorTest.testOldestApiVersionsRequest",
    "SaslServerAuthenticatorTest.testLatestApiVersionsRequest",
)
@pytest.mark.parametrize("version", [0, 4])
def test_versions_may_be_requested_before_the_login(connect: Connect, version: int) -> None:
    session = connect()
    software = {"client_software_name": "test", "client_software_version": "1"} if version else {}
    answer = session.ask("api_versions", version, **software)
    assert answer["error_code"] == "NONE"
    assert {17, 36} <= {key["api_key"] for key in answer["api_keys"]}
    assert session.log_in()["error_code"] == "NONE"
    assert session.is_served()


@kafka("SaslAuthenticatorTest.testForBrokenSaslHandshakeVersionBump")
def test_handshake_has_no_version_above_1(connect: Connect) -> None:
    keys = {key["api_key"]: key for key in connect().ask("api_versions", 0)["api_keys"]}
    assert keys[17]["max_version"] == 1


@kafka("SaslAuthenticatorTest.testApiVersionsRequestWithServerUnsupportedVersion")
def test_unserved_version_of_api_versions_may_be_followed_by_a_served_one(connect: Connect) -> None:
    session = connect()
    session.socket.sendall(request_frame("api_versions", 0, {}, 7, sent_version=99))
    assert session.receive("api_versions", 0)["error_code"] == "UNSUPPORTED_VERSION"
    assert session.ask("api_versions", 0)["error_code"] == "NONE"
    assert session.log_in()["error_code"] == "NONE"


@kafka("SaslAuthenticatorTest.testInvalidApiVersionsRequest")
def test_invalid_api_versions_may_be_followed_by_a_valid_one(connect: Connect) -> None:
    session = connect()
    for name in ("  ", "bad name"):
        answer = session.ask("api_versions", 3, client_software_name=name, client_software_version="   ")
        assert answer["error_code"] == "INVALID_REQUEST"
    assert session.ask("api_versions", 0)["error_code"] == "NONE"
    assert session.log_in()["error_code"] == "NONE"


@kafka("SaslAuthenticatorTest.testSaslHandshakeRequestWithUnsupportedVersion")
@pytest.mark.parametrize("version", [2, 99, -1])
def test_unserved_version_of_the_handshake_lets_nobody_in(connect: Connect, version: int) -> None:
    session = connect()
    session.socket.sendall(request_frame("sasl_handshake", 1, {"mechanism": "PLAIN"}, 7, sent_version=version))
    session.socket.sendall(request_frame("metadata", 1, {"topics": []}, 8))
    rest = b""
    # The broker may close before it has read the second request; then the end is a reset.
    with suppress(ConnectionResetError):
        while piece := session.socket.recv(1024):
            rest += piece
    assert len(rest) < 64
    assert is_good(connect)


@kafka("SaslAuthenticatorTest.testInvalidSaslPacket", "SaslServerAuthenticatorTest.testInvalidRequestHeader")
def test_random_bytes_before_and_after_a_handshake_close_the_connection(connect: Connect) -> None:
    chosen = random.Random(16)
    for number in range(60):
        session = connect()
        if number % 2:
            session.begin("PLAIN")
        noise = chosen.randbytes(1024)
        session.socket.sendall(struct.pack(">i", len(noise)) + noise)
        assert session.is_closed()
    assert is_good(connect)


@kafka(
    "SaslAuthenticatorTest.testPacketSizeTooBig",
    "SaslServerAuthenticatorTest.testOversizeRequest",
    "SaslAuthenticatorTest.testSaslAuthenticationMaxReceiveSize",
)
@pytest.mark.parametrize("size", [LARGEST + 1, 100 << 20, 2**31 - 1, -1])
def test_announced_size_beyond_the_bound_closes_the_connection(connect: Connect, size: int) -> None:
    for is_behind in (False, True):
        session = connect()
        if is_behind:
            session.begin("PLAIN")
        session.socket.sendall(struct.pack(">i", size))
        assert session.is_closed()


@kafka(
    "SaslAuthenticatorTest.testDisallowedKafkaRequestsBeforeAuthentication",
    "SaslAuthenticatorTest.testInvalidApiVersionsRequestSequence",
    "SaslServerAuthenticatorTest.testUnexpectedRequestTypeWithValidRequestHeader",
)
def test_no_api_but_those_of_the_login_is_served_before_it(connect: Connect) -> None:
    """The bodies are empty: the connection is closed without a look at them."""
    asked = connect().ask("api_versions", 0)["api_keys"]
    for key in [one["api_key"] for one in asked if one["api_key"] not in (17, 18, 36)] + [-1, 1000]:
        for is_behind in (False, True):
            session = connect()
            if is_behind:
                session.begin("PLAIN")
            session.socket.sendall(struct.pack(">ihhih", 10, key, 0, 7, -1))
            assert session.is_closed(), key
    session = connect()
    session.begin("PLAIN")
    session.send("api_versions", 0)
    assert session.is_closed()
    assert is_good(connect)


def test_frames_that_end_before_their_values_close_the_connection(connect: Connect) -> None:
    handshake = request_frame("sasl_handshake", 1, {"mechanism": "PLAIN"}, 7)[4:]
    versions = request_frame("api_versions", 3, {"client_software_name": "a", "client_software_version": "1"}, 7)[4:]
    step = request_frame("sasl_authenticate", 2, {"auth_bytes": b"\0alice\0right"}, 7)[4:]
    for frame, is_behind in ((handshake, False), (versions, False), (step, True)):
        for cut in range(len(frame)):
            session = connect()
            if is_behind:
                session.begin("PLAIN")
            session.socket.sendall(struct.pack(">i", cut) + frame[:cut])
            assert session.is_closed(), (frame, cut)
    # An array of 2^31 - 1 tagged fields, a text of 32,767 bytes and bytes of 2 GiB, none of which follow.
    for lies in (
        versions[:13] + b"\xff\xff\xff\xff\x07",
        handshake[:-7] + b"\x7f\xff",
        step[:-14] + b"\xff\xff\xff\xff\x07",
    ):
        session = connect()
        if lies.startswith(b"\x00\x24"):
            session.begin("PLAIN")
        session.socket.sendall(struct.pack(">i", len(lies)) + lies)
        assert session.is_closed(), lies
    assert is_good(connect)


@kafka("SaslAuthenticatorTest.testDisabledMechanism", "SaslAuthenticatorFailureDelayTest.testDisabledSaslMechanism")
@pytest.mark.parametrize("name", ["GSSAPI", "scram-sha-512", "", "PLAIN ", "SCRAM-SHA-1"])
def test_mechanism_that_is_not_enabled_is_refused_with_the_enabled_ones(connect: Connect, name: str) -> None:
    session = connect()
    answer = session.ask("sasl_handshake", 1, mechanism=name)
    assert (answer["error_code"], sorted(answer["mechanisms"])) == ("UNSUPPORTED_SASL_MECHANISM", sorted(MECHANISMS))
    assert session.is_closed()


def test_produce_after_a_failing_login_writes_nothing(connect: Connect) -> None:
    good, topic = connect(), f"t-{uuid4().hex[:8]}"
    good.log_in()
    created = good.ask(
        "create_topics", 2, timeout=30_000, validate_only=False,
        topics=[{"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}],
    )  # fmt: skip
    assert created["topics"][0]["error_code"] == "NONE"
    produce = {"name": topic, "partition_data": [{"index": 0, "records": None}]}
    frames = [
        request_frame("sasl_handshake", 1, {"mechanism": "PLAIN"}, 7),
        request_frame("sasl_authenticate", 2, {"auth_bytes": b"\0alice\0wrong"}, 7),
        request_frame("produce", 3, {"transactional_id": None, "acks": 0, "timeout": 1000, "topic_data": [produce]}, 7),
        request_frame("delete_topics", 1, {"topic_names": [topic], "timeout": 1000}, 7),
    ]
    bad = connect()
    bad.socket.sendall(b"".join(frames))
    bad.receive("sasl_handshake", 1)
    assert bad.receive("sasl_authenticate", 2)["error_code"] == "SASL_AUTHENTICATION_FAILED"
    assert bad.is_closed()
    names = [one["name"] for one in good.ask("metadata", 1, topics=[{"name": topic}])["topics"]]
    assert names == [topic]


# ------------------------------------------------------------------ the steps of a login


def test_login_fails_when_its_steps_come_in_another_order(connect: Connect) -> None:
    def steps(session: Session, *names: str) -> None:
        for name in names:
            session.send("sasl_handshake", 1, mechanism=name)

    session = connect()
    steps(session, "PLAIN", "SCRAM-SHA-256")
    session.receive("sasl_handshake", 1)
    assert session.is_closed()
    session = connect()
    session.begin("SCRAM-SHA-256")
    answer = session.step(b"c=biws,r=abc,p=aaaa")
    assert answer["error_code"] == "SASL_AUTHENTICATION_FAILED"
    assert session.is_closed()
    session = connect()
    session.begin("SCRAM-SHA-256")
    session.step(b"n,,n=alice,r=abc")
    steps(session, "PLAIN")
    assert session.is_closed()


@pytest.mark.parametrize(
    ("mechanism", "token"),
    [
        ("SCRAM-SHA-256", b"n,,n=" + b"a" * 500_000 + b",r=abc"),
        ("SCRAM-SHA-256", b"n,,n=al\0ice,r=abc"),
        ("SCRAM-SHA-256", b"n,,n=al\xffice,r=abc"),
        ("SCRAM-SHA-256", b"n,a=bob,n=alice,r=abc"),
        ("SCRAM-SHA-256", b""),
        ("PLAIN", b"\0alice\0" + b"a" * 500_000),
        ("PLAIN", b"bob\0alice\0right"),
        ("PLAIN", b"\0\xff\0right"),
        ("PLAIN", b""),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer " + b"a" * 500_000 + b"\x01\x01"),
        ("OAUTHBEARER", b"\x01" * 500_000),
        ("OAUTHBEARER", b"\x01"),
        ("OAUTHBEARER", b""),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[:24]!r}",
)
def test_tokens_of_strange_forms_are_refused_alike(connect: Connect, mechanism: str, token: bytes) -> None:
    session = connect()
    session.begin(mechanism)
    answer = session.step(token)
    assert answer["error_code"] == "SASL_AUTHENTICATION_FAILED"
    assert answer["error_message"] == GENERAL.format(mechanism)
    assert session.is_closed()
    assert is_good(connect)


@kafka("SaslAuthenticatorTest.testScramUsernameWithSpecialCharacters")
def test_scram_name_with_special_characters_is_taken(connect: Connect) -> None:
    session = connect()
    assert session.log_in_by_scram(SPECIAL)["error_code"] == "NONE"
    assert session.is_served()


@kafka("SaslAuthenticatorTest.testUserCredentialsUnavailableForScramMechanism")
def test_user_without_a_password_for_a_mechanism_is_refused_by_it_alone(connect: Connect) -> None:
    assert connect().log_in_by_scram(STRONG)["error_code"] == "SASL_AUTHENTICATION_FAILED"
    assert connect().log_in_by_scram(STRONG, mechanism="SCRAM-SHA-512")["error_code"] == "NONE"


def test_replayed_exchange_is_refused(connect: Connect) -> None:
    first = connect()
    first.begin("SCRAM-SHA-256")
    final = first.scram_final("alice", PASSWORD, "SCRAM-SHA-256")
    assert first.step(final)["error_code"] == "NONE"
    second = connect()
    second.begin("SCRAM-SHA-256")
    second.step(b"n,,n=alice,r=abc")
    assert second.step(final)["error_code"] == "SASL_AUTHENTICATION_FAILED"


@kafka(
    "SaslAuthenticatorTest.testInvalidPasswordSaslPlain",
    "SaslAuthenticatorTest.testInvalidUsernameSaslPlain",
    "SaslAuthenticatorTest.testInvalidPasswordSaslScram",
    "SaslAuthenticatorTest.testUnknownUserSaslScram",
    "SaslAuthenticatorTest.testClientExceptionDoesNotContainSensitiveData",
    "SaslAuthenticatorFailureDelayTest.testInvalidPasswordSaslPlain",
    "SaslAuthenticatorFailureDelayTest.testInvalidPasswordSaslScram",
)
def test_nothing_but_the_password_tells_a_known_user_from_an_unknown_one(connect: Connect) -> None:
    """By both workers, and at each try: an unknown user has one salt, as a known one has."""
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        for user in ("alice", "nobody", STRONG):
            seen = set()
            for _ in range(12):
                session = connect()
                session.begin(mechanism)
                answer = bytes(session.step(f"n,,n={user},r=abc".encode())["auth_bytes"])
                seen.add(answer.partition(b",s=")[2])
                refused = session.step(final_message(f"n={user},r=abc", answer, "wrong", mechanism))
                assert refused["error_code"] == "SASL_AUTHENTICATION_FAILED"
                assert refused["error_message"] == GENERAL.format(mechanism)
            assert len(seen) == 1
    for user in ("alice", "nobody", STRONG):
        answer = connect().log_in(user, "wrong")
        assert (answer["error_code"], answer["error_message"]) == (
            "SASL_AUTHENTICATION_FAILED",
            GENERAL.format("PLAIN"),
        )


@kafka("SaslAuthenticatorFailureDelayTest.testClientConnectionClose")
def test_client_that_leaves_before_its_refusal_leaves_nothing_behind(connect: Connect, broker: KorvetServer) -> None:
    for _ in range(20):
        session = connect()
        session.begin("PLAIN")
        session.send("sasl_authenticate", 2, auth_bytes=b"\0alice\0wrong")
        session.socket.close()
    assert is_good(connect)
    assert "Traceback" not in broker.log


def test_many_wrong_passwords_lock_nobody_out_and_hold_up_nobody_who_is_in(connect: Connect) -> None:
    inside = connect()
    inside.log_in()
    guessing = [connect() for _ in range(100)]
    for session in guessing:
        session.begin("PLAIN")
        session.send("sasl_authenticate", 2, auth_bytes=b"\0alice\0guess")
    assert inside.is_served()
    assert is_good(connect)
    for session in guessing:
        assert session.receive("sasl_authenticate", 2)["error_code"] == "SASL_AUTHENTICATION_FAILED"


# ------------------------------------------------------------------ again


@kafka(
    "SaslAuthenticatorTest.testCannotReauthenticateWithDifferentMechanism",
    "SaslAuthenticatorTest.testCannotReauthenticateAgainFasterThanOneSecond",
)
def test_second_login_is_by_the_same_mechanism_and_not_at_once(connect: Connect) -> None:
    session = connect()
    session.log_in()
    assert session.log_in()["error_code"] == "NONE"
    assert session.ask("sasl_handshake", 1, mechanism="PLAIN")["error_code"] == "ILLEGAL_SASL_STATE"
    assert session.is_served()
    other = connect()
    other.log_in()
    assert other.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")["error_code"] == "SASL_AUTHENTICATION_FAILED"
    assert other.is_closed()


@kafka("SaslAuthenticatorTest.testCannotReauthenticateWithDifferentPrincipal")
def test_second_login_as_another_user_is_refused(connect: Connect, issuer: Issuer) -> None:
    for log_in in (Session.log_in, Session.log_in_by_scram, lambda one, user: one.log_in_by_token(issuer.token(user))):
        session = connect()
        assert log_in(session, "alice")["error_code"] == "NONE"
        assert log_in(session, "bob")["error_code"] == "SASL_AUTHENTICATION_FAILED"
        assert session.is_closed()


def test_requests_around_a_second_login_are_answered_in_their_order(connect: Connect) -> None:
    for password, is_right in ((PASSWORD, True), ("wrong", False)):
        session = connect()
        session.log_in()
        steps: list[tuple[str, int, dict[str, Any]]] = [
            ("metadata", 1, {"topics": []}),
            ("sasl_handshake", 1, {"mechanism": "PLAIN"}),
            ("sasl_authenticate", 2, {"auth_bytes": f"\0alice\0{password}".encode()}),
            ("metadata", 1, {"topics": []}),
        ]
        session.socket.sendall(b"".join(request_frame(api, version, values, 7) for api, version, values in steps))
        assert session.receive("metadata", 1)["brokers"]
        assert session.receive("sasl_handshake", 1)["error_code"] == "NONE"
        outcome = session.receive("sasl_authenticate", 2)["error_code"]
        assert outcome == ("NONE" if is_right else "SASL_AUTHENTICATION_FAILED")
        assert session.receive("metadata", 1)["brokers"] if is_right else session.is_closed()


# ------------------------------------------------------------------ tokens


@kafka("SaslAuthenticatorTest.testValidSaslOauthBearerMechanism")
def test_token_logs_in_and_its_end_ends_the_session(connect: Connect, issuer: Issuer) -> None:
    session = connect()
    answer = session.log_in_by_token(issuer.token("carol", lasts_s=3600))
    assert answer["error_code"] == "NONE"
    assert 0 < answer["session_lifetime"] <= 3_600_000
    assert session.is_served()
    expired = connect()
    answer = expired.log_in_by_token(issuer.token("carol", lasts_s=-5, iat=int(time.time()) - 60))
    assert (answer["error_code"], answer["session_lifetime"]) == ("NONE", 1)
    time.sleep(0.05)
    expired.send("metadata", 1, topics=[])
    assert expired.is_closed()


def test_bad_token_is_refused_with_a_reason_and_is_not_logged(
    connect: Connect, issuer: Issuer, broker: KorvetServer
) -> None:
    for token in (issuer.token(aud="others"), issuer.token() + "AB", "a.b.c"):
        session = connect()
        answer = session.log_in_by_token(token)
        assert answer["error_code"] == "SASL_AUTHENTICATION_FAILED"
        assert answer["error_message"] == '{"status":"invalid_token"}'
        assert session.is_closed()
        assert token not in broker.log
    password = f"p-{uuid4().hex}"
    connect().log_in("alice", password)
    connect().log_in_by_scram("alice", password)
    assert password not in broker.log
    assert "Traceback" not in broker.log


def test_new_key_of_the_issuer_counts_without_a_restart(connect: Connect, issuer: Issuer) -> None:
    assert connect().log_in_by_token(issuer.token())["error_code"] == "NONE"
    old = issuer.token()
    issuer.rotate()
    assert connect().log_in_by_token(issuer.token())["error_code"] == "NONE"
    # The other worker knows the old keys until it reads them again.
    deadline = time.monotonic() + WITHIN_S
    while connect().log_in_by_token(old)["error_code"] == "NONE":
        assert time.monotonic() < deadline


def test_no_secret_is_in_the_processes_arguments_environment_or_configs(
    connect: Connect, broker: KorvetServer, tmp_path: Path
) -> None:
    session = connect()
    session.log_in()
    described = session.ask(
        "describe_configs", 4,
        resources=[{"resource_type": 4, "resource_name": "", "configuration_keys": None}],
        include_synonyms=True, include_documentation=True,
    )  # fmt: skip
    with broker.redis() as redis:
        secret = redis.get("korvet:{default:@security}:secret")
        credentials = redis.hgetall("korvet:{default:@security}:users")
    assert isinstance(secret, bytes)
    secrets = [secret.decode(), *(bytes(text).decode().split(" ")[2] for name, text in credentials.items() if name)]
    told = str(described)
    for path in Path(f"/proc/{broker.pid}").glob("cmdline"), Path(f"/proc/{broker.pid}").glob("environ"):
        told += "".join(one.read_bytes().decode(errors="replace") for one in path)
    assert not any(one in told for one in [*secrets, PASSWORD + "\0"])
