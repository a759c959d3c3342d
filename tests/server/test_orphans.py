"""Two embedded servers never write to one data directory, even if the first one's korvet was killed."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.server.processes import embedded
from tests.support.broker import KorvetServer, is_alive

pytestmark = pytest.mark.anyio


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        yield Path(name)


async def test_orphaned_server_that_does_not_end_keeps_its_data_locked(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_STOP_S", 0.3)
    server = KorvetServer(directory).start()
    pid = server.embedded_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        assert server.process is not None and server.process.stdout is not None
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait()
        server.process.stdout.close()
        with pytest.raises(ExceptionGroup) as refused:
            async with embedded.embedded_server(server.data_dir):
                pass
        assert refused.group_contains(embedded.EmbeddedError, match=r"an earlier korvet still runs .*valkey\.pid")
    finally:
        os.kill(pid, signal.SIGCONT)
    try:
        # The kernel has told the server of its parent's end, or the new korvet tells it to leave.
        async with embedded.embedded_server(server.data_dir) as successor:
            assert not is_alive(pid)
            assert server.embedded_pid == successor.pid
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
