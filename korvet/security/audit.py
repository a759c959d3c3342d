"""The audit log: logins, refusals and administrative changes, one line each, in a logger of its own (``korvet.audit``).

Clients choose names, so texts are cut and escaped. A client that is refused again and again cannot flood the log: of
each second only the first lines are written, and the next one tells how many were left out.

Source: kafka.authorizer.logger (StandardAuthorizerData.logAuditMessage)
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import structlog

MOST_LINES_A_SECOND: Final = 100
MOST_CHARACTERS: Final = 256


def escaped(text: str) -> str:
    """A text without control characters, line ends and characters outside of ASCII, and not too long."""
    cut = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
    return cut.encode("unicode_escape").decode()


def _harmless(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_harmless, value))
    return escaped(value) if isinstance(value, str) else value


class _Budget:
    """The lines of one kind in this second; no kind takes any from another."""

    def __init__(self) -> None:
        self.left_out = 0
        self._second = 0
        self._written = 0

    def take(self, second: int) -> bool:
        """Whether one more line may be written; if not, it is counted."""
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= MOST_LINES_A_SECOND:
            self.left_out += 1
            return False
        self._written += 1
        return True


class Audit:
    """The audit log of a namespace.

    :param clock: seconds that never go back.
    """

    def __init__(self, namespace: str, clock: Callable[[], float] = monotonic) -> None:
        self._log = structlog.get_logger("korvet.audit").bind(audit=True, namespace=escaped(namespace))
        self._clock = clock
        self._budgets = {event: _Budget() for event in ("logged in", "login failed", "denied", "changed")}

    def logged_in(self, **values: Any) -> None:
        """Note a login."""
        self._write("logged in", lambda: values)

    def login_failed(self, **values: Any) -> None:
        """Note a login that was refused, as a warning."""
        self._write("login failed", lambda: values, "warning")

    def refused(self, values: Callable[[], dict[str, Any]]) -> None:
        """Note an action that was not allowed; ``values`` are made only for a line that is written."""
        self._write("denied", values)

    def changed(self, **values: Any) -> None:
        """Note an administrative change."""
        self._write("changed", lambda: values)

    def _write(self, event: str, make: Callable[[], dict[str, Any]], level: str = "info") -> None:
        budget = self._budgets[event]
        if not budget.take(int(self._clock())):
            return
        values = make()
        if budget.left_out:
            values["lines_left_out"], budget.left_out = budget.left_out, 0
        getattr(self._log, level)(event, **{name: _harmless(value) for name, value in values.items()})
