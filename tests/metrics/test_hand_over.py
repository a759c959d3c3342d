"""The HTTP port's way to the console: connections whose first request is not for the port's own pages."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.errors import KorvetError
from korvet.metrics.web import PATHS
from korvet.server.processes import http_server
from korvet.server.processes.console import open_console_socket
from korvet.server.processes.http_server import HandOver

pytestmark = pytest.mark.anyio


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        yield listening


@pytest.fixture
def client() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


@pytest.mark.parametrize(
    ("begun", "is_own"),
    [
        (b"GET /metrics HTTP/1.1\r\n", True),
        (b"\r\nGET /lags?group=g HTTP/1.1\r\n", True),
        (b"GET /metrics/ HTTP/1.1\r\n", False),
        (b"POST /login HTTP/1.1\r\n", False),
        (b"GET /" + b"x" * 9000, False),
        (b"\x16\x03\x01\n", False),
    ],
)
def test_own_paths_are_answered_here(begun: bytes, is_own: bool) -> None:
    assert HandOver(Path("socket"), PATHS).is_own(begun) is is_own


async def test_directory_whose_path_is_too_long_for_a_socket_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(KorvetError, match="name a short one as TMPDIR"), open_console_socket():
        pass
    assert not [*long.iterdir()]


async def test_process_that_takes_nothing_is_logged_once_and_gets_nothing_later(
    listening: socket.socket, client: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has its refusal by then: a change must not be made after it."""
    monkeypatch.setattr(http_server, "_TAKEN_WITHIN_S", 0.01)
    hand_over = HandOver(Path(listening.getsockname()), PATHS)
    with capture_logs() as lines:
        for _ in range(2):
            assert not await hand_over.take(client, b"POST /group/delete HTTP/1.1\r\n")
    assert [line["event"] for line in lines] == ["the console did not answer a request in time"]
    for _ in range(2):
        sender, _ = listening.accept()
        sender.setblocking(False)
        assert await http_server._taken(sender, 100) is None


async def test_process_at_which_many_wait_is_not_waited_for(listening: socket.socket, client: socket.socket) -> None:
    """A refusal at once, not one try at each turn of the loop."""
    listening.listen(0)
    hand_over = HandOver(Path(listening.getsockname()), PATHS)
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(listening.getsockname())
        with anyio.fail_after(http_server._TAKEN_WITHIN_S / 2):
            assert not await hand_over.take(client, b"GET /topics HTTP/1.1\r\n")


async def test_connection_is_another_processs_once_it_is_taken(listening: socket.socket, client: socket.socket) -> None:
    hand_over = HandOver(Path(listening.getsockname()), PATHS)
    is_taken: list[bool] = []

    async def hand() -> None:
        is_taken.append(await hand_over.take(client, b"GET /topics HTTP/1.1\r\n"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hand)
        await anyio.wait_readable(listening)
        sender, _ = listening.accept()
        sender.setblocking(False)
        taken = await http_server._taken(sender, 100)
    assert is_taken == [True]
    assert taken is not None
    with taken[0]:
        assert taken[1] == b"GET /topics HTTP/1.1\r\n"
        assert taken[0].fileno() != client.fileno()
