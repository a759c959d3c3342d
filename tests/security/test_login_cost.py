"""The costs of the largest requests before a login, when nobody is known yet.

Each stays below 1 MiB beside its frame. Its steps in Python are few: 20,000 lines take some milliseconds of the loop.
Only the library of tokens looks at each byte, of at most 64 KiB, which takes as long. What runs in C, ciphers and
expressions, has bounded texts, too.
"""

from __future__ import annotations

import struct
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

import anyio
import pytest

from korvet.configs.oauth import TOKEN_ALGORITHMS
from korvet.errors import MalformedRequest
from korvet.security.guesses import Guesses
from korvet.security.key_source import KeySource, SourceSettings
from korvet.security.sasl import Login
from korvet.security.scram import Credentials, Judge, make_credential
from korvet.security.tokens import TokenRules, Tokens
from korvet.store.security.users import CredentialKey
from korvet.wire.codec import decode_header, decode_request
from korvet.wire.schema import is_flexible
from tests.oracle.messages import request_frame
from tests.oracle.versions import supported
from tests.support.issuer import AUDIENCE, ISSUER, Issuer, claims, part
from tests.support.largest import Location, body, locations, tagged, varint

MIB = 1 << 20
LARGEST = 524_288
MOST_LINES = 20_000
MOST_LINES_OF_A_BYTE = 12
VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36


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


def begun(mechanism: str, tokens: Tokens) -> Login:
    """A login that waits for its first message."""
    login = Login([mechanism], Realm(), max_reauth_ms=0, failed_s=0.0, guesses=Guesses(), tokens=tokens)
    login.handshake(mechanism)
    return login


class Steps:
    """The lines of Python that run in a block."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, _frame: FrameType, _event: str, _arg: Any) -> Any:
        self.count += 1
        return self._trace


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
            login, again = (begun(mechanism, Tokens(rules, source)) for _ in range(2))
            tracemalloc.start()
            try:
                request: Any = decode_request(decode_header(memoryview(frame)), memoryview(frame))
                await login.authenticate(request.auth_bytes)
                _, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak_bytes < MIB, (mechanism, message[:40])
            with Steps() as steps:
                await again.authenticate(message)
            read = len(message) * MOST_LINES_OF_A_BYTE if mechanism == "OAUTHBEARER" and len(message) <= 65_536 else 0
            assert steps.count < MOST_LINES + read, (mechanism, message[:40])
        tasks.cancel_scope.cancel()


def shapes() -> Iterator[bytes]:
    """Frames of the three APIs before a login, at each version: as large as can be in every part, and with lies."""
    for key, values in (
        (VERSIONS, {"client_software_name": b"a", "client_software_version": b"1"}),
        (HANDSHAKE, {}),
        (AUTHENTICATE, {}),
    ):
        for version in supported({VERSIONS: "api_versions", HANDSHAKE: "sasl_handshake"}.get(key, "sasl_authenticate")):
            whole = Location(key, version, (), False)
            for location in [whole, *locations(key, version)]:
                for count in (0, 1, 249, 32_767, 250_000):
                    yield header(key, version) + body(location, count, values)
            if is_flexible(key, version):
                for count in (1, 64, 65, 200_000):
                    yield header(key, version) + tagged(whole, count, values)
                    yield header(key, version, tags=count) + body(whole, 0, values)
            for size in (0, 1, 32_767):
                yield header(key, version, client_id=b"c" * size) + body(whole, 0, values)
            yield header(key, version) + bytes(LARGEST - 100)
            yield header(key, version) + b"\xff" * (LARGEST - 100)


def header(key: int, version: int, client_id: bytes = b"c", tags: int = 0) -> bytes:
    told = struct.pack(">hhih", key, version, 7, len(client_id)) + client_id
    # SaslHandshake has no flexible version.
    return told + (varint(tags) + b"\x05\x00" * tags if is_flexible(key, version) else b"")


def test_no_request_before_a_login_takes_many_steps_or_a_mebibyte() -> None:
    taken = 0
    for frame in shapes():
        assert len(frame) <= LARGEST
        for is_counted in (False, True):
            tracemalloc.start()
            steps = Steps()
            try:
                with steps if is_counted else nullcontext(), suppress(MalformedRequest):
                    decode_request(decode_header(memoryview(frame)), memoryview(frame))
                    taken += 1
                _, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert steps.count < MOST_LINES and peak_bytes < MIB, (frame[:40], len(frame))
    assert taken > 20
