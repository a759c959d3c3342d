"""The audit log: logins, refusals and administrative changes, one line each, in a logger of its own (``korvet.audit``).

Clients choose names, so texts are cut and escaped. A client that is refused again and again cannot flood the log: only
its first lines of each second are written, and the next line counts those left out. Nor can it hide others' actions:
each principal at each address has its own budget, failures and successes have separate ones, and completed changes of
security are always written.

Source: kafka.authorizer.logger (StandardAuthorizerData.logAuditMessage)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from functools import partial
from time import monotonic
from typing import Any, Final

import structlog

from korvet.rate_limited_log import LineBudget

MOST_LINES_A_SECOND: Final = 20
MOST_CHARACTERS: Final = 256


def escaped(text: str) -> str:
    """A text cut to a bounded length, with control, newline and non-ASCII characters escaped."""
    cut = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
    return cut.encode("unicode_escape").decode()


def _harmless(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_harmless, value))
    return escaped(value) if isinstance(value, str) else value


class Audit:
    """The audit log of a namespace.

    :param clock: seconds that never go back.
    """

    def __init__(self, namespace: str, clock: Callable[[], float] = monotonic) -> None:
        self._log = structlog.get_logger("korvet.audit").bind(audit=True, namespace=escaped(namespace))
        self._budgets: dict[tuple[str, bool], LineBudget] = defaultdict(
            partial(LineBudget, MOST_LINES_A_SECOND, 1.0, clock)
        )
        """By the event, and whether the sources of its lines are too many to be listed, as unknown users are."""

    def logged_in(self, *, principal: str, host: str, **values: Any) -> None:
        """Log a login, or an accepted client certificate."""
        fields = {"principal": principal, "host": host, **values, "outcome": "done"}
        self._write("logged in", (principal, host), lambda: fields)

    def login_failed(self, *, user: str, host: str, is_known: bool = False, **values: Any) -> None:
        """Log a refused login or certificate, as a warning.

        :param is_known: true if the user exists. Unknown names share their address's budget.
        """
        fields = {"user": user, "host": host, **values, "outcome": "failed"}
        self._write("login failed", (user, host) if is_known else host, lambda: fields, "warning", is_listed=is_known)

    def refused(self, principal: str, host: str, values: Callable[[], dict[str, Any]]) -> None:
        """Log a refused action; ``values`` is called only if the line is written."""

        def line() -> dict[str, Any]:
            return {"principal": principal, "host": host, **values(), "outcome": "denied"}

        self._write("denied", (principal, host), line)

    def changed(self, *, principal: str, host: str, outcome: str, is_kept: bool = False, **values: Any) -> None:
        """Log an administrative change and its outcome.

        :param is_kept: true to write the line regardless of the budget.
        """
        fields = {"principal": principal, "host": host, **values, "outcome": outcome}
        if is_kept:
            self._emit("changed", fields)
        else:
            self._write("changed", (principal, host, outcome), lambda: fields)

    def _write(
        self, event: str, source: Hashable, make: Callable[[], dict[str, Any]], level: str = "info", *,
        is_listed: bool = True,
    ) -> None:  # fmt: skip
        left_out = self._budgets[event, is_listed].take(source)
        if left_out is not None:
            self._emit(event, {**make(), **({"lines_left_out": left_out} if left_out else {})}, level)

    def _emit(self, event: str, values: dict[str, Any], level: str = "info") -> None:
        getattr(self._log, level)(event, **{name: _harmless(value) for name, value in values.items()})
