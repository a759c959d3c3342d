"""Clients of the cluster that requests borrow. A client is for one thread at a time, and keeps its connections."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.errors import BrokerError

MOST_CLIENTS: Final = 8
WAIT_S: Final = 10.0


class Busy(BrokerError):
    """All clients are in use."""


class Clients:
    """At most `MOST_CLIENTS` clients, made when they are needed."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._idle: queue.LifoQueue[Client | None] = queue.LifoQueue()
        for _ in range(MOST_CLIENTS):
            self._idle.put(None)

    @contextmanager
    def borrow(self) -> Iterator[Client]:
        """A client for the time of the block. One whose request failed is closed.

        :raises Busy: if none is free for `WAIT_S`.
        """
        try:
            client = self._idle.get(timeout=WAIT_S)
        except queue.Empty:
            raise Busy("the console is busy; try again") from None
        try:
            client = client or self._make()
            yield client
        except BaseException:
            if client is not None:
                client.__exit__(None, None, None)
            client = None
            raise
        finally:
            self._idle.put(client)

    def close(self) -> None:
        """Close the clients that nobody uses."""
        while not self._idle.empty():
            if (client := self._idle.get()) is not None:
                client.__exit__(None, None, None)
