"""TLS to Redis, and the errors of connections that fail because of it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from korvet.errors import StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.library import open_store
from tests.support.redis import Server, ServerUnavailable, free_port, running_server, unavailable
from tests.support.tools import find_tool

pytestmark = pytest.mark.anyio

KEY = "korvet:{t}:list"


class Secure(NamedTuple):
    """A server with a port for TLS and one without."""

    server: Server
    tls_port: int
    key: Path
    certificate: Path

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.tls_port}?ca={self.certificate}"


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A key and a certificate for 127.0.0.1."""
    openssl = find_tool("openssl")
    key, certificate = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, certificate


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """The distribution's Redis, because the Valkey of the wheel is built without TLS."""
    key, certificate = self_signed(tmp_path_factory.mktemp("tls"))
    port = free_port()
    options = {
        "tls-port": str(port), "tls-cert-file": str(certificate), "tls-key-file": str(key),
        "tls-ca-cert-file": str(certificate), "tls-auth-clients": "no",
    }  # fmt: skip
    try:
        with running_server("redis", tcp=True, options=options) as server:
            yield Secure(server, port, key, certificate)
    except ServerUnavailable as error:
        unavailable(error)


async def problem(url: str) -> str:
    """The error of opening a store, which must come before the time for connecting is over."""
    with anyio.fail_after(15):
        with pytest.raises(StoreUnavailable) as caught:
            async with open_store(url):
                pass
    return str(caught.value)


async def test_store_uses_tls(secure: Secure) -> None:
    async with open_store(secure.url) as store:
        assert await store.call(Purpose.APPEND, KEY, "SET", KEY, "x" * 1_000_000) == b"OK"
        assert len(await store.call(Purpose.READ, KEY, "GET", KEY)) == 1_000_000
    async with open_store(f"rediss://127.0.0.1:{secure.tls_port}?verify=no") as store:
        assert await store.call(Purpose.READ, KEY, "PING") == b"PONG"


@pytest.fixture
def until_the_loop_is_closed() -> Iterator[contextlib.ExitStack]:
    """A stack of contexts that end after the test's event loop has closed."""
    with contextlib.ExitStack() as stack:
        yield stack


async def test_store_does_not_wait_for_a_servers_tls_goodbye(
    secure: Secure, until_the_loop_is_closed: contextlib.ExitStack
) -> None:
    """A connection left behind causes a warning when the loop closes, and that fails the test."""
    async with open_store(secure.url) as store:
        assert await store.call(Purpose.READ, KEY, "PING") == b"PONG"
        until_the_loop_is_closed.enter_context(secure.server.paused())


async def test_store_checks_the_servers_certificate(secure: Secure) -> None:
    assert "certificate is not trusted" in await problem(f"rediss://127.0.0.1:{secure.tls_port}")


async def test_client_certificate_is_sent_if_the_server_asks(secure: Secure) -> None:
    with secure.server.client() as client:
        client.config_set("tls-auth-clients", "yes")
        try:
            assert "wants a client's certificate" in await problem(secure.url)
            async with open_store(f"{secure.url}&cert={secure.certificate}&key={secure.key}") as store:
                assert await store.call(Purpose.READ, KEY, "PING") == b"PONG"
        finally:
            client.config_set("tls-auth-clients", "no")


async def test_error_says_that_a_server_speaks_no_tls(secure: Secure) -> None:
    assert "does not speak TLS" in await problem(f"rediss://127.0.0.1:{secure.server.port}")


async def test_error_says_that_a_server_speaks_tls(secure: Secure) -> None:
    assert "speaks TLS" in await problem(f"redis://127.0.0.1:{secure.tls_port}")


@pytest.mark.parametrize("login", ["", "korvet:wrong@"])
async def test_login_refused_by_a_cluster_is_an_error_at_once(login: str) -> None:
    with running_server("valkey", tcp=True, options={"cluster-enabled": "yes"}) as server:
        with server.client() as client:
            client.config_set("requirepass", "secret")
        text = await problem(f"redis+cluster://{login}127.0.0.1:{server.port}")
    assert ("WRONGPASS" if login else "NOAUTH") in text
