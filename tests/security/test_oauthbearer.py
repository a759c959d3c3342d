"""The messages of OAUTHBEARER, and its answers to tokens that let nobody in."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from kio.schema.errors import ErrorCode

from korvet.security.guesses import Guesses
from korvet.security.key_source import KeySource, SourceSettings
from korvet.security.oauthbearer import MECHANISM, BearerServer, Shown, parse_first
from korvet.security.plain import MECHANISM as PLAIN
from korvet.security.protocol import MECHANISMS
from korvet.security.salted import HASHES
from korvet.security.sasl import Login, Outcome
from korvet.security.scram import LoginRefused
from korvet.security.tokens import Token, TokenRules, Tokens
from tests.security.test_login_cost import Realm
from tests.support.issuer import AUDIENCE, ISSUER, Issuer
from tests.support.ported import kafka


def message(token: str, authzid: str = "", **extensions: str) -> bytes:
    pairs = {"auth": f"Bearer {token}", **extensions}
    told = "".join(f"{key}={value}\x01" for key, value in pairs.items())
    return f"n,{f'a={authzid}' if authzid else ''},\x01{told}\x01".encode()


@kafka(
    "OAuthBearerClientInitialResponseTest.testToken",
    "OAuthBearerClientInitialResponseTest.testAuthorizationId",
    "OAuthBearerClientInitialResponseTest.testBuildServerResponseToBytes",
    "OAuthBearerClientInitialResponseTest.testRfc7688Example",
    "OAuthBearerClientInitialResponseTest.testBuildClientResponseToBytes",
    "OAuthBearerClientInitialResponseTest.testExtensions",
    "OAuthBearerClientInitialResponseTest.testCharSupportForRfc6750Token",
    "OAuthBearerClientInitialResponseTest.testNoExtensionsFromByteArray",
)
@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (b"n,,\x01auth=Bearer 123.345.567\x01\x01", Shown("123.345.567", "")),
        (b"n,,\x01auth=Bearer 123.345.567\x01nineteen=42\x01\x01", Shown("123.345.567", "")),
        (b"n,,\x01propA=valueA1, valueA2\x01auth=Bearer 567\x01propB=valueB\x01\x01", Shown("567", "")),
        (b"n,,\x01auth=Bearer AZaz09-._~+/A==\x01\x01", Shown("AZaz09-._~+/A==", "")),
        (b"n,a=myuser,\x01auth=bearer  345\x01\x01", Shown("345", "myuser")),
        (b"n,a=a=2Cb=3Dc,\x01auth=Bearer 345\x01\x01", Shown("345", "a,b=c")),
        (
            b"n,a=user@example.com,\x01host=server.example.com\x01port=143\x01"
            b"auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01",
            Shown("vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==", "user@example.com"),
        ),
    ],
)
def test_first_message_shows_a_token_and_an_identity(told: bytes, shown: Shown) -> None:
    assert parse_first(told) == shown


@kafka("OAuthBearerClientInitialResponseTest.testThrowsSaslExceptionOnInvalidExtensionKey")
@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Bearer a.b.c",
        b"n,,auth=Bearer a.b.c\x01\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,a=,\x01auth=Bearer a.b.c\x01\x01",
        b"n,a=x=y,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Basic a.b.c\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a.b.c d\x01\x01",
        b"n,,\x01auth=Bearer a\xff\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer d.e.f\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x0119=42\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01key=\x01\x01",
        b"n,,\x01host=x\x01\x01",
        b"\x01" * 65_536,
        b"n,,\x01auth=Bearer a.b.c\x01" + b"a=b\x01" * 64 + b"\x01",
    ],
)
def test_first_message_of_another_form_is_refused(told: bytes) -> None:
    with pytest.raises(LoginRefused):
        parse_first(told)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer") / "keys.json")


def test_every_mechanism_of_a_listener_is_served() -> None:
    assert set(MECHANISMS) == {*HASHES, PLAIN, MECHANISM}


def steps(issuer: Issuer, *messages: bytes) -> tuple[BearerServer, list[bytes | LoginRefused]]:
    """A login with some messages, and its answers."""
    answers: list[bytes | LoginRefused] = []

    async def run() -> BearerServer:
        source = KeySource(SourceSettings(url=issuer.url))
        rules = TokenRules(algorithms=("ES256",), issuer=ISSUER, audience=(AUDIENCE,))
        server = BearerServer(Tokens(rules, source))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(source.follow)
            for told in messages:
                try:
                    answers.append(await server.step(told))
                except LoginRefused as refused:
                    answers.append(refused)
            tasks.cancel_scope.cancel()
        return server

    return anyio.run(run), answers


@kafka(
    "OAuthBearerSaslServerTest.noAuthorizationIdSpecified",
    "OAuthBearerSaslServerTest.authorizationIdEqualsAuthenticationId",
    "OAuthBearerSaslServerTest.negotiatedProperty",
    "OAuthBearerSaslServerTest.unrecognizedExtensionsAreNotSaved",
    "OAuthBearerValidatorCallbackHandlerTest.testBasic",
)
@pytest.mark.parametrize("authzid", ["", "alice"])
def test_valid_token_logs_its_subject_in(issuer: Issuer, authzid: str) -> None:
    token = issuer.token("alice", exp=4_000_000_000)
    server, answers = steps(issuer, message(token, authzid, firstKey="value1", secondKey="value2"))
    assert answers == [b""]
    assert server.token == Token("alice", 4_000_000_000)


@kafka("OAuthBearerSaslServerTest.authorizationIdNotEqualsAuthenticationId")
def test_identity_of_another_user_is_refused(issuer: Issuer) -> None:
    server, (refused,) = steps(issuer, message(issuer.token("user"), "user" + "x" * 18))
    assert server.token is None
    assert isinstance(refused, LoginRefused)
    assert refused.client_text == (
        "Authentication failed: Client requested an authorization id (userxxxxxxxxxxxxxxxx...) that is different from "
        "the token's principal name (user)"
    )


@kafka("OAuthBearerSaslServerTest.illegalToken", "OAuthBearerValidatorCallbackHandlerTest.testInvalidAccessToken")
@pytest.mark.parametrize("then", [b"\x01", b"", b"again"])
def test_bad_token_gets_a_status_and_then_fails_with_it(issuer: Issuer, then: bytes) -> None:
    if then == b"again":
        then = message(issuer.token())
    server, (status, refused) = steps(issuer, message(issuer.token() + "AB"), then)
    assert isinstance(status, bytes)
    assert json.loads(status) == {"status": "invalid_token"}
    assert isinstance(refused, LoginRefused)
    assert refused.client_text == (status.decode() if then == b"\x01" else None)
    assert "Signature verification failed" in str(refused)
    assert server.token is None


def test_no_token_is_valid_before_the_keys_were_read(tmp_path: Path, issuer: Issuer) -> None:
    lost = Issuer(tmp_path / "keys.json")
    lost.path.unlink()
    _, (status,) = steps(lost, message(lost.token()))
    assert status == b'{"status":"invalid_token"}'


@kafka(
    "SaslServerAuthenticatorTest.testSessionExpiresAtTokenExpiry",
    "SaslServerAuthenticatorTest.testSessionExpiresAtTokenExpiryDespiteNoReauthIsSet",
    "SaslServerAuthenticatorTest.testSessionExpiresAtMaxReauthTime",
)
@pytest.mark.parametrize(
    ("max_reauth_ms", "token_lasts_s", "least_ms", "most_ms"),
    [(0, 3600, 3_000_000, 3_600_000), (7_200_000, 3600, 3_000_000, 3_600_000), (60_000, 3600, 60_000, 60_000)],
)
def test_session_ends_with_its_token_or_at_the_longest_time_of_the_broker(
    issuer: Issuer, max_reauth_ms: int, token_lasts_s: int, least_ms: int, most_ms: int
) -> None:
    async def run() -> Outcome:
        source = KeySource(SourceSettings(url=issuer.url))
        tokens = Tokens(TokenRules(algorithms=("ES256",), issuer=ISSUER, audience=(AUDIENCE,)), source)
        login = Login([MECHANISM], Realm(), max_reauth_ms=max_reauth_ms, failed_s=0.0, guesses=Guesses(), tokens=tokens)
        login.handshake(MECHANISM)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(source.follow)
            outcome = await login.authenticate(message(issuer.token(lasts_s=token_lasts_s)))
            tasks.cancel_scope.cancel()
        return outcome

    outcome = anyio.run(run)
    assert outcome.error is ErrorCode.none
    assert least_ms <= outcome.lifetime_ms <= most_ms
