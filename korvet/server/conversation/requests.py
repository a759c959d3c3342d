"""A connection's requests: the steps of their handlers, and the reading of their headers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from enum import Enum, auto
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.api import PIPELINED, Answer, Api
from korvet.api.api_versions import supported
from korvet.api.shared.context import Context, Frontend, Listener
from korvet.api.shared.loop_turns import LoopTurns
from korvet.api.shared.share_groups import end
from korvet.api.shared.share_sessions import Opener
from korvet.api.shared.telemetry import Peer
from korvet.metrics.requests import RequestFigures
from korvet.redis.reply import Reply
from korvet.security.principal import ANONYMOUS
from korvet.security.rights import Rights
from korvet.security.sasl import Login
from korvet.server.bounds.connections import Connections
from korvet.server.conversation import unserved
from korvet.server.conversation.metering import Metering
from korvet.server.conversation.notes import Notes
from korvet.server.ground.tracing import Trace
from korvet.store.log.memory.budget import Share
from korvet.wire.codec import RequestHeader, decode_header, decode_request
from korvet.wire.requests import Entity
from korvet.wire.schema import API_VERSIONS_KEY, has_top_level_error, is_known
from korvet.wire.writer import Buffers, Steps, encode_response, error_answer

CHARGE_BYTES = 2048
"""The memory of a request's objects, which counts in addition to its bytes."""
_LARGE_BYTES = 16 << 10
"""A larger request is decoded in a turn of its own: it may have thousands of elements."""
_MOST_REPEATED_BYTES = 512
"""The largest request that a connection keeps in case its client sends it again."""
_MAX_CONTEXTS = 64
_LAST_WORDS_S = 0.5
"""The time in which a share group's member may end its session after the connection that opened it: as long as most
ShareFetches wait."""
_read_correlation_id = struct.Struct(">i").unpack_from


class Stage(Enum):
    """The progress of a request."""

    QUEUED = auto()
    """Its handler has not begun."""
    CALLING = auto()
    """Its handler waits for a reply of Redis, and goes on when that comes."""
    IN_TASK = auto()
    """Its handler goes on in the connection's task when the request is the first."""
    ENDED = auto()
    """It has its answer, or failed."""
    WRITING = auto()
    """Its answer is long, and its beginning is written."""


QUEUED, CALLING, IN_TASK, ENDED, WRITING = Stage


class Request:
    """A request of a connection, from its arrival to its answer. Await it to run its handler to the end in a task.

    A large one that waits for its turn is a ``header`` and a ``frame``, and is decoded in its turn.
    """

    __slots__ = (
        "_awaited", "_moved", "_steps", "answer", "answer_frame", "api", "charge", "context", "correlation_id", "error",
        "frame", "header", "is_held_back", "metering", "notes", "request", "stage", "writing",
    )  # fmt: skip
    answer: Answer
    """The answer of its handler, once it has ended."""
    answer_frame: Buffers | None
    """The answer to a request without an API."""
    writing: tuple[Steps, list[int]]
    """Once a long answer is being written: its writer, and the error codes so far."""
    frame: bytes | memoryview
    """Its bytes, if it has a header."""
    _steps: Coroutine[Any, Any, Answer]
    _awaited: Any
    """The future that its last step waits for; None if it waits only for its turn in the task."""

    def __init__(
        self, correlation_id: int, charge: int, api: Api | None = None, context: Context | None = None
    ) -> None:
        self.correlation_id = correlation_id
        self.charge = charge
        self.api = api
        self.context = context
        self.request: Entity | None = None
        self.header: RequestHeader | None = None
        self.notes: Notes | None = None
        """None without metrics and tracing."""
        self.metering: Metering | None = None
        """What it uses of its client's quotas; None without quotas."""
        self.stage = QUEUED
        self.is_held_back = api is not None and api.start is PIPELINED
        """True if it may be pipelined, and has not begun, or goes on in a task since its first step."""
        self.error: Exception | None = None
        """The exception of its failed handler."""
        self._moved: Callable[[Request], None] | None = None
        """Called after each step but the first."""

    def begin(self, moved: Callable[[Request], None]) -> None:
        """Run its handler to the first wait.

        :param moved: is called after each further step. It never raises.
        """
        self._begin()
        self._step()
        self._moved = moved

    def _begin(self) -> None:
        assert self.api is not None and self.context is not None and self.request is not None
        handle = self.api.handle if self.metering is None else self.metering.handle
        self._steps = handle(self.context, self.request)
        self.stage, self._awaited = IN_TASK, None

    def _step(self) -> None:
        """Run its handler to its next wait: at first, and after each reply that it awaited."""
        steps = self._steps
        try:
            awaited = steps.send(None) if self.metering is None else self.metering.call(steps.send, None)
            if awaited is not None:
                # As a task does, or others could not await it.
                awaited._asyncio_future_blocking = False
            self.stage, self._awaited = IN_TASK, awaited
            if isinstance(awaited, Reply) and awaited.then is None:
                self.stage, awaited.then = CALLING, self._step
        except StopIteration as end:
            self.stage, self.answer = ENDED, end.value
        except asyncio.CancelledError:
            self.fail(RuntimeError("a call of the request was cancelled"))
        except Exception as error:
            self.fail(error)
        if self._moved is not None:
            self._moved(self)

    def __await__(self) -> Generator[Any, None, Answer]:
        if self.stage is QUEUED:
            self._begin()
        elif self._awaited is not None:
            return _after(self._awaited, self._steps)
        return self._steps.__await__()

    def end(self, answer: Answer) -> None:
        """End with its handler's answer."""
        self.stage, self.answer = ENDED, answer

    def fail(self, error: Exception) -> None:
        """End with an exception, which its answer shows."""
        self.stage, self.error = ENDED, error

    def close(self) -> None:
        """Drop it without an answer."""
        self.error = None
        if self.stage is CALLING:
            self._awaited.then = None
        elif self.stage is IN_TASK and self._awaited is not None and not isinstance(self._awaited, Reply):
            # As the end of a task does.
            self._awaited.cancel()
        if self.stage in (CALLING, IN_TASK):
            self._steps.close()

    async def read(self, turns: LoopTurns, header: RequestHeader) -> None:
        """Decode a large request with this header, in a turn of its own.

        :raises MalformedRequest: if its bytes do not fit the schema.
        """
        await turns.turn()
        frame, self.frame = self.frame, b""
        self.request = decode_request(header, memoryview(frame))

    @property
    def is_pipelined(self) -> bool:
        """True if it sends its commands without waiting for the answers of earlier ones."""
        return self.api is not None and self.api.start is PIPELINED

    @property
    def is_unanswered(self) -> bool:
        """True if its client wants no answer, as for a Produce with acks=0."""
        return getattr(self.request, "acks", None) == 0


def _after(awaited: asyncio.Future[Any], steps: Coroutine[Any, Any, Answer]) -> Generator[Any, None, Answer]:
    """The further steps of a coroutine, in a task, after the future for which it waits."""
    if not awaited.done():
        awaited._asyncio_future_blocking = True
        # The coroutine itself gets the future's exception.
        with suppress(Exception):
            yield awaited
    return (yield from steps.__await__())


class Seen(NamedTuple):
    """The last header that was read; the next one is mostly the same, except for its correlation id."""

    key_and_version: bytes
    client_id_and_tags: bytes
    header: RequestHeader
    api: Api | None
    context: Context | None
    figures: RequestFigures | None
    is_noted: bool
    """True with metrics or tracing."""


_NOTHING_SEEN = Seen(b"like no frame", b"", RequestHeader(0, 0, 0, None, 0), None, None, None, False)


class _Repeated(NamedTuple):
    """A frame's bytes after its correlation id, and the request in them."""

    content: bytes
    request: Entity


_NOTHING_REPEATED = _Repeated(b"", Entity())


class Headers:
    """The headers of one connection's frames.

    :param target: as `Context` has it.
    """

    def __init__(
        self, connections: Connections, listener: Listener, frontend: Frontend, target: int | None, share: Share
    ) -> None:
        self.client = ""
        """The client's address."""
        self.principal = str(ANONYMOUS)
        """The identity of the client, fixed before its first request."""
        self.peer = Peer()
        self.share_opener = Opener()
        self.login: Login | None = None
        """The login, on a listener with SASL."""
        self.is_of_client = False
        """True once it requested more than ApiVersions, which a load balancer's health check requests as well."""
        self._seen = _NOTHING_SEEN
        self._repeated = _NOTHING_REPEATED
        self._connections = connections
        self._listener = listener
        self._frontend = frontend
        self._target = target
        self._share = share
        self._api_versions = b""
        self._contexts: dict[tuple[int, int, str | None], Context] = {}

    def log_in(self, principal: str) -> None:
        """Give later requests a principal, such as ``User:alice``."""
        if principal != self.principal:
            self.principal = principal
            self._contexts.clear()
            self._seen = _NOTHING_SEEN

    def join(self, frontend: Frontend, listener: Listener, target: int | None) -> None:
        """Send later requests to another front-end."""
        if self.is_of_client:
            self._frontend.activity.left()
            frontend.activity.came()
        self._frontend, self._listener, self._target = frontend, listener, target
        self._contexts.clear()
        self._seen = _NOTHING_SEEN

    def leave(self, *, has_requests: bool) -> None:
        """End the connection's share sessions: what their members acquired by it is released.

        Kafka does not notice that a client has left before it has answered it, and franz-go counts on that: to end its
        session it cancels its ShareFetch first. So a client with a request under way may end its session meanwhile.
        """
        if not self.share_opener.sessions:
            return
        if has_requests:
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        for session in list(self.share_opener.sessions.values()):
            end(self._frontend, session)

    def request(self, frame: bytes | memoryview) -> Request | None:
        """The request of a frame; None if its API or version is not served, and Kafka has no answer for that.

        :raises MalformedRequest: if the frame holds no request.
        """
        seen = self._seen
        if frame[:4] != seen.key_and_version or frame[8 : seen.header.body_at] != seen.client_id_and_tags:
            seen = self._see(frame)
        api = seen.api
        request = Request(_read_correlation_id(frame, 4)[0], len(frame) + CHARGE_BYTES, api, seen.context)
        if api is None:
            request.stage, request.answer_frame = ENDED, self._unserved(request.correlation_id)
            return None if request.answer_frame is None else request
        if seen.is_noted:
            request.notes = Notes(seen.figures, None if self._connections.tracing is None else Trace())
        if len(frame) > _LARGE_BYTES and not request.is_held_back:
            request.header, request.frame = seen.header, frame
        elif api.is_repeated:
            request.request = self._repeated_request(frame)
        else:
            request.request = decode_request(seen.header, memoryview(frame))
        return request

    def _repeated_request(self, frame: bytes | memoryview) -> Entity:
        """The request of a frame with the last header. Mostly it is the last request again, and is not decoded anew."""
        if frame[8:] == self._repeated.content:
            return self._repeated.request
        request = decode_request(self._seen.header, memoryview(frame))
        if len(frame) <= _MOST_REPEATED_BYTES:
            self._repeated = _Repeated(bytes(frame[8:]), request)
        return request

    def _see(self, frame: bytes | memoryview) -> Seen:
        header = decode_header(memoryview(frame))
        if header.api_key != API_VERSIONS_KEY and not self.is_of_client:
            self.is_of_client = True
            self._frontend.activity.came()
        api = self._connections.apis.get(header.api_key)
        if api is not None and not api.lowest <= header.version <= api.highest:
            api = None
        requests = self._connections.requests
        self._seen = Seen(
            key_and_version=bytes(frame[:4]),
            client_id_and_tags=bytes(frame[8 : header.body_at]),
            header=header,
            api=api,
            context=None if api is None else self._context(header),
            figures=None if api is None or requests is None else requests.of(api.name, header.version),
            is_noted=requests is not None or self._connections.tracing is not None,
        )
        self._repeated = _NOTHING_REPEATED
        if header.api_key == API_VERSIONS_KEY:
            self._api_versions = bytes(frame[: unserved.MOST_BYTES])
        return self._seen

    def _unserved(self, correlation_id: int) -> Buffers | None:
        """The answer to the last header, whose API or version is not served; None if Kafka has no answer for it."""
        header, apis = self._seen.header, self._connections.apis
        answer = _unsupported(header, correlation_id, apis)
        if header.api_key == API_VERSIONS_KEY and self.login is not None:
            self.login.asks_versions_again()
        if answer is None or header.api_key != API_VERSIONS_KEY:
            event, values = unserved.log_line(header, apis.get(header.api_key), self._api_versions)
            event = event if answer is not None else f"{event}; closing"
            self._connections.lines.write("warning", event, client=self.client, **values)
        return answer

    def _context(self, header: RequestHeader) -> Context:
        key = (header.api_key, header.version, header.client_id)
        context = self._contexts.get(key)
        if context is None:
            if len(self._contexts) >= _MAX_CONTEXTS:
                self._contexts.clear()
            authorizer = self._frontend.authorizer
            name = self._connections.apis[header.api_key].name
            context = self._contexts[key] = Context(
                frontend=self._frontend,
                listener=self._listener,
                principal=self.principal,
                login=self.login,
                client_host=self.client,
                target=self._target,
                client_id=header.client_id,
                api_key=header.api_key,
                version=header.version,
                share=self._share,
                peer=self.peer,
                share_opener=self.share_opener,
                rights=None if authorizer is None else Rights(authorizer, self.principal, self.client, name),
            )
        return context


def _unsupported(header: RequestHeader, correlation_id: int, apis: Mapping[int, Api]) -> Buffers | None:
    """The answer to an API or version that is not served; None if Kafka has none."""
    api, version, code = apis.get(header.api_key), header.version, ErrorCode.unsupported_version
    if api is not None and api.key == API_VERSIONS_KEY:
        return encode_response(API_VERSIONS_KEY, 0, correlation_id, supported(code))
    if api is not None and is_known(api.key, version) and has_top_level_error(api.key, version):
        return encode_response(api.key, version, correlation_id, error_answer(api.key, version, code))
    return None
