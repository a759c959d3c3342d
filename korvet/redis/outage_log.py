"""The log lines about one server: one line for an outage, however many links notice it."""

from __future__ import annotations

from typing import Any

import structlog

log = structlog.get_logger()


class ServerLines:
    """The log lines of one server, which its links share.

    :param server: the server's name in the lines.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        self.losses = 0
        """The number of connections that were lost."""
        self._down: set[Any] = set()
        self._is_out = False
        self._was_up = False
        self._reasons: set[str] = set()
        """The logged reasons of this outage."""
        self._refusal = ""
        self._lacks_library = False
        self._refuses_library = False

    @property
    def problem(self) -> str:
        """The reason why a server that answers cannot be used; empty if it can."""
        if self._refusal:
            return f"Redis ({self.server}) refuses writes: {self._refusal}"
        if self._lacks_library or self._refuses_library:
            return f"Redis ({self.server}) lacks korvet's functions"
        return ""

    def lost(self, link: object, reason: str) -> None:
        """Log that a link lost its connection, or dropped it for ``reason``."""
        self._down.add(link)
        self.losses += 1
        self._was_up = True
        if not self._is_out:
            self._is_out = True
            log.warning("redis connection lost", server=self.server, **({"reason": reason} if reason else {}))

    def failed(self, link: object, reason: str, *, is_final: bool = False) -> None:
        """Log that a link could not connect.

        :param is_final: true if the server refused it for good.
        """
        self._down.add(link)
        self._is_out = True
        if reason not in self._reasons:
            self._reasons.add(reason)
            event = "redis is not available" if self._was_up else "redis is not available; waiting for it"
            log.warning(event, server=self.server, reason=reason)

    def back(self, link: object, *, same_history: bool) -> None:
        """Note that a link is up."""
        self._down.discard(link)
        if self._is_out and not self._down:
            self._is_out, self._was_up = False, True
            self._reasons.clear()
            log.info("redis is back", server=self.server, same_history=same_history)

    def refuses_writes(self, reason: str) -> None:
        """Log that the server answers but refuses writes."""
        if reason != self._refusal:
            self._refusal = reason
            log.warning(
                "redis refuses writes; producers, commits and changes are refused", server=self.server, reason=reason
            )

    def takes_writes(self) -> None:
        """Note that the server accepted a write, or would have."""
        if self._refusal:
            self._refusal = ""
            log.warning("redis takes writes again", server=self.server)

    def library_lost(self) -> None:
        """Note that the server lacks the library or a function, and that a link loads it."""
        if not self._lacks_library:
            self._lacks_library = True
            log.warning("the server lost korvet's functions; loading them", server=self.server)

    def library_refused(self, reason: str) -> None:
        """Log that the server refused the library."""
        if not self._refuses_library:
            self._refuses_library = True
            log.error("korvet's functions cannot be loaded", server=self.server, reason=reason)

    def library_loaded(self) -> None:
        """Log that the library is loaded, perhaps by another front-end."""
        if self._refuses_library:
            log.warning("korvet's functions are loaded", server=self.server)
        self._lacks_library = self._refuses_library = False


class UserLines(ServerLines):
    """The log lines of a further user's links to a server: refused logins, after it was served once.

    Lines about the server itself come from the links of the process's own user.
    """

    def __init__(self, server: str, user: str) -> None:
        super().__init__(server)
        self.user = user
        self._refused_as = ""

    def lost(self, link: object, reason: str) -> None:
        self.losses += 1

    def failed(self, link: object, reason: str, *, is_final: bool = False) -> None:
        self._down.add(link)
        if is_final and self._was_up and reason != self._refused_as:
            self._refused_as = reason
            log.error("redis refuses a tenant's user", server=self.server, user=self.user, reason=reason)

    def back(self, link: object, *, same_history: bool) -> None:
        self._was_up = True
        self._down.discard(link)
        if self._refused_as and not self._down:
            self._refused_as = ""
            log.info("redis takes a tenant's user again", server=self.server, user=self.user)

    def library_lost(self) -> None:
        pass
