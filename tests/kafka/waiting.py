"""Bounded waiting for conditions."""

import threading
import time
from collections.abc import Callable

TIMEOUT_S = 30.0
POLL_S = 0.05

# Notified whenever any client or member reported something or ended.
_news = threading.Condition()


def announce() -> None:
    """Wake whoever waits for a condition."""
    with _news:
        _news.notify_all()


def wait_until(condition: Callable[[], bool], what: Callable[[], str] | str, timeout_s: float = TIMEOUT_S) -> None:
    """Wait for a condition over what clients have reported; each report is announced, so nothing is polled.

    Raises TimeoutError that says what was waited for.
    """
    with _news:
        if _news.wait_for(condition, timeout_s):
            return
    raise TimeoutError(f"not within {timeout_s:g} s: {what if isinstance(what, str) else what()}")


def poll_until(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Ask again and again until a condition that nobody announces holds. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)
