"""Tenants of a broker, and raw connections of their clients."""

from __future__ import annotations

import io
import socket
import ssl
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import pytest

from korvet.cli import run
from tests.oracle.messages import parse_answer, request_frame
from tests.support.broker import KorvetServer

WITHIN_S = 60.0
PASSWORD = "right"
_CORRELATION_ID = 7


class CommandFailed(Exception):
    """A command did not end with 0."""


def korvet(broker: KorvetServer, *arguments: str, stdin: str = "") -> str:
    """The output of a command that talks to the broker's Redis; it runs in this process.

    :raises CommandFailed: if it fails.
    """
    where = ("--redis", broker.redis_url) if broker.redis_url else ("--data-dir", str(broker.data_dir))
    with redirect_stdout(io.StringIO()) as output, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        code = run([*arguments, *where])
    if code:
        raise CommandFailed(f"{arguments}: {code}")
    return output.getvalue()


def create_tenant(broker: KorvetServer, name: str, *limits: str, users: tuple[str, ...] = ("alice",)) -> None:
    """A tenant whose users have the password `PASSWORD`."""
    korvet(broker, "tenants", "create", name, *limits)
    for user in users:
        korvet(broker, "users", "add", user, "--namespace", name, "--mechanism", "SCRAM-SHA-256", stdin=PASSWORD)


class Closed(Exception):
    """The broker closed the connection."""


class Client:
    """A raw connection. With ``server_name`` it speaks TLS and asks for that name."""

    def __init__(self, port: int, server_name: str | None = None, context: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=server_name)

    def log_in(self, name: str, password: str = PASSWORD) -> Any:
        """The answer to PLAIN's message."""
        assert self.ask("sasl_handshake", 1, mechanism="PLAIN")["error_code"] == "NONE"
        return self.ask("sasl_authenticate", 2, auth_bytes=f"\0{name}\0{password}".encode())

    def ask(self, api: str, version: int, /, **values: Any) -> Any:
        self.send(api, version, **values)
        return parse_answer(api, version, self.frame(), _CORRELATION_ID)

    def send(self, api: str, version: int, /, **values: Any) -> None:
        self.socket.sendall(request_frame(api, version, values, _CORRELATION_ID))

    def frame(self) -> bytes:
        """The next answer.

        :raises Closed: if there is none.
        """
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionError:
                raise Closed from None
            if not piece:
                raise Closed
            data += piece
        return data

    def is_closed(self) -> bool:
        """Wait for the end of the connection; False if bytes come instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


@contextmanager
def connected(
    port: int, server_name: str | None = None, context: ssl.SSLContext | None = None, login: str | None = None
) -> Iterator[Client]:
    """A connection, which has logged in by PLAIN if a name is given."""
    client = Client(port, server_name, context)
    try:
        if login is not None:
            assert client.log_in(login)["error_code"] == "NONE"
        yield client
    finally:
        client.socket.close()


def shows_token(client: Client, token: str) -> bool:
    """Whether a token lets its client in. If not, it gets a status, and its answer to that ends the login."""
    assert client.ask("sasl_handshake", 1, mechanism="OAUTHBEARER")["error_code"] == "NONE"
    shown = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    answer = client.ask("sasl_authenticate", 2, auth_bytes=shown)
    assert answer["error_code"] == "NONE"
    if not answer["auth_bytes"]:
        return True
    assert bytes(answer["auth_bytes"]) == b'{"status":"invalid_token"}'
    end = client.ask("sasl_authenticate", 2, auth_bytes=b"\x01")
    assert (end["error_code"], end["error_message"]) == ("SASL_AUTHENTICATION_FAILED", '{"status":"invalid_token"}')
    assert client.is_closed()
    return False


def make_topic(client: Client, name: str, partitions: int = 1) -> str:
    """The code of a topic's creation."""
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    (made,) = client.ask("create_topics", 7, topics=[topic], timeout=10_000)["topics"]
    return str(made["error_code"])


def topics_of(client: Client) -> set[str]:
    """The names of all topics that a client sees."""
    return {topic["name"] for topic in client.ask("metadata", 12, topics=None)["topics"]}
