"""SCRAM and PLAIN messages, and the states of a login, without I/O."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable

import pytest

from korvet.security.plain import PlainLogin, parse_plain
from korvet.security.salted import keys_of, salted_password
from korvet.security.scram import Credentials, LoginRefused, ScramServer, make_credential
from korvet.store.security.users import CredentialKey, parse_credential, parse_credentials, text_of
from tests.support.ported import kafka

MECHANISM = "SCRAM-SHA-256"
SECRET = b"secret of a namespace"


def credentials(*users: str, secret: bytes = SECRET) -> Credentials:
    return Credentials({CredentialKey(MECHANISM, user): make_credential(MECHANISM, "right") for user in users}, secret)


def fields(message: bytes) -> dict[str, str]:
    return dict(part.split("=", 1) for part in message.decode().split(","))


def final(
    first: str, answer: bytes, password: str = "right", nonce: str = "", binding: str = "biws", extension: str = ""
) -> bytes:
    """The client's final message to a server's first one."""
    told = fields(answer)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(told["s"]), int(told["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    bare = f"c={binding},r={nonce or told['r']}{extension}"
    signed = f"{first.removeprefix('n,,')},{answer.decode()},{bare}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"{bare},p={base64.b64encode(proof).decode()}".encode()


@kafka(
    "ScramSaslServerTest.noAuthorizationIdSpecified",
    "ScramSaslServerTest.validateNonceExchange",
    "ScramMessagesTest.validServerFirstMessage",
    "ScramMessagesTest.validServerFinalMessage",
)
def test_right_password_logs_in_and_proves_the_server() -> None:
    server, first = ScramServer(MECHANISM, credentials("alice")), "n,,n=alice,r=abc"
    answer = server.step(first.encode())
    assert re.fullmatch(rb"r=abc[0-9a-z]{20,},s=[A-Za-z0-9+/]+=*,i=4096", answer)
    assert re.fullmatch(rb"v=[A-Za-z0-9+/]+=*", server.step(final(first, answer)))
    assert server.user == "alice"


EXTENSIONS = [
    "ext=val1",
    "anotherext=name1=value1 name2=another test value \"'!$[]()",
    "first=val1,second=a = b ,third=123",
]
NO_EXTENSIONS = ["ext1=value", "ext", "ext=value1,value2", "ext=,", "ext =value"]
RESERVED = ["m=reserved-value", "m=name1=value1 name2=another test value \"'!$[]()"]


@kafka("ScramMessagesTest.validClientFirstMessage", "ScramMessagesTest.validClientFinalMessage")
@pytest.mark.parametrize(
    ("reserved", "extension"),
    [("", ""), *((f"{one},", "") for one in RESERVED), *(("", f",{one}") for one in EXTENSIONS)],
)
def test_reserved_values_and_extensions_are_ignored(reserved: str, extension: str) -> None:
    server, first = ScramServer(MECHANISM, credentials("alice")), f"n,,{reserved}n=alice,r=abc{extension}"
    server.step(final(first, server.step(first.encode()), extension=extension))
    assert server.user == "alice"


@kafka("ScramMessagesTest.invalidClientFirstMessage", "ScramMessagesTest.invalidClientFinalMessage")
@pytest.mark.parametrize("extension", NO_EXTENSIONS)
def test_extensions_of_another_form_are_refused(extension: str) -> None:
    with pytest.raises(LoginRefused):
        ScramServer(MECHANISM, credentials("alice")).step(f"n,,n=alice,r=abc,{extension}".encode())
    server, first = ScramServer(MECHANISM, credentials("alice")), "n,,n=alice,r=abc"
    answer = server.step(first.encode())
    with pytest.raises(LoginRefused):
        server.step(final(first, answer, extension=f",{extension}"))


@kafka("ScramSaslServerTest.authorizationIdEqualsAuthenticationId")
def test_authorization_id_of_the_user_is_taken() -> None:
    assert ScramServer(MECHANISM, credentials("alice")).step(b"n,a=alice,n=alice,r=abc").startswith(b"r=abc")


@kafka("ScramSaslServerTest.authorizationIdNotEqualsAuthenticationId", "ScramMessagesTest.invalidClientFirstMessage")
@pytest.mark.parametrize(
    "first",
    [
        "n,a=bob,n=alice,r=abc",
        "n,x=something,n=alice,r=abc",
        "n,,m,n=alice,r=abc",
        "n,,m=name,value,n=alice,r=abc",
        "n,,m=,,n=alice,r=abc",
        "y,,n=alice,r=abc",
        "p=tls,,n=alice,r=abc",
        "n,,n=,r=abc",
        "n,,n=al=ice,r=a",
        "n,,r=abc",
        "n,,n=alice",
        "n,,n=alice,r=",
        "n,,n=a\0,r=abc",
        "n,,n=alice,r=abc,tokenauth=true",
        "",
        "c=biws,r=abc,p=aaaa",
    ],
)
def test_first_message_of_another_form_or_identity_is_refused(first: str) -> None:
    with pytest.raises(LoginRefused):
        ScramServer(MECHANISM, credentials("alice")).step(first.encode())


@pytest.mark.parametrize("changed", [{"binding": "eSws"}, {"password": "wrong"}])
def test_final_message_with_another_binding_or_password_is_refused(changed: dict[str, str]) -> None:
    server, first = ScramServer(MECHANISM, credentials("alice")), "n,,n=alice,r=abc"
    answer = server.step(first.encode())
    with pytest.raises(LoginRefused):
        server.step(final(first, answer, **changed))
    assert server.user is None


@kafka(
    "ScramSaslServerTest.validateFailedNonceExchange",
    "ScramSaslServerTest.validateFailedNonceExchangeWithPrependingClientNonce",
)
@pytest.mark.parametrize("nonce", ["abcd", "abc", "abc{told}", "x{told}", "{told}x"])
def test_final_message_with_another_nonce_is_refused_though_its_proof_is_right(nonce: str) -> None:
    server, first = ScramServer(MECHANISM, credentials("alice")), "n,,n=alice,r=abc"
    answer = server.step(first.encode())
    with pytest.raises(LoginRefused, match="nonce"):
        server.step(final(first, answer, nonce=nonce.format(told=fields(answer)["r"])))
    assert server.user is None


def test_replayed_exchange_is_refused_by_a_new_nonce() -> None:
    known, first = credentials("alice"), "n,,n=alice,r=abc"
    server = ScramServer(MECHANISM, known)
    message = final(first, server.step(first.encode()))
    other = ScramServer(MECHANISM, known)
    other.step(first.encode())
    with pytest.raises(LoginRefused, match="nonce"):
        other.step(message)


@pytest.mark.parametrize("later", [credentials("alice"), credentials("bob")])
def test_credential_that_changed_or_went_between_the_steps_is_refused(later: Credentials) -> None:
    server, first = ScramServer(MECHANISM, credentials("alice")), "n,,n=alice,r=abc"
    answer = server.step(first.encode())
    server.credentials = later
    with pytest.raises(LoginRefused, match="has changed"):
        server.step(final(first, answer))
    assert server.user is None


def test_refused_exchange_does_not_begin_again() -> None:
    server = ScramServer(MECHANISM, credentials("alice"))
    server.step(b"n,,n=alice,r=abc")
    for message in (b"nonsense", b"n,,n=alice,r=abc"):
        with pytest.raises(LoginRefused):
            server.step(message)


def test_unknown_user_sees_the_same_salt_at_every_front_end_and_fails_at_the_last_step() -> None:
    first = "n,,n=nobody,r=abc"
    servers = [ScramServer(MECHANISM, credentials("alice")) for _ in range(2)]
    answers = [server.step(first.encode()) for server in servers]
    (one, other) = (fields(answer) for answer in answers)
    assert (one["s"], one["i"]) == (other["s"], other["i"])
    assert fields(ScramServer(MECHANISM, credentials("alice", secret=b"x")).step(first.encode()))["s"] != one["s"]
    with pytest.raises(LoginRefused, match="invalid credentials"):
        servers[0].step(final(first, answers[0]))


def test_unknown_user_looks_like_most_known_ones() -> None:
    many = {CredentialKey(MECHANISM, f"u{number}"): make_credential(MECHANISM, "p", 8192) for number in range(2)}
    few = {CredentialKey(MECHANISM, "few"): make_credential(MECHANISM, "p", 4096)}
    false, is_known = Credentials({**many, **few}, SECRET).find(MECHANISM, "nobody")
    assert (is_known, false.iterations) == (False, 8192)
    raw = {CredentialKey(MECHANISM, "raw"): few[CredentialKey(MECHANISM, "few")]._replace(salt=b"\x00" * 16)}
    assert len(Credentials(raw, SECRET).find(MECHANISM, "nobody")[0].salt) == 16


def test_plain_spends_on_an_unknown_user_what_it_spends_on_most_users() -> None:
    strong, weak = (make_credential(name, "p") for name in ("SCRAM-SHA-512", "SCRAM-SHA-256"))
    both = {CredentialKey("SCRAM-SHA-512", "a"): strong, CredentialKey("SCRAM-SHA-256", "a"): weak}
    others = {CredentialKey("SCRAM-SHA-256", name): weak for name in "bc"}
    for known, mechanism in (({}, "SCRAM-SHA-512"), (both, "SCRAM-SHA-512"), ({**both, **others}, "SCRAM-SHA-256")):
        found, _, is_known = Credentials(known, SECRET).best("nobody")
        assert (found, is_known) == (mechanism, False)
    assert Credentials(both, SECRET).best("a") == ("SCRAM-SHA-512", strong, True)
    assert Credentials(others, SECRET).best("b") == ("SCRAM-SHA-256", weak, True)


@kafka("ScramFormatterTest.saslName")
@pytest.mark.parametrize(
    "name", ["user1", "123", "1,2", "user=A", "user==B", "user,1", "user 1", ",", "=", ",=", "==", "=2C", "a,b=c"]
)
def test_escaped_names_are_the_names_that_they_stand_for(name: str) -> None:
    escaped = name.replace("=", "=3D").replace(",", "=2C")
    server, first = ScramServer(MECHANISM, credentials(name)), f"n,,n={escaped},r=abc"
    server.step(final(first, server.step(first.encode())))
    assert server.user == name


@kafka("ScramFormatterTest.rfc7677Example")
def test_keys_make_the_proofs_of_the_example_in_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    keys = keys_of(MECHANISM, salted_password(MECHANISM, "pencil", salt, 4096))
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    signed = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}".encode()
    signature = hmac.digest(keys.stored, signed, "sha256")
    proof = bytes(one ^ other for one, other in zip(keys.client, signature, strict=True))
    assert base64.b64encode(proof) == b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert base64.b64encode(hmac.digest(keys.server, signed, "sha256")) == (
        b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )


def test_largest_message_is_judged_in_linear_time() -> None:
    began = time.process_time()
    for message in (
        b"n,,n=" + b"a" * 500_000,
        b"n,,n=" + b"=2C" * 160_000 + b"=",
        b"n,,n=a,r=b" + b",x=1" * 100_000 + b"\0",
    ):
        with pytest.raises(LoginRefused):
            ScramServer(MECHANISM, credentials()).step(message)
    assert time.process_time() - began < 30


@kafka("ScramCredentialUtilsTest.stringConversion", "ScramCredentialUtilsTest.generateCredential")
def test_credential_is_the_same_after_redis_and_hides_itself() -> None:
    credential = make_credential("SCRAM-SHA-512", "secret")
    assert parse_credential(text_of(credential).encode()) == credential
    assert not {*make_credential("SCRAM-SHA-512", "secret")[:3]} & {*credential[:3]}
    assert "salt" not in repr(credential) and "hidden" in repr(credential)


@kafka(
    "ScramCredentialUtilsTest.invalidCredential",
    "ScramCredentialUtilsTest.missingFields",
    "ScramCredentialUtilsTest.extraneousFields",
)
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b" ", b" =", 1),
        lambda text: text.rpartition(b" ")[0],
        lambda text: text + b" c2FsdA==",
        lambda text: b"many " + text.partition(b" ")[2],
        lambda text: b"",
    ],
    ids=["no base64", "a part is missing", "a part too many", "no number", "empty"],
)
def test_text_that_is_no_credential_lets_nobody_in_and_others_stay(change: Callable[[bytes], bytes]) -> None:
    text = text_of(make_credential(MECHANISM, "right")).encode()
    bad, good = f"{MECHANISM}:bad".encode(), f"{MECHANISM}:good".encode()
    with pytest.raises(ValueError):
        parse_credential(change(text))
    assert list(parse_credentials([bad, change(text), good, text])) == [CredentialKey(MECHANISM, "good")]


@kafka("PlainSaslServerTest.noAuthorizationIdSpecified", "PlainSaslServerTest.authorizationIdEqualsAuthenticationId")
@pytest.mark.parametrize("authzid", [b"", b"alice"])
def test_plain_message_names_user_and_password(authzid: bytes) -> None:
    assert parse_plain(authzid + b"\0alice\0right") == PlainLogin("alice", "right")


@kafka("PlainSaslServerTest.authorizationIdNotEqualsAuthenticationId", "PlainSaslServerTest.emptyTokens")
@pytest.mark.parametrize(
    "message",
    [
        b"bob\0alice\0right",
        b"",
        b"\0",
        b"\0\0",
        b"\0\0p",
        b"\0u\0",
        b"\0u\0p\0",
        b"u\0p",
        b"\0\xff\0p",
        b"\0u\0" + b"p" * 1025,
    ],
)
def test_plain_message_of_another_form_or_identity_is_refused(message: bytes) -> None:
    with pytest.raises(LoginRefused):
        parse_plain(message)
