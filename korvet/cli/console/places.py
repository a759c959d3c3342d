"""The places of the console's connections, which strangers may take.

There are `MOST`. A new connection beyond them takes the place of another one: of the address that has the most. So one
address, whatever it opens, keeps no other one out.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from korvet.cli.console.origins import origin_of

MOST: Final = 256


class Place:
    """One connection, from its acceptance to its end; before a handshake of TLS, too.

    ``is_answering`` tells whether a request of it has arrived and has no whole answer yet.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.is_answering: Callable[[], bool] = bool
        try:
            address = connection.getpeername()
        except OSError:
            # It has left already.
            address = ""
        self.origin = origin_of(address[0]) if isinstance(address, tuple) else ""


class Places:
    """The places that are taken."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._taken: dict[str, dict[Place, None]] = {}
        self._count = 0

    def take(self, connection: socket.socket) -> Place:
        """A place, perhaps that of another connection, which ends then."""
        place = Place(connection)
        if self._count >= self._most:
            self._push_out()
        self._taken.setdefault(place.origin, {})[place] = None
        self._count += 1
        return place

    def leave(self, place: Place) -> None:
        """Give a place back; one that another connection has taken is none any more."""
        own = self._taken.get(place.origin, {})
        if place not in own:
            return
        del own[place]
        self._count -= 1
        if not own:
            del self._taken[place.origin]

    def _push_out(self) -> None:
        """End the oldest connection without a request under way, else the oldest one."""
        most = max(self._taken.values(), key=len)
        place = next((one for one in most if not one.is_answering()), next(iter(most)))
        self.leave(place)
        # Its transport sees the end, in a handshake as well.
        with suppress(OSError):
            place.connection.shutdown(socket.SHUT_RDWR)
