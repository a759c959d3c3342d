"""The end of a command that runs until it is stopped: SIGTERM and a closed terminal end it in order, as Ctrl-C does.

So it gives back what it holds, as a membership of a group. Kafka's console consumer does so by a shutdown hook, and has
the same exit codes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOPPING: Final = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""The signals that stop a command."""
_OF_SIGNALS: Final = 128
"""A shell adds this to the number of the signal that ended a command."""
_SAME_S: Final = 1.0
"""Further signals within this time are the first one again: timeout(1) signals the process and its group."""


@contextmanager
def stopped_in_order() -> Iterator[None]:
    """A block that signals end by an exception. A signal that the process ignores, as under nohup, ends nothing.

    The first signal leaves the block a second to clean up, at the least; a later one cuts the cleaning off.

    :raises SystemExit: with 128 and the signal's number.
    :raises KeyboardInterrupt: at SIGINT.
    """
    stop = _Stop()
    before = {number: signal.getsignal(number) for number in STOPPING}
    taken = [number for number, handler in before.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


class _Stop:
    """A handler that raises at the first signal, and again at one that is no repetition."""

    def __init__(self) -> None:
        self._ignored_until = float("-inf")

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if time.monotonic() < self._ignored_until:
            return
        self._ignored_until = time.monotonic() + _SAME_S
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(_OF_SIGNALS + number)
