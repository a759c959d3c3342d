"""Clients of the cluster that requests borrow. A client is for one thread at a time, and keeps its connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from korvet.cli.kafka.client import PATIENCE_S, Client

FRESH_S: Final = 60.0
"""How long an idle client is kept. A broker closes connections later, and a closed one would fail the next page."""

PAGE_WAITS_S: Final = 3.0
"""How long a page waits for leaders and coordinators before it says that there are none."""

ANSWERS_WITHIN_S: Final = 10.0
"""The time for an answer. A broker that has no connections left lets clients connect, and says nothing."""


class Clients:
    """The clients of one visitor, made when they are needed."""

    def __init__(self, make: Callable[[], Client], clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._idle: list[tuple[float, Client]] = []
        self._is_closed = False
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self) -> Iterator[Client]:
        """A client for the time of the block. One with a failed request is closed."""
        client = self._fresh() or self._make()
        patience = PATIENCE_S.set(PAGE_WAITS_S)
        try:
            yield client
        except BaseException:
            _close(client)
            raise
        finally:
            PATIENCE_S.reset(patience)
        with self._lock:
            if not self._is_closed:
                self._idle.append((self._clock(), client))
                return
        _close(client)

    def close(self) -> None:
        """Close the clients, busy ones after their request."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for _, client in idle:
            _close(client)

    def _fresh(self) -> Client | None:
        """The client that was used last; closes clients that were idle for too long."""
        with self._lock:
            least = self._clock() - FRESH_S
            stale = [client for used, client in self._idle if used < least]
            self._idle = [(used, client) for used, client in self._idle if used >= least]
            found = self._idle.pop()[1] if self._idle else None
        for client in stale:
            _close(client)
        return found


def _close(client: Client) -> None:
    client.__exit__(None, None, None)
