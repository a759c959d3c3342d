"""New connections of one listening socket, within the process's bound.

A process has a largest number of connections, by max.connections and by its file descriptors. At that number it accepts
none until one has left: clients wait in the backlog, as on Kafka. If an accept fails for want of descriptors, the
process tries again after a second.

Source: ConnectionQuotas.waitForConnectionSlot, Acceptor.accept
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from anyio.abc import TaskGroup

_ACCEPTS_A_TURN = 32
_REST_S = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Counted(Protocol):
    """The counter of the process's connections."""

    def may_accept(self) -> bool:
        """Count one more connection; false if there may be no more now."""

    def refused(self, reason: str) -> None:
        """Uncount a connection that could not be accepted; the log gets the reason unless it is empty."""


class Accepting:
    """A listening socket, from `begin` to `close`.

    :param open_: makes a connection of an accepted socket, which is its own from then on.
    """

    def __init__(
        self,
        counted: Counted,
        tasks: TaskGroup,
        bound: socket.socket,
        open_: Callable[[socket.socket], Coroutine[Any, Any, None]],
    ) -> None:
        self._counted = counted
        self._tasks = tasks
        self._bound = bound
        self._open = open_
        self._loop = asyncio.get_running_loop()
        self._is_watched = False
        self._is_closed = False
        self._rest: asyncio.TimerHandle | None = None

    def begin(self, backlog: int) -> None:
        """Listen.

        :raises OSError: if another socket listens at the same address.
        """
        self._bound.setblocking(False)
        self._bound.listen(backlog)
        self.go_on()

    def go_on(self) -> None:
        """Accept again, after `Counted.may_accept` was false."""
        if not self._is_watched and not self._is_closed and self._rest is None:
            self._is_watched = True
            self._loop.add_reader(self._bound.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting, and close the socket."""
        self._pause()
        if self._rest is not None:
            self._rest.cancel()
        self._is_closed = True
        self._bound.close()

    def _pause(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._bound.fileno())

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            if not self._counted.may_accept():
                self._pause()
                return
            try:
                accepted, _ = self._bound.accept()
            except OSError as error:
                self._failed(error)
                return
            self._tasks.start_soon(self._open, accepted)

    def _failed(self, error: OSError) -> None:
        if error.errno not in _EXHAUSTED:
            # No connection waits any more, or its client has left.
            self._counted.refused("")
            return
        self._counted.refused(error.strerror or str(error))
        self._pause()
        self._rest = self._loop.call_later(_REST_S, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self.go_on()
