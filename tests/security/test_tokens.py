"""Tokens that are judged: what they must say, and what of their header is never believed."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from typing import Any

import anyio
import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from korvet.configs.oauth import TOKEN_ALGORITHMS
from korvet.security.jwks import parse_jwks
from korvet.security.key_source import KeySource, SourceSettings
from korvet.security.tokens import InvalidToken, Token, TokenRules, Tokens
from tests.support.issuer import AUDIENCE, ISSUER, Issuer, claims, make_key, part, public_jwk
from tests.support.ported import kafka


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer") / "keys.json", "RS256")


def rules(**changed: Any) -> TokenRules:
    told = {"algorithms": TOKEN_ALGORITHMS, "issuer": ISSUER, "audience": ("other", AUDIENCE), **changed}
    return TokenRules(**told)


def judged(by: Issuer, /, *tokens: str, **changed: Any) -> list[Token | str]:
    """What each token tells, or why it lets nobody in."""
    found: list[Token | str] = []

    async def run() -> None:
        source = KeySource(SourceSettings(url=by.url, least_pause_s=0.1))
        judge = Tokens(rules(**changed), source)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(source.follow)
            for token in tokens:
                try:
                    found.append(await judge.verify(token))
                except InvalidToken as error:
                    found.append(str(error))
            tasks.cancel_scope.cancel()

    anyio.run(run)
    return found


def problem(issuer: Issuer, token: str, /, **changed: Any) -> str:
    (found,) = judged(issuer, token, **changed)
    assert isinstance(found, str)
    return found


def user(issuer: Issuer, token: str, /, **changed: Any) -> str:
    (found,) = judged(issuer, token, **changed)
    assert isinstance(found, Token), found
    return found.user


@kafka("BrokerJwtValidatorTest.testRsaEncryptionAlgorithm", "BrokerJwtValidatorTest.testEcdsaEncryptionAlgorithm")
@pytest.mark.parametrize("algorithm", TOKEN_ALGORITHMS)
def test_each_algorithm_takes_a_key_of_its_kind(tmp_path_factory: pytest.TempPathFactory, algorithm: str) -> None:
    issuer = Issuer(tmp_path_factory.mktemp("issuer") / "keys.json", algorithm)
    assert user(issuer, issuer.token()) == "alice"
    others = tuple(one for one in TOKEN_ALGORITHMS if one != algorithm)
    assert problem(issuer, issuer.token(), algorithms=others) == "its algorithm is not enabled"


@kafka(
    "JwtValidatorTest.testEmptyString",
    "JwtValidatorTest.testWhitespace",
    "JwtValidatorTest.testEmptySections",
    "JwtValidatorTest.testMissingHeader",
    "JwtValidatorTest.testMissingPayload",
    "JwtValidatorTest.testMissingSignature",
    "BrokerJwtValidatorTest.testInvalidEncryptionAlgorithm",
    "OAuthBearerValidatorCallbackHandlerTest.testInvalidAccessToken",
)
def test_texts_that_are_no_signed_token_are_refused(issuer: Issuer) -> None:
    valid = issuer.token()
    header, payload, signature = valid.split(".")
    named = {"kid": issuer.name}
    texts = [
        *("", "    ", "..", "a.b.c", "this isn't valid", "this.isn't.valid", f"{valid}.{signature}", f"{valid}\n"),
        *(f".{payload}.{signature}", f"{header}..{signature}", f"{header}.{payload}.", f"{header}.{payload}"),
        f"{part({**named, 'alg': 'none'})}.{payload}.",
        f"{part({**named, 'alg': 'none'})}.{payload}.{signature}",
        f"{part({**named, 'alg': 'NONE'})}.{payload}.{signature}",
        f"{part({**named, 'alg': 'fake'})}.{payload}.{signature}",
        f"{part({**named, 'alg': ['RS256']})}.{payload}.{signature}",
        f"{part({**named, 'alg': None})}.{payload}.{signature}",
        f"{part(named)}.{payload}.{signature}",
        f"{part([])}.{payload}.{signature}",
        f"{part({'alg': 'RS256', 'kid': 7})}.{payload}.{signature}",
        f"{part({'alg': 'RS256', 'kid': 'k' * 1001})}.{payload}.{signature}",
        f"{part(b'{' * 40)}.{payload}.{signature}",
        f"{part(bytes([255]))}.{payload}.{signature}",
    ]
    found = judged(issuer, *texts)
    assert all(isinstance(one, str) for one in found), found
    assert user(issuer, valid) == "alice"


def test_token_signed_with_a_public_key_as_secret_is_refused(issuer: Issuer) -> None:
    pem = issuer.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for secret in (pem, json.dumps(issuer.key_set()["keys"][0]).encode()):
        signed = f"{part({'alg': 'HS256', 'kid': issuer.name})}.{part(claims())}"
        token = f"{signed}.{part(hmac.digest(secret, signed.encode(), hashlib.sha256))}"
        assert problem(issuer, token) == "its algorithm is not enabled"


def test_token_of_another_issuer_with_the_same_key_name_is_refused(issuer: Issuer) -> None:
    for key in (make_key("RS256"), make_key("ES256")):
        algorithm = "ES256" if "curve" in dir(key) else "RS256"
        token = jwt.encode(claims(), key, algorithm, {"kid": issuer.name})
        assert problem(issuer, token)


def test_keys_that_a_token_brings_along_are_not_used(issuer: Issuer) -> None:
    """Source: RFC 8725, 2.10; the addresses would be asked for if anything followed them."""
    own = make_key("RS256")
    brought = {"jwk": public_jwk(own, issuer.name), "jku": "https://127.0.0.1:1/keys", "x5u": "https://127.0.0.1:1/x"}
    token = jwt.encode(claims(), own, "RS256", {"kid": issuer.name, **brought})
    assert problem(issuer, token) == "Signature verification failed"
    assert user(issuer, issuer.sign(claims(), {**brought, "x5c": ["AA=="]})) == "alice"


@pytest.mark.parametrize("header", [{"crit": ["exp"], "exp": 1}, {"crit": []}, {"b64": False, "crit": ["b64"]}])
def test_extension_that_must_be_understood_is_refused(issuer: Issuer, header: dict[str, Any]) -> None:
    signed = f"{part({'alg': 'RS256', 'kid': issuer.name, **header})}.{part(claims())}"
    assert "crit" in problem(issuer, f"{signed}.{part(b'x' * 256)}") or "header" in problem(
        issuer, f"{signed}.{part(b'x' * 256)}"
    )


@kafka(
    "ClaimValidationUtilsTest.testValidateExpirationDisallowsNull",
    "ClaimValidationUtilsTest.testValidateExpirationDisallowsNegatives",
    "ClaimValidationUtilsTest.testValidateSubjectDisallowsEmptyNullAndWhitespace",
    "ClaimValidationUtilsTest.testValidateExpiration",
    "ClaimValidationUtilsTest.testValidateIssuedAt",
    "ClaimValidationUtilsTest.testValidateIssuedAtDisallowsNegatives",
    "ClaimValidationUtilsTest.testValidateScopesDisallowsDuplicates",
    "ClaimValidationUtilsTest.testValidateScopesDisallowsEmptyNullAndWhitespace",
    "BrokerJwtValidatorTest.testRejectMissingIssuerClaimWhenExpectedIssuerSet",
    "BrokerJwtValidatorTest.testExpectedIssuerSet",
    "BrokerJwtValidatorTest.testRejectWrongAudienceWhenExpectedAudienceSet",
)
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"exp": None}, "exp"),
        ({"exp": -1}, "expired"),
        ({"exp": 1}, "expired"),
        ({"exp": True}, "expired"),
        ({"exp": "soon"}, "exp"),
        ({"exp": "4000000000"}, "'exp' is no number"),
        ({"exp": float("inf")}, ""),
        ({"exp": float("nan")}, "exp"),
        ({"exp": {}}, ""),
        ({"exp": 10**400}, "'exp' is no number"),
        ({"exp": 2**53}, "'exp' is no number"),
        ({"iat": True}, "'iat' is no number"),
        ({"iat": -(10**400)}, "'iat' is no number"),
        ({"nbf": 10**400}, ""),
        ({"iat": None}, "iat"),
        ({"iat": -1}, "iat"),
        ({"iat": time.time() + 3600}, "not yet valid"),
        ({"iat": "x"}, "iat"),
        ({"nbf": time.time() + 3600}, "not yet valid"),
        ({"nbf": "7"}, "nbf"),
        ({"iat": "7"}, "iat"),
        ({"iss": None}, "iss"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": f"{ISSUER}/"}, "issuer"),
        ({"iss": [ISSUER]}, "iss"),
        ({"aud": None}, "aud"),
        ({"aud": "https://evil.example"}, "Audience"),
        ({"aud": ["evil", "others"]}, "Audience"),
        ({"aud": [7, AUDIENCE]}, ""),
        ({"aud": {AUDIENCE: 1}}, ""),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": "  \t"}, "sub"),
        ({"sub": 7}, "sub"),
        ({"sub": "a" * 513}, "sub"),
        ({"sub": "a\nUser:admin"}, "sub"),
        ({"sub": "a\x00b"}, "sub"),
        ({"sub": "a\ud800"}, "sub"),
        ({"sub": ["alice"]}, "sub"),
        ({"scope": "email profile email"}, "scope"),
        ({"scope": ["a", "b", " a "]}, "scope"),
        ({"scope": ["a", ""]}, "scope"),
        ({"scope": ["a", None]}, "scope"),
        ({"scope": {"a": 1}}, "scope"),
    ],
)
def test_token_without_what_is_demanded_is_refused(issuer: Issuer, changed: dict[str, Any], why: str) -> None:
    token = issuer.sign({**claims(), **{name: value for name, value in changed.items() if value is not None}})
    if None in changed.values():
        token = issuer.token(**changed)
    assert why in problem(issuer, token)


@kafka(
    "ClaimValidationUtilsTest.testValidateScopes",
    "ClaimValidationUtilsTest.testValidateSubject",
    "ClaimValidationUtilsTest.testValidateIssuedAtAllowsZero",
    "BrokerJwtValidatorTest.testSpaceDelimitedStringScopesTrimmedAndCollapsed",
    "BrokerJwtValidatorTest.testSpaceDelimitedStringScopesProcessedAccordingToRfc6749",
    "BrokerJwtValidatorTest.testBlankSpaceDelimitedStringScopesProduceEmptySet",
)
@pytest.mark.parametrize(
    "changed",
    [
        {"aud": ["x", AUDIENCE]},
        {"aud": ["other"]},
        {"scope": "   email   profile   phone   "},
        {"scope": "   "},
        {"scope": []},
        {"scope": ["  a  ", "    b    "]},
        {"sub": "  alice "},
        {"iat": 0},
        {"jti": 7},
    ],
)
def test_token_in_another_form_is_taken(issuer: Issuer, changed: dict[str, Any]) -> None:
    assert user(issuer, issuer.sign({**claims(), **changed})) == "alice"


def test_token_that_expires_before_it_was_issued_or_counts_is_refused(issuer: Issuer) -> None:
    long_ago = int(time.time()) - 3600
    for token in (issuer.token(lasts_s=-5), issuer.token(lasts_s=-5, iat=long_ago, nbf=int(time.time()))):
        assert "before it was issued" in problem(issuer, token, clock_skew_s=600)
    assert user(issuer, issuer.token(lasts_s=-5, iat=long_ago), clock_skew_s=600) == "alice"


def test_clocks_may_differ_by_the_configured_time(issuer: Issuer) -> None:
    now = int(time.time())
    for changed in ({"exp": now - 20, "iat": now - 60}, {"iat": now + 20}, {"nbf": now + 20}):
        token = issuer.sign({**claims(), **changed})
        assert user(issuer, token, clock_skew_s=600) == "alice"
        assert problem(issuer, token, clock_skew_s=0)


@kafka(
    "BrokerJwtValidatorTest.testMissingSubShouldBeValid",
    "BrokerJwtValidatorTest.testSpaceDelimitedStringScopesProcessedWithConfiguredScopeClaimName",
    "ClaimValidationUtilsTest.testValidateClaimNameOverride",
)
def test_claims_of_user_and_scopes_have_configured_names(issuer: Issuer) -> None:
    names = {"sub_claim": "client_id", "scope_claim": "scp"}
    assert user(issuer, issuer.token(sub=None, client_id="otherSub", scp="a b"), **names) == "otherSub"
    assert "scp" in problem(issuer, issuer.token(client_id="x", scp="a a"), **names)


@kafka(
    "BrokerJwtValidatorTest.testAllowUnverifiedAudience",
    "BrokerJwtValidatorTest.testAllowUnverifiedIssuer",
    "BrokerJwtValidatorTest.testAllowUnverifiedIssuerAndAudience",
)
def test_issuer_and_audience_are_not_looked_at_without_expected_ones(issuer: Issuer) -> None:
    assert user(issuer, issuer.token(iss="https://evil.example"), issuer="") == "alice"
    assert user(issuer, issuer.token(aud="evil"), audience=()) == "alice"
    assert user(issuer, issuer.token(aud=None, iss=None), audience=(), issuer="") == "alice"


def test_largest_and_deepest_tokens_cost_little(issuer: Issuer) -> None:
    deep = b"[" * 30_000 + b"]" * 30_000
    header, payload, signature = issuer.token().split(".")
    named = {"alg": "RS256", "kid": issuer.name}
    tokens = [
        "a" * 500_000,
        f"{header}.{part(b'x' * 370_000)}.{signature}",
        f"{part(deep[:20_000] + deep[-20_000:])}.{payload}.{signature}",
        f"{part({**named, 'x': 'y' * 20_000})}.{payload}.{signature}",
        f"{part({**named, **{str(at): 1 for at in range(900)}})}.{payload}.{signature}",
        issuer.sign({**claims(), "x": "y" * 30_000}),
    ]
    signed = f"{part(named)}.{part(deep[:24_000] + deep[-24_000:])}"
    tokens.append(jwt.api_jws.encode(deep[:20_000], issuer.key, "RS256", named))
    tokens.append(f"{signed}.{signature}")
    judged(issuer, *tokens)
    began = time.process_time()
    found = judged(issuer, *tokens)
    spent = time.process_time() - began
    assert [isinstance(one, Token) for one in found] == [False, False, False, False, False, True, False, False]
    assert spent < 30


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


def names(found: Sequence[Any]) -> list[str | None]:
    return [key.name for key in found]


def test_key_set_leaves_out_keys_that_verify_nothing() -> None:
    rsa, curve = make_key("RS256"), make_key("ES256")
    good = public_jwk(curve, "good")
    weak = {"kty": "RSA", "kid": "weak", "n": part((2**1023 + 1).to_bytes(128, "big")), "e": "AQAB"}
    secret = {"kty": "oct", "kid": "secret", "k": part(b"x" * 32)}
    private = {**public_jwk(rsa, "private"), "d": "AQ", "p": "AQ", "q": "AQ"}
    others: list[Any] = [
        7,
        None,
        [],
        {},
        {"kty": ["RSA"]},
        {"kty": "new"},
        {**good, "kid": 7},
        {**good, "x": "!"},
        {**good, "y": "AA"},
    ]
    texts = key_set(
        good,
        weak,
        secret,
        private,
        public_jwk(rsa, "encrypts", use="enc"),
        public_jwk(rsa, "signs", use="sig"),
        *others,
    )
    found = parse_jwks(texts).keys
    assert names(found) == ["good", "private", "signs"]
    assert not hasattr(found[1].public, "private_numbers")


def test_key_is_found_by_its_name_and_kind() -> None:
    rsa, curve, other = make_key("RS256"), make_key("ES256"), make_key("ES384")
    same = [public_jwk(rsa, "k"), public_jwk(curve, "k"), public_jwk(other, "o", alg="ES384")]
    found = parse_jwks(key_set(*same))
    assert found.find("k", "RS256") == found.keys[0]
    assert found.find("k", "ES256") == found.keys[1]
    assert found.find("o", "ES384") == found.keys[2]
    assert found.find("k", "ES384") is None
    assert found.find("o", "ES256") is None
    assert found.find("x", "RS256") is None
    assert found.find(None, "PS512") == found.keys[0]
    assert parse_jwks(key_set(*same, public_jwk(make_key("RS256"), "z"))).find(None, "RS256") is None
    assert parse_jwks(key_set(public_jwk(rsa, "k", alg="RS512"))).find("k", "RS256") is None
