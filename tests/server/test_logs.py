"""The form of log lines."""

from __future__ import annotations

import fcntl
import json
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from korvet.rate_limited_log import RateLimitedLog
from korvet.server.ground import logs
from korvet.server.ground.logs import configure_logging

CLIENT_ID = "\x1b[2J\u202ea\nbé"
"""A client id that clears a terminal's screen, reverses the direction of writing, and begins a line."""


WITHOUT_SPACE = "\x1b[2J"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_log_line_quotes_a_clients_terminal_codes(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    structlog.get_logger().warning("client too old", client_id=CLIENT_ID, software=WITHOUT_SPACE)
    line = capfd.readouterr().err
    assert line.removesuffix("\n").isprintable()
    assert f"client_id={CLIENT_ID!r} software={WITHOUT_SPACE!r}" in line


@pytest.mark.parametrize(
    ("reason", "repair"),
    [
        (
            "WRONGTYPE Operation against korvet:{a:@catalog}:meta, which holds",
            "redis-cli DEL 'korvet:{a:@catalog}:meta'",
        ),
        ("field 7 of korvet:{a:t:0}:producers cannot be read", "redis-cli HDEL 'korvet:{a:t:0}:producers' 7"),
        ("Connection refused", None),
    ],
)
def test_line_whose_reason_names_a_damaged_key_names_the_repair(
    capfd: pytest.CaptureFixture[str], reason: str, repair: str | None
) -> None:
    configure_logging(form="json")
    structlog.get_logger().warning("some work failed", reason=reason)
    assert json.loads(capfd.readouterr().err).get("repair") == repair


def test_log_that_nobody_reads_costs_lines_and_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_STUCK_S", 0.01)
    read_end, write_end = os.pipe()
    lossy = logs._Lossy(write_end)
    for _ in range(3 * fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ) // 1000):
        lossy.write("x" * 999 + "\n")
    assert not select.select([], [write_end], [], 0)[1]
    os.read(read_end, fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ))
    lossy.write("read again\n")
    os.close(write_end)
    with open(read_end, "rb") as reader:
        assert reader.read().endswith(b"read again\n")


def test_json_line_holds_a_clients_text_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging(form="json")
    structlog.get_logger().warning("client too old", client_id=CLIENT_ID)
    line = capfd.readouterr().err
    assert line.removesuffix("\n").isprintable()
    assert json.loads(line)["client_id"] == CLIENT_ID


def test_log_goes_to_file_descriptor_2_even_if_sys_stderr_is_replaced(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A replaced ``sys.stderr`` may be closed later, and its descriptor may then be a client's socket."""
    with (tmp_path / "stand-in").open("w+") as stand_in:
        monkeypatch.setattr("sys.stderr", stand_in)
        configure_logging()
        monkeypatch.undo()
        structlog.get_logger().warning("here")
        assert stand_in.read() == ""
    assert "here" in capfd.readouterr().err


def test_rate_limited_log_counts_what_it_leaves_out() -> None:
    now = [0.0]
    lines = RateLimitedLog(most=2, period_s=10, clock=lambda: now[0])
    with capture_logs() as written:
        for _ in range(5):
            lines.write("warning", "full", client="a")
        lines.write("error", "broken")
        now[0] = 10.0
        lines.write("warning", "full", client="b")
    full = {"event": "full", "log_level": "warning"}
    assert written == [
        *({**full, "client": "a"} for _ in range(2)),
        {"event": "broken", "log_level": "error"},
        {**full, "client": "b", "left_out": 3},
    ]
    assert lines.counts == {"full": 6, "broken": 1}
