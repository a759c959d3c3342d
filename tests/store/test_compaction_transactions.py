"""Compaction of what transactions wrote: cases of Kafka's LogCleanerTest, and open transactions."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

import pytest

from korvet.store.client import Purpose
from korvet.store.log import Partition, compaction
from korvet.store.log.compaction import Compaction, compact
from korvet.wire.batch import TRANSACTIONAL
from korvet.wire.fetch_response import PartitionRead
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
    """A partition to which transactions write, and its compaction in a time of its own."""

    def __init__(self, front: Front, partition: Partition) -> None:
        self.front = front
        self.partition = partition
        self.now_ms = NOW_MS
        self._ordinals = count(1)
        self._ordinal: dict[int, int] = {}
        self._sequences: dict[int, int] = defaultdict(int)

    async def write(self, producer_id: int, *keys: int) -> None:
        """A batch of a producer's open transaction, which begins where none is open."""
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
        """Compact all that is there: a batch behind it is what stays out of reach."""
        await self.front.append(self.partition, keyed((LAST, b"")))
        assert await compact(self.front.log, self.partition, SETTINGS, self.now_ms)

    async def keys(self) -> list[int]:
        """Those of the records that are left."""
        return [int(key) for _, key, _ in records(await self._read()) if key and key != LAST]

    async def offsets(self) -> list[int]:
        """Of all that is left, markers too, but what `clean` appended."""
        left = []
        read = await self._read()
        last = {offset for offset, key, _ in records(read) if key == LAST}
        for batch, _ in batches(read):
            if batch.attributes & 0x20:
                left.append(batch.base_offset)
        left += [offset for offset, _, _ in records(read) if offset not in last]
        return sorted(left)

    async def aborted(self) -> list[tuple[int, int]]:
        """First and last offsets in the list that readers are told of."""
        name = self.partition.transaction_keys.aborted
        members = await self.front.store.call(Purpose.READ, name, "ZRANGE", name, 0, -1)
        return [(int(member.split()[0]), int(member.split()[1])) for member in members if member]

    async def _read(self) -> PartitionRead:
        self.front.log.recent.clear()
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
async def test_commit_marker_goes_when_nothing_of_its_transaction_is_left(scene: Scene) -> None:
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
    # The records went just now, so the marker gets its horizon with the next run only.
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
async def test_abort_marker_goes_and_readers_are_told_no_more_of_its_transaction(scene: Scene) -> None:
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
    # Else the producer's next transaction would be taken for the aborted one.
    assert (await scene.keys(), await scene.offsets(), await scene.aborted()) == ([3], [4, 5], [])


@kafka("LogCleanerTest.testDeletedBatchesWithNoMessagesRead")
async def test_batches_that_go_one_after_another(scene: Scene) -> None:
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
async def test_marker_of_records_that_stay_stays(scene: Scene) -> None:
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
    # The first offset of the open one is the end of what may be looked at: key 2 stays where it was.
    await scene.clean()
    assert await scene.keys() == [2, 3, 2, 4, 2, 5]
    await scene.end(2, commit=False)
    await scene.clean()
    assert await scene.keys() == [3, 2, 5]


async def test_transaction_that_was_aborted_before_what_is_dirty_hides_no_key_of_its_producers_next(
    scene: Scene,
) -> None:
    """Else the older value would stay, and come back when the newer one is a tombstone that goes."""
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
    monkeypatch.setattr(compaction, "ABORTED_STEP", 2)
    monkeypatch.setattr(compaction, "MOST_MARKERS", 2)
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
