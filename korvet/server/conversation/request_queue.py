"""The queue of a connection's requests. It starts them, and counts their memory.

1. A request whose API has ``start`` is started when it arrives. It is not if a request whose ``start`` returned None is
   queued ahead of it. The requests behind it are held back until it has its answer.
2. A request whose API has ``begin`` is begun when it arrives, if no other request is in flight.
3. Every other request is handled when it is the first, so no request that may wait overtakes another.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from time import monotonic

from korvet.api import Answer
from korvet.server.bounds.connections import Connections
from korvet.server.conversation.requests import Request

REQUESTS_A_TURN = 128
"""The requests that a connection may take in, or start, before other connections have their turn."""
TURN_S = 0.005
"""The time for which a connection may take in, start or answer requests before other connections have their turn."""


class RequestQueue:
    """The requests of one connection in the order of their arrival. Each counts from `add` to `settle`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
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
        """Take a request that has arrived, and start it if it may start."""
        api = request.api
        if api is not None and api.start is not None:
            self.produced_bytes += request.charge
            self._connections.produced_bytes += request.charge
            if self._held_back or not _start(request):
                self._held_back += 1
        elif api is not None and api.begin is not None and not self.requests and request.header is None:
            _begin(request)
        self.requests.append(request)
        self.charged_bytes += request.charge
        self._connections.charged_bytes += request.charge

    @property
    def has_unanswered(self) -> bool:
        """Whether a request has not started whose client waits for no answer, and so may have left behind it."""
        return self._held_back > 0 and any(one.is_held_back and one.is_unanswered for one in self.requests)

    def settle(self) -> Request:
        """Remove the first request, which has its answer, and give its charge back."""
        answered = self.requests.popleft()
        self._uncharge(answered)
        return answered

    def _uncharge(self, request: Request) -> None:
        self.charged_bytes -= request.charge
        self._connections.charged_bytes -= request.charge
        if request.api is not None and request.api.start is not None:
            self.produced_bytes -= request.charge
            self._connections.produced_bytes -= request.charge

    def start_behind(self, answered: Request) -> None:
        """Start the requests that an answered one held back."""
        if self._held_back and answered.is_held_back:
            self._held_back -= 1
            self._start_held_back()

    def _start_held_back(self) -> None:
        started, ends = 0, monotonic() + TURN_S
        for request in self.requests:
            if request.is_held_back:
                if started == REQUESTS_A_TURN or (started and monotonic() > ends):
                    self._loop.call_soon(self._start_more)
                    return
                if not _start(request):
                    return
                self._held_back -= 1
                started += 1

    def _start_more(self) -> None:
        """Start the requests still held back, unless the task has come to one: then those behind wait for it."""
        if self.requests and not self.requests[0].is_held_back:
            self._start_held_back()

    def discard(self) -> None:
        """Drop the requests, which will not be answered."""
        for request in self.requests:
            if inspect.iscoroutine(request.started):
                request.started.close()
            if request.begun is not None:
                request.begun.reply.cancel()
            self._uncharge(request)
        self.requests.clear()
        self._connections.let_read()


def _begin(request: Request) -> None:
    assert request.api is not None and request.api.begin is not None and request.context is not None
    try:
        request.begun = request.api.begin(request.context, request.request)
    except Exception as error:
        request.started = _raising(error)


def _start(request: Request) -> bool:
    """Start a request; false if it cannot start now, and so holds back the requests behind it."""
    assert request.api is not None and request.api.start is not None and request.context is not None
    try:
        request.started = request.api.start(request.context, request.request)
    except Exception as error:
        request.started = _raising(error)
    return request.started is not None


async def _raising(error: Exception) -> Answer:
    raise error
