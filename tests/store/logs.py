"""A front-end's log over a real server, and batches for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import anyio
from kio.schema.errors import ErrorCode

from korvet.redis.client import Store
from korvet.redis.wakeup import Wakeups
from korvet.store import library
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.keys import Namespace
from korvet.store.library import open_store
from korvet.store.log.log import Log
from korvet.store.log.memory.budget import Share
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.store.log.state.partition import Partition
from korvet.store.topics import create_topic
from korvet.wire.batch import HEADER, Batch
from tests.oracle.batches import Batch as Script
from tests.oracle.batches import encode

NAMESPACE = Namespace("log-test")
WITHIN_S = 25.0
"""Less than the time after which a front-end reads again what nobody told it of."""
LARGE = 20_000
"""The size in bytes of a value whose batch is placed beside its entry."""
EVERYTHING = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """A front-end's part of the store."""

    store: Store
    catalog: Catalog
    log: Log
    wakeups: Wakeups

    async def topic(self, partitions: int = 1) -> Topic:
        """A new topic with its keys made."""
        _, topic = await create_topic(self.catalog, self.log, f"t-{uuid4().hex[:8]}", partitions, {})
        assert topic is not None
        return topic

    async def partition(self) -> Partition:
        """The partition of a new topic that has only one."""
        return self.log.partition(await self.topic(), 0)

    def known(self, partition: Partition) -> Partition:
        """This front-end's view of another front-end's partition."""
        topic = self.catalog.topic(partition.topic.name)
        assert topic is not None
        return self.log.partition(topic, partition.index)

    def port_of(self, key: str) -> int:
        """The port of the server that has a key."""
        link = self.store.coordination(key)
        assert link is not None and link.address is not None
        return link.address.port

    async def append(self, partition: Partition, data: bytes) -> tuple[int, int]:
        """Append a batch; returns code and base offset."""
        appended = await self.log.append(partition, header(data), data)
        return appended.code, appended.base_offset

    async def read(
        self,
        partition: Partition,
        offset: int,
        max_bytes: int = EVERYTHING,
        leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        share: Share | None = None,
    ) -> PartitionRead:
        """Read one partition, by the connection that has the share, else by a new one."""
        want = Want(partition, offset, max_bytes, leader_epoch, last_fetched_epoch)
        (found,) = await self.log.read([want], EVERYTHING, share)
        return found


@asynccontextmanager
async def front(
    url: str, namespace: Namespace = NAMESPACE, static: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Front]:
    """A front-end's store, catalog and log; it has read the catalog once and does not follow it."""
    async with open_store(url) as store:
        await library.ensure(store)
        wakeups = Wakeups(store)
        catalog = Catalog(namespace, store, wakeups, static)
        await catalog.open()
        yield Front(store=store, catalog=catalog, log=Log(namespace, store, catalog, wakeups), wakeups=wakeups)


async def created(front: Front, name: str, partitions: int = 1, **configs: str) -> Topic:
    values = {key.replace("_", "."): value for key, value in configs.items()}
    code, topic = await create_topic(front.catalog, front.log, name, partitions, values)
    assert (code, topic is None) == (ErrorCode.none, False)
    assert topic is not None
    return topic


@contextmanager
def messages_held(one: Front, partition: Partition) -> Iterator[None]:
    """Messages to a front-end arrive only behind the block, while other answers of Redis do not wait for them."""
    subscriber = one.store.subscriber(partition.channel)
    assert subscriber is not None
    held: list[Any] = []
    deliver, subscriber.on_push = subscriber.on_push, held.append
    try:
        yield
    finally:
        subscriber.on_push = deliver
        for message in held:
            deliver(message)


def batch(count: int = 3, size: int = 10, producer: int = -1, sequence: int = -1, timestamp: int = 1000) -> bytes:
    """A batch of records ten milliseconds apart."""
    epoch = 0 if producer >= 0 else -1
    return encode(
        Script(
            count=count, value=b"v" * size, timestamp=timestamp, step_ms=10,
            producer_id=producer, producer_epoch=epoch, sequence=sequence,
        )
    )  # fmt: skip


def header(data: bytes) -> Batch:
    return Batch._make(HEADER.unpack_from(data))


def split(found: PartitionRead) -> list[tuple[int, int, int, bytes]]:
    """Base offset, leader epoch and count of each batch that was read, and its bytes from the magic on."""
    data, at, batches = b"".join(found.records), 0, []
    assert len(data) == found.size_bytes
    while at < len(data):
        one = Batch._make(HEADER.unpack_from(data, at))
        batches.append((one.base_offset, one.leader_epoch, one.records, data[at + 16 : at + one.size_bytes]))
        at += one.size_bytes
    return batches


def offsets(found: PartitionRead) -> list[int]:
    """Base offsets of the batches that were read."""
    return [base_offset for base_offset, _, _, _ in split(found)]


def stored(*batches: tuple[int, bytes]) -> list[tuple[int, int, int, bytes]]:
    """The answer of `split` for these batches in epoch 0, each with its base offset."""
    return [(base_offset, 0, header(data).records, data[16:]) for base_offset, data in batches]


def codes(reads: Sequence[PartitionRead]) -> list[int]:
    return [found.code for found in reads]


async def until(condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Check repeatedly until a condition that no event announces holds."""
    with anyio.fail_after(within_s):
        while not condition():
            await anyio.sleep(0.002)
