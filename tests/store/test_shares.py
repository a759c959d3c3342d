"""Share partitions as a front-end uses them: `korvet.store.shares.shares`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from korvet.codes import INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION
from korvet.store.calls import Calls, StateRoom
from korvet.store.contract import RETRY
from korvet.store.log.state.partition import Partition
from korvet.store.outages import Outages
from korvet.store.shares.shares import Shares
from korvet.store.shares.types import (
    Acknowledgement,
    AcknowledgeType,
    Acquired,
    AcquiredRange,
    Acquirer,
    InFlight,
    Limits,
)
from korvet.store.topics import delete_topic
from tests.store.logs import Front, batch

pytestmark = pytest.mark.anyio

LIMITS = Limits(lock_ms=30_000, deliveries=5, window=2000)
ME, YOU = Acquirer("me", "1"), Acquirer("you", "2")
ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE


@pytest.fixture
async def shares(one: Front) -> Shares:
    return Shares(one.log, Calls(one.store, Outages(one.store), StateRoom()))


@pytest.fixture
async def partition(one: Front, shares: Shares) -> Partition:
    """Four batches of three records, and a group ``g`` that has begun."""
    partition = await one.partition()
    for _ in range(4):
        await one.append(partition, batch())
    assert await shares.begin(partition, "g", "cgp_1") == 0
    return partition


async def test_records_are_acquired_acknowledged_and_described(shares: Shares, partition: Partition) -> None:
    assert (await shares.acquire(partition, "g", ME, LIMITS, 4)).code == RETRY
    found = await shares.acquire(partition, "g", ME, LIMITS, 4, reset="earliest")
    assert found == Acquired(0, 0, 6, [AcquiredRange(0, 5, 1)], 0, 0, found.now_ms)
    assert (await shares.acquire(partition, "g", YOU, LIMITS, 4, mode="records")).ranges == [AcquiredRange(6, 9, 1)]
    assert await shares.acknowledge(partition, "g", ME, [Acknowledgement(0, 3, ACCEPT)], LIMITS) == 0
    assert await shares.acknowledge(partition, "g", ME, [Acknowledgement(4, 12, RELEASE)], LIMITS) == INVALID_REQUEST
    assert await shares.release(partition, "g", ME, LIMITS) == 2
    described = await shares.describe(partition, "g")
    assert described is not None
    assert (described.group_uid, described.start, described.next, described.lag) == ("cgp_1", 4, 10, 8)
    held = described.in_flight[1].left_ms
    assert described.in_flight == [InFlight("available", 4, 5, 1), InFlight("acquired", 6, 9, 1, held, "you")]
    assert 0 < held <= LIMITS.lock_ms
    assert await shares.describe(partition, "g", has_ranges=False) == replace(described, in_flight=[])


async def test_released_record_waits_for_its_backoff(shares: Shares, partition: Partition) -> None:
    limits = replace(LIMITS, backoff_ms=20_000, backoff_most_ms=10_000)
    await shares.acquire(partition, "g", ME, limits, 12, reset="earliest")
    assert await shares.acknowledge(partition, "g", ME, [Acknowledgement(0, 1, RELEASE)], limits) == 0
    assert await shares.release(partition, "g", ME, limits) == 10
    described = await shares.describe(partition, "g")
    assert described is not None
    assert [one[:4] for one in described.in_flight] == [("delayed", 0, 1, 1), ("delayed", 2, 11, 1)]
    again = await shares.acquire(partition, "g", ME, limits, 12)
    assert again.ranges == [] and again.wait_ms is not None and 0 < again.wait_ms <= 10_000


async def test_acknowledgements_beyond_one_call_are_of_all_records_or_of_none(
    one: Front, shares: Shares, partition: Partition
) -> None:
    for _ in range(9):
        await one.append(partition, batch(count=130))
    found = await shares.acquire(partition, "g", ME, LIMITS, 1182, reset="earliest", mode="records")
    assert found.ranges == [AcquiredRange(0, 1181, 1)]
    kinds = [Acknowledgement(at, at, RELEASE if at % 2 else ACCEPT) for at in range(1183)]
    assert await shares.acknowledge(partition, "g", ME, kinds, LIMITS) == INVALID_REQUEST
    assert await shares.acknowledge(partition, "g", ME, kinds[:-1], LIMITS) == 0
    described = await shares.describe(partition, "g")
    assert described is not None
    assert [one.first for one in described.in_flight] == list(range(1, 1182, 2))
    again = await shares.acquire(partition, "g", ME, LIMITS, 1182)
    assert len(again.ranges) == 591
    every = [Acknowledgement(one.first, one.last, ACCEPT) for one in again.ranges]
    assert await shares.acknowledge(partition, "g", ME, every, LIMITS) == 0
    assert (await shares.acquire(partition, "g", ME, LIMITS, 1)).start == 1182


async def test_topic_deletion_removes_share_partitions(one: Front, shares: Shares, partition: Partition) -> None:
    for number in range(150):
        assert await shares.begin(partition, f"g{number}", "cgp_1") == 0
    await delete_topic(one.catalog, one.log, partition.topic)
    assert (await shares.acquire(partition, "g", ME, LIMITS, 1)).code == UNKNOWN_TOPIC_OR_PARTITION
    assert await shares.describe(partition, "g") is None
    assert not await shares.delete(partition, "g")
