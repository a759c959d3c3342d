"""The log goes to stderr, one line an event; lines that a client can provoke are written only so often."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

log = structlog.get_logger()

_PERIOD_S = 10.0
_PER_PERIOD = 5


class _Lossy:
    """A stream that drops what cannot be written: neither a full disk nor a reader that left ends a broker.

    Nothing is buffered, for Python writes what a buffer kept at exit, and exits with 120 where that fails.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> None:
        with suppress(OSError):
            os.write(self._descriptor, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """What is written is out."""


def configure_logging(level: str = "info", form: str = "text") -> None:
    """Send everything from ``level`` up to stderr, for stdout is for the one line that says when the broker is ready.

    :param form: ``text``, or ``json`` for one object a line.
    """
    render: list[structlog.types.Processor] = [
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    ]
    if form == "json":
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lossy(sys.stderr.fileno()))),
    )


class LimitedLog:
    """At most five lines of one event in ten seconds; the next line that is written says how many were not."""

    def __init__(self) -> None:
        self._events: dict[str, tuple[float, int]] = {}

    def write(self, level: str, event: str, **values: Any) -> None:
        """Write the line at the level, or count it."""
        now = time.monotonic()
        began, count = self._events.get(event, (now, 0))
        left_out = 0
        if now - began >= _PERIOD_S:
            left_out = max(0, count - _PER_PERIOD)
            began, count = now, 0
        self._events[event] = (began, count + 1)
        if count < _PER_PERIOD:
            getattr(log, level)(event, **values, **({"left_out": left_out} if left_out else {}))
