"""The answering half of a connection: requests are begun, counted, served and answered in their order.

The API of a request says when its handler begins (`korvet.api.Start`):

- pipelined: when the request arrives, unless one ahead of it holds it back. A request holds back the pipelined ones
  after it from its first step, if that does not send its commands, until it has its answer.
- if alone: when the request arrives, if no other one is in flight, and the connection does not pause.
- in turn: when the request is the first, so no request that may wait overtakes another.

A handler that begins on arrival is stepped without a task, by each reply of Redis. When it has ended, and its request
is the first, `Answering` writes the answer at once. All else happens in one task of the connection. It takes the
requests in their order, and waits for a client that does not read its answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Protocol

import anyio

from korvet.api import IF_ALONE, PIPELINED, Api
from korvet.api.shared.context import Context, Frontend
from korvet.errors import MalformedRequest
from korvet.quotas.meters import Meters
from korvet.security.sasl import State as LoginState
from korvet.server.bounds.connections import Connections, OpenConnection
from korvet.server.conversation.answers import Answers, error_code
from korvet.server.conversation.metering import Metering
from korvet.server.conversation.notes import Notes
from korvet.server.conversation.requests import CALLING, ENDED, IN_TASK, QUEUED, WRITING, Headers, Request
from korvet.server.conversation.states import Conversation, Pause, State
from korvet.server.tenants.choice import Choice
from korvet.wire.frames import FrameSplitter
from korvet.wire.schema import has_top_level_error
from korvet.wire.writer import Buffers, Fields, encode_response, error_answer, framed, writer

REQUESTS_A_TURN = 128
"""The number of requests that a connection may take, or begin, before other connections get a turn."""
TURN_S = 0.005
"""The time that a connection may spend on its requests before other connections get a turn."""


class Owner(OpenConnection, Protocol):
    """The connection, as its answers and its gate see it; `.connection` documents the methods."""

    connections: Connections
    frontend: Frontend
    conversation: Conversation
    transport: asyncio.Transport | None
    frames: FrameSplitter
    headers: Headers
    answers: Answers
    answering: Answering

    def join(self, choice: Choice, frontend: Frontend) -> None: ...

    def resume(self, pause: Pause) -> None: ...

    def throttle(self, wait_s: float) -> None: ...

    def refuse(self, error: MalformedRequest) -> None: ...

    def answered(self) -> None: ...

    def close(self) -> None: ...


class Answering:
    """The requests of one connection, in the order of their arrival. `run` is its task."""

    def __init__(self, connection: Owner) -> None:
        self._connection = connection
        self._connections = connection.connections
        self._conversation = connection.conversation
        self._answers = connection.answers
        self._loop = asyncio.get_running_loop()
        self.requests: deque[Request] = deque()
        self.charged_bytes = 0
        """The memory of the requests in flight."""
        self.produced_bytes = 0
        """The part of Produces. Redis handles the Produces of all connections one after the other."""
        self._held_back = 0
        self.scope = anyio.CancelScope()
        """Ends with the task."""
        self._work: asyncio.Future[None] | None = None
        """What the task awaits while it has nothing to do."""
        self._answered_in_turn = 0
        """The answers written by replies of Redis since the client last sent something, or the task was last idle."""

    # ------------------------------------------------------------------ arrival, and replies of Redis

    def take(self, request: Request, size_bytes: int) -> None:
        """Queue a request that has arrived, and begin it if it may begin."""
        self._answered_in_turn = 0
        meters = self._connection.frontend.quotas.meters
        if meters is not None:
            self._meter(request, meters, size_bytes)
        if request.is_held_back:
            self.produced_bytes += request.charge
            self._connections.produced_bytes += request.charge
            if self._held_back or not self._begin(request):
                self._held_back += 1
        elif request.api is not None and request.api.start is IF_ALONE and not (self.requests or request.header):
            conversation = self._conversation
            if conversation.takes and conversation.begins:
                request.begin(self._moved)
        self.requests.append(request)
        self.charged_bytes += request.charge
        self._connections.charged_bytes += request.charge
        if request.stage is ENDED:
            self._moved(request)
        elif request.stage is not CALLING:
            self.wake()

    def _meter(self, request: Request, meters: Meters, size_bytes: int) -> None:
        """Meter a request of a namespace with quotas. If it uses up its client's quota, throttle the client."""
        api, context = request.api, request.context
        if api is None or context is None:
            return
        if context.login is not None and context.login.state is not LoginState.READY:
            # It has no client to charge.
            return
        request.metering = Metering(meters, api, context)
        self._connection.throttle(request.metering.arrived(size_bytes))

    def _moved(self, moved: Request) -> None:
        """After a step of a request's handler, answer it if it is the first and has ended; the task answers others."""
        requests = self.requests
        if not requests or requests[0] is not moved:
            return
        try:
            if moved.stage is ENDED and self._conversation.answers and self._answered_in_turn < REQUESTS_A_TURN:
                self._answered_in_turn += 1
                if self._write_answer(moved):
                    self._settle()
        except Exception as error:
            # This is a callback of the connection to Redis, so nothing may be raised to it.
            self._connections.report(error, "answer", self._connection.client)
            self._connection.close()
        if self._conversation.state is State.DRAINING or (requests and requests[0].stage is not CALLING):
            self.wake()

    def wake(self) -> None:
        """Wake the task."""
        if self._work is not None and not self._work.done():
            self._work.set_result(None)

    # ------------------------------------------------------------------ the task

    async def run(self) -> None:
        """Serve requests until the connection has to close."""
        turn_ends = 0.0
        while True:
            if not self._may_go_on():
                if not await self._next():
                    break
                turn_ends = monotonic() + TURN_S
            elif monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = monotonic() + TURN_S
                continue
            await self._answer(self.requests[0])
            self._settle()

    def _may_go_on(self) -> bool:
        """True if the first request may be served, or its answer written, at once."""
        conversation, requests = self._conversation, self.requests
        if not (conversation.answers and requests):
            return False
        stage = requests[0].stage
        return stage is not CALLING and (conversation.begins or stage is not QUEUED)

    async def _next(self) -> bool:
        """Wait for work, and for a client that reads; false when the connection has to close."""
        conversation = self._conversation
        while not self._may_go_on():
            is_drained = conversation.state is State.DRAINING and conversation.answers and not self.requests
            if is_drained or conversation.state.is_closing:
                return False
            self._answered_in_turn = 0
            self._work = self._loop.create_future()
            try:
                await self._work
            finally:
                self._work = None
        return True

    async def _answer(self, first: Request) -> None:
        """Run the handler of the first request to its end, and write the answer."""
        metering = first.metering
        if first.stage in (QUEUED, IN_TASK):
            try:
                if first.header is not None:
                    reading = first.read(self._connection.frontend.turns, first.header)
                    await (reading if metering is None else metering.timed(reading))
                first.end(await (first if metering is None else metering.timed(first)))
            except Exception as error:
                first.fail(error)
        while not self._write_answer(first):
            await self._connection.frontend.turns.turn()

    def _write_answer(self, first: Request) -> bool:
        """Write the answer of the first request, whose handler has ended; false if the rest needs further turns."""
        api, context, metering = first.api, first.context, first.metering
        if api is None or context is None:
            if first.answer_frame is not None:
                self._write(first, first.answer_frame)
            return True
        codes: list[int] = []
        try:
            if first.error is not None:
                raise first.error
            if first.stage is WRITING:
                steps, codes = first.writing
            elif first.answer is None:
                return True
            else:
                answer = first.answer if metering is None else self._count(metering, first.answer)
                steps = writer(api.key, context.version)(answer, codes)
            next(steps) if metering is None else metering.write(steps)
        except StopIteration as end:
            self._write(first, framed(api.key, context.version, first.correlation_id, end.value))
        except Exception as error:
            first.error = None
            self._failed(first, api, context, error)
            return True
        else:
            first.stage, first.writing = WRITING, (steps, codes)
            return False
        if codes and first.notes is not None:
            first.notes.answered(codes)
        return True

    def _count(self, metering: Metering, answer: Fields) -> Fields:
        """Count a request's answer. If the client is over a quota, throttle it: later requests wait, too.

        Returns the answer with the throttle time.
        """
        wait_s = metering.answered(answer)
        if wait_s > 0:
            self._connection.throttle(wait_s)
            self._conversation.pause(Pause.QUEUE)
        return metering.throttled(answer)

    def _write(self, queued: Request, frame: Buffers) -> None:
        size_bytes = self._answers.write(frame, is_last=len(self.requests) == 1)
        if queued.notes is not None:
            queued.notes.sent(size_bytes)

    def _failed(self, queued: Request, api: Api, context: Context, error: Exception) -> None:
        """Answer a failed request with an error code if its response has a field for one, else close the connection."""
        if isinstance(error, MalformedRequest):
            self._connection.refuse(error)
            return
        code = error_code(error)
        self._connections.report(error, api.name, self._connection.client)
        if queued.notes is not None:
            queued.notes.failed(code)
        if has_top_level_error(api.key, context.version):
            answer = error_answer(api.key, context.version, code)
            if queued.metering is not None:
                answer = queued.metering.throttled(answer)
            self._write(queued, encode_response(api.key, context.version, queued.correlation_id, answer))
        else:
            self._connection.close()

    def _settle(self) -> None:
        """Remove the answered request, and begin the requests that it held back."""
        answered = self.requests.popleft()
        self._uncharge(answered)
        if answered.notes is not None:
            self._note_end(answered, answered.notes)
        if answered.is_held_back:
            self._held_back -= 1
            self._begin_held_back()
        self._connection.answered()

    def _note_end(self, answered: Request, notes: Notes) -> None:
        notes.ended(answered.charge)
        if notes.trace is not None and self._connections.tracing is not None:
            self._connections.tracing.answered(notes.trace, answered.api, answered.context, answered.request)

    # ------------------------------------------------------------------ requests in flight

    def _uncharge(self, request: Request) -> None:
        charge, connections = request.charge, self._connections
        self.charged_bytes -= charge
        connections.charged_bytes -= charge
        if request.api is not None and request.api.start is PIPELINED:
            self.produced_bytes -= charge
            connections.produced_bytes -= charge

    def _begin(self, request: Request) -> bool:
        """Begin a pipelined request; false if it has not sent its commands, and so holds back later requests."""
        request.begin(self._moved)
        request.is_held_back = request.stage is IN_TASK
        return not request.is_held_back

    def _begin_held_back(self) -> None:
        if not self._conversation.begins:
            # The task begins each when it is the first.
            return
        begun, ends = 0, monotonic() + TURN_S
        for request in self.requests:
            if request.is_held_back:
                if request.stage is not QUEUED:
                    # It has begun, and later requests wait for its answer.
                    return
                if begun == REQUESTS_A_TURN or (begun and monotonic() > ends):
                    self._loop.call_soon(self._begin_held_back)
                    return
                if not self._begin(request):
                    return
                self._held_back -= 1
                begun += 1

    @property
    def has_unanswered(self) -> bool:
        """True if a request that gets no answer is not done: its client may have left already.

        One whose commands are sent may have to send them again, for example because a slot moves.
        """
        return any(one.is_unanswered and one.stage is not ENDED for one in self.requests)

    def discard(self) -> None:
        """Drop all requests unanswered, and the reference to the connection, which refers to this object."""
        for request in self.requests:
            self._uncharge(request)
            try:
                request.close()
            except Exception as error:
                # A handler that waits at its end is a defect, and must not keep the others.
                self._connections.report(error, "end of a request", self._connection.client)
        self.requests.clear()
        del self._connection
        self._connections.let_read()
