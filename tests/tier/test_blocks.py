"""Footers and blocks of stored segments: requested once for all readers, checked, bounded, and in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

import anyio
import anyio.lowlevel
import pytest
from obstore.store import MemoryStore

from korvet.errors import KorvetError
from korvet.tier import blocks
from korvet.tier.blocks import ENTRY_BYTES, MOST_GET_BYTES, MOST_GETS, Blocks, Gets, Stored
from korvet.tier.manifest import DamagedManifest, Member, shelf
from korvet.tier.objects import ObjectMissing, Objects, TierAway
from korvet.tier.segment import BLOCK_BYTES, DamagedSegment
from tests.tier.segments import NAME, batch, member, written

pytestmark = pytest.mark.anyio

EVERYTHING = 1 << 30
HALF = BLOCK_BYTES // 2 - 61
"""With its header, half a block."""


class Store(Objects):
    """Objects in memory. Reads are noted, and wait, fail or bring changed bytes as a test wants."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), "memory")
        self.reads: list[tuple[str, int, int]] = []
        self.running: Counter[str] = Counter()
        self.most = 0
        self.open = anyio.Event()
        self.open.set()
        self.shut: str | None = None
        """The path of which reads wait; all, if it is empty."""
        self.fails = 0
        """The next reads that fail."""
        self.flips: dict[int, Container[int]] = {}
        """The reads, counted from 1, in which the byte at a position comes changed."""

    async def read(self, path: str, start: int, end: int) -> memoryview:
        self.reads.append((path, start, end))
        number = len(self.reads)
        self.running[path] += 1
        self.most = max(self.most, self.running.total())
        try:
            await anyio.lowlevel.checkpoint()
            if self.shut is not None and path.startswith(self.shut):
                await self.open.wait()
            if self.fails:
                self.fails -= 1
                raise TierAway("the store is away")
            data = bytearray(await super().read(path, start, end))
        finally:
            self.running[path] -= 1
        for at, reads in self.flips.items():
            if start <= at < start + len(data) and number in reads:
                data[at - start] ^= 1
        return memoryview(bytes(data))

    def wait(self, path: str = "") -> None:
        """Let the reads of a path wait from now on."""
        self.shut, self.open = path, anyio.Event()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_FIRST_BACKOFF_S", 0.0)


async def stored(gets: Gets, batches: Sequence[bytes], path: str = "ns/t/0/a.segment") -> Stored:
    """A segment that lies in a store."""
    whole, footer = written(batches)
    await gets.objects.put(path, [whole[: footer.size_bytes], whole[footer.size_bytes :]])
    return Stored(gets, path, member(footer))


def halves(count: int) -> list[bytes]:
    return [batch(at, size=HALF) for at in range(count)]


async def until(store: Store, reads: int) -> None:
    with anyio.fail_after(60):
        while len(store.reads) < reads:
            await anyio.sleep(0.001)
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def test_first_read_takes_two_requests_and_the_next_ones_none() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(6)
    one = await stored(Gets(store), made)
    for offset in (1, 0, 2, 1):
        assert await cache.batches(one, offset, HALF) == made[offset]
    assert [end - start for _, start, end in store.reads] == [one.member.footer_bytes, 2 * BLOCK_BYTES]
    assert bytes(await cache.batches(one, 0, EVERYTHING)) == b"".join(made)
    assert store.reads[2:] == [(one.path, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES)]
    assert bytes(await cache.batches(one, 6, EVERYTHING)) == b""


async def test_many_readers_share_one_request() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(6)
    one = await stored(Gets(store), made)
    found: list[memoryview] = []

    async def read() -> None:
        found.append(await cache.batches(one, 0, EVERYTHING))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(read)
    assert found == [b"".join(made)] * 20
    assert len(store.reads) == 2


async def test_readers_whose_first_one_leaves_are_served() -> None:
    """They take over the request of the footer, and later that of the blocks."""
    store, cache, made = Store(), Blocks(EVERYTHING), halves(6)
    one = await stored(Gets(store), made)
    found: list[memoryview] = []

    async def read(scope: anyio.CancelScope) -> None:
        with scope:
            found.append(await cache.batches(one, 0, EVERYTHING))

    scopes = [anyio.CancelScope() for _ in range(5)]
    async with anyio.create_task_group() as tasks:
        store.wait()
        for scope in scopes:
            tasks.start_soon(read, scope)
        await until(store, 1)
        scopes[0].cancel()
        await until(store, 2)
        store.open.set()
        store.wait()
        await until(store, 3)
        scopes[1].cancel()
        await until(store, 4)
        store.open.set()
    assert found == [b"".join(made)] * 3
    assert len(store.reads) == 4
    assert store.running.total() == 0


async def test_nobody_works_for_readers_that_left() -> None:
    store, cache = Store(), Blocks(EVERYTHING)
    gets = Gets(store)
    one = await stored(gets, halves(40))
    await cache.footer(one)
    store.wait()
    with anyio.move_on_after(0.05):
        await cache.batches(one, 0, EVERYTHING)
    assert store.running.total() == 0
    store.open.set()
    assert len(await cache.batches(one, 0, EVERYTHING)) == 20 * BLOCK_BYTES


async def test_large_batch_comes_in_requests_of_bounded_size_a_few_at_a_time() -> None:
    store, cache = Store(), Blocks(EVERYTHING)
    made = [batch(0), batch(1, size=30 * BLOCK_BYTES), batch(2)]
    one = await stored(Gets(store, most_of_one=2), made)
    assert await cache.batches(one, 1, 1) == made[1]
    assert max(end - start for _, start, end in store.reads) == MOST_GET_BYTES
    assert len(store.reads) == 1 + 8
    assert store.most == 2


@pytest.mark.parametrize("budget", [0, ENTRY_BYTES, 2 * BLOCK_BYTES, 5 * BLOCK_BYTES])
async def test_memory_stays_within_its_budget(budget: int) -> None:
    store, cache, made = Store(), Blocks(budget), halves(20)
    one = await stored(Gets(store), made)
    for offset, most in ((0, EVERYTHING), (3, HALF), (0, EVERYTHING), (19, 1), (3, HALF)):
        assert (await cache.batches(one, offset, most))[:100] == made[offset][:100]
        assert 0 <= cache.size_bytes <= budget
    assert sum(size for _, size in cache._kept.values()) == cache.size_bytes


async def test_blocks_used_last_stay_longest() -> None:
    store, made = Store(), [batch(at, size=BLOCK_BYTES - 61) for at in range(6)]
    one = await stored(Gets(store), made)
    cache = Blocks(one.member.footer_bytes + 2 * BLOCK_BYTES + 3 * ENTRY_BYTES)
    for offset in (0, 1, 0, 2, 0):
        assert await cache.batches(one, offset, 1) == made[offset]
    assert [start for _, start, _ in store.reads[1:]] == [0, BLOCK_BYTES, 2 * BLOCK_BYTES]


async def test_damaged_block_fails_its_range_and_no_other() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(8)
    one = await stored(Gets(store), made)
    store.flips[BLOCK_BYTES + 100] = range(EVERYTHING)
    # The third batch is damaged: the read ends before it.
    assert bytes(await cache.batches(one, 0, EVERYTHING)) == b"".join(made[:2])
    assert store.reads[1:] == [(one.path, 0, 4 * BLOCK_BYTES)] * 2
    text = f"^memory/{one.path}: the bytes {BLOCK_BYTES} to {2 * BLOCK_BYTES} were changed or cut off$"
    for _ in range(2):
        with pytest.raises(DamagedSegment, match=text):
            await cache.batches(one, 2, 1)
    assert bytes(await cache.batches(one, 4, EVERYTHING)) == b"".join(made[4:])
    # It heals, for example by a restored backup.
    store.flips.clear()
    assert await cache.batches(one, 2, 1) == made[2]


async def test_bytes_that_change_once_on_their_way_are_requested_again() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(8)
    one = await stored(Gets(store), made)
    store.flips = {10: [3], 3 * BLOCK_BYTES: [3], one.member.size_bytes + 5: [1]}
    assert bytes(await cache.batches(one, 0, EVERYTHING)) == b"".join(made)
    assert len(store.reads) == 4


async def test_different_blocks_that_change_in_two_answers_are_all_read() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(8)
    one = await stored(Gets(store), made)
    await cache.footer(one)
    store.flips = {10: [3], BLOCK_BYTES: [2]}
    assert await cache.batches(one, 0, EVERYTHING) == b"".join(made)
    assert len(store.reads) == 3


@pytest.mark.parametrize("cut", ["footer", "blocks", "all"])
async def test_object_that_was_cut_off_is_damaged(cut: str) -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(8)
    one = await stored(Gets(store), made)
    if cut == "blocks":
        await cache.footer(one)
    whole = await store.read(one.path, 0, EVERYTHING)
    await store.delete(one.path)
    await store.put(one.path, [whole[: {"footer": -1, "blocks": BLOCK_BYTES, "all": 0}[cut]]])
    if cut == "blocks":
        assert bytes(await cache.batches(one, 0, EVERYTHING)) == b"".join(made[:2])
    with pytest.raises(DamagedSegment, match=f"memory/{one.path}: "):
        await cache.batches(one, 2, 1)


async def test_segment_of_the_same_offsets_from_somebody_else_is_not_served() -> None:
    store, cache = Store(), Blocks(EVERYTHING)
    one = await stored(Gets(store), [batch(0, size=5)])
    await store.delete(one.path)
    await stored(one.gets, [batch(0, size=5, timestamp=1)])
    with pytest.raises(DamagedSegment, match="the footer is another segment's"):
        await cache.batches(one, 0, 1)


async def test_footer_that_does_not_fit_the_manifest_is_refused() -> None:
    cache, gets = Blocks(EVERYTHING), Gets(Store())
    one = await stored(gets, [batch(0, size=5)])
    with pytest.raises(DamagedSegment, match="the footer does not fit the manifest"):
        await cache.footer(one._replace(member=one.member._replace(next_offset=2)))
    await cache.footer(one)


async def test_missing_object_fails_its_readers_at_once_and_no_others() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(2)
    gets = Gets(store)
    one, other = await stored(gets, made), await stored(gets, made, "ns/t/0/b.segment")
    await store.delete(one.path)
    errors: list[KorvetError] = []

    async def read() -> None:
        with pytest.raises(ObjectMissing, match=r"a\.segment does not exist") as caught:
            await cache.batches(one, 0, 1)
        errors.append(caught.value)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(read)
    assert len(store.reads) == 1
    assert len(set(map(id, errors))) == 3
    assert await cache.batches(other, 0, 1) == made[0]


async def test_request_that_fails_is_tried_again_and_then_given_up() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(2)
    one = await stored(Gets(store), made)
    store.fails = 3
    assert await cache.batches(one, 0, 1) == made[0]
    assert (one.gets.all_failures, sum(one.gets.waits.buckets)) == (3, 5)
    store.fails = EVERYTHING
    with pytest.raises(TierAway, match="the store is away"):
        await Blocks(EVERYTHING).batches(one, 0, 1)
    assert len(store.reads) == 5 + 4


async def test_store_that_is_away_gets_one_request_at_a_time() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(2)
    gets = Gets(store)
    all_of_them = [await stored(gets, made, f"ns/t/{at}/a.segment") for at in range(30)]
    store.fails = EVERYTHING

    async def read(one: Stored) -> None:
        with pytest.raises(TierAway):
            await cache.batches(one, 0, 1)

    async with anyio.create_task_group() as tasks:
        for one in all_of_them:
            tasks.start_soon(read, one)
    assert store.most == MOST_GETS
    store.most = 0
    async with anyio.create_task_group() as tasks:
        for one in all_of_them:
            tasks.start_soon(read, one)
    assert store.most == 1
    store.fails, store.most = 0, 0
    async with anyio.create_task_group() as tasks:
        for one in all_of_them:
            tasks.start_soon(cache.batches, one, 0, 1)
    assert store.most > 1


async def test_answer_that_an_object_is_missing_shows_that_the_store_is_back() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(2)
    gets = Gets(store)
    all_of_them = [await stored(gets, made, f"ns/t/{at}/a.segment") for at in range(5)]
    store.fails = 4
    with pytest.raises(TierAway):
        await cache.batches(all_of_them[0], 0, 1)
    assert gets.failures == 4
    with pytest.raises(ObjectMissing):
        await cache.batches(all_of_them[0]._replace(path="ns/t/0/b.segment"), 0, 1)
    assert gets.failures == 0
    async with anyio.create_task_group() as tasks:
        for one in all_of_them:
            tasks.start_soon(cache.batches, one, 0, 1)
    assert store.most == len(all_of_them)


async def test_partition_whose_requests_hang_leaves_turns_to_others() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(40)
    gets = Gets(store, most=3, most_of_one=2)
    slow, other = await stored(gets, made, "ns/slow/0/a.segment"), await stored(gets, made, "ns/t/0/a.segment")
    await cache.footer(slow)
    store.wait("ns/slow/")
    async with anyio.create_task_group() as tasks:
        for offset in range(0, 40, 2):
            tasks.start_soon(cache.batches, slow, offset, 1)
        await until(store, 3)
        assert len(await cache.batches(other, 0, EVERYTHING)) == 20 * BLOCK_BYTES
        assert store.running == {slow.path: 2, other.path: 0}
        store.open.set()
    assert store.most == 3


async def test_store_that_hangs_costs_a_reader_its_deadline_and_nothing_stays_behind() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(2)
    gets = Gets(store, deadline_s=0.2)
    one = await stored(gets, made)
    store.wait()
    with pytest.raises(TierAway, match=r"memory/ns/t/0/a.segment: no answer within 0.1 s"):
        await cache.batches(one, 0, 1)
    assert store.running.total() == 0
    store.open.set()
    assert await cache.batches(one, 0, 1) == made[0]


async def test_reader_without_a_turn_gives_up_at_its_deadline() -> None:
    store, cache, made = Store(), Blocks(EVERYTHING), halves(2)
    gets = Gets(store, most=1, deadline_s=0.2)
    one = await stored(gets, made)
    store.wait()

    async def hold() -> None:
        # As a request of a reader that is still within its deadline.
        await gets._turns.begin("another")
        await store.open.wait()
        gets._turns.end("another")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await anyio.lowlevel.checkpoint()
        with pytest.raises(TierAway, match=r"no turn within 0.2 s"):
            await cache.batches(one, 0, 1)
        store.open.set()
    assert await cache.batches(one, 0, 1) == made[0]


async def test_shelf_is_read_once_and_checked() -> None:
    store, cache = Store(), Blocks(EVERYTHING)
    gets = Gets(store)
    listed = [Member("segment", at, at + 1, 100, 50, 0, 0, 100 * (at + 1), 0, NAME) for at in range(100)]
    data, one = shelf(listed, NAME)
    await store.put("ns/t/0/a.shelf", [data])
    for _ in range(2):
        assert list((await cache.shelf(Stored(gets, "ns/t/0/a.shelf", one))).members) == listed
    assert len(store.reads) == 1
    # Its members take more memory than their lines.
    assert cache.size_bytes > 4 * len(data)
    with pytest.raises(DamagedManifest, match=r"memory/ns/t/0/a\.shelf: the shelf of offset 0 was changed"):
        await Blocks(EVERYTHING).shelf(Stored(gets, "ns/t/0/a.shelf", one._replace(crc=1)))
