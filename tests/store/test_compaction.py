"""Compaction over real servers: what stays, where it is found, and what a run that is broken off leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.store.client import Purpose
from korvet.store.keys import spare_stream
from korvet.store.log import Partition
from korvet.store.log.compaction import Compaction, compact
from tests.store.keyed import Pair, Read, all_values, batches, keyed, records
from tests.store.logs import LARGE, Front

pytestmark = pytest.mark.anyio
NOW_MS = 1_700_000_000_000
ALWAYS = Compaction(min_lag_ms=0, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=1000)


async def fill(front: Front, partition: Partition, *all_pairs: list[Pair], codec: int = 0) -> None:
    for pairs in all_pairs:
        assert (await front.append(partition, keyed(*pairs, codec=codec)))[0] == 0


async def read_all(front: Front, partition: Partition, offset: int = 0) -> list[Read]:
    """All records from an offset on, out of Redis."""
    front.log.recent.clear()
    front.log.forget()
    return [record for record in records(await front.read(partition, offset)) if record[0] >= offset]


async def keys_of(front: Front, partition: Partition) -> set[str]:
    """The names of the partition's keys, from the last colon on."""
    prefix = partition.keys.log.removesuffix("log")
    cursor: Any = b"0"
    names: set[str] = set()
    while True:
        cursor, found = await front.store.call(
            Purpose.READ, prefix, "SCAN", cursor, "MATCH", prefix.replace("[", "\\[") + "*", "COUNT", 1000
        )
        names |= {name.decode().removeprefix(prefix) for name in found}
        if cursor == b"0":
            return names


UNIT = {"log", "meta", "producers", "open", "aborted", "transactions"}


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("size", [1, LARGE])
async def test_the_last_value_of_each_key_stays_where_it_was(one: Front, codec: int, size: int) -> None:
    partition = await one.partition()
    await fill(
        one, partition,
        [(b"a", b"1" * size), (b"b", b"1" * size), (b"c", b"1" * size)],
        [(b"a", b"2" * size)],
        [(b"b", b"2" * size), (b"d", b"1" * size)],
        [(b"d", b"2" * size)],
        codec=codec,
    )  # fmt: skip
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    # The last batch is out of reach, so it does not count as newer than others.
    left = [(2, b"c", b"1" * size), (3, b"a", b"2" * size), (4, b"b", b"2" * size), (5, b"d", b"1" * size)]
    last = [(6, b"d", b"2" * size)]
    for offset in range(8):
        assert await read_all(one, partition, offset) == [record for record in left + last if record[0] >= offset]
    read = await one.read(partition, 0)
    assert [(batch.base_offset, batch.last_offset_delta) for batch, _ in batches(read)] == [(0, 2), (3, 0), (4, 1), (6, 0)]
    assert not await compact(one.log, partition, ALWAYS, NOW_MS)
    names = await keys_of(one, partition)
    assert {name for name in names if not name.startswith("log:")} == UNIT
    assert "log:spare" not in names
