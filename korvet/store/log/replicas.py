"""Acknowledgments by Redis's replicas: what acks=all waits for where min.insync.replicas is above one.

Redis's WAIT tells how many replicas have the last write of its own connection, and holds up what is sent behind it. So
each node has a connection for it alone, and all who wait there share rounds: a tiny write (`korvet_log_touch`) when the
appends have been answered, hence behind them in the stream that replicas get, and one WAIT. min.insync.replicas counts
the primary, as Kafka counts the leader.

**Who takes part.** An append joins when its reply arrives, not when somebody asks for the outcome, so that requests
that are pipelined on a connection wait together.

**Another server.** What a WAIT says is true of the server behind its connection. An append that was sent to a server
with another run id, or that waits while the connection is lost, fails with its outcome unknown: it is stored in some
history, and its producer sends it again.

**A replica that lags.** A WAIT lasts a fifth of a second at most, so that nobody waits long behind one who waits in
vain. Each further round is a later write, though, which a replica that is always so far behind would never have. So
who did not get enough by then keeps the primary's offset of that time, and INFO tells who has come so far.

How many replicas there are is known from INFO, not older than `_KNOWN_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import anyio
import structlog

from korvet.errors import SlotMoving, StoreUnavailable
from korvet.store.client import Store
from korvet.store.contract import GONE
from korvet.store.link import Link, fail
from korvet.store.log.partition import Partition
from korvet.store.resp import pack_command

logger = structlog.get_logger()

_FRESH_S = 1.0
"""What is older is asked for again."""
_KNOWN_S = 5.0
_SLICE_MS = 200
SILENT_S = 10
"""A replica that acknowledged nothing for so long is not in sync; Redis's min-replicas-max-lag has the same default."""
_INFO = pack_command(("INFO", "replication"))
_UNKNOWN_TARGET = -1
_TOLD_EVERY_S = 60.0
"""Between two lines of the log about producers that are refused."""


class Replication(NamedTuple):
    """INFO replication: the primary's offset, and for each replica that is online its offset and its silence in s."""

    offset: int
    replicas: tuple[tuple[int, int], ...]

    @property
    def in_sync(self) -> int:
        """Replicas that follow."""
        return sum(silence_s <= SILENT_S for _, silence_s in self.replicas)

    def having(self, offset: int) -> int:
        """Replicas that have acknowledged an offset."""
        return sum(acknowledged >= offset for acknowledged, _ in self.replicas)


def read_replication(info: bytes) -> Replication:
    """The answer to INFO replication. A replica's own replicas are nobody's: it takes no writes."""
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
    """An append that is not to be acknowledged before enough servers have it."""

    __slots__ = ("copies", "future", "joined_at", "partition", "run_id", "target")

    def __init__(self, partition: Partition, copies: int, run_id: str) -> None:
        self.partition = partition
        self.copies = copies
        self.run_id = run_id
        """Of the server that it was sent to at first."""
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.joined_at: float | None = None
        """When it was known to be appended, by the loop's clock."""
        self.target = _UNKNOWN_TARGET
        """An offset of the primary's at which it is wholly there, of one that waits for long."""

    def has_enough(self) -> None:
        """Tell who waits; who waits no more is not told."""
        if not self.future.done():
            self.future.set_result(None)


class Replicas:
    """What one store's servers have for replicas, and who waits for these. It needs no task of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._now = asyncio.get_running_loop().time
        self._servers: dict[Link, _Server] = {}
        self._told_at = float("-inf")
        store.on_history_change(self._forget)

    # ------------------------------------------------------------------ before the append

    def known(self, partition: Partition) -> int | None:
        """Replicas in sync of the server that holds a partition; None where that is not known, see `ask`."""
        server = self._server(partition)
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
        if is_lacking and self._now() - self._told_at > _TOLD_EVERY_S:
            self._told_at = self._now()
            logger.warning(
                "too few replicas are in sync; producers with acks=all must wait",
                topic=partition.topic.name,
                in_sync=in_sync + 1,
                wanted=copies,
            )
        return is_lacking

    async def ask(self, partition: Partition) -> None:
        """Find out what is to be known of a partition's server.

        :raises StoreUnavailable, StoreError: when it cannot be asked.
        """
        server = self._server(partition)
        asked = None if server is None else self._inform(server, partition)
        if asked is not None:
            await asyncio.shield(asked)

    def _inform(self, server: _Server, partition: Partition) -> asyncio.Future[bytes] | None:
        # Not on the connection for WAIT, behind which it would wait.
        link = self._store.coordination(partition.keys.meta)
        return None if link is None else server.inform(link)

    # ------------------------------------------------------------------ after the append

    def hold(self, partition: Partition, reply: asyncio.Future[Any], copies: int) -> Held:
        """Have an append that was just sent wait for ``copies`` servers, from its reply on."""
        held = Held(partition, copies, self._store.run_id(partition.keys.log))
        reply.add_done_callback(partial(self._answered, held))
        return held

    def _answered(self, held: Held, reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is None and reply.result().startswith(b"0 "):
            self._join(held)

    def _join(self, held: Held) -> None:
        held.joined_at = self._now()
        server = self._server(held.partition)
        if server is None:
            _lose(held, "no cluster node is known for the partition")
        else:
            server.join(held)

    async def confirmed(self, held: Held, timeout_s: float) -> bool:
        """Wait until enough servers have an append that was answered with code 0; false where time is up before.

        :param timeout_s: from its reply on.
        :raises StoreUnavailable: with its outcome unknown, where the server was lost or is another one by now.
        :raises StoreError: where the server takes no WAIT.
        """
        if held.joined_at is None:
            # It was sent once more. Where that was to another server than at first, or another answers since, nobody
            # knows which of them has it.
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

    def _server(self, partition: Partition) -> _Server | None:
        link = self._store.confirmation(partition.keys.meta)
        if link is None:
            return None
        server = self._servers.get(link)
        if server is None:
            # Nodes that left a cluster leave nothing behind.
            self._servers = {link: known for link, known in self._servers.items() if link.is_up or known.is_awaited}
            server = self._servers[link] = _Server(link)
        return server

    def _forget(self) -> None:
        """Another server answers, which has other replicas."""
        for server in self._servers.values():
            server.known_at = float("-inf")


class _Server:
    """The rounds of one server: touch, WAIT, and INFO where that was not enough, each sent when the one before is
    answered. Pipelined, a WAIT might be answered though the touch before it was refused."""

    def __init__(self, link: Link) -> None:
        self.in_sync = 0
        self.known_at = float("-inf")
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._informed: asyncio.Future[bytes] | None = None
        self._is_scheduled = False
        self._waiting: list[Held] = []
        """For the next round."""
        self._round: list[Held] = []
        """Who takes part in the one that is under way; not empty as long as it is."""
        link.on_up = self._schedule

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits here."""
        return bool(self._waiting or self._round)

    def inform(self, link: Link) -> asyncio.Future[bytes]:
        """Ask for the replicas, or join who asks already; the answer is taken over by itself."""
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
        """Take part in the next round. What is answered in one turn of the loop goes together."""
        self._waiting.append(held)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._round and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        run_id = self._link.run_id
        waiting = [held for held in self._waiting if not held.future.done()]
        self._waiting = []
        if not run_id:
            # On its first way up, so that nothing was lost yet.
            self._waiting = waiting
            return
        for held in waiting:
            if held.run_id == run_id and self._link.is_up:
                self._round.append(held)
            else:
                _lose(held, "another server answers, or none")
        if self._round:
            partition = self._round[0].partition
            self._send(self._touched, "FCALL", "korvet_log_touch", 1, partition.keys.meta, partition.topic_id)

    def _send(self, callback: Callable[[asyncio.Future[Any]], None], *command: str | int) -> None:
        reply: asyncio.Future[Any] = self._loop.create_future()
        reply.add_done_callback(callback)
        self._link.send(reply, pack_command(command))

    def _touched(self, reply: asyncio.Future[Any]) -> None:
        error = reply.exception()
        if isinstance(error, SlotMoving) or (error is None and reply.result() == GONE):
            # The partition has left the server, or is no more; others have not.
            _lose(self._round.pop(0), str(error or "the topic is gone"))
            self._begin_again()
        elif error is not None:
            self._fail(error)
        else:
            copies = min(held.copies for held in self._round)
            self._send(self._waited, "WAIT", copies - 1, _SLICE_MS)

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
        """Let those go who have enough, and those who wait no more."""
        for held in self._round:
            if held.copies <= acknowledged(held) + 1:
                held.has_enough()
        self._round = [held for held in self._round if not held.future.done()]

    def _begin_again(self) -> None:
        self._waiting = [*self._round, *self._waiting]
        self._round = []
        self._schedule()

    def _fail(self, error: BaseException) -> None:
        """The connection was lost, or refused: true of all who wait, since it was not there all the time."""
        lost = [*self._round, *self._waiting]
        self._round, self._waiting = [], []
        for held in lost:
            if isinstance(error, StoreUnavailable):
                _lose(held, str(error))
            else:
                fail(held.future, error)


def _lose(held: Held, why: str) -> None:
    """Say that an append was stored, and that nobody knows by how many servers."""
    fail(held.future, StoreUnavailable(why, outcome_unknown=True))
