"""Snapshots: their bytes, and how the newest one is found by names alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.tier.manifest import Member
from korvet.tier.objects import Directory, ObjectMissing, Objects
from korvet.tier.series import KEPT, Series
from korvet.tier.snapshot import DamagedSnapshot, Snapshot, TieredTopic, Topics, topics_folder
from tests.tier.segments import NAME, TOPIC_ID

pytestmark = pytest.mark.anyio


def snapshot(*ends: int, log_start: int = 0, tier_end: int | None = None, token: str = "t", epoch: int = 3) -> Snapshot:
    """A snapshot of segments with these ends, the first of which is the first one's beginning."""
    members = tuple(
        Member("segment", first, after, 100, 50, 7, 7, 100 * at, at, NAME)
        for at, (first, after) in enumerate(pairwise(ends))
    )
    return Snapshot(
        cluster_id="c", namespace="default", topic="orders", topic_id=TOPIC_ID.hex, partition=2, token=token,
        leader_epoch=epoch, epochs="0:0,3:5", log_start=log_start, tier_end=ends[-1] if tier_end is None else tier_end,
        max_producer_id=12, chain=77, members=members,
    )  # fmt: skip


def test_snapshot_of_a_partition_is_read_as_it_was_written() -> None:
    one = snapshot(0, 10, 25, log_start=7)
    assert Snapshot.decoded(b"".join(one.encoded())) == one
    assert one.folder == f"default/orders/{TOPIC_ID.hex}/2"


def test_snapshot_of_topics_is_read_as_it_was_written() -> None:
    topic = TieredTopic("orders", TOPIC_ID.hex, 3, {"retention.ms": "-1", "x": "line\nbreak \u2028"})
    one = Topics(cluster_id="c", namespace="default", version=9, topics=[topic])
    assert Topics.decoded(b"".join(one.encoded())) == one
    assert one.named("orders") == topic
    assert one.named("other") is None
    assert one.folder == topics_folder("default")


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (snapshot(5, 10, log_start=0), "no segment from offset 0 to 5"),
        (snapshot(0, 10, tier_end=11), "the tier ends at 11"),
        (snapshot(0, 10, tier_end=9), "the tier ends at 9"),
        (snapshot(0, tier_end=4), "the tier ends at 4"),
    ],
)
def test_snapshot_with_a_gap_is_refused(one: Snapshot, problem: str) -> None:
    with pytest.raises(DamagedSnapshot, match=problem):
        Snapshot.decoded(b"".join(one.encoded()))


def test_snapshot_may_have_deleted_segments_and_an_end_below_the_log_start() -> None:
    for one in (snapshot(0, 10, 20, log_start=15), snapshot(0, 10, log_start=15), snapshot(9, log_start=15)):
        assert Snapshot.decoded(b"".join(one.encoded())) == one


@given(st.data())
def test_changed_snapshot_is_refused(data: st.DataObject) -> None:
    whole = b"".join(snapshot(0, 10, 25).encoded())
    at = data.draw(st.integers(0, len(whole) - 2))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    for bytes_ in (bytes(changed), whole[:at]):
        with pytest.raises(DamagedSnapshot):
            Snapshot.decoded(bytes_)


def test_published_snapshot_is_ahead_of_a_redis_that_went_back() -> None:
    now = snapshot(0, 10, 25)
    assert not now.is_ahead_of(now)
    assert not now.is_ahead_of(snapshot(0, 10, 25, 30, log_start=3, epoch=4))
    for lost in (snapshot(0, 10), snapshot(0, 10, 25, epoch=2), snapshot(0, 10, 25, token="u")):
        assert now.is_ahead_of(lost)
    # Redis from before a merge; and a merge that is not published yet.
    assert snapshot(0, 20).is_ahead_of(snapshot(0, 10, 20))
    assert not snapshot(0, 10, 20).is_ahead_of(snapshot(0, 20))
    assert not snapshot(0, 10, 20).is_ahead_of(snapshot(0, 10, 20, log_start=10))
    assert snapshot(0, 10, log_start=5).is_ahead_of(snapshot(0, 10))


class Memory(Objects):
    """Objects of which only the names matter, and a count of reads."""

    def __init__(self) -> None:
        self.name = "memory"
        self.kept: dict[str, bytes] = {}
        self.reads = 0
        self.writer: Series[bytes] | None = None
        self.number = self.added = 0

    async def put(self, path: str, parts: Sequence[bytes | memoryview]) -> None:
        self.kept.setdefault(path, b"".join(parts))

    async def read(self, path: str, start: int, end: int) -> memoryview:
        self.reads += 1
        if self.writer is not None:
            # Another one is published between any two reads.
            writer, self.writer = self.writer, None
            if self.added < KEPT - 1 and random.random() < 0.5:
                self.number = await writer.add(self.number, [b"%d" % (self.number + 1)]) or self.number
                self.added += 1
            self.writer = writer
        if path not in self.kept:
            raise ObjectMissing(path)
        return memoryview(self.kept[path])[start:end]

    async def delete(self, path: str) -> None:
        self.kept.pop(path, None)


async def test_newest_is_found_by_names_at_each_number() -> None:
    objects = Memory()
    series = Series(objects, "a", lambda data: int(bytes(data)))
    assert await series.newest() is None
    for number in range(1, 600):
        assert await series.add(number - 1, [b"%d" % number]) == number
        objects.reads = 0
        assert await series.newest() == (number, number)
        assert objects.reads <= 2 * number.bit_length() + 2
        assert await series.newest(random.randint(1, number)) == (number, number)
        assert len(objects.kept) <= 2 * KEPT + 2 * number.bit_length()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5000), st.randoms(use_true_random=False))
async def test_newest_is_not_older_than_the_one_at_the_beginning(start: int, chance: random.Random) -> None:
    random.seed(chance.random())
    objects = Memory()
    writer = Series(objects, "a", bytes)
    # As if all numbers up to this one had been added.
    objects.kept = {writer.path(one): b"%d" % one for one in range(max(1, start - 4 * KEPT), start + 1)}
    objects.kept |= {writer.path(1 << bit): b"%d" % (1 << bit) for bit in range(start.bit_length())}
    for one in range(max(1, start - KEPT + 1), start + 1):
        for bit in range(14):
            if mark := one >> bit << bit:
                objects.kept.setdefault(writer.path(mark), b"%d" % mark)
    objects.number, objects.writer = start, writer
    found = await Series(objects, "a", lambda data: int(bytes(data))).newest()
    assert found is not None
    assert found[0] == found[1] >= start


async def test_second_writer_with_an_old_number_looks_again(tmp_path: Path) -> None:
    series = Series(Directory(tmp_path), "a/b", bytes)
    for number in range(1, 40):
        assert await series.add(number - 1, [b"%d" % number]) == number
    assert await series.add(38, [b"other"]) is None
    # 21 was removed long ago, so its name is free again.
    assert not (tmp_path / series.path(21)).exists()
    assert await series.add(20, [b"other"]) is None
    assert await series.newest() == (39, b"39")
    assert await series.add(38, [b"39"]) == 39


async def test_damaged_newest_is_named_and_the_one_before_counts_once_it_is_deleted(tmp_path: Path) -> None:
    def decoded(data: memoryview) -> int:
        if bytes(data) == b"x":
            raise DamagedSnapshot("it was changed")
        return int(bytes(data))

    objects = Directory(tmp_path)
    series = Series(objects, "a", decoded)
    for number in range(1, 17):
        assert await series.add(number - 1, [b"x" if number == 16 else b"%d" % number]) == number
    with pytest.raises(DamagedSnapshot, match=r"a/0*16\.snapshot: it was changed; put it back"):
        await series.newest(16)
    await objects.delete(series.path(16))
    assert await series.newest(16) == (15, 15) == await series.newest()
