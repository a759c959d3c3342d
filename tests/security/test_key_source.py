"""The keys of an issuer: read of a file and by https, again when a token needs it, and bounded in all they cost."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import anyio
import pytest

from korvet.configs.types import is_key_url
from korvet.errors import ConfigError
from korvet.security import key_source
from korvet.security.jwks import MOST_KEYS, KeysUnreadable
from korvet.security.key_source import KeySource, SourceSettings, check_source, read_keys
from korvet.security.tokens import InvalidToken, TokenRules, Tokens
from tests.support.certificates import Authority
from tests.support.issuer import Answer, Issuer, KeyServer, answer_with, make_key, part, public_jwk
from tests.support.ported import kafka

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "keys.json")


@pytest.fixture
def server(authority: Authority, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyServer]:
    """A server with the issuer's keys, whose certificate this process trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    with KeyServer(authority.server(), answer_with(issuer.path.read_bytes())).running() as server:
        yield server


@asynccontextmanager
async def following(url: str, **settings: float) -> AsyncIterator[KeySource]:
    source = KeySource(SourceSettings(**{"url": url, "least_pause_s": 0.05, **settings}))  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.follow)
        yield source
        tasks.cancel_scope.cancel()


async def why_unreadable(server: KeyServer, answer: Answer) -> str:
    server.answer = answer
    with pytest.raises(KeysUnreadable) as caught:
        await read_keys(server.url)
    return str(caught.value)


async def test_keys_are_read_by_https_and_of_a_file(server: KeyServer, issuer: Issuer) -> None:
    for url in (server.url, issuer.url):
        (key,) = (await read_keys(url)).keys
        assert key.name == issuer.name


async def test_server_of_an_unknown_authority_is_not_believed(
    server: KeyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority.make(tmp_path).cert))
    with pytest.raises(KeysUnreadable, match="certificate"):
        await read_keys(server.url)
    with pytest.raises(KeysUnreadable):
        await read_keys(server.url.replace("127.0.0.1", "localhost.localdomain.invalid"))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://169.254.169.254/latest", "/other"])
async def test_redirect_is_not_followed(server: KeyServer, status: int, target: str) -> None:
    assert f"status {status}" in await why_unreadable(server, answer_with(b"", status, Location=target))
    assert server.requests == 1


async def test_answer_that_is_no_key_set_is_refused(server: KeyServer) -> None:
    many = {"keys": [public_jwk(make_key(), "k")] * (MOST_KEYS + 1)}
    bodies = [b"", b"{}", b"[]", b"null", b'{"keys": 7}', b"[" * 200_000, b'{"keys":' + b"[" * 200_000, b"\xff"]
    for body in bodies:
        assert "no JSON Web Key Set" in await why_unreadable(server, answer_with(body))
    assert "no key" in await why_unreadable(server, answer_with(b'{"keys": []}'))
    assert f"has {MOST_KEYS + 1} keys" in await why_unreadable(server, answer_with(json.dumps(many).encode()))
    assert "status 404" in await why_unreadable(server, answer_with(b"", 404))


async def test_answer_of_any_size_is_cut_off(server: KeyServer) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b" " * 65_536)

    def crumbs(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while True:
            handler.wfile.write(b"1\r\n \r\n" * 5000)

    def headers(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.flush_headers()
        while True:
            handler.wfile.write(b"X-Name: value\r\n" * 5000)

    for answer in (endless, crumbs):
        handled: list[Answer] = [answer]
        assert "more than" in await why_unreadable(server, handled[0])
    assert "not HTTP" in await why_unreadable(server, headers)
    assert "more than" in await why_unreadable(server, answer_with(b" " * (1 << 20) + b"{}"))


async def test_answer_that_never_ends_is_given_up(server: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_source, "_READ_S", 1.0)

    def slow(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.flush_headers()
        while True:
            handler.wfile.write(b"X-A: b\r\n")
            time.sleep(0.1)

    assert "did not come within" in await why_unreadable(server, slow)


async def test_server_that_breaks_off_is_reported(server: KeyServer) -> None:
    def short(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"{")

    def strange(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"SSH-2.0-x\r\n\r\n")

    assert await why_unreadable(server, short)
    assert await why_unreadable(server, strange)
    for url in (
        "https://127.0.0.1:1/keys",
        "https://a..b/keys",
        f"https://{'a' * 70}.example/keys",
        "https://[::1]:1/",
    ):
        with pytest.raises(KeysUnreadable):
            await read_keys(url)


async def test_login_waits_for_the_first_keys_and_for_new_ones(issuer: Issuer) -> None:
    async with following(issuer.url) as source:
        assert await source.find(issuer.name, "ES256") is not None
        old = issuer.name
        issuer.rotate()
        assert await source.find(issuer.name, "ES256") is not None
        assert await source.find(old, "ES256") is None


async def test_failed_read_keeps_the_keys_and_is_tried_again(server: KeyServer, issuer: Issuer) -> None:
    right = server.answer
    server.answer = answer_with(b"", 503)
    async with following(server.url, backoff_s=0.02, most_backoff_s=0.05) as source:
        with anyio.fail_after(60):
            while server.requests < 4:
                await anyio.sleep(0.01)
            assert await source.find(issuer.name, "ES256") is None
            server.answer = right
            while await source.find(issuer.name, "ES256") is None:
                await anyio.sleep(0.01)
            server.answer = answer_with(b"", 503)
            before = server.requests
            source.refresh()
            while server.requests == before:
                await anyio.sleep(0.01)
            assert await source.find(issuer.name, "ES256") is not None


@kafka(
    "RefreshingHttpsJwksTest.testBasicScheduleRefresh",
    "RefreshingHttpsJwksTest.testMaybeExpediteRefreshNoDelay",
    "RefreshingHttpsJwksTest.testMaybeExpediteRefreshDelays",
)
async def test_unknown_name_fetches_the_keys_once(server: KeyServer) -> None:
    async with following(server.url) as source:
        for _ in range(20):
            assert await source.find("unknown", "ES256") is None
        assert server.requests == 2


@kafka("RefreshingHttpsJwksTest.testLongKey")
async def test_name_that_is_too_long_fetches_no_keys(server: KeyServer, issuer: Issuer) -> None:
    async with following(server.url) as source:
        judge = Tokens(TokenRules(algorithms=("ES256",)), source)
        await judge.verify(issuer.token())
        for _ in range(3):
            with pytest.raises(InvalidToken, match="1000 characters"):
                await judge.verify(f"{part({'alg': 'ES256', 'kid': 'k' * 1001})}.{part({})}.{part(b'x')}")
        assert server.requests == 1


@kafka("RefreshingHttpsJwksTest.testSecondaryRefreshAfterElapsedDelay")
async def test_keys_are_read_again_when_they_are_due(server: KeyServer) -> None:
    async with following(server.url, refresh_s=0.02):
        with anyio.fail_after(60):
            while server.requests < 4:
                await anyio.sleep(0.01)


async def test_million_unknown_names_cause_few_reads_and_take_no_memory(server: KeyServer, issuer: Issuer) -> None:
    async with following(server.url, least_pause_s=3600.0) as source:
        assert await source.find(issuer.name, "ES256") is not None
        for number in range(1_000_000):
            source._may_ask_for(f"name-{number}")
        assert len(source._asked_for) <= 16
        async with anyio.create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(source.find, f"n-{number}", "ES256")
            await anyio.sleep(0.2)
            tasks.cancel_scope.cancel()
        assert server.requests == 1


@pytest.mark.parametrize(
    "url",
    [
        *("http://issuer.example/keys", "https://", "https:///keys", "https://user:pass@host/keys", "https://h:0/"),
        *("ftp://host/keys", "keys.json", "/keys.json", "file:keys.json", "file://host/keys.json", "", "https://h:x/"),
        *("https://host/a b", "https://host/\n", "https://host/ü"),
    ],
)
def test_url_of_another_kind_is_refused(url: str) -> None:
    assert is_key_url(url) is not None
    with pytest.raises(ConfigError, match="jwks"):
        check_source(SourceSettings(url=url))


def test_file_without_keys_is_refused_at_the_start(tmp_path: Path, issuer: Issuer) -> None:
    check_source(SourceSettings(url=issuer.url))
    check_source(SourceSettings(url="https://issuer.example:8443/realms/x/keys?y=z"))
    for name, body in (("missing", None), ("empty", b""), ("large", b" " * (1 << 20) + b"{}")):
        path = tmp_path / name
        if body is not None:
            path.write_bytes(body)
        with pytest.raises(ConfigError):
            check_source(SourceSettings(url=path.as_uri()))
    with pytest.raises(ConfigError):
        check_source(SourceSettings(url=tmp_path.as_uri()))
