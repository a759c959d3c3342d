"""Waits for conditions, with bounds."""

import threading
import time
from collections.abc import Callable

TIMEOUT_S = 60.0
POLL_S = 0.05

# Notified after a client or member reports something or ends.
_news = threading.Condition()


def announce() -> None:
    """Wake all threads that wait for a condition."""
    with _news:
        _news.notify_all()


def wait_until(condition: Callable[[], bool], what: Callable[[], str] | str, timeout_s: float = TIMEOUT_S) -> None:
    """Wait for a condition over the clients' reports; each report is announced, so this does not poll.

    Raises TimeoutError that names the condition.
    """
    with _news:
        if _news.wait_for(condition, timeout_s):
            return
    raise TimeoutError(f"not within {timeout_s:g} s: {what if isinstance(what, str) else what()}")


def poll_until(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Check a condition that no client announces, repeatedly, until it holds. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)
