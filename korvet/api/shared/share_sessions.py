"""Share sessions: the partitions that a member of a share group fetches, and the epochs of its requests.

As in Kafka, a session ends with the connection that opened it, and requests of all connections may go on with it:
franz-go acknowledges by another one than it fetches by. A front-end keeps no other state of a member: what that has
acquired lies beside the log, with the `Opener.nonce` of the connection. Here is no I/O.

Source: SharePartitionManager.newContext and acknowledgeSessionUpdate, ShareSession, ShareSessionCache,
ShareSessionContext, CachedSharePartition, ShareRequestMetadata, PartitionRotateStrategy
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final
from uuid import UUID, uuid4

from korvet.codes import (
    INVALID_REQUEST,
    INVALID_SHARE_SESSION_EPOCH,
    SHARE_SESSION_LIMIT_REACHED,
    SHARE_SESSION_NOT_FOUND,
)

FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1

TopicPartition = tuple[UUID, int]
"""A topic's id and the index of a partition."""


class Opener:
    """A connection, as it opens sessions."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[str, str], ShareSession] = {}
        """Its sessions by group and member; there is mostly one."""

    @cached_property
    def nonce(self) -> str:
        """Distinguishes what members acquire by this connection from what they acquire by others."""
        return uuid4().hex


class ShareSession:
    """One session. ``epoch`` is that of its next request."""

    __slots__ = ("_partitions", "due", "epoch", "holds", "opener")

    def __init__(self, opener: Opener, partitions: Iterable[TopicPartition]) -> None:
        self.opener = opener
        self.epoch = _after(FIRST_EPOCH)
        self.holds: set[TopicPartition] = set()
        """The partitions of which the member acquired something by the opener."""
        self._partitions = dict.fromkeys(partitions)
        self.due: set[TopicPartition] = set()
        """The partitions that the next answer names even without news. The first answer names all."""

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
    """The number of share sessions of a process."""

    def __init__(self) -> None:
        self.count = 0


class ShareSessions:
    """The sessions of a namespace at one front-end, by group and member.

    :param all_open: counts the sessions of all namespaces.
    """

    def __init__(self, all_open: OpenSessions | None = None) -> None:
        self._all_open = all_open or OpenSessions()
        self._sessions: dict[tuple[str, str], ShareSession] = {}

    def fetch(
        self,
        opener: Opener,
        group_id: str,
        member_id: str,
        epoch: int,
        partitions: Iterable[TopicPartition],
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
            return self._of_epoch(group_id, member_id, epoch)
        if has_acknowledgements:
            return INVALID_REQUEST
        former = self.close(group_id, member_id)
        if self._all_open.count >= most:
            return SHARE_SESSION_LIMIT_REACHED
        self._all_open.count += 1
        session = ShareSession(opener, partitions)
        self._sessions[group_id, member_id] = opener.sessions[group_id, member_id] = session
        if former is not None and former.opener is opener:
            session.holds = former.holds
        return session

    def acknowledge(self, group_id: str, member_id: str, epoch: int) -> ShareSession | int:
        """The session of a ShareAcknowledge, as `fetch`; it cannot be a session's first request."""
        return INVALID_SHARE_SESSION_EPOCH if epoch == FIRST_EPOCH else self._of_epoch(group_id, member_id, epoch)

    def _of_epoch(self, group_id: str, member_id: str, epoch: int) -> ShareSession | int:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            return SHARE_SESSION_NOT_FOUND
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                return INVALID_SHARE_SESSION_EPOCH
            session.epoch = _after(epoch)
        return session

    def close(self, group_id: str, member_id: str) -> ShareSession | None:
        """End a session, if there is one, and return it."""
        key = group_id, member_id
        session = self._sessions.pop(key, None)
        if session is not None:
            self._all_open.count -= 1
            del session.opener.sessions[key]
        return session

    def leave(self, opener: Opener) -> Sequence[tuple[str, str, ShareSession]]:
        """End all sessions of a connection that is gone; returns each with its group and member."""
        left = [(group_id, member_id, session) for (group_id, member_id), session in opener.sessions.items()]
        for group_id, member_id, _ in left:
            self.close(group_id, member_id)
        return left


def _after(epoch: int) -> int:
    return FIRST_EPOCH + 1 if epoch == _LAST_EPOCH else epoch + 1
