"""One client connection: its socket, and the bytes that arrive.

Bytes come through an ``asyncio.BufferedProtocol``, and each frame becomes a request of `.answering`, which writes the
answers in the order of requests. What the connection may do now, `.states` decides; this module reports what happens,
and reads, takes frames and closes as it says. See docs/internals.md, "one module per API key".
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from time import monotonic
from typing import cast

from korvet.api.shared.context import Frontend, Listener
from korvet.errors import KorvetError, MalformedRequest
from korvet.security.principal import ANONYMOUS, Principal
from korvet.server.bounds.connections import Connections
from korvet.server.conversation.answering import REQUESTS_A_TURN, TURN_S, Answering
from korvet.server.conversation.answers import Answers
from korvet.server.conversation.gate import NO_MECHANISM, Gate
from korvet.server.conversation.requests import CALLING, Headers
from korvet.server.conversation.states import BEFORE_LOGIN, Conversation, Event, Pause, State
from korvet.server.ground.host_pattern import HostName
from korvet.server.ground.sockets import has_left, peer_of, port_of_peer
from korvet.server.tenants.choice import Choice, Destination, split_principal
from korvet.wire.frames import FrameSplitter
from korvet.wire.proxy_header import ProxyHeader

_LOOK_S = 1.0
"""The time between two checks whether the client of a throttled connection has left."""
_LINGER_S = 5.0
"""The time that a client has to read the last answers of a connection that closes, and the time for the requests of a
client that left without waiting for answers."""
NO_HEADER = ProxyHeader(size_bytes=0)
CERTIFICATE = "TLS"
"""The audit log's mechanism for a client that authenticated by certificate."""

Identify = Callable[[ssl.SSLObject | None], Principal]
"""Returns the principal of a connection from its TLS session; raises a KorvetError if the listener refuses it."""


def anonymous(_session: ssl.SSLObject | None) -> Principal:
    """The principal of a client without credentials."""
    return ANONYMOUS


class Connection(asyncio.BufferedProtocol):
    """A connection from accept to close. `serve` is its task.

    :param header: the load balancer's header about the client; empty without a load balancer.
    :param identify: returns its principal, once the connection is made.
    :param choice: finds its namespace, if its listener lets clients choose; the front-end is the lobby's until then.
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
        self.connections = connections
        self.frontend = frontend
        self.client = header.client_host or ""
        self.kind = (listener.name, NO_MECHANISM)
        self.conversation = Conversation(_first_state(listener, header, choice))
        self.transport: asyncio.Transport | None = None
        self.frames = FrameSplitter(
            self._arrived, max_frame_bytes=connections.limits.max_frame_bytes, scratch=connections.scratch
        )
        share = connections.answers.share()
        self.headers = Headers(connections, listener, frontend, header.target_port, share)
        self.answers = Answers(share, self.conversation)
        self.answering = Answering(self)
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._header = header
        self._identify = identify
        self._choice = choice
        self._host_name: HostName | None = None
        self._destination: Destination | None = None
        """The namespace to enter before the first request."""
        self._gate: Gate | None = None
        self._arrived_in_turn = 0
        self._arriving_until = 0.0
        self._throttled_until = 0.0
        self._active_at = self._loop.time()

    # ------------------------------------------------------------------ the beginning

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self.transport = self.answers.transport = transport
        session = transport.get_extra_info("ssl_object")
        # With the lowest limit the transport also reports an answer's last bytes: they keep all of it in memory. At 0
        # a TLS transport would pause with nothing to write.
        transport.set_write_buffer_limits(high=0 if session is None else 1)
        self.client = self.headers.client = self.client or peer_of(transport)
        # A load balancer's header has no port of its client.
        self.headers.peer.port = None if self._header.client_host else port_of_peer(transport)
        self.answers.joins_small = session is not None
        self.connections.opened(self)
        try:
            principal = self._identify(session)
            if self._choice is not None:
                self._host_name = self._choice.host_name(session, self._header)
                if self.conversation.state is State.ENTERING:
                    self._destination, principal = split_principal(self._choice, principal, self._host_name)
            self.headers.principal = str(principal)
            if principal != ANONYMOUS and self._destination is None:
                self._note_certificate()
        except KorvetError as error:
            self._be_refused(error)
        if self.conversation.state in BEFORE_LOGIN:
            self._gate = Gate(self, self._listener, self._choice, self._host_name)
        if not self.conversation.takes:
            self.read_on()

    def _note_certificate(self) -> None:
        """Write a client that its certificate identified to the audit log."""
        self.frontend.audit.logged_in(
            principal=self.headers.principal, host=self.client, listener=self.kind[0], mechanism=CERTIFICATE
        )

    def _be_refused(self, error: KorvetError) -> None:
        self.connections.lines.write("warning", "connection refused", client=self.client, reason=str(error))
        self.frontend.audit.login_failed(
            user=self.headers.principal, host=self.client, listener=self.kind[0], mechanism=CERTIFICATE,
            reason=str(error),
        )  # fmt: skip
        self.close()
        self.abort()

    async def serve(self) -> None:
        """Answer requests until the connection is closed. Runs as one task of the server's group."""
        try:
            with self.answering.scope:
                if self._choice is not None and self._destination is not None:
                    await self._enter(self._choice, self._destination)
                await self.answering.run()
        finally:
            self.conversation.on(Event.END)
            has_requests = bool(self.answering.requests)
            self.answering.discard()
            # No request of it can acquire records any more.
            self.headers.leave(has_requests=has_requests)
            self.answers.flush()
            if self.transport is not None:
                self.transport.close()
            else:
                self.answers.release()
                # The task may have entered after the connection was lost.
                self._leave()

    async def _enter(self, choice: Choice, destination: Destination) -> None:
        try:
            frontend = await choice.enter(destination, self)
        except KorvetError as error:
            self._be_refused(error)
            return
        if self.transport is not None:
            self.join(choice, frontend)
            self._note_certificate()
            self.conversation.on(Event.ENTERED)
            self._go_on()

    def join(self, choice: Choice, frontend: Frontend) -> None:
        """Send requests to the namespace that was entered."""
        node = None if self._host_name is None else self._host_name.node
        self.frontend = frontend
        target = self._header.target_port if node is None else node
        self.headers.join(frontend, choice.listener(frontend.namespace.name), target)

    def _leave(self) -> None:
        """Leave the namespace that was entered, which need not be joined yet."""
        if self._choice is not None:
            self._choice.namespaces.leave(self)

    # ------------------------------------------------------------------ frames

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        now = self._loop.time()
        if now != self._active_at:
            self._active_at = now
            self._begin_turn()
        if not self.conversation.state.is_closing:
            self._take_frames(nbytes)

    def _begin_turn(self) -> None:
        self._arrived_in_turn, self._arriving_until = 0, monotonic() + TURN_S

    def _take_frames(self, nbytes: int) -> None:
        """Split received bytes into frames; with 0, the bytes that were held back."""
        frames, turns = self.frames, self.connections.large_frames
        before = frames.large
        try:
            if nbytes:
                frames.received(nbytes)
            else:
                frames.go_on()
        except MalformedRequest as error:
            self.refuse(error)
        except Exception as error:
            self.connections.report(error, "request", self.client)
            self.close()
        if frames.large is None:
            if before is not None:
                turns.leave(self)
        elif before is None:
            self.conversation.pause(Pause.LARGE_FRAME)
            turns.enter(self, frames.missing_bytes)
        if not (self.conversation.takes and self._has_room):
            self.read_on()

    def _arrived(self, frame: bytes | memoryview) -> bool:
        """Take a frame. Returns true if later frames have to wait."""
        conversation = self.conversation
        if conversation.state.takes:
            if self._gate is None or self._gate.lets_through(frame):
                request = self.headers.request(frame)
                if request is None:
                    self.close()
                else:
                    self.answering.take(request, len(frame))
            self._arrived_in_turn += 1
            if self._arrived_in_turn >= REQUESTS_A_TURN or monotonic() > self._arriving_until:
                conversation.pause(Pause.TURN)
                self._loop.call_soon(self.resume, Pause.TURN)
        return not conversation.takes

    def refuse(self, error: MalformedRequest) -> None:
        """Close the connection: its client does not speak Kafka's protocol."""
        self.connections.lines.write("warning", "malformed request; closing", client=self.client, reason=str(error))
        self.close()

    # ------------------------------------------------------------------ when it reads

    @property
    def _has_room(self) -> bool:
        """True below all bounds: its own, its share of the batches in flight to Redis, and the process's."""
        queue, connections = self.answering, self.connections
        limits = connections.limits
        if queue.charged_bytes > limits.connection_bytes or connections.charged_bytes > limits.process_bytes:
            return False
        return queue.produced_bytes <= limits.produce_share_bytes or connections.produced_bytes <= limits.produce_bytes

    def read_on(self) -> None:
        """Read if, and only if, the connection may now.

        It is called after each answer, and by `Connections` when the process is below its bound again.
        """
        conversation, transport = self.conversation, self.transport
        if transport is None:
            return
        may_read = conversation.may_read(has_room=self._has_room, is_inside_large_frame=self.frames.large is not None)
        if may_read is not conversation.is_reading:
            conversation.is_reading = may_read
            if may_read:
                self.frontend.store.doubt.begin()
                transport.resume_reading()
            else:
                transport.pause_reading()
        if not may_read and conversation.state.takes and self.connections.is_overloaded:
            self.connections.paused.add(self)

    def resume(self, pause: Pause) -> None:
        """End a pause."""
        self.conversation.resume(pause)
        self._go_on()

    def _go_on(self) -> None:
        """Take the frames that were held back, and read on. The client may have left in the pause."""
        if self.conversation.takes and self.transport is not None:
            self._begin_turn()
            self.frontend.store.doubt.begin()
            self._take_frames(0)
            self.read_on()

    def begin_large_frame(self) -> None:
        """Read the large frame whose turn has come."""
        self.conversation.resume(Pause.LARGE_FRAME)
        self.read_on()

    def throttle(self, wait_s: float) -> None:
        """Take no more requests for a time, not even those that have arrived."""
        conversation, now = self.conversation, self._loop.time()
        until = now + wait_s
        if wait_s <= 0 or until <= self._throttled_until or not conversation.state.takes:
            return
        self.connections.throttles += 1
        self.connections.throttled_s += until - max(self._throttled_until, now)
        self._throttled_until = until
        if Pause.THROTTLE not in conversation.pauses:
            conversation.pause(Pause.THROTTLE)
            self._loop.call_later(min(wait_s, _LOOK_S), self._look_at_throttled)
        self.read_on()

    def _look_at_throttled(self) -> None:
        """End a throttle that is over. A connection that is not read does not notice that its client has left."""
        if self.transport is None or Pause.THROTTLE not in self.conversation.pauses:
            return
        left_s = self._throttled_until - self._loop.time()
        if left_s <= 0:
            self.resume(Pause.THROTTLE | Pause.QUEUE)
            self.answering.wake()
        elif self.frames.large is None and has_left(self.transport, self.frames.begun):
            # A small unfinished frame is no request to wait for.
            self.transport.abort()
        else:
            self._loop.call_later(min(left_s, _LOOK_S), self._look_at_throttled)

    # ------------------------------------------------------------------ answers

    def pause_writing(self) -> None:
        self.conversation.pause(Pause.UNREAD)
        self.connections.unread.add(self)

    def resume_writing(self) -> None:
        self.conversation.resume(Pause.UNREAD)
        self.answers.share.note_unsent(0)
        self.connections.unread.discard(self)
        self.answering.wake()

    def answered(self) -> None:
        """Go on after an answer."""
        if self.connections.paused:
            self.connections.let_read()
        if not self.conversation.is_reading:
            self.read_on()
        if self._gate is not None:
            self._gate.answered()

    # ------------------------------------------------------------------ looked at by `Connections`

    @property
    def is_reading(self) -> bool:
        """True if it reads from its client."""
        return self.conversation.is_reading

    @property
    def missing_bytes(self) -> int:
        """The bytes of an unfinished large frame that have not arrived."""
        return self.frames.missing_bytes

    @property
    def charged_bytes(self) -> int:
        """The memory of its requests in flight."""
        return self.answering.charged_bytes

    @property
    def unsent_bytes(self) -> int:
        """The bytes that its client has to read before it gets more answers."""
        return self.answers.unsent_bytes

    @property
    def waits_with(self) -> object | None:
        """The request that holds up the others; None if none waits, or if it waits for Redis."""
        if len(self.answering.requests) < 2:
            return None
        first = self.answering.requests[0]
        is_sent = first.stage is CALLING or (first.is_pipelined and not first.is_held_back)
        return None if is_sent and not self.conversation.is_unread else first

    @property
    def moved_at(self) -> float:
        """When its client last sent or took something, on the loop's clock."""
        return max(self._active_at, self.answers.sent_at)

    def is_expired(self, now: float, max_idle_s: float) -> bool:
        """True if the client sent and read nothing for ``max_idle_s``, and does not wait for an answer."""
        idle_s = now - self.moved_at
        if self.conversation.state.is_closing:
            return idle_s > _LINGER_S
        return idle_s > max_idle_s and (not self.answering.requests or self.conversation.is_unread)

    # ------------------------------------------------------------------ the end

    def drain(self) -> None:
        """Take no more requests, answer the queued ones, then close."""
        self.conversation.on(Event.DRAIN)
        self.read_on()
        self.answering.wake()

    def close(self) -> None:
        """Close once the written answers are sent. Queued requests get no answer."""
        self.conversation.on(Event.CLOSE)
        self.answering.scope.cancel()

    def abort(self) -> None:
        """Close at once."""
        self.conversation.on(Event.CLOSE)
        if self.transport is not None:
            self.transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = self.answers.transport = None
        if self._gate is not None:
            self._gate.leave()
            self._gate = None
        if self.conversation.state.is_closing or not self.answering.has_unanswered:
            self.close()
        else:
            # As in Kafka its requests are handled (Selector.maybeReadFromClosingChannel).
            self.conversation.on(Event.LOSE)
            self.answering.scope.deadline = self._loop.time() + _LINGER_S
            self.answering.wake()
        self.frames.discard()
        if self.conversation.state is State.ENDED:
            self.answers.release()
        if self.headers.is_of_client:
            self.frontend.activity.left()
        self._leave()
        self.connections.closed(self)


def _first_state(listener: Listener, header: ProxyHeader, choice: Choice | None) -> State:
    if header.is_local:
        return State.HEALTH_CHECK
    if listener.sasl:
        return State.LOGIN
    return State.OPEN if choice is None else State.ENTERING
