"""Lines of the log that clients can provoke, each written at most once a minute."""

from __future__ import annotations

import time
from typing import Any, Final

import structlog

log = structlog.get_logger()

_PERIOD_S: Final = 60.0


class Seldom:
    """One kind of line."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._next_at = 0.0

    def warn(self, **values: Any) -> None:
        """Write it, unless it was written within the last minute."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _PERIOD_S
            log.warning(self._event, **values)
