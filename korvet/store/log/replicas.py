"""Acknowledgments by Redis's replicas and by its disk. acks=all waits for replicas if min.insync.replicas is above one,
and for the disk with korvet.acks.fsync. So does the commit of a transaction.

Redis's WAIT tells how many replicas have the last write of its own connection, and holds up all commands behind it. So
each server has a connection for WAIT alone, and all appends that wait there share rounds: a tiny write
(`korvet_log_touch`) and one WAIT. The write comes after the appends were answered, hence behind them in the stream that
replicas get. min.insync.replicas counts the primary, as Kafka counts the leader.

**The disk.** WAITAOF (Redis 7.2, Valkey) tells whether the server has flushed its append-only file, up to the last
write of its own connection. A round asks it between the touch and WAIT, if an append waits for it. With appendfsync
everysec the answer comes with the next flush, so that all appends of a second share it.

**Joining.** An append joins when its reply arrives, not when its request asks for the outcome. So pipelined requests of
a connection wait together.

**Another server.** A WAIT's answer is true of the server behind its connection. An append fails with its outcome
unknown if it was sent to a server with another history. It also does if the connection is lost while it waits. It is
stored in some history, and its producer sends it again.

**A replica that lags.** A WAIT lasts a fifth of a second at most. So an append does not wait long behind one that waits
in vain. But each further round is a later write, which a replica that always lags so far would never have. So an append
that did not get enough replicas keeps the primary's offset of that time, and INFO tells which replicas have reached it.

INFO also tells how many replicas there are; that knowledge is at most `_KNOWN_S` old.
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
from korvet.redis.resp import fail, pack_command
from korvet.store.contract import GONE
from korvet.store.log.partition import Partition

_FRESH_S = 1.0
"""The age of knowledge from which a front-end asks again."""
_KNOWN_S = 5.0
_SLICE_MS = 200
SILENT_S = 10
"""A replica that was silent for so long is not in sync; Redis's min-replicas-max-lag has the same default."""
_LONGEST_SLICE_MS = 6400
_NO_DISK = (
    "the server cannot tell what is on its disk: korvet.acks.fsync needs Redis 7.2 or Valkey, with appendonly yes"
)
_INFO = pack_command(("INFO", "replication"))
_UNKNOWN_TARGET = -1


class Replication(NamedTuple):
    """INFO replication: the primary's offset, and for each replica that is online its offset and its silence in s."""

    offset: int
    replicas: tuple[tuple[int, int], ...]

    @property
    def in_sync(self) -> int:
        """The number of replicas that follow."""
        return sum(silence_s <= SILENT_S for _, silence_s in self.replicas)

    def having(self, offset: int) -> int:
        """The number of replicas that have acknowledged an offset."""
        return sum(acknowledged >= offset for acknowledged, _ in self.replicas)


def read_replication(info: bytes) -> Replication:
    """The answer to INFO replication. A replica's own replicas do not count, because it takes no writes."""
    lines = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    if lines.get("role") != "master":
        return Replication(0, ())
    found = []
    for name, text in lines.items():
        if name.startswith("slave") and name[5:].isdigit():
            of = dict(pair.partition("=")[::2] for pair in text.split(","))
            if of.get("state") == "online":
                found.append((int(of["offset"]), int(of["lag"])))
    return Replication(int(lines["master_repl_offset"]), tuple(found))


class Held:
    """An append that a front-end acknowledges only when enough servers have it, and perhaps the server's disk."""

    __slots__ = ("awaits_disk", "copies", "future", "history", "joined_at", "key", "target", "touch")

    def __init__(self, key: str, touch: Sequence[Argument], copies: int, history: str, *, awaits_disk: bool) -> None:
        self.key = key
        self.touch = touch
        """A command that writes at the key's server without a change."""
        self.copies = copies
        self.awaits_disk = awaits_disk
        self.history = history
        """The history of the server to which the append was sent first."""
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.joined_at: float | None = None
        """The time of the append's reply, by the loop's clock."""
        self.target = _UNKNOWN_TARGET
        """An offset of the primary at which the append is wholly there; known if it waits for long."""

    def has_enough(self) -> None:
        """Tell the request that waits, if it still does."""
        if not self.future.done():
            self.future.set_result(None)


class Replicas:
    """The replicas of one store's servers, and the appends that wait for them. It needs no task of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._now = asyncio.get_running_loop().time
        self._servers: dict[Link, _Server] = {}
        self._lines = RateLimitedLog()
        store.on_history_change(self._forget)

    # ------------------------------------------------------------------ before the append

    def known(self, partition: Partition) -> int | None:
        """The number of replicas in sync at a partition's server; None if it is unknown, see `ask`."""
        server = self._server(partition.keys.meta)
        if server is None:
            return None
        age_s = self._now() - server.known_at
        if age_s > _FRESH_S:
            self._inform(server, partition)
        return server.in_sync if age_s <= _KNOWN_S else None

    def are_too_few(self, partition: Partition, copies: int) -> bool | None:
        """Whether fewer than ``copies`` servers are in sync, which the log tells once a minute; None: see `known`."""
        in_sync = self.known(partition)
        if in_sync is None:
            return None
        is_lacking = in_sync + 1 < copies
        if is_lacking:
            self._lines.write(
                "warning",
                "too few replicas are in sync; producers with acks=all must wait",
                topic=partition.topic.name,
                in_sync=in_sync + 1,
                wanted=copies,
            )
        return is_lacking

    async def ask(self, partition: Partition) -> None:
        """Ask a partition's server for its replicas.

        :raises StoreUnavailable, StoreError: if it cannot be asked.
        """
        server = self._server(partition.keys.meta)
        asked = None if server is None else self._inform(server, partition)
        if asked is not None:
            await asyncio.shield(asked)

    def _inform(self, server: _Server, partition: Partition) -> asyncio.Future[bytes] | None:
        # On the connection for WAIT the question would wait behind a WAIT.
        link = self._store.coordination(partition.keys.meta)
        return None if link is None else server.inform(link)

    # ------------------------------------------------------------------ after the append

    def hold(self, partition: Partition, reply: asyncio.Future[Any], copies: int, *, on_disk: bool = False) -> Held:
        """Have an append that was just sent wait for ``copies`` servers, and the disk if asked, from its reply on."""
        key = partition.keys.meta
        touch = ("FCALL", "korvet_log_touch", 1, key, partition.topic_id)
        held = Held(key, touch, copies, self._store.history(key), awaits_disk=on_disk)
        reply.add_done_callback(partial(self._answered, held))
        return held

    async def flushed(self, touched_keys: Iterable[str], timeout_s: float) -> bool:
        """Wait until the disks of the keys' servers have all that these servers have answered; false after the time.

        :param touched_keys: of any type, which nothing else uses: they are written.
        :raises StoreUnavailable: with its outcome unknown, if a server was lost or is another one by now.
        :raises StoreError: if a server cannot tell.
        """
        waiting: dict[Link | None, Held] = {}
        for key in touched_keys:
            link = self._store.confirmation(key)
            if link not in waiting:
                # A full server takes it, as it takes the end of a transaction.
                touch = ("FCALL", "korvet_probe", 1, key)
                waiting[link] = Held(key, touch, 1, self._store.history(key), awaits_disk=True)
                self._join(waiting[link])
        return all([await self.confirmed(held, timeout_s) for held in waiting.values()])

    def _answered(self, held: Held, reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is None and reply.result().startswith(b"0 "):
            self._join(held)

    def _join(self, held: Held) -> None:
        held.joined_at = self._now()
        server = self._server(held.key)
        if server is None:
            _lose(held, "no cluster node is known for the partition")
        else:
            server.join(held)

    async def confirmed(self, held: Held, timeout_s: float) -> bool:
        """Wait until enough servers have an append that was answered with code 0; false if the time is up before.

        :param timeout_s: from its reply on.
        :raises StoreUnavailable: with its outcome unknown, if the server was lost or is another one by now.
        :raises StoreError: if the server takes no WAIT.
        """
        if held.joined_at is None:
            # The append was sent once more. If it went to another server than at first, or if another server answers
            # since, it is unknown which server has it.
            self._join(held)
        assert held.joined_at is not None
        if not held.future.done():
            with anyio.move_on_after(max(0.0, held.joined_at + timeout_s - self._now())):
                await held.future
            if held.future.cancelled():
                return False
        held.future.result()
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
            server = self._servers[link] = _Server(link)
        return server

    def _forget(self) -> None:
        """Forget the knowledge of all servers, because another server answers and has other replicas."""
        for server in self._servers.values():
            server.known_at = float("-inf")


class _Server:
    """The rounds of one server: touch, WAIT, and INFO if that was not enough. Each is sent when the one before is
    answered: a pipelined WAIT would be answered even if the touch before it was refused."""

    def __init__(self, link: Link) -> None:
        self.in_sync = 0
        self.known_at = float("-inf")
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._informed: asyncio.Future[bytes] | None = None
        self._is_scheduled = False
        self._waiting: list[Held] = []
        """The appends for the next round."""
        self._round: list[Held] = []
        """The appends of the round that is under way; empty if there is none."""
        self._disk_slice_ms = _SLICE_MS
        """It doubles while flushes last longer: the touch of each round is a later write, for a later flush."""
        link.on_up = self._schedule

    @property
    def is_awaited(self) -> bool:
        """Whether an append waits here."""
        return bool(self._waiting or self._round)

    def inform(self, link: Link) -> asyncio.Future[bytes]:
        """Ask for the replicas, or join a question that is under way. The answer is noted when it comes."""
        if self._informed is None or self._informed.done():
            self._informed = self._loop.create_future()
            self._informed.add_done_callback(self._note_info)
            link.send(self._informed, _INFO)
        return self._informed

    def _note_info(self, informed: asyncio.Future[bytes]) -> None:
        if not informed.cancelled() and informed.exception() is None:
            self._note(read_replication(informed.result()))

    def _note(self, replication: Replication) -> None:
        self.in_sync = replication.in_sync
        self.known_at = self._loop.time()

    def join(self, held: Held) -> None:
        """Take part in the next round. Appends that are answered in one turn of the loop share it."""
        self._waiting.append(held)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._round and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        history = self._link.history
        waiting = [held for held in self._waiting if not held.future.done()]
        self._waiting = []
        if not history:
            # The connection comes up for the first time, so nothing was lost yet.
            self._waiting = waiting
            return
        for held in waiting:
            if held.history == history and self._link.is_up:
                self._round.append(held)
            else:
                _lose(held, "another server answers, or none")
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
        elif any(held.awaits_disk for held in self._round):
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
            for held in self._round:
                held.awaits_disk = False
        else:
            self._disk_slice_ms = min(2 * self._disk_slice_ms, _LONGEST_SLICE_MS)
        self._wait_for_replicas()

    def _wait_for_replicas(self) -> None:
        self._settle(lambda _: 0)
        if any(held.copies > 1 for held in self._round):
            copies = min(held.copies for held in self._round)
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
        for held in self._round:
            if held.target == _UNKNOWN_TARGET:
                held.target = replication.offset
        self._settle(lambda held: replication.having(held.target))
        self._begin_again()

    def _settle(self, acknowledged: Callable[[Held], int]) -> None:
        """Release the appends that enough servers have, and the appends for which no request waits any more."""
        for held in self._round:
            if held.copies <= acknowledged(held) + 1 and not held.awaits_disk:
                held.has_enough()
        self._round = [held for held in self._round if not held.future.done()]

    def _begin_again(self) -> None:
        self._waiting = [*self._round, *self._waiting]
        self._round = []
        self._schedule()

    def _fail(self, error: BaseException) -> None:
        """Fail all waiting appends, because the connection was lost or the server refused."""
        lost = [*self._round, *self._waiting]
        self._round, self._waiting = [], []
        for held in lost:
            if isinstance(error, StoreUnavailable):
                _lose(held, str(error))
            else:
                fail(held.future, error)


def _lose(held: Held, why: str) -> None:
    """Fail an append that an unknown number of servers stored."""
    fail(held.future, StoreUnavailable(why, outcome_unknown=True))
