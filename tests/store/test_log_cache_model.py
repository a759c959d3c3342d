"""Answers out of memory beside those of a front-end that remembers nothing, between random steps of two writers."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import uuid4

import pytest

from korvet.redis.client import Purpose
from korvet.store.log.appending.markers import Ending
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.store.log.state.partition import Meta, Partition
from korvet.wire.batch import TRANSACTIONAL
from tests.store.logs import EVERYTHING, LARGE, Front, batch, header, split, until
from tests.store.test_log_transactions import Coordinator, transactional

pytestmark = pytest.mark.anyio

SIZES = (10, 3000, 9000, LARGE)
LIMITS = (1, 4000, LARGE + 1000, 3 * LARGE, EVERYTHING)


@pytest.mark.parametrize("seed", range(3))
async def test_answers_out_of_memory_are_those_of_the_log(one: Front, other: Front, seed: int) -> None:
    random, partition = Random(seed), await one.partition()
    await other.catalog.refresh()
    theirs, shares = other.known(partition), [one.log.answers.share() for _ in range(3)]
    writer = Writer(random)
    await until(lambda: one.wakeups.keep(partition.channel))
    for _ in range(150):
        if random.random() < 0.4:
            await writer.write(*random.choice(((one, partition), (other, theirs))))
        else:
            meta = await _heard(one, other, theirs)
            at = random.randint(meta.start, meta.end), random.choice(LIMITS)
            is_committed, readers = random.random() < 0.4, shares[: random.randint(1, 3)]
            want = Want(partition, *at, is_committed=is_committed)
            found = await asyncio.gather(*(one.log.read([want], EVERYTHING, share) for share in readers))
            other.log.forget()
            (expected,) = await other.log.read([Want(theirs, *at, is_committed=is_committed)], EVERYTHING)
            for (read,), share in zip(found, readers, strict=True):
                _compare(read, expected)
                share.let_go()
    assert one.log.reads.memory > 10


class Writer:
    """A producer, with transactions of another one; now and then a trim, and a gap as compaction leaves it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.ordinal, self.epoch, self.sequence = 7, 0, 0

    async def write(self, front: Front, partition: Partition) -> None:
        step, random, log = self.random.random(), self.random, partition.keys.log
        if step < 0.6:
            assert (await front.append(partition, batch(random.choice((1, 5)), random.choice(SIZES))))[0] == 0
        elif step < 0.8:
            data = transactional(self.sequence, self.epoch, size=random.choice(SIZES))
            coordinator = Coordinator(ordinal_=self.ordinal)
            assert (await front.log.append(partition, header(data), data, coordinator)).code == 0
            self.sequence += 1
        elif step < 0.94 and self.sequence:
            self.epoch += 1
            ending = Ending(self.ordinal, 5, self.epoch, is_commit=random.random() < 0.5)
            assert await front.log.mark(partition, ending) == 0
            self.ordinal, self.sequence = self.ordinal + 1, 0
        elif step < 0.96:
            await front.log.trim(partition, random.randint(0, 20))
        else:
            entries = await front.store.call(Purpose.READ, log, "XRANGE", log, "-", "+")
            if len(entries) > 2:
                await front.store.call(Purpose.APPEND, log, "XDEL", log, random.choice(entries[1:-1])[0])
                await front.store.call(Purpose.APPEND, log, "SPUBLISH", log, "-1 -1")


async def _heard(one: Front, other: Front, theirs: Partition) -> Meta:
    """The partition's meta hash, after the first front-end has heard all messages: they come in order."""
    last, message = f"{theirs.channel}:last", uuid4().bytes
    await until(lambda: one.wakeups.keep(last))
    await other.store.call(Purpose.APPEND, theirs.keys.log, "SPUBLISH", last, message)
    await until(lambda: one.wakeups.latest(last) == message)
    meta = await other.log.meta(theirs)
    assert meta is not None
    return meta


def _compare(read: PartitionRead, expected: PartitionRead) -> None:
    ends = [(one.code, one.high_watermark, one.log_start, one.last_stable) for one in (read, expected)]
    assert ends[0] == ends[1]
    mine, theirs = split(read), split(expected)
    assert (
        mine == theirs
        or (read.is_cut and mine == theirs[: len(mine)])
        or (expected.is_cut and theirs == mine[: len(theirs)])
    )
    if any(data[6] & TRANSACTIONAL for *_, data in mine) and len(mine) == len(theirs):
        assert read.aborted == expected.aborted or (not read.aborted and not expected.aborted)
