"""The form of log lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from korvet.server.logs import configure_logging

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
