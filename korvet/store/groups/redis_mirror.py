"""The Redis mirror: it keeps Redis groups at the offsets that the Kafka groups of the same names committed.

The committed offsets are the authority, and the Redis groups mirror them. The mirror attaches (makes) a Redis group at
the first Fetch of a group's member, or after the first commit. It moves the Redis group within a second of a commit,
and detaches (destroys) it with its group. A Fetch waits once, for at most three round trips; a commit never waits.
Neither fails if the mirror fails.

A group remembers a Redis group before it is attached, and the mirror looks at the group again afterwards. So the last
of two front-ends is right, and Redis groups of a group that was deleted meanwhile are detached. Any step may be
repeated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import anyio
from ulid import ULID

from korvet.codes import GROUP_ID_NOT_FOUND
from korvet.errors import StoreUnavailable
from korvet.redis.client import Store
from korvet.store.contract import GONE
from korvet.store.every import whenever
from korvet.store.groups.call import chunks
from korvet.store.groups.redis_mirror_calls import RedisGroupCalls
from korvet.store.groups.redis_mirror_portions import AT_ONCE, Mirrored, Portion, portions_of
from korvet.store.groups.types import TopicPartition, name_of, partition_of
from korvet.store.outcomes import settled

INTERVAL_S: Final = 1.0
"""The least pause of the mirror, after commits and after failures."""
MOST_PENDING: Final = 50_000
"""The partitions that may wait for the mirror. A further one drops the one that waits longest. That loses time only:
its next commit, or the first Fetch of any connection there, is mirrored again."""
PATIENCE_S: Final = 1.0
_ROUNDS: Final = 5


class RedisMirror:
    """The Redis groups of one namespace, which one front-end keeps at committed offsets. `run` needs a task."""

    def __init__(self, store: Store, calls: RedisGroupCalls) -> None:
        self._store = store
        self._calls = calls
        self._name = str(ULID())
        self._pending: OrderedDict[tuple[str, TopicPartition], str] = OrderedDict()
        self._mirrored = Mirrored()
        store.on_history_change(self._mirrored.clear)
        self._due = anyio.Event()
        self._flushing = anyio.Lock()

    def committed(self, group_id: str, partitions: Iterable[tuple[TopicPartition, str]]) -> None:
        """Note a commit for `run` to mirror soon. Each partition has its topic's id in hex."""
        for partition, topic_id in partitions:
            self._pending[group_id, partition] = topic_id
            if len(self._pending) > MOST_PENDING:
                self._pending.popitem(last=False)
        if not self._due.is_set():
            self._due.set()

    async def uncommitted(self, group_id: str, partitions: Sequence[tuple[TopicPartition, str]]) -> None:
        """Detach the Redis groups of deleted offsets. Never raises.

        If an offset was committed again meanwhile, its Redis group is attached again.
        """
        for some in chunks(partitions, AT_ONCE):
            named = [(name_of(partition), topic_id) for partition, topic_id in some]
            await self.detach_gone([Portion(group_id, named)])

    async def run(self) -> None:
        """Mirror commits, until cancelled."""
        await whenever(self._wait_until_due, self.flush, INTERVAL_S)

    async def _wait_until_due(self) -> None:
        await self._due.wait()
        self._due = anyio.Event()

    async def drain(self) -> None:
        """Mirror the waiting commits, for at most a second."""
        with anyio.move_on_after(PATIENCE_S):
            await self.flush()

    async def flush(self) -> None:
        """Mirror all waiting commits, except those on servers that are away. Never raises."""
        async with self._flushing:
            if self._is_redis_away():
                self._due.set()
                return
            pending, self._pending = self._pending, OrderedDict()
            for portions in portions_of(pending):
                await self._mirror(portions)

    def _is_redis_away(self) -> bool:
        """True if all of Redis is unavailable; false for a cluster, because some of its nodes may be up."""
        return self._store.url.kind != "cluster" and not self._store.is_connected()

    async def _mirror(self, portions: Sequence[Portion]) -> None:
        """Move Redis groups until they are at their groups' current offsets."""
        for _ in range(_ROUNDS):
            moves: list[tuple[Portion, str, str, bytes]] = []
            gone: list[Portion] = []
            for portion, reply in zip(portions, await self._send(portions), strict=True):
                if isinstance(reply, BaseException):
                    self._postpone([portion], reply)
                elif reply[0] == GROUP_ID_NOT_FOUND:
                    gone.append(portion)
                else:
                    moves += self._moves(portion, *reply[1:])
            await self.detach_gone(gone)
            portions = await self._move(moves)
            if not portions:
                return
        self.put_back(portions)

    async def _send(self, portions: Sequence[Portion]) -> list[Any]:
        return await settled(self._calls.remember(portion, self._name) for portion in portions)

    def _moves(
        self, portion: Portion, was_last: int, offsets: Sequence[bytes]
    ) -> Iterator[tuple[Portion, str, str, bytes]]:
        """The Redis groups that may not be at their offsets, for example because another front-end moved them."""
        if not was_last:
            self.forget(portion.group_id)
        known = self._mirrored.of(portion.group_id)
        for (partition, topic_id), offset in zip(portion.partitions, offsets, strict=True):
            if offset and known.get(partition) != (topic_id, offset):
                yield portion, partition, topic_id, offset

    async def _move(self, moves: Sequence[tuple[Portion, str, str, bytes]]) -> list[Portion]:
        """Move Redis groups. Returns the portions in which one was moved."""
        moved: dict[int, Portion] = {}
        calls = (
            self._calls.attach(portion.group_id, partition_of(partition), topic_id, offset, "move")
            for portion, partition, topic_id, offset in moves
        )
        for (portion, partition, topic_id, offset), reply in zip(moves, await settled(calls), strict=True):
            if isinstance(reply, BaseException):
                self._postpone([Portion(portion.group_id, [(partition, topic_id)])], reply)
            elif reply[0] != GONE:
                self._mirrored.put(portion.group_id, partition, (topic_id, offset))
                moved[id(portion)] = portion
        return list(moved.values())

    async def detach_gone(self, portions: Sequence[Portion]) -> None:
        """Detach the Redis groups of deleted groups.

        A group that was made again may lose its Redis groups here, so it is mirrored again.
        """
        gone = [(portion, partition, topic_id) for portion in portions for partition, topic_id in portion.partitions]
        for portion in portions:
            self.forget(portion.group_id)
        calls = (self._calls.detach(portion.group_id, partition, topic_id) for portion, partition, topic_id in gone)
        for (portion, partition, topic_id), reply in zip(gone, await settled(calls), strict=True):
            if isinstance(reply, BaseException):
                self._postpone([Portion(portion.group_id, [(partition, topic_id)])], reply)
        for portion, reply in zip(portions, await self._send(portions), strict=True):
            if isinstance(reply, BaseException):
                self._postpone([portion], reply)
            elif reply[0] != GROUP_ID_NOT_FOUND:
                self.put_back([portion])

    def _postpone(self, portions: Sequence[Portion], error: BaseException) -> None:
        """Retry if that may help. The positions of these Redis groups are no longer certain."""
        self._calls.failed(error)
        for portion in portions:
            self.forget(portion.group_id)
        if isinstance(error, StoreUnavailable):
            self.put_back(portions)

    def put_back(self, portions: Sequence[Portion]) -> None:
        for portion in portions:
            self.committed(portion.group_id, ((partition_of(name), topic_id) for name, topic_id in portion.partitions))

    def forget(self, group_id: str) -> None:
        """Forget the known positions of a group's Redis groups."""
        self._mirrored.forget(group_id)
