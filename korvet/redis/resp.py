"""One implicitly pipelined connection to Redis: RESP over an asyncio Protocol.

Plain calls queue commands, and one write per turn of the loop sends them. Replies come in the order of the commands, so
a deque matches them. A command costs no task and no coroutine: its caller waits on an ``asyncio.Future``. The owner
(`korvet.redis.link`) gives error replies their meaning.

hiredis reads the replies, except a large string that answers a GET. The connection receives it straight into its own
memory (`korvet.redis.large_string`), as a read-only view. Its beginning is only known between two replies. So a GET's
string may still be bytes, if one read brought it together with the end of the reply before it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple, cast

import hiredis

from korvet.redis.doubt import Doubt
from korvet.redis.large_string import Bulk, begun

Argument = str | bytes | memoryview | int | float
Named = Argument | Iterable[Argument] | None
"""An argument of a function by name: a repeated one is an iterable, and an optional one may be None."""
Buffer = bytes | memoryview
pack_command: Callable[[tuple[Argument, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
ReplyError = hiredis.ReplyError

_NOTHING = Ellipsis
_UNSENT_LIMIT_BYTES = 256 << 20
_SCRATCH_BYTES = 128 << 10
_PAUSE_S = 0.02
_GET = b"*2\r\n$3\r\nGET\r\n"
_PING = pack_command(("PING",))


class Placed(NamedTuple):
    """The SET of a temporary key and the call that takes it, sent together. The SET's reply is ignored."""

    set: Sequence[Buffer]
    call: bytes
    size_bytes: int
    """The bytes of the key's value."""


Sent = tuple[asyncio.Future[Any] | None, bytes | Placed, int]
"""A command that waits for its reply: the future (None to ignore the reply), the command, and the number of earlier
sends. It is a plain tuple because each command makes one."""


WAIT_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Waits:
    """A histogram of the times from commands to replies, and their sum."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(WAIT_BOUNDS_S) + 1)
        self.seconds = 0.0

    def note(self, seconds: float, replies: int) -> None:
        """Count replies to commands of one write."""
        self.buckets[bisect_left(WAIT_BOUNDS_S, seconds)] += replies
        self.seconds += seconds * replies


class Owner:
    """The owner of a connection. The loop's callbacks call these methods."""

    def __init__(self, waits: Waits | None = None) -> None:
        self.waits = waits
        """The waits for replies on all its connections; None if not measured."""

    def refused(self, sent: Sent, error: ReplyError) -> None:
        """Redis answered a command with an error. The command's future may be cancelled."""

    def refused_unasked(self, error: ReplyError) -> None:
        """Redis answered a command without a future with an error."""

    def pushed(self, message: Any) -> None:
        """A subscribed connection received a message or an error reply."""

    def lost(self, connection: Connection, unanswered: Sequence[Sent]) -> None:
        """The connection is gone. Redis may have applied any of ``unanswered``, in the order of sending."""

    def congested(self, connection: Connection, congested: bool) -> None:
        """Redis has left more than 256 MiB of the connection's bytes unread, or has caught up."""


class Connection(asyncio.BufferedProtocol):
    """One connection. Once ``subscriber`` is set, every reply is a message for `Owner.pushed`."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._waits = owner.waits
        self._written: deque[tuple[float, int]] = deque()
        """The times of writes with their numbers of unanswered commands; only for the waits."""
        self._timed = 0
        """The number of waiting commands with a known time of writing."""
        self._replied = 0
        """The replies of this read. A reply may bring about further calls, so the queue's length is no measure."""
        self.subscriber = False
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        # hiredis takes any buffer, though its types do not say so.
        self._feed = cast(Callable[[memoryview], None], self._reader.feed)
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._is_between_replies = True
        self._bulk: Bulk | None = None
        self._waiting: deque[Sent] = deque()
        self._out: list[Buffer] = []
        self._transport: asyncio.Transport | None = None
        self._pinged = False
        self.heard_at = self._loop.time()
        self._read_at = self.heard_at
        self._doubt = Doubt()
        self.error: Exception | None = None
        """The reason why the connection was lost, if known."""
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def silent_since(self) -> float | None:
        """The loop's time since which the server has owed replies without a byte; None if it owes none."""
        return self.heard_at if self._waiting or self._pinged else None

    @property
    def is_steady(self) -> bool:
        """True if bytes arrived without a pause lately: so the process did not hang, even for some milliseconds."""
        return not self._doubt.lasts and self._loop.time() - self._read_at < _PAUSE_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNSENT_LIMIT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.error = self.error or exc
        self._out = []
        # The garbage collector runs rarely, and may find this object late.
        self._scratch = memoryview(b"")
        unanswered, self._waiting = self._waiting, deque()
        if not self.closed.done():
            self.closed.set_result(None)
        self._owner.lost(self, unanswered)

    def pause_writing(self) -> None:
        self._owner.congested(self, True)

    def resume_writing(self) -> None:
        self._owner.congested(self, False)

    def send(self, future: asyncio.Future[Any] | None, packed: bytes, attempts: int = 0) -> None:
        """Queue a command; ``future`` gets its reply, if given."""
        if not self._waiting:
            self.heard_at = self._loop.time()
        self._waiting.append((future, packed, attempts))
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(packed)

    def send_placed(self, future: asyncio.Future[Any], placed: Placed, attempts: int = 0) -> None:
        """Queue both commands; the SET's buffers are written without a copy."""
        if not self._waiting:
            self.heard_at = self._loop.time()
        self._waiting.append((None, b"", 0))
        self._waiting.append((future, placed, attempts))
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.extend(placed.set)
        self._out.append(placed.call)

    def send_unanswered(self, packed: bytes) -> None:
        """Queue a command of a subscriber: its answers are messages."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(packed)

    def ping(self) -> None:
        """Make the server owe a reply, if it owes none, to detect a peer that vanished silently."""
        if self.silent_since is not None:
            return
        if self.subscriber:
            self.heard_at, self._pinged = self._loop.time(), True
            self.send_unanswered(_PING)
        else:
            self.send(None, _PING)

    def command(self, *arguments: Argument) -> asyncio.Future[Any]:
        """Queue a command; returns the future of its reply. An error reply goes to the owner."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.send(future, pack_command(arguments), 0)
        return future

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and out:
            if self._waits is not None:
                self._note_write()
            self._transport.writelines(out)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch if self._bulk is None else self._bulk.room

    def buffer_updated(self, nbytes: int) -> None:
        now = self._loop.time()
        if now - self._read_at > _PAUSE_S:
            self._doubt.begin()
        self._read_at = self.heard_at = now
        self._pinged = False
        self._replied = 0
        try:
            if self._bulk is None:
                self._received(self._scratch[:nbytes])
            elif self._bulk.received(nbytes):
                self._end_bulk(self._bulk)
        except (hiredis.ProtocolError, ValueError) as error:
            self.error = error
            self.abort()
        if self._waits is not None and self._replied:
            self._note_replies(self._waits, self._replied)

    def _note_write(self) -> None:
        """Note the time of a write: two clock readings for each turn of the loop, none for each command."""
        if (commands := len(self._waiting) - self._timed) > 0:
            self._timed += commands
            self._written.append((monotonic(), commands))

    def _note_replies(self, waits: Waits, replies: int) -> None:
        now, written = monotonic(), self._written
        while replies and written:
            at, commands = written[0]
            answered = min(replies, commands)
            waits.note(now - at, answered)
            self._timed -= answered
            replies -= answered
            if answered < commands:
                written[0] = at, commands - answered
            else:
                written.popleft()

    def _received(self, data: memoryview) -> None:
        if self.subscriber:
            self._feed(data)
            while (message := self._reader.gets()) is not _NOTHING:
                if message != b"PONG":
                    self._owner.pushed(message)
            return
        waiting = self._waiting
        while self._is_between_replies and waiting and waiting[0][1][: len(_GET)] == _GET:
            found = begun(data)
            if found is None:
                break
            bulk, head_bytes = found
            data = data[head_bytes:]
            data = data[bulk.feed(data) :]
            if bulk.room:
                self._bulk = bulk
                return
            self._end_bulk(bulk)
            if not data:
                return
        self._read_replies(data)

    def _end_bulk(self, bulk: Bulk) -> None:
        # A malformed string raises here, before its command leaves the queue: so it is among the owner's
        # unanswered.
        value = bulk.value()
        self._bulk = None
        self._replied += 1
        future = self._waiting.popleft()[0]
        if future is not None and not future.done():
            future.set_result(value)

    def _read_replies(self, data: memoryview) -> None:
        reader, popleft = self._reader, self._waiting.popleft
        next_reply, has_more = reader.gets, reader.has_data
        self._feed(data)
        is_between, replied = False, 0
        while not is_between and (reply := next_reply()) is not _NOTHING:
            is_between = not has_more()
            try:
                sent = popleft()
            except IndexError:
                # A server that refuses a client says so before it reads a command.
                raise ValueError(str(reply)) from None
            replied += 1
            future = sent[0]
            if future is None:
                if isinstance(reply, ReplyError):
                    self._owner.refused_unasked(reply)
                continue
            if isinstance(reply, ReplyError):
                self._owner.refused(sent, reply)
            elif not future.done():
                future.set_result(reply)
        self._is_between_replies = is_between
        self._replied += replied

    def abort(self) -> None:
        """Drop the connection at once, with the replies that the server owes."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection after writing its queued commands."""
        self._flush()
        if self._transport is not None:
            self._transport.close()


def fail(future: asyncio.Future[Any] | None, error: BaseException) -> None:
    """Fail a future, unless it is done. Suppresses asyncio's warning about an unread error."""
    if future is not None and not future.done():
        future.set_exception(error)
        future.exception()
