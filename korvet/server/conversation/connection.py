"""One client connection: frames in, answers out, in the order of the requests.

Bytes come through an ``asyncio.BufferedProtocol`` (`.receiver`), and each frame becomes a request in a
queue (`.request_queue`). The handler of a short request is stepped without a task: on arrival, and by each reply of
Redis. When it has ended, and its request is the first, `_moved` writes the answer. All else happens in one task of the
connection. It takes the requests in their order, and waits for a client that does not read its answers.
docs/internals.md tells more, under "one module per API key".
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from time import monotonic
from typing import cast

import anyio

from korvet.api import Api
from korvet.api.shared.context import Context, Frontend, Listener
from korvet.errors import KorvetError, MalformedRequest
from korvet.quotas.meters import Meters
from korvet.security.principal import ANONYMOUS, Principal
from korvet.security.sasl import State
from korvet.security.unauthenticated import Unauthenticated
from korvet.server.bounds.connections import Connections
from korvet.server.conversation.answers import Answers, error_code
from korvet.server.conversation.metering import Metering
from korvet.server.conversation.notes import Notes
from korvet.server.conversation.receiver import Receiver
from korvet.server.conversation.request_queue import REQUESTS_A_TURN, TURN_S
from korvet.server.conversation.requests import CALLING, ENDED, QUEUED, Headers, Request
from korvet.server.ground.host_pattern import HostName
from korvet.server.ground.sockets import peer_of, port_of_peer
from korvet.server.tenants.choice import Choice, Destination, split_principal
from korvet.wire.proxy_header import ProxyHeader
from korvet.wire.schema import API_VERSIONS_KEY, has_top_level_error
from korvet.wire.writer import Buffers, Fields, encode_response, error_answer, framed, writer

_LINGER_S = 5.0
"""The time that a client has to read the last answers of a connection that closes, and the time for the requests of a
client that left without waiting for answers."""
NO_HEADER = ProxyHeader(size_bytes=0)
NO_MECHANISM = "none"
"""The mechanism of a connection without a login."""
CERTIFICATE = "TLS"
"""The mechanism by which the audit log tells of a client's certificate."""

_API_VERSIONS = API_VERSIONS_KEY.to_bytes(2)

Identify = Callable[[ssl.SSLObject | None], Principal]
"""Tells the principal of a connection by its TLS session; raises a KorvetError if the listener refuses it."""


def anonymous(_session: ssl.SSLObject | None) -> Principal:
    """The principal of a client that shows nothing."""
    return ANONYMOUS


class Connection(Receiver):
    """A connection from accept to close. `serve` is its task.

    :param header: a load balancer's words about the client; empty without a load balancer.
    :param identify: tells its principal, once it is there.
    :param choice: tells its namespace, if its listener lets clients choose; the front-end is the lobby's until then.
    """

    def __init__(
        self,
        connections: Connections,
        listener: Listener,
        frontend: Frontend,
        header: ProxyHeader = NO_HEADER,
        identify: Identify = anonymous,
        choice: Choice | None = None,
    ) -> None:
        super().__init__(connections)
        self._frontend = frontend
        self._choice = choice
        self._header = header
        self._host_name: HostName | None = None
        self._destination: Destination | None = None
        """The namespace to enter before the first request."""
        share = connections.answers.share()
        self._answers = Answers(share)
        self._headers = Headers(connections, listener, frontend, header.target_port, share)
        self._scope = anyio.CancelScope()
        self._work: asyncio.Future[None] | None = None
        self._is_served = False
        self._answered_in_turn = 0
        """The answers that replies of Redis brought since the client sent something, or the task had nothing to do."""
        self._puts_off = False
        """Whether queued requests wait for the end of a throttle."""
        self._identify = identify
        self.client = header.client_host or ""
        self.kind = (listener.name, NO_MECHANISM)

    # ------------------------------------------------------------------ called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = self._answers.transport = transport
        session = transport.get_extra_info("ssl_object")
        # With the lowest limit the transport also tells of an answer's last bytes: they keep all of it in memory.
        # At 0 a TLS transport would pause with nothing to write.
        transport.set_write_buffer_limits(high=0 if session is None else 1)
        self.client = self._headers.client = self.client or peer_of(transport)
        # A load balancer's header has no port of its client.
        self._headers.peer.port = None if self._header.client_host else port_of_peer(transport)
        self._answers.joins_small = session is not None
        self._connections.opened(self)
        try:
            principal = self._identify(session)
            if self._choice is not None:
                self._host_name = self._choice.host_name(session, self._header)
                principal = self._choose(self._choice, principal)
            self._headers.principal = str(principal)
            if principal != ANONYMOUS and self._destination is None:
                self._note_certificate()
        except KorvetError as error:
            self._be_refused(error)

    def _note_certificate(self) -> None:
        """Tell the audit log of a client that a certificate names."""
        self._frontend.audit.logged_in(
            principal=self._headers.principal, host=self.client, listener=self.kind[0], mechanism=CERTIFICATE
        )

    def _be_refused(self, error: KorvetError) -> None:
        self._connections.lines.write("warning", "connection refused", client=self.client, reason=str(error))
        self._frontend.audit.login_failed(
            user=self._headers.principal, host=self.client, listener=self.kind[0], mechanism=CERTIFICATE,
            reason=str(error),
        )  # fmt: skip
        self.close()
        self.abort()

    # ------------------------------------------------------------------ the namespace that it chooses

    def _choose(self, choice: Choice, principal: Principal) -> Principal:
        """Choose the namespace that a client without a login names; its principal there. Nothing is read before."""
        self._destination, principal = split_principal(choice, principal, self._host_name)
        self._frames.is_held = True
        self._is_reading = False
        if self._transport is not None:
            self._transport.pause_reading()
        return principal

    async def _enter(self, choice: Choice, destination: Destination) -> None:
        try:
            frontend = await choice.enter(destination, self)
        except KorvetError as error:
            self._be_refused(error)
            return
        if self._transport is not None:
            self._join(choice, frontend)
            self._note_certificate()
            self._go_on()

    def _join(self, choice: Choice, frontend: Frontend) -> None:
        """Have requests go to the namespace that was entered."""
        node = None if self._host_name is None else self._host_name.node
        self._frontend = frontend
        target = self._header.target_port if node is None else node
        self._headers.join(frontend, choice.listener(frontend.namespace.name), target)

    def _leave(self) -> None:
        """Leave the namespace that was entered, which need not be joined yet."""
        if self._choice is not None:
            self._choice.namespaces.leave(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._answers.transport = None
        if self._throttled is not None:
            self._throttled.cancel()
        if self._is_closing or not self._queue.has_unanswered:
            self.close()
        else:
            # As in Kafka its requests are handled (Selector.maybeReadFromClosingChannel).
            self._draining, self._puts_off = True, False
            self._scope.deadline = self._loop.time() + _LINGER_S
            self._wake()
        self._frames.discard()
        if self._is_served:
            self._answers.release()
        if self._headers.is_of_client:
            self._frontend.activity.left()
        self._leave()
        self._connections.closed(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._answers.pause()
        self._connections.unread.add(self)

    def resume_writing(self) -> None:
        self._answers.resume()
        self._connections.unread.discard(self)

    # ------------------------------------------------------------------ called by the receiver

    def _take(self, frame: bytes | memoryview) -> None:
        self._answered_in_turn = 0
        request = self._headers.request(frame)
        if request is None:
            self.close()
            return
        meters = self._frontend.quotas.meters
        if meters is not None:
            self._meter(request, meters, len(frame))
        self._queue.add(request)
        if request.stage is not CALLING:
            self._wake()

    def _meter(self, request: Request, meters: Meters, size_bytes: int) -> None:
        """Meter a request of a namespace with quotas. If it uses up its client's quota, it is the last for a while."""
        api, context, login = request.api, request.context, self._headers.login
        is_nobodys = login is not None and login.state is not State.READY
        if api is None or context is None or is_nobodys:
            return
        request.metering = Metering(meters, api, context)
        self._throttle(request.metering.arrived(size_bytes))

    def _moved(self, moved: Request) -> None:
        """Answer a request whose handler went on after a reply, and ended requests after it, if its turn has come."""
        requests = self._queue.requests
        if self._is_closing or not requests or requests[0] is not moved:
            return
        try:
            while moved.stage is ENDED and self._answers.writable is None and self._answered_in_turn < REQUESTS_A_TURN:
                self._answered_in_turn += 1
                if not self._write_answer(moved):
                    break
                self._settle()
                if not requests or self._is_closing:
                    break
                moved = requests[0]
        except Exception as error:
            # Nothing may reach the connection to Redis, whose callback this is.
            self._connections.report(error, "answer", self.client)
            self.close()
        if self._draining or (requests and moved.stage is not CALLING):
            self._wake()

    def _end_throttle(self) -> None:
        self._puts_off = False
        super()._end_throttle()

    def _refuse(self, error: MalformedRequest) -> None:
        self._connections.lines.write("warning", "malformed request; closing", client=self.client, reason=str(error))
        self.close()

    def _resumed(self) -> None:
        self._frontend.store.doubt.begin()

    # ------------------------------------------------------------------ the task

    async def serve(self) -> None:
        """Answer requests until the connection is closed. Runs as one task of the server's group."""
        try:
            with self._scope:
                if self._choice is not None and self._destination is not None:
                    await self._enter(self._choice, self._destination)
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
                    await self._answer(self._queue.first)
                    self._settle()
        finally:
            self._is_closing = self._is_served = True
            self._queue.discard()
            self._answers.flush()
            if self._transport is not None:
                self._transport.close()
            else:
                self._answers.release()
                # The task may have entered after the connection was lost.
                self._leave()

    def _may_go_on(self) -> bool:
        """Whether the first request may be served, or its answer be written, at once."""
        if self._is_closing or not self._queue.requests or self._answers.writable is not None:
            return False
        stage = self._queue.first.stage
        return stage is not CALLING and not (self._puts_off and stage is QUEUED)

    async def _next(self) -> bool:
        """Wait until there is something to do and the client reads; false when the connection has to close."""
        while True:
            if self._answers.writable is not None:
                await self._answers.writable
            elif self._is_closing or (self._draining and not self._queue.requests):
                return False
            elif self._may_go_on():
                return True
            else:
                self._answered_in_turn = 0
                self._work = self._loop.create_future()
                try:
                    await self._work
                finally:
                    self._work = None

    async def _answer(self, first: Request) -> None:
        """Serve the first request, from where its handler stands, and write its answer."""
        metering = first.metering
        if first.stage is not ENDED:
            try:
                if first.header is not None:
                    reading = first.read(self._frontend.turns, first.header)
                    await (reading if metering is None else metering.timed(reading))
                first.end(await (first if metering is None else metering.timed(first)))
            except Exception as error:
                first.fail(error)
            # The client may have stopped reading meanwhile; then its answer waits, and so do requests behind it.
        while not self._write_answer(first):
            await self._frontend.turns.turn()

    def _write_answer(self, first: Request) -> bool:
        """Write the answer of the first request, which has ended; false if there is more to write, in further turns."""
        api, context, metering, codes = first.api, first.context, first.metering, first.codes
        if first.answer_frame is not None:
            self._write(first, first.answer_frame)
            return True
        assert api is not None and context is not None
        try:
            if first.error is not None:
                raise first.error
            steps, answer = first.writing, first.answer
            if answer is not None:
                if steps is None:
                    answer = answer if metering is None else self._count(metering, answer)
                    steps = writer(api.key, context.version)(answer, codes)
                next(steps) if metering is None else metering.write(steps)
                first.writing = steps
                return False
        except StopIteration as end:
            self._write(first, framed(api.key, context.version, first.correlation_id, end.value))
        except Exception as error:
            first.error = None
            self._failed(first, api, context, error)
            return True
        if codes and first.notes is not None:
            first.notes.answered(codes)
        return True

    def _count(self, metering: Metering, answer: Fields) -> Fields:
        """Count a request's answer, and throttle its client if that is over a quota: requests behind it wait, too.

        Returns the answer with the throttle time.
        """
        wait_s = metering.answered(answer)
        if wait_s > 0:
            self._throttle(wait_s)
            self._puts_off = self._throttled is not None
        return metering.throttled(answer)

    def _write(self, queued: Request, frame: Buffers) -> None:
        notes, is_last = queued.notes, len(self._queue.requests) == 1
        if notes is None:
            self._answers.write(frame, is_last=is_last)
        else:
            notes.sent(self._answers.write(frame, is_last=is_last))

    def _failed(self, queued: Request, api: Api, context: Context, error: Exception) -> None:
        """Answer a handler's exception if the response has an error code, else close the connection."""
        if isinstance(error, MalformedRequest):
            self._refuse(error)
            return
        code = error_code(error)
        self._connections.report(error, api.name, self.client)
        if queued.notes is not None:
            queued.notes.failed(code)
        if has_top_level_error(api.key, context.version):
            answer = error_answer(api.key, context.version, code)
            if queued.metering is not None:
                answer = queued.metering.throttled(answer)
            self._write(queued, encode_response(api.key, context.version, queued.correlation_id, answer))
        else:
            self.close()

    def _settle(self) -> None:
        """Remove the answered request, read on, and begin the requests that it held back."""
        answered = self._queue.settle()
        if answered.notes is not None:
            self._note_end(answered, answered.notes)
        if self._connections.paused:
            self._connections.let_read()
        if not self._is_reading:
            self.read_on()
        self._queue.begin_behind(answered)

    def _note_end(self, answered: Request, notes: Notes) -> None:
        notes.ended(answered.charge)
        if notes.trace is not None and self._connections.tracing is not None:
            self._connections.tracing.answered(notes.trace, answered.api, answered.context, answered.request)

    # ------------------------------------------------------------------ looked at by `Connections`

    @property
    def waits_with(self) -> object | None:
        """The request for which others wait; None if none waits, or if Redis has to answer."""
        if len(self._queue.requests) < 2:
            return None
        first = self._queue.first
        is_sent = first.stage is CALLING or (first.is_pipelined and not first.is_held_back)
        if is_sent and self._answers.writable is None:
            return None
        return first

    @property
    def unsent_bytes(self) -> int:
        """The bytes that its client has to read before it gets more answers."""
        return self._answers.unsent_bytes

    @property
    def moved_at(self) -> float:
        """When its client last sent or took something, on the loop's clock."""
        return max(self.active_at, self._answers.sent_at)

    def is_expired(self, now: float, max_idle_s: float) -> bool:
        """Whether the client sent nothing and took nothing for ``max_idle_s``, and does not wait for an answer."""
        idle_s = now - self.moved_at
        if self._is_closing:
            return idle_s > _LINGER_S
        return idle_s > max_idle_s and (not self._queue.requests or self._answers.writable is not None)

    # ------------------------------------------------------------------ the end

    def drain(self) -> None:
        """Take no more requests, answer the queued ones, then close."""
        self._draining = True
        if self._transport is not None and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()
        self._end_throttle()
        self._wake()

    def close(self) -> None:
        self._is_closing = True
        self._scope.cancel()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if self._work is not None and not self._work.done():
            self._work.set_result(None)


class HealthCheck(Connection):
    """A connection of a load balancer that speaks for itself. It gets ApiVersions, and nothing else.

    Anybody may claim to be that, without TLS, a certificate or a login. So it counts as a connection before its login.
    """

    def __init__(self, connections: Connections, listener: Listener, frontend: Frontend, header: ProxyHeader) -> None:
        super().__init__(connections, listener, frontend, header)
        self._frames.bound(min(connections.limits.sasl_receive_bytes, connections.limits.max_frame_bytes))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._unauthenticated = self._connections.unauthenticated.add(Unauthenticated(self.client, self.abort))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.unauthenticated.remove(self._unauthenticated)
        super().connection_lost(exc)

    def _take(self, frame: bytes | memoryview) -> None:
        if bytes(frame[:2]) == _API_VERSIONS:
            super()._take(frame)
        else:
            self._refuse(MalformedRequest("a load balancer's health check that asks for more than ApiVersions"))
