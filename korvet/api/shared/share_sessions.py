"""Share sessions: the partitions that a member of a share group fetches, and the epochs of its requests.

A session ends with the connection that opened it. Another connection of its member may go on with it, as in Kafka:
franz-go acknowledges by another one than it fetches by. Unlike in Kafka a member may have several sessions, each opened
by a connection of its own: to a client, several nodes of one address are several brokers. A front-end keeps no other
state of a member: what that has acquired lies beside the log, with the `Opener.nonce` of the connection. Here is no
I/O.

Source: SharePartitionManager.newContext and acknowledgeSessionUpdate, ShareSession, ShareSessionCache,
ShareSessionContext, CachedSharePartition, ShareRequestMetadata, PartitionRotateStrategy
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID, uuid4

from korvet.codes import (
    INVALID_REQUEST,
    INVALID_SHARE_SESSION_EPOCH,
    SHARE_SESSION_LIMIT_REACHED,
    SHARE_SESSION_NOT_FOUND,
)
from korvet.store.shares.types import ANY_CONNECTION

FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MOST_PARTITIONS: Final = 30_000
"""The most partitions of a session."""
MOST_OF_ALL_SESSIONS: Final = 500_000
"""The most partitions of all sessions of a process: each takes some hundred bytes."""
_LAST_EPOCH: Final = 2**31 - 1

TopicPartition = tuple[UUID, int]
"""A topic's id and the index of a partition."""
Name = tuple[str, str]
"""A group and a member of it."""


class Opener:
    """A connection, as it opens sessions.

    :param nonce: that of a connection at another front-end.
    """

    def __init__(self, nonce: str = "") -> None:
        self._nonce = nonce
        self.sessions: dict[Name, ShareSession] = {}
        """Its sessions; there is mostly one."""

    @property
    def nonce(self) -> str:
        """Distinguishes what members acquire by this connection from what they acquire by others."""
        if not self._nonce:
            self._nonce = uuid4().hex
        return self._nonce

    def renew(self) -> None:
        """Be another connection for later sessions: nobody knows what members acquired by this one."""
        self._nonce = ""


class ShareSession:
    """One session. ``epoch`` is that of its next request."""

    __slots__ = ("_partitions", "counted", "due", "epoch", "holds", "name", "nonce", "opener")

    def __init__(self, name: Name, opener: Opener, partitions: Iterable[TopicPartition]) -> None:
        self.name = name
        self.opener, self.nonce = opener, opener.nonce
        self.epoch = _after(FIRST_EPOCH)
        self.counted = 0
        """The partitions that count among those of all sessions."""
        self.holds: set[TopicPartition] = set()
        """The partitions of which the member acquired something by the opener."""
        self._partitions = dict.fromkeys(partitions)
        self.due: set[TopicPartition] = set()
        """The partitions that the next answer names even without news. The first answer names all."""

    @property
    def is_elsewhere(self) -> bool:
        """True if it stands for a session that another process may have."""
        return self.nonce == ANY_CONNECTION

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._partitions

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._partitions)

    def rotated(self, epoch: int) -> Sequence[TopicPartition]:
        """The partitions in the order in which a request of this epoch fetches them: each has its turn to be first."""
        partitions = list(self._partitions)
        at = epoch % len(partitions) if partitions and epoch > FIRST_EPOCH else 0
        return partitions[at:] + partitions[:at]

    def change(self, added: Iterable[TopicPartition], forgotten: Iterable[TopicPartition]) -> Sequence[TopicPartition]:
        """Add and forget partitions; returns those that are new. What was acquired of a forgotten one stays so."""
        new = [one for one in dict.fromkeys(added) if one not in self._partitions]
        self._partitions.update(dict.fromkeys(new))
        self.due.update(new)
        for one in forgotten:
            self._partitions.pop(one, None)
            self.due.discard(one)
        return new

    def names(self, partition: TopicPartition, *, has_records: bool, has_error: bool) -> bool:
        """Note what an answer says of a partition; true if it has to say it: the others are left out.

        A partition with records goes to the end of the order. One with an error is named again when that is over.
        """
        must = partition in self.due
        self.due.discard(partition)
        if has_records and partition in self._partitions:
            del self._partitions[partition]
            self._partitions[partition] = None
        if has_error:
            self.due.add(partition)
        return must or has_records or has_error


class OpenSessions:
    """The number of share sessions of a process or namespace, and of their partitions."""

    def __init__(self) -> None:
        self.count = 0
        self.partitions = 0

    def add(self, count: int, partitions: int) -> None:
        """Count more of them, or with negative numbers fewer."""
        self.count += count
        self.partitions += partitions


class ShareSessions:
    """The sessions of a namespace at one front-end.

    :param all_open: counts the sessions of all namespaces.
    :param is_alone: false if another process may have sessions of the clients that this one serves: it has the same
        address. Then a ShareAcknowledge goes without its session, and a session's epochs may have gaps.
    :param leaves_room: true to leave as many sessions and partitions free as the namespace has: so no tenant takes all.
    """

    def __init__(
        self, all_open: OpenSessions | None = None, *, is_alone: bool = True, leaves_room: bool = False
    ) -> None:
        self._own = OpenSessions()
        self._all_open = all_open or OpenSessions()
        self._is_alone = is_alone
        self._leaves_room = leaves_room
        self._sessions: dict[Name, list[ShareSession]] = {}

    def fetch(
        self,
        opener: Opener,
        name: Name,
        epoch: int,
        partitions: Collection[TopicPartition],
        *,
        has_acknowledgements: bool,
        most: int,
    ) -> ShareSession | int:
        """The session of a ShareFetch, ready for its next request; else an error code.

        The first epoch makes a new session of these partitions, instead of an earlier one. The final epoch leaves the
        session as it is, for `close`.

        :param opener: the connection of the request.
        :param most: the most sessions of the process.
        """
        if epoch != FIRST_EPOCH:
            return self._of_epoch(opener, name, epoch, partitions)
        if has_acknowledgements:
            return INVALID_REQUEST
        former = opener.sessions.get(name)
        if former is not None:
            # Its place is the new one's, whatever others took meanwhile.
            self.close(former)
        elif self._all_open.count + self._left_free.count >= most:
            return SHARE_SESSION_LIMIT_REACHED
        self._add(1, 0)
        session = opener.sessions[name] = ShareSession(name, opener, partitions)
        self._sessions.setdefault(name, []).append(session)
        if former is not None:
            session.holds = former.holds
        return session

    def acknowledge(
        self, opener: Opener, name: Name, epoch: int, partitions: Collection[TopicPartition]
    ) -> ShareSession | int:
        """The session of a ShareAcknowledge, as `fetch`; it cannot be a session's first request.

        If another process may have it, a session of any connection stands for it (`ShareSession.is_elsewhere`).
        """
        if epoch == FIRST_EPOCH:
            return INVALID_SHARE_SESSION_EPOCH
        session = self._of_epoch(opener, name, epoch, partitions)
        if session == SHARE_SESSION_NOT_FOUND and not self._is_alone:
            session = ShareSession(name, Opener(ANY_CONNECTION), ())
            session.holds.update(partitions)
        return session

    def _of_epoch(
        self, opener: Opener, name: Name, epoch: int, partitions: Collection[TopicPartition]
    ) -> ShareSession | int:
        session = opener.sessions.get(name) or self._of_another(name, epoch, partitions)
        if session is None:
            return SHARE_SESSION_NOT_FOUND
        if epoch != FINAL_EPOCH:
            has_gap = epoch > session.epoch and not self._is_alone
            if epoch != session.epoch and not has_gap:
                return INVALID_SHARE_SESSION_EPOCH
            session.epoch = _after(epoch)
        return session

    def _of_another(self, name: Name, epoch: int, partitions: Collection[TopicPartition]) -> ShareSession | None:
        """The session of a member that another connection opened: of several the one that fits the request best.

        If another process may have it, one of other partitions is that of another node of the client's.
        """
        sessions = self._sessions.get(name, [])
        if not self._is_alone:
            sessions = [one for one in sessions if any(map(one.__contains__, partitions))]
        return max(sessions, key=lambda one: (one.epoch == epoch, any(map(one.__contains__, partitions))), default=None)

    def refusal(self, session: ShareSession) -> int:
        """Count the partitions of a session that has changed. Returns an error code if it has grown too large."""
        grown = len(session) - session.counted
        if session.opener.sessions.get(session.name) is session:
            self._add(0, grown)
            session.counted = len(session)
        if len(session) > MOST_PARTITIONS:
            return INVALID_REQUEST
        is_full = self._all_open.partitions + self._left_free.partitions > MOST_OF_ALL_SESSIONS
        return SHARE_SESSION_LIMIT_REACHED if grown > 0 and is_full else 0

    def close(self, session: ShareSession) -> None:
        """End a session, if it has not ended yet."""
        if session.opener.sessions.get(session.name) is session:
            self._add(-1, -session.counted)
            del session.opener.sessions[session.name]
            sessions = self._sessions[session.name]
            sessions.remove(session)
            if not sessions:
                del self._sessions[session.name]

    @property
    def _left_free(self) -> OpenSessions:
        """What the namespace leaves free."""
        return self._own if self._leaves_room else OpenSessions()

    def _add(self, count: int, partitions: int) -> None:
        for opened in (self._own, self._all_open):
            opened.add(count, partitions)


def _after(epoch: int) -> int:
    return FIRST_EPOCH + 1 if epoch == _LAST_EPOCH else epoch + 1
