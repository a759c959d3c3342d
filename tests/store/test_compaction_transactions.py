"""Compaction of transactional records: cases of Kafka's LogCleanerTest, and open transactions."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

import pytest

from korvet.redis.client import Purpose
from korvet.store.background.compaction import batches as batches_module
from korvet.store.background.compaction import run
from korvet.store.background.compaction.due import Compaction
from korvet.store.background.compaction.run import compact
from korvet.store.log.memory.room import PartitionRead
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import TRANSACTIONAL
from korvet.wire.markers import marker
from tests.store.keyed import batches, keyed, records
from tests.store.logs import Front, header
from tests.support.ported import kafka

pytestmark = pytest.mark.anyio
NOW_MS = 1_700_000_000_000
RETENTION_MS = 1000
SETTINGS = Compaction(min_lag_ms=0, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=RETENTION_MS)
LAST = b"last"


class Scene:
    """A partition that transactions write to, and its compaction on a clock of the test."""

    def __init__(self, front: Front, partition: Partition) -> None:
        self.front = front
        self.partition = partition
        self.now_ms = NOW_MS
        self._ordinals = count(1)
        self._ordinal: dict[int, int] = {}
        self._sequences: dict[int, int] = defaultdict(int)

    async def write(self, producer_id: int, *keys: int) -> None:
        """Append a batch in a producer's transaction; if no transaction is open, it begins one."""
        ordinal = self._ordinal.setdefault(producer_id, next(self._ordinals))
        sequence = self._sequences[producer_id]
        self._sequences[producer_id] += len(keys)
        pairs = ((b"%d" % key, b"v") for key in keys)
        data = keyed(*pairs, attributes=TRANSACTIONAL, producer=(producer_id, 0, sequence))
        await self._call(
            "korvet_log_append_transactional", len(keys), len(data), header(data).max_timestamp, header(data).crc,
            producer_id, 0, sequence, data, "", ordinal, f"id-{producer_id}",
        )  # fmt: skip

    async def end(self, producer_id: int, *, commit: bool) -> None:
        batch, data = marker(producer_id, 0, is_commit=commit, timestamp_ms=1000)
        decision = "commit" if commit else "abort"
        ordinal = self._ordinal.pop(producer_id)
        await self._call(
            "korvet_log_mark", producer_id, 0, ordinal, decision, len(data), 1000, batch.crc, data
        )  # fmt: skip

    async def _call(self, function: str, *args: str | int | bytes) -> None:
        head = (self.partition.topic_id, self.front.log.find_run_id(self.partition))
        reply = await self.front.store.fcall(Purpose.APPEND, function, self.partition.transaction_keys, *head, *args)
        assert reply.split()[0] == b"0", reply

    async def clean(self) -> None:
        """Compact all batches: one more batch, which this appends, stays out of reach."""
        await self.front.append(self.partition, keyed((LAST, b"")))
        assert await compact(self.front.log, self.partition, SETTINGS, self.now_ms)

    async def keys(self) -> list[int]:
        """The keys of the records that are left."""
        return [int(key) for _, key, _ in records(await self._read()) if key and key != LAST]

    async def offsets(self) -> list[int]:
        """The offsets of all batches that are left, markers too, except the one that `clean` appended."""
        left = []
        read = await self._read()
        last = {offset for offset, key, _ in records(read) if key == LAST}
        for batch, _ in batches(read):
            if batch.attributes & 0x20:
                left.append(batch.base_offset)
        left += [offset for offset, _, _ in records(read) if offset not in last]
        return sorted(left)

    async def aborted(self) -> list[tuple[int, int]]:
        """First and last offsets in the list that readers get."""
        name = self.partition.transaction_keys.aborted
        members = await self.front.store.call(Purpose.READ, name, "ZRANGE", name, 0, -1)
        return [(int(member.split()[0]), int(member.split()[1])) for member in members if member]

    async def _read(self) -> PartitionRead:
        self.front.log.cache.clear()
        self.front.log.forget()
        return await self.front.read(self.partition, 0)


@pytest.fixture
async def scene(one: Front) -> Scene:
    return Scene(one, await one.partition())


@kafka("LogCleanerTest.testBasicTransactionAwareCleaning")
async def test_aborted_records_go_and_markers_stay(scene: Scene) -> None:
    await scene.write(1, 1, 2)
    await scene.write(2, 2, 3)
    await scene.write(1, 3, 4)
    await scene.end(1, commit=False)
    await scene.end(2, commit=True)
    await scene.write(1, 2)
    await scene.end(1, commit=True)
    aborted = await scene.aborted()
    await scene.clean()
    assert await scene.keys() == [3, 2]
    assert await scene.offsets() == [3, 6, 7, 8, 9]
    assert await scene.aborted() == aborted


@kafka("LogCleanerTest.testCommitMarkerRemoval")
async def test_commit_marker_goes_after_all_records_of_its_transaction(scene: Scene) -> None:
    await scene.write(1, 1)
    await scene.write(1, 2, 3)
    await scene.end(1, commit=True)
    await scene.write(1, 2)
    await scene.end(1, commit=True)
    await scene.clean()
    assert (await scene.keys(), await scene.offsets()) == ([1, 3, 2], [0, 2, 3, 4, 5])
    await scene.write(1, 1, 3)
    await scene.end(1, commit=True)
    await scene.clean()
    # The records went in this run, so the marker gets its horizon in the next one.
    later = [3, 4, 5, 7, 8, 9]
    assert (await scene.keys(), await scene.offsets()) == ([2, 1, 3], later)
    await scene.clean()
    assert await scene.offsets() == later
    scene.now_ms += RETENTION_MS - 1
    await scene.clean()
    assert await scene.offsets() == later
    scene.now_ms += 1
    await scene.clean()
    assert (await scene.keys(), await scene.offsets()) == ([2, 1, 3], later[1:])


@kafka("LogCleanerTest.testAbortMarkerRemoval")
async def test_removed_abort_marker_takes_its_transaction_from_the_list(scene: Scene) -> None:
    await scene.write(1, 1)
    await scene.write(1, 2, 3)
    await scene.end(1, commit=False)
    await scene.write(1, 3)
    await scene.end(1, commit=True)
    await scene.clean()
    assert (await scene.keys(), await scene.offsets()) == ([3], [3, 4, 5])
    assert await scene.aborted() == [(0, 3)]
    await scene.clean()
    scene.now_ms += RETENTION_MS
    await scene.clean()
    # Otherwise a reader would take the producer's next transaction for the aborted one.
    assert (await scene.keys(), await scene.offsets(), await scene.aborted()) == ([3], [4, 5], [])


@kafka("LogCleanerTest.testDeletedBatchesWithNoMessagesRead")
async def test_batches_of_overwritten_records_go_before_their_markers(scene: Scene) -> None:
    await scene.write(1, 1)
    await scene.end(1, commit=False)
    await scene.write(1, 2)
    await scene.write(1, 2)
    await scene.end(1, commit=True)
    await scene.clean()
    assert (await scene.keys(), await scene.offsets()) == ([2], [1, 3, 4])
    await scene.clean()
    scene.now_ms += RETENTION_MS
    await scene.clean()
    assert (await scene.keys(), await scene.offsets()) == ([2], [3, 4])


@kafka("LogCleanerTest.testCommittedTransactionSpanningSegments")
async def test_marker_stays_while_its_records_stay(scene: Scene) -> None:
    await scene.write(1, 1)
    await scene.end(1, commit=True)
    for _ in range(3):
        await scene.clean()
        scene.now_ms += RETENTION_MS
    assert await scene.offsets() == [0, 1]


@kafka("LogCleanerTest.testCleanWithTransactionsSpanningSegments")
async def test_open_transactions_are_out_of_reach(scene: Scene) -> None:
    await scene.write(3, 2, 3)
    await scene.end(3, commit=True)
    await scene.write(2, 2, 4)
    await scene.write(3, 2, 5)
    await scene.end(3, commit=True)
    # A run cleans only batches below the open transaction's first offset: key 2 stays where it was.
    await scene.clean()
    assert await scene.keys() == [2, 3, 2, 4, 2, 5]
    await scene.end(2, commit=False)
    await scene.clean()
    assert await scene.keys() == [3, 2, 5]


async def test_clean_aborted_transaction_hides_no_key_of_the_next_one(scene: Scene) -> None:
    """Otherwise the older value would stay, and come back when a tombstone that replaced it goes."""
    await scene.write(1, 1, 2)
    await scene.end(1, commit=True)
    await scene.write(1, 2)
    await scene.end(1, commit=False)
    await scene.clean()
    assert (await scene.keys(), await scene.aborted()) == ([1, 2], [(3, 4)])
    await scene.write(1, 1)
    await scene.end(1, commit=True)
    await scene.clean()
    assert await scene.keys() == [2, 1]


async def test_many_aborted_transactions_are_read_and_removed_in_parts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "ABORTED_STEP", 2)
    monkeypatch.setattr(run, "MOST_MARKERS", 2)
    for number in range(130):
        await scene.write(number % 3, number)
        await scene.end(number % 3, commit=False)
    await scene.write(1, 1)
    await scene.end(1, commit=True)
    for _ in range(2):
        await scene.clean()
    assert (await scene.keys(), len(await scene.aborted())) == ([1], 130)
    scene.now_ms += RETENTION_MS
    left = 130
    while left:
        await scene.clean()
        before, left = left, len(await scene.aborted())
        assert left < before
    assert (await scene.keys(), await scene.offsets()) == ([1], [260, 261])
