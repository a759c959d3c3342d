"""The Redis groups that a Fetch needs. A Fetch names no group, so a front-end records each client's group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import anyio

from korvet.codes import GROUP_ID_NOT_FOUND
from korvet.errors import KorvetError
from korvet.redis.reply import in_task
from korvet.store.calls import StateRoom
from korvet.store.groups.call import chunks
from korvet.store.groups.redis_mirror import INTERVAL_S, PATIENCE_S, RedisMirror
from korvet.store.groups.redis_mirror_calls import RedisGroupCalls
from korvet.store.groups.redis_mirror_portions import AT_ONCE, Portion, replies
from korvet.store.groups.types import TopicPartition, name_of
from korvet.store.keys import Namespace
from korvet.store.log.memory.room import Want
from korvet.store.log.state.partition import Partition
from korvet.store.outcomes import settled

NOTE_MS: Final = 600_000
"""Milliseconds for which Redis keeps a reader's groups."""
MOST_NOTED_BYTES: Final = 8 << 20
"""The bytes that a front-end notes of a namespace's readers within `NOTE_MS`, about. A reader beyond them gets its
Redis groups at its first commit."""
_KEY_BYTES: Final = 400
_PARTITION_BYTES: Final = 100
_MOST_NOTED: Final = 10_000


class Readers:
    """The readers of one namespace, and the Redis groups that they need."""

    def __init__(self, namespace: Namespace, calls: RedisGroupCalls, mirror: RedisMirror, room: StateRoom) -> None:
        self._reader = namespace.reader
        self._calls = calls
        self._mirror = mirror
        self._now = asyncio.get_running_loop().time
        self._rests_until = 0.0
        self._room = room
        self._noted: set[int] = set()
        """The hashes of the notes since `_noted_at`."""
        self._noted_at = self._now()
        self._noted_bytes = 0

    @property
    def noted_bytes(self) -> int:
        """The approximate bytes of this front-end's notes within `NOTE_MS`."""
        if self._now() - self._noted_at > NOTE_MS / 1000:
            self._noted.clear()
            self._noted_at, self._noted_bytes = self._now(), 0
        return self._noted_bytes

    def _may_note(self, key: str, group_id: str, names: Sequence[str]) -> bool:
        """True if there is room for a note; a repeated one takes none."""
        note = hash((key, group_id, *names))
        size_bytes = _KEY_BYTES + len(key) + sum(map(len, names)) + len(names) * (_PARTITION_BYTES + len(group_id))
        if self.noted_bytes and note in self._noted:
            return True
        if self._noted_bytes + size_bytes > MOST_NOTED_BYTES or not self._room.take(key, size_bytes):
            return False
        self._noted.add(note)
        self._noted_bytes += size_bytes
        return True

    async def note(self, client_id: str, client_host: str, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """Note that a client at a host reads for a group: its Fetches name no group. Never raises."""
        if not partitions:
            return
        keys, names = [self._reader(client_id, client_host)], list(map(name_of, partitions[:_MOST_NOTED]))
        if not self._may_note(keys[0], group_id, names):
            return
        await in_task()
        try:
            with anyio.fail_after(PATIENCE_S):
                for some in chunks(names, AT_ONCE):
                    await self._calls.call("korvet_reader_note", keys, group_id=group_id, ttl=NOTE_MS, partitions=some)
        except (KorvetError, TimeoutError) as error:
            self._calls.failed(error)

    async def attach(self, client_id: str, client_host: str, wants: Sequence[Want]) -> list[Partition]:
        """Make the Redis groups that a client needs before its first Fetch of partitions.

        Never raises. After a failure it pauses, so that it does not delay Fetches repeatedly.

        :returns: the partitions that need no further call.
        """
        if self._now() < self._rests_until:
            return []
        try:
            with anyio.fail_after(PATIENCE_S):
                return await self._attach_read(self._reader(client_id, client_host), wants)
        except (KorvetError, TimeoutError) as error:
            self._rests_until = self._now() + INTERVAL_S
            self._calls.failed(error)
            return []

    async def _attach_read(self, reader: str, wants: Sequence[Want]) -> list[Partition]:
        names = [name_of(_where(want)) for want in wants]
        found: list[bytes] = []
        for some in chunks(names, AT_ONCE):
            found += await self._calls.call("korvet_reader_find", [reader], partitions=some)
        reads: dict[str, list[Want]] = {}
        done = []
        for want, group_id in zip(wants, found, strict=True):
            if group_id and want.offset >= 0:
                reads.setdefault(group_id.decode(), []).append(want)
            else:
                done.append(want.partition)
        if reads:
            done += await self._make(reads)
        return done

    async def _make(self, reads: dict[str, list[Want]]) -> list[Partition]:
        """Make missing Redis groups, except for a group that does not exist."""
        chunked = [(group_id, some) for group_id, wants in reads.items() for some in chunks(wants, AT_ONCE)]
        portions = [
            Portion(group_id, [(name_of(_where(want)), want.partition.topic_id) for want in wants])
            for group_id, wants in chunked
        ]
        answers = replies(await settled(self._calls.remember(portion, "") for portion in portions))
        done = []
        making = []
        for (group_id, wants), reply in zip(chunked, answers, strict=True):
            if reply[0] == GROUP_ID_NOT_FOUND:
                done += [want.partition for want in wants]
            else:
                making += [(group_id, want) for want in wants]
        calls = (
            self._calls.attach(group_id, _where(want), want.partition.topic_id, want.offset, "keep")
            for group_id, want in making
        )
        try:
            codes = replies(await settled(calls))
        except BaseException:
            # Redis may nevertheless have made them, for groups deleted by now.
            for group_id, want in making:
                self._mirror.committed(group_id, [(_where(want), want.partition.topic_id)])
            raise
        for (group_id, want), (code,) in zip(making, codes, strict=True):
            if code == 0:
                done.append(want.partition)
                # The Redis group may be new, or old and at another offset. Its group may be deleted by now.
                self._mirror.forget(group_id)
                self._mirror.committed(group_id, [(_where(want), want.partition.topic_id)])
        return done


def _where(want: Want) -> TopicPartition:
    return want.partition.topic.name, want.partition.index
