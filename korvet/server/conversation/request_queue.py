"""The queue of a connection's requests. It begins them, and counts their memory.

The API of a request says when its handler begins (`korvet.api.Start`):

- pipelined: when the request arrives, unless one ahead of it holds it back. A request holds back the pipelined ones
  after it from its first step, if that does not send its commands, until it has its answer.
- if alone: when the request arrives, if no other one is in flight.
- in turn: when the request is the first, so no request that may wait overtakes another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

from korvet.server.bounds.connections import Connections
from korvet.server.conversation.requests import IN_TASK, Request

REQUESTS_A_TURN = 128
"""The requests that a connection may take in, or begin, before other connections have their turn."""
TURN_S = 0.005
"""The time for which a connection may take in, begin or answer requests before other connections have their turn."""


class RequestQueue:
    """The requests of one connection in the order of their arrival. Each counts from `add` to `settle`.

    :param moved: as `Request.begin` has it.
    """

    def __init__(self, connections: Connections, moved: Callable[[Request], None]) -> None:
        self._connections = connections
        self._moved = moved
        self._loop = asyncio.get_running_loop()
        self.requests: deque[Request] = deque()
        self._held_back = 0
        self.charged_bytes = 0
        """The memory of the requests in flight."""
        self.produced_bytes = 0
        """The part of Produces, which Redis takes one after the other, those of all connections."""

    @property
    def first(self) -> Request:
        """The request to answer next."""
        return self.requests[0]

    def add(self, request: Request) -> None:
        """Take a request that has arrived, and begin it if it may begin."""
        if request.is_held_back:
            self.produced_bytes += request.charge
            self._connections.produced_bytes += request.charge
            if self._held_back or not self._begin(request):
                self._held_back += 1
        elif not self.requests and request.begins_alone:
            request.begin(self._moved)
        self.requests.append(request)
        self.charged_bytes += request.charge
        self._connections.charged_bytes += request.charge

    @property
    def has_unanswered(self) -> bool:
        """Whether a request did not send its commands yet whose client may have left, for it waits for no answer."""
        return self._held_back > 0 and any(one.is_held_back and one.is_unanswered for one in self.requests)

    def settle(self) -> Request:
        """Remove the first request, which has its answer, and give its charge back."""
        answered = self.requests.popleft()
        self._uncharge(answered)
        return answered

    def _uncharge(self, request: Request) -> None:
        self.charged_bytes -= request.charge
        self._connections.charged_bytes -= request.charge
        if request.is_pipelined:
            self.produced_bytes -= request.charge
            self._connections.produced_bytes -= request.charge

    def _begin(self, request: Request) -> bool:
        """Begin a pipelined request; false if it did not send its commands, and so holds back those after it."""
        request.begin(self._moved)
        request.is_held_back = request.stage is IN_TASK
        return not request.is_held_back

    def begin_behind(self, answered: Request) -> None:
        """Begin the requests that an answered one held back."""
        if self._held_back and answered.is_held_back:
            self._held_back -= 1
            self._begin_held_back()

    def _begin_held_back(self) -> None:
        begun, ends = 0, monotonic() + TURN_S
        for request in self.requests:
            if request.is_held_back:
                if begun == REQUESTS_A_TURN or (begun and monotonic() > ends):
                    self._loop.call_soon(self._begin_more)
                    return
                if not self._begin(request):
                    return
                self._held_back -= 1
                begun += 1

    def _begin_more(self) -> None:
        """Begin the requests still held back, unless the task has come to one: then those behind wait for it."""
        if self.requests and not self.requests[0].is_held_back:
            self._begin_held_back()

    def discard(self) -> None:
        """Drop the requests, which will not be answered."""
        for request in self.requests:
            request.close()
            self._uncharge(request)
        self.requests.clear()
        self._connections.let_read()
