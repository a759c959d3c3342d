"""New connections of one listening socket, within the bounds of the process and of the listener.

At a bound the socket accepts no connection: clients wait in the backlog, as on Kafka. If an accept fails for want of
descriptors, the process tries again after a second.

Source: Acceptor.accept
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

_ACCEPTS_A_TURN = 32
_REST_S = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Counted(Protocol):
    """The counter of connections, `korvet.server.bounds.connection_quotas.ConnectionQuotas`."""

    def may_accept(self, one: Accepting, /) -> bool:
        """Count one more connection. If there may be none now, `Accepting.go_on` follows once there may be."""

    def failed(self, listener: str, /) -> None:
        """Uncount a connection that could not be accepted."""


class Tasks(Protocol):
    """The tasks of connections, such as a task group."""

    def start_soon(
        self, open_: Callable[[socket.socket], Coroutine[Any, Any, None]], accepted: socket.socket, /
    ) -> object: ...


class Accepting:
    """A listening socket, from `listen` to `close`.

    :param listener: the listener's name.
    :param complain: logs why no connection can be accepted.
    :param open_: makes a connection of an accepted socket and owns that socket from then on.
    """

    def __init__(
        self,
        counted: Counted,
        listener: str,
        complain: Callable[[str], None],
        tasks: Tasks,
        bound: socket.socket,
        open_: Callable[[socket.socket], Coroutine[Any, Any, None]],
    ) -> None:
        self.listener = listener
        self._counted = counted
        self._complain = complain
        self._tasks = tasks
        self._bound = bound
        self._open = open_
        self._loop = asyncio.get_running_loop()
        self._is_watched = False
        self._is_closed = False
        self._rest: asyncio.TimerHandle | None = None

    def listen(self, backlog: int) -> None:
        """Listen.

        :raises OSError: if another socket listens at the same address.
        """
        self._bound.setblocking(False)
        self._bound.listen(backlog)
        self._watch()

    def go_on(self) -> None:
        """Accept again, after `Counted.may_accept` was false: one connection at once, if one waits."""
        if self._watch():
            self._accept(1)

    def _watch(self) -> bool:
        """Start accepting; false if that fails."""
        if self._is_watched or self._is_closed or self._rest is not None:
            return False
        self._is_watched = True
        self._loop.add_reader(self._bound.fileno(), self._accept)
        return True

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

    def _accept(self, most: int = _ACCEPTS_A_TURN) -> None:
        for _ in range(most):
            if not self._counted.may_accept(self):
                self._pause()
                return
            try:
                accepted, _ = self._bound.accept()
            except OSError as error:
                self._failed(error)
                return
            self._tasks.start_soon(self._open, accepted)

    def _failed(self, error: OSError) -> None:
        self._counted.failed(self.listener)
        if error.errno not in _EXHAUSTED:
            # No connection waits any more, or its client has left.
            return
        self._complain((error.strerror or str(error)).lower())
        self._pause()
        self._rest = self._loop.call_later(_REST_S, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self._watch()
