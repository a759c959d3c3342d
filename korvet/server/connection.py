"""One client connection: frames in, answers out, in the order of the requests.

Bytes come through an ``asyncio.BufferedProtocol``; what has to be awaited is awaited by the connection's one task. The
order (docs/architecture.md, section 5):

1. A request whose API has ``start`` is started the moment its frame is complete, unless one that could not start
   (``start`` returned None) is queued ahead of it.
2. Every other request is handled when the task reaches it, so nothing that could wait overtakes anything.
3. The task takes requests in their order, awaits each one's answer and writes it.

Backpressure: a request is charged from its arrival to its answer, and reading pauses while the connection or the whole
process is over its bound; a client that does not read its answers stops its own task. Unfinished large frames take
turns (`korvet.server.large_frames`).
"""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections import deque
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import anyio
from kio.schema.errors import ErrorCode

from korvet.api import Answer, Api
from korvet.api.api_versions import supported
from korvet.api.context import Context, Frontend, Listener
from korvet.errors import MalformedRequest, StoreFull, StoreUnavailable
from korvet.wire.codec import (
    API_VERSIONS_KEY,
    RequestHeader,
    decode_header,
    decode_request,
    encode_error,
    encode_response,
    frame_response,
    has_top_level_error,
    is_known,
)
from korvet.wire.frames import FrameSplitter
from korvet.wire.proxy_header import ProxyHeader

if TYPE_CHECKING:
    from korvet.server.server import Server

REQUEST_CHARGE_BYTES = 2048
"""What a request is charged beside its bytes, for its objects."""
_read_correlation_id = struct.Struct(">i").unpack_from
_WRITE_BUFFER_BYTES = 1 << 20
_MAX_CONTEXTS = 64
_LINGER_S = 5.0
"""How long a closing connection may take to read its last answers."""


class _Request:
    """A request that is queued: started, or waiting for its turn, or answered already (``answer_frame``)."""

    __slots__ = ("answer_frame", "api", "charge", "context", "correlation_id", "request", "started")

    def __init__(self, correlation_id: int, charge: int) -> None:
        self.correlation_id = correlation_id
        self.charge = charge
        self.api: Api | None = None
        self.context: Context | None = None
        self.request: Any = None
        self.started: Awaitable[Answer] | None = None
        self.answer_frame: bytes | None = None


class _Seen(NamedTuple):
    """What a frame's header said, for the next frame whose header is the same but for the correlation id."""

    key_and_version: bytes
    client_id_and_tags: bytes
    header: RequestHeader
    api: Api | None
    context: Context | None


_NO_HEADER = ProxyHeader(size_bytes=0)
_NOTHING_SEEN = _Seen(b"like no frame", b"", RequestHeader(0, 0, 0, None, 0), None, None)


class Connection(asyncio.BufferedProtocol):
    """A connection from accept to close. `serve` is its task.

    :param header: what a load balancer told of the client.
    """

    def __init__(
        self, server: Server, listener: Listener, frontend: Frontend, header: ProxyHeader = _NO_HEADER
    ) -> None:
        self._server = server
        self._frontend = frontend
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._frames = FrameSplitter(self._arrived, max_frame_bytes=server.limits.max_frame_bytes)
        self._queue: deque[_Request] = deque()
        self._held_back = 0
        self._charged_bytes = 0
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._seen = _NOTHING_SEEN
        self._contexts: dict[tuple[int, int, str | None], Context] = {}
        self._transport: asyncio.Transport | None = None
        self._scope = anyio.CancelScope()
        self._work: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_reading = True
        self._is_inside_large_frame = False
        self._is_closing = False
        self._draining = False
        self.active_at = self._loop.time()
        self._header = header
        self.client = header.client_host or ""

    # ------------------------------------------------------------------ called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.client = self.client or peer_of(transport)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.close()
        self._frames.discard()
        self._server.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.active_at = self._loop.time()
        if self._is_closing:
            # What still arrives while the last answers leave is read and dropped.
            return
        try:
            self._frames.received(nbytes)
        except MalformedRequest as error:
            self._refuse(error)
        except Exception as error:
            self._server.report(error, "request", self.client)
            self.close()
        if self._frames.is_inside_large_frame is not self._is_inside_large_frame:
            self._note_large_frame()
        if self._charged_bytes > self._server.limits.connection_bytes or self._server.is_overloaded:
            self._pause()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # ------------------------------------------------------------------ arrival

    def _arrived(self, frame: bytes | memoryview) -> None:
        if self._is_closing or self._draining:
            return
        seen = self._seen
        if frame[:4] != seen.key_and_version or frame[8 : seen.header.body_at] != seen.client_id_and_tags:
            seen = self._see(frame)
        queued = _Request(_read_correlation_id(frame, 4)[0], len(frame) + REQUEST_CHARGE_BYTES)
        api = seen.api
        if api is None or seen.context is None:
            queued.answer_frame = _unsupported(seen.header, queued.correlation_id, self._server.apis)
        else:
            queued.api = api
            queued.context = seen.context
            queued.request = decode_request(seen.header, memoryview(frame))
            if api.start is not None and (self._held_back or not self._start(queued)):
                self._held_back += 1
        self._queue.append(queued)
        self._charged_bytes += queued.charge
        self._server.charged_bytes += queued.charge
        self._wake()

    def _see(self, frame: bytes | memoryview) -> _Seen:
        """Read a header; the next frame's is mostly the same."""
        header = decode_header(memoryview(frame))
        api = self._server.apis.get(header.api_key)
        if api is not None and not api.lowest <= header.version <= api.highest:
            api = None
        seen = _Seen(
            key_and_version=bytes(frame[:4]),
            client_id_and_tags=bytes(frame[8 : header.body_at]),
            header=header,
            api=api,
            context=None if api is None else self._context(header),
        )
        self._seen = seen
        return seen

    def _context(self, header: RequestHeader) -> Context:
        key = (header.api_key, header.version, header.client_id)
        context = self._contexts.get(key)
        if context is None:
            if len(self._contexts) >= _MAX_CONTEXTS:
                self._contexts.clear()
            context = self._contexts[key] = Context(
                frontend=self._frontend,
                listener=self._listener,
                principal="User:ANONYMOUS",
                client_host=self.client,
                target_port=self._header.target_port,
                client_id=header.client_id,
                api_key=header.api_key,
                version=header.version,
            )
        return context

    def _start(self, queued: _Request) -> bool:
        """Start a request; False where it cannot start now and holds back those behind it."""
        assert queued.api is not None and queued.api.start is not None and queued.context is not None
        try:
            queued.started = queued.api.start(queued.context, queued.request)
        except Exception as error:
            queued.started = _raising(error)
        return queued.started is not None

    def _refuse(self, error: MalformedRequest) -> None:
        self._server.lines.write("warning", "malformed request; closing", client=self.client, reason=str(error))
        self.close()

    # ------------------------------------------------------------------ the task

    async def serve(self) -> None:
        """Answer requests until the connection is closed. Runs as one task of the server's group."""
        try:
            with self._scope:
                while self._may_go_on() or await self._next():
                    queued = self._queue[0]
                    await self._answer(queued)
                    self._queue.popleft()
                    self._settle(queued)
        finally:
            self._is_closing = True
            self._discard()
            self._flush()
            if self._transport is not None:
                self._transport.close()

    def _may_go_on(self) -> bool:
        return bool(self._queue) and self._writable is None and not self._is_closing

    async def _next(self) -> bool:
        """Wait until there is a request and the client reads; False when the connection is to be closed."""
        while True:
            if self._writable is not None:
                await self._writable
            elif self._is_closing:
                return False
            elif self._queue:
                return True
            elif self._draining:
                return False
            else:
                self._work = self._loop.create_future()
                try:
                    await self._work
                finally:
                    self._work = None

    async def _answer(self, queued: _Request) -> None:
        if queued.answer_frame is not None:
            self._write([queued.answer_frame])
            return
        api, context = queued.api, queued.context
        assert api is not None and context is not None
        try:
            if queued.started is not None:
                answer = await queued.started
            else:
                answer = await api.handle(context, queued.request)
            if isinstance(answer, list):
                self._write(frame_response(api.key, context.version, queued.correlation_id, answer))
            elif answer is not None:
                self._write([encode_response(api.key, context.version, queued.correlation_id, answer)])
        except MalformedRequest as error:
            self._refuse(error)
        except Exception as error:
            self._failed(queued, api, context, error)

    def _failed(self, queued: _Request, api: Api, context: Context, error: Exception) -> None:
        """Answer a handler's exception where the response can say an error, else close."""
        code = _error_code(error)
        self._server.report(error, api.name, self.client)
        if has_top_level_error(api.key, context.version):
            self._write([encode_error(api.key, context.version, queued.correlation_id, code)])
        else:
            self.close()

    def _write(self, frame: list[bytes | memoryview]) -> None:
        """Queue an answer: all of one turn of the loop leave in one write, or each megabyte of them."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += frame
        self._out_bytes += sum(map(len, frame))
        if self._out_bytes >= _WRITE_BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        transport = self._transport
        if out and transport is not None and not transport.is_closing():
            self.active_at = self._loop.time()
            transport.writelines(out)

    def _settle(self, answered: _Request) -> None:
        """Give the charge back, read on, and start what was held back by a request that could not start."""
        self._charged_bytes -= answered.charge
        self._server.charged_bytes -= answered.charge
        if self._server.paused:
            self._server.let_read()
        if not self._is_reading:
            self.read_on()
        if self._held_back and _is_held_back(answered):
            self._held_back -= 1
            self._start_held_back()

    def _start_held_back(self) -> None:
        for queued in self._queue:
            if _is_held_back(queued):
                if not self._start(queued):
                    return
                self._held_back -= 1

    def _discard(self) -> None:
        """Drop what will not be answered."""
        for queued in self._queue:
            if inspect.iscoroutine(queued.started):
                queued.started.close()
            self._server.charged_bytes -= queued.charge
        self._queue.clear()
        self._server.let_read()

    # ------------------------------------------------------------------ flow

    def _pause(self) -> None:
        if self._is_reading and self._transport is not None and not self._frames.is_inside_large_frame:
            self._is_reading = False
            self._transport.pause_reading()
            self.read_on()

    def _note_large_frame(self) -> None:
        """A large frame has begun or ended; where it is not its turn, it is not read on."""
        self._is_inside_large_frame = not self._is_inside_large_frame
        if not self._is_inside_large_frame:
            self._server.large_frames.leave(self)
        elif not self._server.large_frames.enter(self, self.missing_bytes) and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    @property
    def missing_bytes(self) -> int:
        """How much of a large frame is to come."""
        return self._frames.missing_bytes

    def read_on(self) -> None:
        """Read again, where neither the connection nor the process is over its bound.

        Where it is the connection, this is called after each of its answers; where it is the process, by the server.
        """
        if self._draining or self._charged_bytes > self._server.limits.connection_bytes:
            return
        if self._server.large_frames.holds(self):
            return
        if self._server.is_overloaded:
            self._server.paused.add(self)
        elif self._transport is not None and not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()

    @property
    def is_reading(self) -> bool:
        """Whether it takes what its client sends."""
        return self._is_reading

    @property
    def unsent_bytes(self) -> int:
        """What its client has to read before more is answered."""
        return 0 if self._writable is None or self._transport is None else self._transport.get_write_buffer_size()

    # ------------------------------------------------------------------ the end

    def drain(self) -> None:
        """Take no more requests, answer those that are queued, then close."""
        self._draining = True
        if self._transport is not None and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()
        self._wake()

    def close(self) -> None:
        """Close after the answers that were written have left; what is still queued is not answered."""
        self._is_closing = True
        self._scope.cancel()

    def is_expired(self, now: float, max_idle_s: float) -> bool:
        """Whether the client sent nothing and took nothing for so long; one whose request is being served may wait."""
        if self._is_closing:
            return now - self.active_at > _LINGER_S
        return now - self.active_at > max_idle_s and (not self._queue or self._writable is not None)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if self._work is not None and not self._work.done():
            self._work.set_result(None)


def peer_of(transport: asyncio.Transport) -> str:
    """The address at a connection's other end, empty where it is gone already.

    An IPv4 client of a listener for both kinds is shown as one.
    """
    peer = transport.get_extra_info("peername")
    host = str(peer[0]) if peer else ""
    return host.removeprefix("::ffff:") if "." in host else host


def _is_held_back(queued: _Request) -> bool:
    return queued.api is not None and queued.api.start is not None and queued.started is None


async def _raising(error: Exception) -> Answer:
    raise error


def _unsupported(header: RequestHeader, correlation_id: int, apis: Mapping[int, Api]) -> bytes:
    """The answer to a version that is not served.

    :raises MalformedRequest: where there is none, as in Kafka: the connection is closed.
    """
    api, version, code = apis.get(header.api_key), header.version, ErrorCode.unsupported_version
    if api is not None and api.key == API_VERSIONS_KEY:
        return encode_response(API_VERSIONS_KEY, 0, correlation_id, supported(code))
    if api is not None and is_known(api.key, version) and has_top_level_error(api.key, version):
        return encode_error(api.key, version, correlation_id, code)
    if api is None:
        raise MalformedRequest(f"API key {header.api_key} (version {version}) is not supported")
    raise MalformedRequest(f"version {version} of {api.name} is not supported")


def _error_code(error: Exception) -> ErrorCode:
    """The error for a request whose handler let an exception out."""
    if isinstance(error, StoreUnavailable):
        return ErrorCode.request_timed_out
    if isinstance(error, StoreFull):
        return ErrorCode.kafka_storage_error
    return ErrorCode.unknown_server_error
