"""A client that logs in by a token sees the same of korvet as of Apache Kafka: each answer, and the connection's end.

Kafka judges tokens by OAuthBearerValidatorCallbackHandler, with the same file of keys, issuer and audiences.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jwt
import pytest

from tests.oracle.secured import Secured
from tests.server.sasl_session import Session
from tests.support.issuer import Issuer, claims, make_key, part

SOON_S = 3600


class Seen(NamedTuple):
    """What a client sees of one step of its login."""

    error: str
    message: str | None
    token: bytes
    has_lifetime: bool


def signed(issuer: Issuer, header: Mapping[str, Any], told: Any = None, signature: bytes = b"x" * 64) -> str:
    """A token with a header and a signature of one's own."""
    return f"{part(header)}.{part(claims() if told is None else told)}.{part(signature)}"


def with_secret(issuer: Issuer) -> str:
    """A token signed with the public key as a shared secret."""
    text = f"{part({'alg': 'HS256', 'kid': issuer.name})}.{part(claims())}"
    secret = json.dumps(issuer.key_set()["keys"][0]).encode()
    return f"{text}.{part(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def now() -> int:
    return int(time.time())


TOKENS: dict[str, Callable[[Issuer], str]] = {
    "valid": lambda of: of.token(),
    "valid, an audience of several": lambda of: of.token(aud=["x", "kafka"]),
    "valid, scopes": lambda of: of.token(scope=["a", "b"]),
    "expired": lambda of: of.token(lasts_s=-SOON_S, iat=now() - 2 * SOON_S),
    "expired before it was issued": lambda of: of.token(lasts_s=-5),
    "expired before it counts": lambda of: of.token(lasts_s=-5, iat=now() - SOON_S, nbf=now()),
    "another audience": lambda of: of.token(aud="others"),
    "no audience": lambda of: of.token(aud=None),
    "another issuer": lambda of: of.token(iss="https://evil.example"),
    "no issuer": lambda of: of.token(iss=None),
    "no subject": lambda of: of.token(sub=None),
    "an empty subject": lambda of: of.token(sub=""),
    "a blank subject": lambda of: of.token(sub="  "),
    "a subject that is a number": lambda of: of.token(sub=7),
    "no expiry": lambda of: of.token(exp=None),
    "a negative expiry": lambda of: of.token(exp=-1),
    "an expiry that is a text": lambda of: of.token(exp="soon"),
    "no time of issue": lambda of: of.token(iat=None),
    "a negative time of issue": lambda of: of.token(iat=-1),
    "counts from a time to come": lambda of: of.token(nbf=now() + SOON_S),
    "a scope twice": lambda of: of.token(scope=["a", "a"]),
    "a blank scope": lambda of: of.token(scope=["a", " "]),
    "alg none, no signature": lambda of: signed(of, {"alg": "none"}, signature=b""),
    "alg none, a signature": lambda of: signed(of, {"alg": "none", "kid": of.name}),
    "alg HS256 with the public key": with_secret,
    "alg unknown": lambda of: signed(of, {"alg": "XX1", "kid": of.name}),
    "no alg": lambda of: signed(of, {"kid": of.name}),
    "an unknown kid": lambda of: of.sign(claims(), {"kid": "unknown"}),
    "another key by the same kid": lambda of: jwt.encode(claims(), make_key(), "ES256", {"kid": of.name}),
    "a changed signature": lambda of: of.token() + "AB",
    "other claims": lambda of: ".".join([(p := of.token().split("."))[0], part(claims("admin")), p[2]]),
    "claims that are a list": lambda of: jwt.api_jws.encode(b"[]", of.key, "ES256", {"kid": of.name}),
    "claims that are no JSON": lambda of: jwt.api_jws.encode(b"{", of.key, "ES256", {"kid": of.name}),
    "garbage": lambda of: "garbage",
    "garbage in three parts": lambda of: "a.b.c",
    "two parts": lambda of: of.token().rpartition(".")[0],
    "five parts": lambda of: "a.b.c.d.e",
    "a part too many": lambda of: of.token() + ".AA",
}
"""The tokens; the valid ones log in."""

MESSAGES: dict[str, Callable[[Issuer], bytes]] = {
    "an authorization id": lambda of: shown(of.token(), "a=alice"),
    "the authorization id of another user": lambda of: shown(of.token(), "a=bob"),
    "an extension": lambda of: shown(of.token(), more=b"\x01key=value"),
    "an extension without a value": lambda of: shown(of.token(), more=b"\x01key="),
    "the name auth in an extension": lambda of: shown(of.token(), more=b"\x01auth=x"),
    "no token": lambda of: b"n,,\x01auth=Bearer \x01\x01",
    "the scheme in capitals": lambda of: shown(of.token()).replace(b"Bearer", b"BEARER"),
    "channel binding": lambda of: shown(of.token()).replace(b"n,", b"y,", 1),
    "no end": lambda of: shown(of.token())[:-1],
    "nothing": lambda of: b"",
    "one byte 0x01": lambda of: b"\x01",
    "bytes": lambda of: bytes(range(256)),
}
"""First messages of other forms."""


def shown(token: str, identity: str = "", more: bytes = b"") -> bytes:
    return f"n,{identity},\x01auth=Bearer {token}".encode() + more + b"\x01\x01"


def conversation(broker: Secured, message: bytes, second: bytes) -> list[Seen | str]:
    """What a client sees of its login: the answers, and the connection's end or the answer to its next request."""
    with Session(int(broker.login.rpartition(":")[2])) as session:
        session.begin("OAUTHBEARER")
        found: list[Seen | str] = []
        for step in (message, second):
            try:
                answer = session.step(step)
            except ConnectionError:
                return [*found, "closed"]
            token = bytes(answer["auth_bytes"])
            found.append(Seen(answer["error_code"], answer["error_message"], token, bool(answer["session_lifetime"])))
            if answer["error_code"] != "NONE":
                return [*found, "closed" if session.is_closed() else "open"]
            if not token:
                return [*found, "served" if served(session) else "closed"]
        return [*found, "goes on"]


def served(session: Session) -> bool:
    try:
        return session.is_served()
    except ConnectionError:
        return False


STATUS = '{"status":"invalid_token"}'
REFUSED = [Seen("NONE", "", STATUS.encode(), False), Seen("SASL_AUTHENTICATION_FAILED", STATUS, b"", False), "closed"]


@pytest.mark.parametrize("title", TOKENS)
def test_token_is_answered_as_by_kafka(
    secured_kafka: Secured, secured_korvet: Secured, issuer: Issuer, title: str
) -> None:
    message = shown(TOKENS[title](issuer))
    theirs, ours = (conversation(broker, message, b"\x01") for broker in (secured_kafka, secured_korvet))
    assert ours == theirs
    assert ours == REFUSED or title.startswith("valid")


@pytest.mark.parametrize("title", MESSAGES)
def test_first_message_of_another_form_is_answered_as_by_kafka(
    secured_kafka: Secured, secured_korvet: Secured, issuer: Issuer, title: str
) -> None:
    message = MESSAGES[title](issuer)
    theirs, ours = (conversation(broker, message, b"\x01") for broker in (secured_kafka, secured_korvet))
    assert ours == theirs


@pytest.mark.parametrize("second", [b"", b"\x01\x01", b"again"])
def test_refused_token_may_be_followed_by_one_byte_alone(
    secured_kafka: Secured, secured_korvet: Secured, issuer: Issuer, second: bytes
) -> None:
    message = shown(issuer.token(aud="others"))
    theirs, ours = (conversation(broker, message, second) for broker in (secured_kafka, secured_korvet))
    assert ours == theirs


def test_known_differences_are_those_of_the_page(
    secured_kafka: Secured, secured_korvet: Secured, issuer: Issuer
) -> None:
    def both(message: bytes, second: bytes = b"\x01") -> tuple[list[Seen | str], list[Seen | str]]:
        return conversation(secured_kafka, message, second), conversation(secured_korvet, message, second)

    theirs, ours = both(shown(issuer.token(iat=now() + SOON_S, lasts_s=2 * SOON_S)))
    assert (theirs[-1], ours) == ("served", REFUSED)
    theirs, ours = both(shown(issuer.token(aud="others")), shown(issuer.token()))
    assert (theirs[-1], ours[0], ours[-1]) == ("served", REFUSED[0], "closed")
    theirs, ours = both(b"n,,\x01auth=Basic YWxpY2U=\x01\x01")
    assert (theirs, ours[-1]) == (["closed"], "closed")
    assert isinstance(ours[0], Seen) and ours[0].error == "SASL_AUTHENTICATION_FAILED"
    late, _ = both(shown(issuer.token(lasts_s=-5, iat=now() - SOON_S)))
    assert late == [Seen("NONE", "", b"", False), "closed"]
