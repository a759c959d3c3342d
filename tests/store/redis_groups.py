"""A front-end as tests of Redis groups use it."""

from __future__ import annotations

from typing import Any, NamedTuple

from korvet.redis.client import Purpose
from korvet.store.catalog.topic import Topic
from korvet.store.groups.groups import Groups
from korvet.store.groups.redis_mirror import RedisMirror
from korvet.store.groups.types import CommitRequest, Offset
from korvet.store.log.memory.room import Want
from tests.store.logs import NAMESPACE, Front, batch

ODD_IDS = ["g r o u p", "{a}:b", "группа", "x" * 200]


class Side(NamedTuple):
    """A front-end with its groups."""

    front: Front
    groups: Groups

    @property
    def mirror(self) -> RedisMirror:
        return self.groups.mirror

    async def call(self, key: str, command: str, *args: str | bytes | int) -> Any:
        return await self.front.store.call(Purpose.COORDINATE, key, command, key, *args)

    async def topic(self, partitions: int = 1) -> Topic:
        """A new topic with three batches of three records in each partition."""
        topic = await self.front.topic(partitions)
        for index in range(partitions):
            for _ in range(3):
                assert (await self.front.append(self.front.log.partition(topic, index), batch()))[0] == 0
        return topic

    async def commit(self, group_id: str, topic: Topic, *offsets: int) -> None:
        """Commit offsets of partitions 0, 1, … as a consumer without a group protocol."""
        partitions = [((topic.name, index), Offset(offset, -1, topic.id, "")) for index, offset in enumerate(offsets)]
        request = CommitRequest(
            group_id=group_id, member_id="", instance_id=None, generation=-1, version=8, offsets=partitions
        )
        assert await self.groups.offsets.commit(request) == 0

    async def commit_and_follow(self, group_id: str, topic: Topic, *offsets: int) -> None:
        await self.commit(group_id, topic, *offsets)
        await self.mirror.flush()

    async def positions(self, topic: Topic, partition: int = 0) -> dict[str, int]:
        """The positions of the Redis groups on a partition."""
        key = NAMESPACE.partition(topic.name, partition).log
        flat = await self.front.store.call(Purpose.COORDINATE, key, "XINFO", "GROUPS", key)
        rows = [dict(zip(one[::2], one[1::2], strict=True)) if isinstance(one, list) else one for one in flat]
        return {row[b"name"].decode(): int(row[b"last-delivered-id"].partition(b"-")[0]) for row in rows}

    async def move_by_hand(self, topic: Topic, group_id: str, offset: int) -> None:
        key = NAMESPACE.partition(topic.name, 0).log
        await self.front.store.call(Purpose.COORDINATE, key, "XGROUP", "SETID", key, group_id, f"{offset}-0")

    async def make_by_hand(self, topic: Topic, partition: int, name: str) -> None:
        key = NAMESPACE.partition(topic.name, partition).log
        await self.front.store.call(Purpose.COORDINATE, key, "XGROUP", "CREATE", key, name, "0")

    async def fetched(self, topic: Topic, offset: int, partition: int = 0) -> bool:
        """Make a first Fetch by the client at the host; returns whether its Redis groups are settled."""
        want = Want(self.front.log.partition(topic, partition), offset, 1)
        return await self.groups.readers.attach("client", "host", [want]) == [want.partition]

    async def note(self, group_id: str, topic: Topic, *partitions: int) -> None:
        await self.groups.readers.note("client", "host", group_id, [(topic.name, index) for index in partitions])

    async def delete(self, *group_ids: str) -> list[Any]:
        return list(await self.groups.administration.delete(group_ids))

    async def left(self, group_id: str) -> list[str]:
        """The keys of the group that still exist."""
        keys = NAMESPACE.group(group_id)
        return [name for name, key in zip(keys._fields, keys, strict=True) if await self.call(key, "EXISTS")]
