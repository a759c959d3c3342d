"""Notices to systemd: a socket of the test stands for systemd's."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.server.processes.systemd import Notices
from tests.support.broker import running_broker

WITHIN_S = 60.0
BEAT_S = 0.1


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        yield Path(name)


@pytest.fixture
def systemd(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that brokers of the test are told of, with a watchdog."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(directory / "notify"))
        receiver.settimeout(WITHIN_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(directory / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", str(int(3e6 * BEAT_S)))
        yield receiver


def next_but_beats(systemd: socket.socket) -> str:
    deadline = time.monotonic() + WITHIN_S
    while (notice := systemd.recv(4096).decode()) == "WATCHDOG=1":
        assert time.monotonic() < deadline
    return notice


@pytest.mark.parametrize("workers", [1, 2])
def test_broker_notifies_systemd_that_it_is_ready_alive_and_stopping(
    systemd: socket.socket, directory: Path, workers: int
) -> None:
    with running_broker(directory=directory, workers=workers) as server:
        assert next_but_beats(systemd) == f"READY=1\nSTATUS={server.ready_line}"
        assert [systemd.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        os.kill(server.pid, signal.SIGTERM)
        assert next_but_beats(systemd) == "STOPPING=1"
        assert server.process is not None and server.process.wait(WITHIN_S) == 0
        assert "systemd was not told" not in server.log


def test_broker_serves_though_systemd_cannot_be_notified(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(directory / "nobody"))
    with running_broker(directory=directory) as server:
        assert "systemd was not told" in server.log
        assert "No such file or directory" in server.log
        assert server.stop() == 0


@pytest.mark.anyio
async def test_abstract_socket_gets_the_notices() -> None:
    name = f"korvet-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(WITHIN_S)
        Notices.of({"NOTIFY_SOCKET": f"@{name}"}).ready("serving")
        assert receiver.recv(4096) == b"READY=1\nSTATUS=serving"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, ("", None)),
        ({"NOTIFY_SOCKET": "vsock:2:1234", "WATCHDOG_USEC": "0"}, ("", None)),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000"}, ("/run/x", 10.0)),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, ("/run/x", None)),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "soon"}, ("/run/x", None)),
    ],
)
async def test_environment_says_whether_and_how_often_to_tell(
    environment: dict[str, str], wanted: tuple[str, float | None]
) -> None:
    notices = Notices.of(environment)
    assert (notices.address, notices.beat_s) == wanted
