"""The end of a command that runs until it is stopped: SIGTERM and a closed terminal end it in order, as Ctrl-C does.

So it gives back what it holds, as a membership of a group. Kafka's console consumer does so by a shutdown hook, and has
the same exit codes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
STOPPING: Final = frozenset((signal.SIGINT, *_ENDING))
"""The signals that stop a command."""
_OF_SIGNALS: Final = 128
"""What a shell adds to the number of the signal that ended a command."""


@contextmanager
def stopped_in_order() -> Iterator[None]:
    """A block that signals end by an exception. A signal that the process ignores, as under nohup, ends nothing.

    :raises SystemExit: with 128 and the signal's number.
    """
    taken = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(_OF_SIGNALS + number)
