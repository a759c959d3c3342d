"""The connections of the console, which strangers may open.

There are at most `MOST`. A new one beyond them ends another one: of the address that has the most. So one address,
whatever it opens, keeps no other one out.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from korvet.cli.console.origins import origin_of

MOST: Final = 256


class Connection:
    """One connection, from its acceptance to its end; before a handshake of TLS, too.

    ``is_answering`` tells whether a request of it has arrived and has no whole answer yet.
    """

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.is_answering: Callable[[], bool] = bool
        try:
            address = accepted.getpeername()
        except OSError:
            # It has left already.
            address = ""
        self.origin = origin_of(address[0]) if isinstance(address, tuple) else ""


class Connections:
    """The connections that are there."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._by_origin: dict[str, dict[Connection, None]] = {}
        self._count = 0

    def add(self, accepted: socket.socket) -> Connection:
        """Count a connection. If there are too many, another one ends."""
        connection = Connection(accepted)
        if self._count >= self._most:
            self._push_out()
        self._by_origin.setdefault(connection.origin, {})[connection] = None
        self._count += 1
        return connection

    def remove(self, connection: Connection) -> None:
        """Count a connection no more; nothing if it was ended for another one."""
        own = self._by_origin.get(connection.origin, {})
        if connection not in own:
            return
        del own[connection]
        self._count -= 1
        if not own:
            del self._by_origin[connection.origin]

    def _push_out(self) -> None:
        """End the oldest connection without a request under way, else the oldest one."""
        most = max(self._by_origin.values(), key=len)
        oldest = next((one for one in most if not one.is_answering()), next(iter(most)))
        self.remove(oldest)
        # Its transport sees the end, in a handshake as well.
        with suppress(OSError):
            oldest.socket.shutdown(socket.SHUT_RDWR)
