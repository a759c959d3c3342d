"""A front-end that remembers lists, footers and blocks, while a tierer seals, merges, shelves and deletes: it reads the
same bytes, and finds the same times, as if nothing had happened."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from korvet.store.log.state.partition import Partition
from korvet.tier import tierer
from korvet.tier.tierer import Tierer
from tests.store.logs import EVERYTHING, Front, batch
from tests.store.sealed import joined, shelve
from tests.store.test_cold_reads import read_all, reader
from tests.store.tierers import expire_doomed, listed, meta_of, tiered, tiering, trim_locally
from tests.store.tierers import small as small
from tests.tier.test_blocks import Store

pytestmark = pytest.mark.anyio

STEPS = {"append": 8, "seal": 5, "merge": 2, "shelve": 1, "trim": 4, "delete": 1, "sweep": 2, "read": 8, "time": 3}


@dataclass(slots=True)
class Scene:
    """A partition with batches of three records, its tierer, and a front-end that reads it."""

    one: Front
    partition: Partition
    objects: Store
    tierer: Tierer
    other: Front
    known: Partition
    chance: random.Random
    monkeypatch: pytest.MonkeyPatch
    batches: list[bytes] = field(default_factory=list)
    start: int = 0

    async def append(self) -> None:
        offset = 3 * len(self.batches)
        data = batch(3, self.chance.choice([10, 1000]), timestamp=1000 * len(self.batches))
        assert await self.one.append(self.partition, data) == (0, offset)
        self.batches.append(joined([await self.one.read(self.partition, offset)]))

    async def seal(self) -> None:
        await self._tend(self.chance.choice([1, 1500]), 1e18)

    async def merge(self) -> None:
        await self._tend(self.chance.choice([4000, 20_000]), 0.0)

    async def _tend(self, segment_bytes: int, merge_at: float) -> None:
        self.monkeypatch.setattr(tierer, "SEGMENT_BYTES", segment_bytes)
        self.tierer._work(self.partition).merge_at = merge_at
        await self.tierer.tend(self.partition)

    async def shelve(self) -> None:
        if len((await listed(self.one, self.partition)).members) > 4:
            await shelve(self.one, self.objects, self.partition, self.chance.randint(1, 3))

    async def trim(self) -> None:
        if (await meta_of(self.one, self.partition)).tier_end > self.start:
            await trim_locally(self.one, self.partition)

    async def delete(self) -> None:
        self.start = self.chance.randint(self.start, min(self.start + 9, 3 * len(self.batches)))
        await self.one.log.trim(self.partition, self.start)
        for _ in range(2):
            await self.tierer.tend(self.partition)

    async def sweep(self) -> None:
        await expire_doomed(self.one)
        await self.tierer.sweep()

    async def read(self) -> None:
        offset = self.chance.randint(self.start, 3 * len(self.batches))
        found = await read_all(self.other, self.known, offset, self.chance.choice([1, 3000, EVERYTHING]))
        assert joined(found) == b"".join(self.batches[offset // 3 :])

    async def time(self) -> None:
        if self.start < 3 * len(self.batches):
            at = self.chance.randint(self.start // 3, len(self.batches) - 1)
            meta = await meta_of(self.other, self.known)
            found = await self.other.log.offset_for_time(self.known, 1000 * at, meta)
            assert found is not None
            assert found.offset == max(self.start, 3 * at)


@pytest.mark.parametrize("seed", range(4))
async def test_front_end_that_remembers_segments_reads_the_same_whatever_becomes_of_them(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance, objects, partition = random.Random(seed), Store(), await tiered(one)
    monkeypatch.setattr(tierer, "_MERGE_EVERY_S", 0.0)
    await other.catalog.refresh()
    known = other.known(partition)
    async with tiering(one, objects) as moving, reader(other, objects, chance.choice([3000, 1 << 20])):
        scene = Scene(one, partition, objects, moving, other, known, chance, monkeypatch)
        for step in chance.choices([*STEPS], [*STEPS.values()], k=200):
            await getattr(scene, step)()
        await scene.read()
