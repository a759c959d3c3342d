"""The receiving half of a connection: it turns bytes into frames, and says when the connection reads.

A connection does not read while its own requests, or the process's, are over their bound. Unfinished large frames take
turns (`server/bounds/large_frames.py`). Nor does it read before other connections have had their turn, if it has just
taken in many requests, or while its client is throttled.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from time import monotonic

from korvet.errors import MalformedRequest
from korvet.server.bounds.connections import Connections
from korvet.server.conversation.request_queue import REQUESTS_A_TURN, TURN_S, RequestQueue
from korvet.server.conversation.requests import Request
from korvet.server.ground.sockets import has_left
from korvet.wire.frames import FrameSplitter

_LOOK_S = 1.0
"""The time between two looks if the client of a throttled connection has left."""


class Receiver(asyncio.BufferedProtocol):
    """The base of `korvet.server.conversation.connection.Connection`, which takes the frames and owns the answers."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._queue = RequestQueue(connections, self._moved)
        self._frames = FrameSplitter(
            self._arrived, max_frame_bytes=connections.limits.max_frame_bytes, scratch=connections.scratch
        )
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._is_inside_large_frame = False
        self._is_closing = False
        self._draining = False
        self._arrived_in_turn = 0
        self._arriving_until = 0.0
        self._throttled: asyncio.TimerHandle | None = None
        """The next look at a throttled client; None if it is not throttled."""
        self._throttled_until = 0.0
        self.active_at = self._loop.time()
        self.client = ""

    @abstractmethod
    def _take(self, frame: bytes | memoryview) -> None:
        """Queue the request of a frame.

        :raises MalformedRequest: if the frame holds none.
        """

    @abstractmethod
    def _moved(self, moved: Request) -> None:
        """Note that a request's handler went on after a reply of Redis. Raises nothing."""

    @abstractmethod
    def _refuse(self, error: MalformedRequest) -> None:
        """Close the connection, whose client does not speak Kafka's protocol."""

    @abstractmethod
    def _resumed(self) -> None:
        """Note that the connection takes requests again, after a pause in which its client may have left."""

    @abstractmethod
    def _wake(self) -> None:
        """Let the connection's task look for work."""

    @abstractmethod
    def close(self) -> None:
        """Close after the written answers have left. Queued requests get no answer."""

    # ------------------------------------------------------------------ arrival

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        now = self._loop.time()
        if now != self.active_at:
            self.active_at = now
            self._begin_turn()
        # While the last answers leave, the connection drops the bytes that still arrive.
        if not self._is_closing:
            self._take_frames(nbytes)

    def _begin_turn(self) -> None:
        self._arrived_in_turn, self._arriving_until = 0, monotonic() + TURN_S

    def _take_frames(self, nbytes: int) -> None:
        """Take received bytes into frames, or with 0 the bytes that were held back."""
        try:
            if nbytes:
                self._frames.received(nbytes)
            else:
                self._frames.go_on()
        except MalformedRequest as error:
            self._refuse(error)
        except Exception as error:
            self._connections.report(error, "request", self.client)
            self.close()
        if self._frames.is_inside_large_frame is not self._is_inside_large_frame:
            self._note_large_frame()
        if self._frames.is_held:
            self._hold()
        elif self._has_enough or self._connections.is_overloaded:
            self._pause()

    def _arrived(self, frame: bytes | memoryview) -> None:
        if self._is_closing or self._draining:
            return
        self._take(frame)
        self._arrived_in_turn += 1
        if (
            self._arrived_in_turn >= REQUESTS_A_TURN
            or monotonic() > self._arriving_until
            or self._throttled is not None
        ):
            self._frames.is_held = True

    # ------------------------------------------------------------------ when it reads

    @property
    def _has_enough(self) -> bool:
        """Whether as much of it is in flight as may be, or more than its share of the batches on their way to Redis."""
        limits, queue = self._connections.limits, self._queue
        if queue.charged_bytes > limits.connection_bytes:
            return True
        return (
            queue.produced_bytes > limits.produce_share_bytes
            and self._connections.produced_bytes > limits.produce_bytes
        )

    def _hold(self) -> None:
        """Take in no more requests before other connections have had their turn."""
        if self._transport is not None:
            if self._is_reading:
                self._is_reading = False
                self._transport.pause_reading()
            if self._throttled is None:
                self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._throttled is not None:
            return
        if self._transport is not None and not self._is_closing and self._frames.is_held:
            self._begin_turn()
            self._resumed()
            self._take_frames(0)
            self.read_on()

    def _throttle(self, wait_s: float) -> None:
        """Take no more requests for a time, not even those whose bytes have arrived; a large frame arrives wholly.

        Source: ThrottledChannel; KIP-219
        """
        until = self._loop.time() + wait_s
        if wait_s <= 0 or until <= self._throttled_until or self._draining or self._is_closing:
            return
        self._connections.throttles += 1
        self._connections.throttled_s += until - max(self._throttled_until, self._loop.time())
        self._throttled_until = until
        if self._throttled is None:
            self._look_at_throttled()
        if not self._frames.is_inside_large_frame:
            self._frames.is_held = True
            self._hold()

    def _look_at_throttled(self) -> None:
        """End a throttle that is over. A connection that is not read does not hear of a client that has left."""
        left_s = self._throttled_until - self._loop.time()
        if self._transport is None or self._is_closing:
            self._throttled = None
        elif left_s <= 0:
            self._end_throttle()
        else:
            self._throttled = self._loop.call_later(min(left_s, _LOOK_S), self._look_at_throttled)
            # A small frame that its client did not finish is worth nothing.
            if not self._frames.is_inside_large_frame and has_left(self._transport, self._frames.begun):
                self._transport.abort()

    def _end_throttle(self) -> None:
        """Take requests again."""
        if self._throttled is not None:
            self._throttled.cancel()
            self._throttled = None
            self._wake()
            self._go_on()

    def _pause(self) -> None:
        if self._is_reading and self._transport is not None and not self._frames.is_inside_large_frame:
            self._is_reading = False
            self._transport.pause_reading()
            self.read_on()

    def _note_large_frame(self) -> None:
        """Note that a large frame has begun or ended; pause reading until its turn comes."""
        self._is_inside_large_frame = not self._is_inside_large_frame
        if not self._is_inside_large_frame:
            self._connections.large_frames.leave(self)
        elif not self._connections.large_frames.enter(self, self.missing_bytes) and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    def read_on(self) -> None:
        """Read again, unless the connection or the process is over its bound.

        The connection calls this after each answer, and `Connections` when the process is below its bound again.
        """
        if self._draining or self._frames.is_held or self._has_enough:
            return
        if self._connections.large_frames.holds(self):
            return
        if self._connections.is_overloaded:
            self._connections.paused.add(self)
        elif self._transport is not None and not self._is_reading:
            self._is_reading = True
            self._resumed()
            self._transport.resume_reading()

    @property
    def missing_bytes(self) -> int:
        """The bytes of an unfinished large frame that have not arrived."""
        return self._frames.missing_bytes

    @property
    def is_reading(self) -> bool:
        """Whether it reads from its client."""
        return self._is_reading

    @property
    def charged_bytes(self) -> int:
        """The memory of its requests in flight."""
        return self._queue.charged_bytes
