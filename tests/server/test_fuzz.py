"""Random bytes for a live broker: it logs single lines, leaks nothing and goes on."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from korvet.api import registry
from korvet.wire.schema import has_top_level_error
from korvet.wire.writer import encode_response, error_answer
from tests.support.broker import KorvetServer, running_broker
from tests.support.wire import frame, request

WITHIN_S = 60.0
API_VERSIONS = request(18, 0, 42)
PROFILE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

api_keys = st.sampled_from(sorted(registry()))
versions = st.integers(0, 18)
junk = st.binary(max_size=200)
"""Bodies: most end too early, or claim lengths beyond their end."""
headers = st.builds(lambda key, version, body: request(key, version, 7, "fuzz", body), api_keys, versions, junk)
frames = st.one_of(st.builds(frame, junk), headers)


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    with running_broker() as broker:
        yield broker
        assert broker.is_running
        assert "Traceback" not in broker.log


def connect(server: KorvetServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), WITHIN_S)


def send_and_leave(server: KorvetServer, data: bytes) -> None:
    with connect(server) as client, contextlib.suppress(ConnectionError):
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        client.settimeout(WITHIN_S)
        while client.recv(65536):
            pass


def serves(server: KorvetServer) -> None:
    """Check that a good client gets its answer."""
    with connect(server) as client:
        client.sendall(API_VERSIONS)
        size, correlation_id = struct.unpack(">ii", client.recv(8, socket.MSG_WAITALL))
        assert correlation_id == 42
        assert len(client.recv(size - 4, socket.MSG_WAITALL)) == size - 4


def open_sockets(server: KorvetServer) -> int:
    directory = Path(f"/proc/{server.pid}/fd")
    count = 0
    for entry in directory.iterdir():
        with contextlib.suppress(OSError):
            count += os.readlink(entry).startswith("socket:")
    return count


def leaks_nothing(server: KorvetServer, before: int) -> None:
    # It accepts connections in their order: those before this one are not still to come.
    serves(server)
    deadline = time.monotonic() + WITHIN_S
    while (found := open_sockets(server)) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found <= before


@PROFILE
@given(data=st.binary(max_size=2000))
def test_random_bytes(server: KorvetServer, data: bytes) -> None:
    send_and_leave(server, data)
    serves(server)


@PROFILE
@given(data=st.lists(frames, min_size=1, max_size=5))
def test_random_frames(server: KorvetServer, data: list[bytes]) -> None:
    send_and_leave(server, b"".join(data))
    serves(server)


@PROFILE
@given(data=headers, cut=st.integers(1, 40))
def test_truncated_frames(server: KorvetServer, data: bytes, cut: int) -> None:
    send_and_leave(server, data[: -min(cut, len(data) - 1)])
    serves(server)


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 0, b"\xff\xff\xff\xff"),
        (0, 3, b"\xff\xff\x00\x01\x00\x00\x00\x01\xff\xff\xff\xff"),
        (42, 2, b"\x00\x00\x00"),
    ],
    ids=["Metadata", "Produce", "DeleteGroups"],
)
def test_null_collections(server: KorvetServer, key: int, version: int, body: bytes) -> None:
    """The broker closes the connection without an answer."""
    with connect(server) as client:
        client.sendall(request(key, version, 7, "fuzz", body))
        client.settimeout(WITHIN_S)
        assert client.recv(100) == b""
    serves(server)


@pytest.mark.parametrize("size", [-1, -(2**31), 104857601, 2**31 - 1])
def test_negative_and_oversize_frames(server: KorvetServer, size: int) -> None:
    send_and_leave(server, struct.pack(">i", size) + bytes(100))
    serves(server)


@PROFILE
@given(key=st.integers(-(2**15), 2**15 - 1), version=st.integers(-(2**15), 2**15 - 1), body=junk)
def test_any_key_and_version(server: KorvetServer, key: int, version: int, body: bytes) -> None:
    send_and_leave(server, request(key, version, 7, None, body))
    serves(server)


def test_announced_frame_that_never_comes_takes_no_memory(server: KorvetServer) -> None:
    before = open_sockets(server)
    clients = [connect(server) for _ in range(50)]
    for client in clients:
        client.sendall(struct.pack(">i", 100 << 20) + bytes(1000))
    serves(server)
    resident_kib = next(
        int(line.split()[1])
        for line in Path(f"/proc/{server.pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    assert resident_kib < 1 << 20
    for client in clients:
        client.close()
    leaks_nothing(server, before)


def test_connections_of_clients_that_vanish_are_closed(server: KorvetServer) -> None:
    serves(server)
    before = open_sockets(server)
    for number in range(100):
        client = connect(server)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", number % 2, 0))
        client.sendall(API_VERSIONS[: number % len(API_VERSIONS)])
        client.close()
    leaks_nothing(server, before)
    serves(server)


def test_error_answer_of_every_served_version_can_be_encoded() -> None:
    """The broker sends these answers after an unexpected exception, and for an unsupported version."""
    for api in registry().values():
        for version in range(api.lowest, api.highest + 1):
            if has_top_level_error(api.key, version):
                answer = error_answer(api.key, version, ErrorCode.unknown_server_error)
                assert encode_response(api.key, version, 1, answer)
