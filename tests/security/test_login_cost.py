"""The memory of a login's largest messages: nobody is known yet, so each has to stay below 1 MiB beside its frame."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import anyio
import pytest

from korvet.configs.oauth import TOKEN_ALGORITHMS
from korvet.security.key_source import KeySource, SourceSettings
from korvet.security.sasl import Login
from korvet.security.scram import Credentials, Judge, make_credential
from korvet.security.tokens import TokenRules, Tokens
from korvet.store.security.users import CredentialKey
from korvet.wire.codec import decode_header, decode_request
from tests.oracle.messages import request_frame
from tests.support.issuer import AUDIENCE, ISSUER, Issuer, claims, part

MIB = 1 << 20
LARGEST = 524_288


class Realm:
    """One user of one namespace."""

    def __init__(self) -> None:
        known = {CredentialKey("SCRAM-SHA-256", "alice"): make_credential("SCRAM-SHA-256", "right")}
        self._credentials = Credentials(known, b"secret")

    async def judge(self, _name: str) -> Judge:
        return self._credentials

    async def admit(self, name: str, claimed: str | None = None) -> str:
        return name

    def has(self, key: CredentialKey) -> bool:
        return key in self._credentials.known


def shown(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def largest(issuer: Issuer) -> list[tuple[str, bytes]]:
    """The largest messages, up to what is looked at and beyond it."""
    found: list[tuple[str, bytes]] = []
    for size in (4096, LARGEST - 60):
        found += [
            ("SCRAM-SHA-256", b"n,,n=" + b"a" * (size - 11) + b",r=abc"),
            ("SCRAM-SHA-256", (b"n,,n=a,r=b" + b",x=1" * (size // 4))[:size]),
            ("SCRAM-SHA-256", (b"n,,n=" + b"=2C" * (size // 3))[: size - 1] + b"="),
            ("PLAIN", b"\0" * size),
        ]
    for size in (65_536, LARGEST - 60):
        found += [
            ("OAUTHBEARER", b"\x01" * size),
            ("OAUTHBEARER", (b"n,,\x01" + b"a=b\x01" * (size // 4))[:size]),
            ("OAUTHBEARER", shown("a" * (size - 19))),
        ]
    named = {"alg": issuer.algorithm, "kid": issuer.name}
    many = part({**named, **{str(at): 1 for at in range(900)}})
    deep = part(b"[" * 6000 + b"]" * 6000)
    found += [("OAUTHBEARER", shown(f"{header}.{part(claims())}.{part(b'x' * 64)}")) for header in (many, deep)]
    return [*found, ("OAUTHBEARER", shown(issuer.sign({**claims(), "x": "y" * 30_000})))]


@pytest.mark.anyio
async def test_no_message_of_a_login_takes_a_mebibyte(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path / "keys.json")
    source = KeySource(SourceSettings(url=issuer.url))
    rules = TokenRules(algorithms=TOKEN_ALGORITHMS, issuer=ISSUER, audience=(AUDIENCE,))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.follow)
        await source.find(issuer.name, issuer.algorithm)
        for mechanism, message in largest(issuer):
            frame = request_frame("sasl_authenticate", 2, {"auth_bytes": message}, 7)[4:]
            login = Login(
                [mechanism],
                Realm(),
                max_reauth_ms=0,
                failed_s=0.0,
                threads=anyio.CapacityLimiter(1),
                tokens=Tokens(rules, source),
            )
            login.handshake(mechanism)
            tracemalloc.start()
            try:
                request = decode_request(decode_header(memoryview(frame)), memoryview(frame))
                await login.authenticate(request.auth_bytes)
                _, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak_bytes < MIB, (mechanism, message[:40])
        tasks.cancel_scope.cancel()
