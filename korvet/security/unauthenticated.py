"""Connections without a login: before its end, or of an HTTP server. They have a bound in all.

A new one beyond it ends another one: of the address that has the most. So one address, whatever it opens, keeps no
other one out.
"""

from __future__ import annotations

from collections.abc import Callable

from korvet.security.origins import origin_of


class Unauthenticated:
    """A connection. ``is_busy`` tells whether a request of a connection has arrived and has no whole answer yet.

    :param address: of the client.
    :param end: ends it.
    """

    def __init__(self, address: str, end: Callable[[], object]) -> None:
        self.origin = origin_of(address)
        self.end = end
        self.is_busy: Callable[[], bool] = bool


class UnauthenticatedConnections:
    """The open connections.

    :param most: tells how many there may be now.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._by_origin: dict[str, dict[Unauthenticated, None]] = {}
        self._count = 0

    def has_room_for(self, address: str) -> bool:
        """Whether one more of an address takes no place of an address that has fewer, or as many."""
        own = len(self._by_origin.get(origin_of(address), ()))
        return self._count < self._most() or own + 1 < max(map(len, self._by_origin.values()))

    def add(self, connection: Unauthenticated) -> Unauthenticated:
        """Count one more. If there are too many, another one ends."""
        while self._count >= self._most():
            self._push_out()
        self._by_origin.setdefault(connection.origin, {})[connection] = None
        self._count += 1
        return connection

    def remove(self, connection: Unauthenticated) -> None:
        """Count one less; nothing if it was ended for another one."""
        own = self._by_origin.get(connection.origin, {})
        if connection not in own:
            return
        del own[connection]
        self._count -= 1
        if not own:
            del self._by_origin[connection.origin]

    def _push_out(self) -> None:
        """End the oldest one without a request under way, else the oldest one."""
        most = max(self._by_origin.values(), key=len)
        oldest = next((one for one in most if not one.is_busy()), next(iter(most)))
        self.remove(oldest)
        oldest.end()
