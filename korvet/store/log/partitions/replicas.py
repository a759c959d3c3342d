"""Acknowledgments by Redis's replicas and by its disk. acks=all waits for replicas if min.insync.replicas is above one,
and for the disk with korvet.acks.fsync. So does the commit of a transaction.

Redis's WAIT returns the number of replicas that have the last write of its own connection, and blocks all later
commands. So each server has a connection for WAIT alone, and all appends that wait there share rounds: a tiny write
(`korvet_log_touch`) and one WAIT. The write follows the replies to the appends, so it comes after them in the
replication stream. min.insync.replicas counts the primary, as Kafka counts the leader.

**The disk.** WAITAOF (Redis 7.2, Valkey) reports if the server has flushed its append-only file, up to the last
write of its own connection. A round asks it between the touch and WAIT, if an append waits for it. With appendfsync
everysec the answer comes with the next flush, so that all appends of a second share it.

**Joining.** An append joins when its reply arrives, not when its request asks for the outcome. So pipelined requests of
a connection wait together.

**Another server.** A WAIT's reply is true for the server of its connection. An append fails with its outcome
unknown if it was sent to a server with another history. It also does if the connection is lost while it waits. It is
stored in some history, and its producer sends it again.

**A replica that lags.** A WAIT lasts a fifth of a second at most. So an append does not wait long after one that waits
in vain. But each further round is a later write, which a replica that always lags so far would never have. So an append
that did not get enough replicas keeps the primary's offset of that time, and INFO shows which replicas have reached it.

INFO also has the number of replicas, which is at most `_KNOWN_S` old here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import anyio

from korvet.errors import SlotMoving, StoreError, StoreUnavailable
from korvet.rate_limited_log import RateLimitedLog
from korvet.redis.client import Argument, Store
from korvet.redis.link import Link
from korvet.redis.reply import in_task
from korvet.redis.resp import fail, pack_command
from korvet.store.contract import GONE
from korvet.store.log.state.partition import Partition

_FRESH_S = 1.0
"""The age of knowledge, in seconds, after which a front-end queries again."""
_KNOWN_S = 5.0
_SLICE_MS = 200
SILENT_S = 10
"""A replica that was silent for so many seconds is not in sync, as by Redis's default of min-replicas-max-lag."""
_LONGEST_SLICE_MS = 6400
_NO_DISK = (
    "the server does not report what is on its disk: korvet.acks.fsync needs Redis 7.2 or Valkey, with appendonly yes"
)
_INFO = pack_command(("INFO", "server", "replication", "persistence"))
_KNOWS_DISK = pack_command(("WAITAOF", 0, 0, 1))
"""It is answered at once, or refused as one that waits would be."""
_LOOK_S = 0.05
_FLUSH_MS = 1000
"""The time from which everysec begins the next flush."""
_UNKNOWN_TARGET = -1
_AGE_S = 5.0
"""The age of writes that a server has flushed with appendfsync everysec, as long as its disk keeps up."""


class Replication(NamedTuple):
    """INFO replication: the primary's offset, and each online replica's offset and silence in seconds."""

    offset: int
    replicas: tuple[tuple[int, int], ...]

    @property
    def in_sync(self) -> int:
        """The number of replicas that follow."""
        return sum(silence_s <= SILENT_S for _, silence_s in self.replicas)

    def having(self, offset: int) -> int:
        """The number of replicas that have acknowledged an offset."""
        return sum(acknowledged >= offset for acknowledged, _ in self.replicas)


class Disk(NamedTuple):
    """INFO about the append-only file, and the server's time in ms when this turn of its loop began."""

    history: str
    is_on: bool
    is_idle: bool
    """True if no flush is in progress and none failed."""
    time_ms: int
    rewrites: int


def read_disk(info: bytes) -> Disk:
    """The answer to INFO server, replication and persistence."""
    lines = _lines(info)
    return Disk(
        f"{lines['run_id']}/{lines['master_replid']}",
        lines.get("aof_enabled") == "1",
        lines.get("aof_pending_bio_fsync") == "0" and lines.get("aof_last_write_status") == "ok",
        int(lines.get("server_time_usec", 0)) // 1000,
        int(lines.get("aof_rewrites", 0)),
    )


def _lines(info: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)


def read_replication(info: bytes) -> Replication:
    """The answer to INFO replication. A replica's own replicas do not count, because it takes no writes."""
    lines = _lines(info)
    if lines.get("role") != "master":
        return Replication(0, ())
    found = []
    for name, text in lines.items():
        if name.startswith("slave") and name[5:].isdigit():
            of = dict(pair.partition("=")[::2] for pair in text.split(","))
            if of.get("state") == "online":
                found.append((int(of["offset"]), int(of["lag"])))
    return Replication(int(lines["master_repl_offset"]), tuple(found))


class UnconfirmedAppend:
    """An append that a front-end acknowledges only when enough servers have it, and perhaps the server's disk."""

    __slots__ = (
        "awaits_disk", "awaits_flush", "copies", "future", "history", "idle", "is_due", "joined_at", "key", "target",
        "touch",
    )  # fmt: skip

    def __init__(self, key: str, touch: Sequence[Argument], copies: int, history: str, *, awaits_disk: bool) -> None:
        self.key = key
        self.touch = touch
        """A command that writes at the key's server without a change."""
        self.copies = copies
        """Set to 1 as soon as enough servers have it."""
        self.awaits_disk = awaits_disk
        """True if it waits for WAITAOF."""
        self.awaits_flush = awaits_disk
        """True if it waits for the proof of a flush."""
        self.idle: Disk | None = None
        """A state without a flush, after the append."""
        self.is_due = False
        """True if a flush has begun since."""
        self.history = history
        """The history of the server to which the append was sent first."""
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.joined_at: float | None = None
        """The time of the append's reply, by the loop's clock."""
        self.target = _UNKNOWN_TARGET
        """An offset of the primary at which the append is wholly there; known if it waits for long."""

    def see(self, disk: Disk) -> None:
        """Learn from INFO whether a flush has begun and ended; see the module."""
        if self.idle is None or self.idle.rewrites != disk.rewrites:
            self.idle, self.is_due = disk if disk.is_idle else None, False
        elif self.is_due:
            self.awaits_flush = not disk.is_idle
        else:
            self.is_due = disk.time_ms >= self.idle.time_ms + _FLUSH_MS

    def settle(self) -> bool:
        """Resolve the append if it is complete; true if no request waits for it any more."""
        if not self.future.done() and self.copies <= 1 and not self.awaits_disk and not self.awaits_flush:
            self.future.set_result(None)
        return self.future.done()


class Replicas:
    """The replicas of one store's servers, and the appends that wait for them. It needs no task of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._now = asyncio.get_running_loop().time
        self._servers: dict[Link, _Server] = {}
        self._lines = RateLimitedLog()
        store.on_history_change(self._forget)

    # ------------------------------------------------------------------ before the append

    def lacking(self, key: str, copies: int, *, on_disk: bool) -> str | None:
        """The reason why ``copies`` servers, or the disk, of a key cannot confirm a batch; empty if they can.

        The log says so once a minute. None if it is unknown, see `ask`.
        """
        server = self._server(key)
        if server is None:
            return None
        age_s = self._now() - server.known_at
        if age_s > _FRESH_S:
            self._inform(server, key, on_disk=on_disk)
        if age_s > _KNOWN_S or (on_disk and server.no_disk is None):
            return None
        if server.in_sync + 1 < copies:
            event = "too few replicas are in sync; producers with acks=all must wait"
            why = f"{server.in_sync + 1} servers are in sync, fewer than min.insync.replicas={copies}"
        elif on_disk and server.no_disk:
            event, why = "the disk cannot be waited for; producers with acks=all must wait", server.no_disk
        else:
            return ""
        self._lines.write("warning", event, key=key, reason=why)
        return why

    async def ask(self, key: str, *, on_disk: bool) -> None:
        """Query a key's server for its replicas, and for its ability to report on its disk.

        :raises StoreUnavailable, StoreError: the query failed.
        """
        server = self._server(key)
        probe = None if server is None else self._inform(server, key, on_disk=on_disk)
        if probe is not None:
            await asyncio.shield(probe)

    async def require_disk(self, keys: Iterable[str]) -> None:
        """Check that the keys' servers can report on their disks, as far as known.

        :raises StoreUnavailable: one cannot.
        """
        for key in keys:
            if self.lacking(key, 1, on_disk=True) is None:
                await self.ask(key, on_disk=True)
            if why := self.lacking(key, 1, on_disk=True):
                raise StoreUnavailable(why)

    def _inform(self, server: _Server, key: str, *, on_disk: bool) -> asyncio.Future[bytes] | None:
        # On the connection for WAIT the query would wait for a WAIT.
        link = self._store.coordination(key)
        return None if link is None else server.inform(link, on_disk=on_disk)

    # ------------------------------------------------------------------ after the append

    def hold(
        self, partition: Partition, reply: asyncio.Future[Any], copies: int, *, on_disk: bool = False
    ) -> UnconfirmedAppend:
        """Let a sent append wait, from its reply on, for ``copies`` servers, and for the disk if required."""
        key = partition.keys.meta
        touch = ("FCALL", "korvet_log_touch", 1, key, partition.topic_id)
        append = UnconfirmedAppend(key, touch, copies, self._store.history(key), awaits_disk=on_disk)
        reply.add_done_callback(partial(self._answered, append))
        return append

    async def flushed(self, probe_keys: Iterable[str], timeout_s: float) -> bool:
        """Wait until the disks of the keys' servers have all writes answered so far; false at the timeout.

        :param probe_keys: keys that `korvet_probe` may write.
        :raises StoreUnavailable: with its outcome unknown, if a server was lost or is another one by now.
        :raises StoreError: if a server does not report it.
        """
        waiting = []
        for key in probe_keys:
            # A full server takes it, as it takes the end of a transaction.
            append = UnconfirmedAppend(
                key, ("FCALL", "korvet_probe", 1, key), 1, self._store.history(key), awaits_disk=True
            )
            waiting.append(append)
            self._join(append)
        return all([await self.confirmed(append, timeout_s) for append in waiting])

    async def persisted(self, partition: Partition, timeout_s: float) -> bool:
        """Wait until all writes of a partition that were answered so far are on its server's disk, if that has an
        append-only file, and on all replicas in sync; false at the timeout.

        A server that cannot tell of its disk gets some seconds instead, which prove nothing.

        :raises StoreUnavailable: with its outcome unknown, if the server was lost or is another one by now.
        :raises StoreError:
        """
        key = partition.keys.meta
        server = self._server(key)
        if server is None or self._now() - server.known_at > _KNOWN_S or server.no_disk is None:
            await self.ask(key, on_disk=True)
            server = self._server(key)
        if server is None:
            return False
        if server.no_disk:
            await anyio.sleep(_AGE_S)
        touch = ("FCALL", "korvet_log_touch", 1, key, partition.topic_id)
        write = UnconfirmedAppend(
            key, touch, server.in_sync + 1, self._store.history(key), awaits_disk=server.no_disk == ""
        )
        self._join(write)
        return await self.confirmed(write, timeout_s)

    def _answered(self, append: UnconfirmedAppend, reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is None and reply.result().startswith(b"0 "):
            self._join(append)

    def _join(self, append: UnconfirmedAppend) -> None:
        append.joined_at = self._now()
        server = self._server(append.key)
        if server is None:
            _lose(append, "no cluster node is known for the partition")
        else:
            server.join(append)

    async def confirmed(self, append: UnconfirmedAppend, timeout_s: float) -> bool:
        """Wait until enough servers have an append that was answered with code 0; false at the timeout.

        :param timeout_s: from its reply on.
        :raises StoreUnavailable: with its outcome unknown, if the server was lost or is another one by now.
        :raises StoreError: if the server takes no WAIT.
        """
        if append.joined_at is None:
            # The append was sent once more. If it went to another server than at first, or if another server answers
            # since, it is unknown which server has it.
            self._join(append)
        assert append.joined_at is not None
        if not append.future.done():
            await in_task()
            with anyio.move_on_after(max(0.0, append.joined_at + timeout_s - self._now())):
                await append.future
            if append.future.cancelled():
                return False
        append.future.result()
        return True

    # ------------------------------------------------------------------ servers

    def _server(self, key: str) -> _Server | None:
        link = self._store.confirmation(key)
        if link is None:
            return None
        server = self._servers.get(link)
        if server is None:
            # Servers that left a cluster are forgotten.
            self._servers = {link: known for link, known in self._servers.items() if link.is_up or known.is_awaited}
            server = self._servers[link] = _Server(self._store, link)
        return server

    def _forget(self) -> None:
        """Forget what is known of all servers, because another server answers and has other replicas."""
        for server in self._servers.values():
            server.known_at = float("-inf")


class _Server:
    """The rounds of one server: touch, WAIT, and INFO if that was not enough. Each is sent when the one before is
    answered: a pipelined WAIT would be answered even if the touch before it was refused."""

    def __init__(self, store: Store, link: Link) -> None:
        self.in_sync = 0
        self.no_disk: str | None = None
        """The reason why the server cannot report on its disk; empty if it can, None if unknown."""
        self.known_at = float("-inf")
        self._store = store
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._informed: asyncio.Future[bytes] | None = None
        self._informs_of_disk = False
        self._is_scheduled = False
        self._waiting: list[UnconfirmedAppend] = []
        """The appends for the next round."""
        self._round: list[UnconfirmedAppend] = []
        """The appends of the round in progress; empty if there is none."""
        self._disk_slice_ms = _SLICE_MS
        """It doubles while flushes last longer: the touch of each round is a later write, for a later flush."""
        self._unproved: set[UnconfirmedAppend] = set()
        """The appends that wait for the proof of a flush, and whose touch was answered."""
        self._next_look: asyncio.TimerHandle | None = None
        link.on_up = self._schedule

    @property
    def is_awaited(self) -> bool:
        """True if an append waits here."""
        return bool(self._waiting or self._round or self._unproved)

    def inform(self, link: Link, *, on_disk: bool) -> asyncio.Future[bytes]:
        """Query the replicas, or join a query in flight. The reply is stored when it arrives."""
        if self._informed is None or self._informed.done() or (on_disk and not self._informs_of_disk):
            self._informs_of_disk = on_disk
            self._informed = self._loop.create_future()
            self._informed.add_done_callback(self._note_info)
            if on_disk:
                knows: asyncio.Future[Any] = self._loop.create_future()
                knows.add_done_callback(self._note_refusal)
                link.send(knows, _KNOWS_DISK)
            link.send(self._informed, _INFO)
        return self._informed

    def _note_refusal(self, knows: asyncio.Future[Any]) -> None:
        error = None if knows.cancelled() else knows.exception()
        self.no_disk = f"{_NO_DISK} ({error})" if isinstance(error, StoreError) else ""

    def _note_info(self, informed: asyncio.Future[bytes]) -> None:
        if not informed.cancelled() and informed.exception() is None:
            self._note(read_replication(informed.result()))
            if self.no_disk == "" and not read_disk(informed.result()).is_on:
                self.no_disk = f"{_NO_DISK} (appendonly is no)"

    def _note(self, replication: Replication) -> None:
        self.in_sync = replication.in_sync
        self.known_at = self._loop.time()

    def join(self, append: UnconfirmedAppend) -> None:
        """Join the next round. Appends that are answered in one turn of the loop share it."""
        self._waiting.append(append)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._round and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        history = self._link.history
        waiting = [append for append in self._waiting if not append.future.done()]
        self._waiting = []
        if not history:
            # The connection comes up for the first time, so nothing was lost yet.
            self._waiting = waiting
            return
        for append in waiting:
            if append.history == history and self._link.is_up:
                self._round.append(append)
            else:
                _lose(append, "another server answers, or none")
        if self._round:
            self._send(self._touched, *self._round[0].touch)

    def _send(self, callback: Callable[[asyncio.Future[Any]], None], *command: Argument) -> None:
        reply: asyncio.Future[Any] = self._loop.create_future()
        reply.add_done_callback(callback)
        self._link.send(reply, pack_command(command))

    def _touched(self, reply: asyncio.Future[Any]) -> None:
        error = reply.exception()
        if isinstance(error, SlotMoving) or (error is None and reply.result() == GONE):
            # This partition has left the server, or is deleted; the others may not be.
            _lose(self._round.pop(0), str(error or "the topic is gone"))
            self._begin_again()
        elif error is not None:
            self._fail(error)
        elif any(append.awaits_disk for append in self._round):
            self._unproved.update(append for append in self._round if append.awaits_flush)
            self._look_soon()
            self._send(self._flushed, "WAITAOF", 1, 0, self._disk_slice_ms)
        else:
            self._wait_for_replicas()

    def _flushed(self, reply: asyncio.Future[Any]) -> None:
        error = reply.exception()
        if error is not None:
            is_final = isinstance(error, StoreError)
            self._fail(StoreError(f"{_NO_DISK} ({error})") if is_final else error)
            return
        if reply.result()[0] > 0:
            self._disk_slice_ms = _SLICE_MS
            for append in self._round:
                append.awaits_disk = False
            self._send(self._configured, "CONFIG", "GET", "appendfsync")
        else:
            self._disk_slice_ms = min(2 * self._disk_slice_ms, _LONGEST_SLICE_MS)
            self._wait_for_replicas()

    def _configured(self, reply: asyncio.Future[Any]) -> None:
        # Without the right to query, a user waits for the proof of a flush.
        if isinstance(error := reply.exception(), StoreUnavailable):
            self._fail(error)
            return
        if error is None and b"always" in (
            reply.result().values() if isinstance(reply.result(), dict) else reply.result()
        ):
            for append in self._round:
                append.awaits_flush = False
        self._wait_for_replicas()

    def _look_soon(self) -> None:
        if self._next_look is None:
            self._next_look = self._loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._next_look = None
        self._unproved = {append for append in self._unproved if append.awaits_flush and not append.future.done()}
        if not self._unproved:
            return
        link = self._store.coordination(next(iter(self._unproved)).key)
        if link is None:
            self._look_soon()
            return
        reply: asyncio.Future[bytes] = self._loop.create_future()
        reply.add_done_callback(partial(self._looked, list(self._unproved)))
        link.send(reply, _INFO)

    def _looked(self, unproved: Sequence[UnconfirmedAppend], reply: asyncio.Future[bytes]) -> None:
        if not reply.cancelled() and reply.exception() is None:
            disk = read_disk(reply.result())
            for append in unproved:
                if disk.history == append.history:
                    append.see(disk)
                    append.settle()
                else:
                    _lose(append, "another server answers")
        self._look_soon()

    def _wait_for_replicas(self) -> None:
        self._settle(lambda _: 0)
        if any(append.copies > 1 for append in self._round):
            copies = min(append.copies for append in self._round)
            self._send(self._waited, "WAIT", copies - 1, _SLICE_MS)
        else:
            self._begin_again()

    def _waited(self, reply: asyncio.Future[Any]) -> None:
        error = reply.exception()
        if error is not None:
            self._fail(error)
            return
        self._settle(lambda _: reply.result())
        if self._round:
            self._send(self._counted, "INFO", "replication")
        else:
            self._begin_again()

    def _counted(self, reply: asyncio.Future[Any]) -> None:
        error = reply.exception()
        if error is not None:
            self._fail(error)
            return
        replication = read_replication(reply.result())
        self._note(replication)
        for append in self._round:
            if append.target == _UNKNOWN_TARGET:
                append.target = replication.offset
        self._settle(lambda append: replication.having(append.target))
        self._begin_again()

    def _settle(self, acknowledged: Callable[[UnconfirmedAppend], int]) -> None:
        """Release the appends that enough servers have, and those without a waiting request.

        An append that waits only for the proof of a flush needs no further round.
        """
        for append in self._round:
            if append.copies <= acknowledged(append) + 1:
                append.copies = 1
        self._round = [
            append for append in self._round if not append.settle() and (append.copies > 1 or append.awaits_disk)
        ]

    def _begin_again(self) -> None:
        self._waiting = [*self._round, *self._waiting]
        self._round = []
        self._schedule()

    def _fail(self, error: BaseException) -> None:
        """Fail all waiting appends, because the connection was lost or the server refused."""
        lost = {*self._round, *self._waiting, *self._unproved}
        self._round, self._waiting, self._unproved = [], [], set()
        for append in lost:
            if isinstance(error, StoreUnavailable):
                _lose(append, str(error))
            else:
                fail(append.future, error)


def _lose(append: UnconfirmedAppend, why: str) -> None:
    """Fail an append that an unknown number of servers stored."""
    fail(append.future, StoreUnavailable(why, outcome_unknown=True))
