"""One bound on connections without a login: those that log in, and an HTTP server's.

A newcomer beyond the bound ends one of the address that holds the most. So no address can keep the others out.
"""

from __future__ import annotations

from collections.abc import Callable

from korvet.security.origins import origin_of


class Unauthenticated:
    """A connection. ``is_busy`` is true from a request's arrival to the end of its answer.

    :param address: the client's.
    :param end: ends it.
    """

    def __init__(self, address: str, end: Callable[[], object]) -> None:
        self.origin = origin_of(address)
        self.end = end
        self.is_busy: Callable[[], bool] = bool


class UnauthenticatedConnections:
    """The open connections.

    :param most: returns how many there may be now.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._by_origin: dict[str, dict[Unauthenticated, None]] = {}
        self._count = 0

    def add(self, connection: Unauthenticated) -> Unauthenticated:
        """Add a connection; beyond the bound another one ends."""
        while self._count >= self._most():
            self._push_out()
        self._by_origin.setdefault(connection.origin, {})[connection] = None
        self._count += 1
        return connection

    def remove(self, connection: Unauthenticated) -> None:
        """Remove a connection, unless it was already pushed out."""
        own = self._by_origin.get(connection.origin, {})
        if connection not in own:
            return
        del own[connection]
        self._count -= 1
        if not own:
            del self._by_origin[connection.origin]

    def _push_out(self) -> None:
        """End the oldest connection without a request in progress, else the oldest."""
        most = max(self._by_origin.values(), key=len)
        oldest = next((one for one in most if not one.is_busy()), next(iter(most)))
        self.remove(oldest)
        oldest.end()
