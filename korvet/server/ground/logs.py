"""The log: one line an event, to stderr."""

from __future__ import annotations

import logging
import os
import select
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog

from korvet.store.damaged_keys import repair_of

_STDERR = 2
_STUCK_S = 1.0


class _Lossy:
    """A stream that drops text which cannot be written.

    Neither a full disk nor a closed pipe ends a broker. A full pipe holds the broker for a second, and from then on
    costs only lines. The stream has no buffer: Python writes buffers at exit, and exits with 120 if that fails.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_stuck = False

    def write(self, text: str) -> None:
        left = memoryview(text.encode(errors="backslashreplace"))
        with suppress(OSError):
            while left:
                self._is_stuck = not select.select([], [self._descriptor], [], 0 if self._is_stuck else _STUCK_S)[1]
                if self._is_stuck:
                    return
                # As much never blocks.
                left = left[os.write(self._descriptor, left[: select.PIPE_BUF]) :]

    def flush(self) -> None:
        """Do nothing: `write` has no buffer."""


def configure_logging(level: str = "info", form: str = "text") -> None:
    """Send all events from ``level`` up to stderr. Stdout is for the line that says when the broker is ready.

    :param form: ``text``, or ``json`` for one object a line.
    """
    render: list[structlog.types.Processor] = [
        _escaped,
        structlog.dev.ConsoleRenderer(colors=_has_colours(), exception_formatter=structlog.dev.plain_traceback),
    ]
    if form == "json":
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            with_repair,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Lossy(_STDERR))),
    )


def with_repair(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """If a line's reason names a damaged key, add the command that repairs it."""
    if "repair" not in event and (repair := repair_of(str(event.get("reason", "")))):
        event["repair"] = repair
    return event


class _Quoted:
    """A text that the log shows as Python writes it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _escaped(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters that a terminal would obey: clients choose some values. JSON has its own escapes."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = _Quoted(value)
    return event


def _has_colours() -> bool:
    """True if stderr is a terminal with colours, and the user wants them (https://no-color.org)."""
    is_plain = os.environ.get("TERM", "").lower() in ("", "dumb", "unknown") or bool(os.environ.get("NO_COLOR"))
    return sys.stderr.isatty() and not is_plain
