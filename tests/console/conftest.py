"""A console beside the session's broker, and Debian's Chromium that looks at it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

from tests.support.broker import KorvetServer
from tests.support.tools import find_tool

ROOT = Path(__file__).resolve().parents[2]
STOPS_WITHIN_S = 20.0
WITHIN_MS = 60_000.0

expect.set_options(timeout=WITHIN_MS)


@contextmanager
def running_console(*arguments: str, errors: IO[bytes] | None = None) -> Iterator[str]:
    """A console on a free port of the loopback, which may write errors to a file; its URL without the last slash."""
    command = [sys.executable, "-m", "korvet.cli", "console", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "the console is at http" in line, line
            yield line.split()[4].rstrip("/")
        finally:
            process.terminate()
            try:
                process.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def console(broker: KorvetServer) -> Iterator[str]:
    """A console that may change things."""
    with running_console("--bootstrap-server", broker.bootstrap, "--allow-changes") as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window. As root it has no sandbox of its own, and looks at nothing but the console."""
    program = find_tool("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose scripts may not fail, and which asks for nothing but the console's own files."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(WITHIN_MS)
    problems: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    def dismiss(dialog: Dialog) -> None:
        problems.append(dialog.message)
        dialog.dismiss()

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", note)
    page.on("dialog", dismiss)
    try:
        yield page
    finally:
        context.close()
    assert problems == []
