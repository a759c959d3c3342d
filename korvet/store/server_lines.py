"""What the log says of one server: a line for an outage, however many links notice it."""

from __future__ import annotations

from typing import Any

import structlog

log = structlog.get_logger()


class ServerLines:
    """Shared by the links of one server.

    :param server: what it is called in the lines.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._down: set[Any] = set()
        self._is_out = False
        self._reason = ""

    def lost(self, link: object, reason: str) -> None:
        """A link's connection was lost, or given up for a reason."""
        self._down.add(link)
        if not self._is_out:
            self._is_out = True
            log.warning("redis connection lost", server=self._server, **({"reason": reason} if reason else {}))

    def failed(self, link: object, reason: str) -> None:
        """A link could not connect."""
        self._down.add(link)
        self._is_out = True
        if reason != self._reason:
            self._reason = reason
            log.warning("redis is not available", server=self._server, reason=reason)

    def back(self, link: object, *, same_history: bool) -> None:
        """A link is up."""
        self._down.discard(link)
        if self._is_out and not self._down:
            self._is_out, self._reason = False, ""
            log.info("redis is back", server=self._server, same_history=same_history)
