"""Front-ends that tests fork are processes like those that a user starts."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.broker import ROOT, BrokerFailed, KorvetServer, running_broker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="front-ends are forked on Linux only")


def _pipes(pid: int) -> set[str]:
    """The pipes that a process holds."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # It may close meanwhile.
        with suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("pipe:")}


def test_forked_front_end_has_a_session_a_log_and_descriptors_of_its_own() -> None:
    with running_broker() as first, running_broker() as second:
        assert [os.getsid(server.pid) for server in (first, second)] == [first.pid, second.pid]
        process = Path(f"/proc/{second.pid}")
        assert (process / "cwd").readlink() == ROOT
        assert [(process / "fd" / name).readlink() for name in "02"] == [Path(os.devnull), second.log_path]
        assert not _pipes(first.pid) & _pipes(second.pid)
        assert (first.stop(), second.kill()) == (0, -9)


def test_forked_front_end_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = KorvetServer(tmp_path, broker={"max.connections.per.ip.overrides": "x"})
    with pytest.raises(BrokerFailed, match=r"max\.connections\.per\.ip\.overrides"):
        server.start()
    assert not server.is_running
