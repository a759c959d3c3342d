"""Waits for a condition that no event announces."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

WITHIN_S: Final = 120.0
"""A bound for what takes a second or two, on a machine with much else to do."""


def until(condition: Callable[[], bool], what: str = "it did not come to that") -> None:
    """Wait for a condition, at most `WITHIN_S`; ``what`` says what did not happen."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
