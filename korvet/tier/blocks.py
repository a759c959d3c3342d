"""Reads of segments: footers and checked blocks, in memory for all readers of a process.

**One request for all.** The first reader of a block or footer requests it, and the others await the same. If the first
one leaves, its request ends, and another one takes over. So nobody works for readers that have left.

**Bounds.** A budget holds footers and blocks; the least recently used go first. Beside it are at most the bytes of
running requests (`Gets`: a number of them, `MOST_GET_BYTES` each), and what readers hold.

**Failures.** A store that is away, slow or refusing costs a reader its deadline, and then `TierAway`. After some
failures in a row only one request at a time tries, until one is answered. A damaged block is requested once more; then
the reads of its range fail, and no others.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from korvet.errors import KorvetError
from korvet.redis.resp import Waits
from korvet.store.threads import Turns
from korvet.tier.disk import Disk
from korvet.tier.manifest import DamagedManifest, Manifest, Member, read_shelf
from korvet.tier.objects import ObjectMissing, Objects, TierAway
from korvet.tier.segment import BLOCK_BYTES, DamagedSegment, Footer, check_block, read_footer

MOST_GET_BYTES: Final = 4 * BLOCK_BYTES
"""The most bytes of blocks in one request."""
ENTRY_BYTES: Final = 1000
"""The objects around a block or footer in memory."""
_SHELF_GROWTH: Final = 5
"""The memory of a shelf's members for each byte of their lines."""
MOST_GETS: Final = 16
MOST_GETS_OF_ONE: Final = 4
DEADLINE_S: Final = 20.0
"""Clients wait 30 seconds for an answer."""
_AWAY_AFTER: Final = 4
"""Requests that must fail in a row. One object that the store refuses does not slow down the reads of others."""
_ATTEMPTS: Final = 4
_FIRST_BACKOFF_S: Final = 0.1

T = TypeVar("T")
Damaged = (DamagedSegment, DamagedManifest)


class Stored(NamedTuple):
    """A segment or a shelf in a store. ``path`` is its object's, as `Member.path` has it."""

    gets: Gets
    path: str
    member: Member


class Found(NamedTuple):
    """Bytes of a segment from a position on, up to a block that could not be read."""

    footer: Footer
    start: int
    data: bytes | memoryview
    error: KorvetError | None
    """Of that block."""


class Gets:
    """The running requests to one store. Owners (partitions, say) take turns.

    :param most: the most requests at once.
    :param most_of_one: the most of one owner. Below ``most``, a busy owner leaves some to others.
    :param deadline_s: the seconds after which a reader gives up.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        most: int = MOST_GETS,
        most_of_one: int = MOST_GETS_OF_ONE,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.objects = objects
        self.most_of_one = most_of_one
        self.failures = 0
        """The requests that failed since one was answered."""
        self.all_failures = 0
        self.waits = Waits()
        """The times of all requests, failed ones too."""
        self._deadline_s = deadline_s
        self._turns = Turns(lambda: 1 if self.failures >= _AWAY_AFTER else most, most_of_one)

    async def get(self, owner: str, path: str, start: int, end: int, checked: Callable[[memoryview], T]) -> T:
        """A range of an object, as a function makes it from the bytes. Retries with growing pauses.

        :raises ObjectMissing:
        :raises DamagedSegment, DamagedManifest: the function's, twice.
        :raises TierAway: the deadline passed, or all attempts failed.
        """
        error: KorvetError = TierAway(f"{self.objects.name}/{path}: no turn within {self._deadline_s:g} s")
        damages = 0
        with anyio.move_on_after(self._deadline_s):
            for attempt in range(_ATTEMPTS):
                if attempt:
                    await anyio.sleep(_FIRST_BACKOFF_S * 2 ** (attempt - 1) * random.uniform(0.5, 1))
                try:
                    data = await self._attempt(owner, path, start, end)
                    return checked(data)
                except TierAway as away:
                    error = away
                except Damaged as damage:
                    # The way from the store may have changed the bytes.
                    error, damages = damage, damages + 1
                    if damages > 1:
                        break
        raise error

    async def _attempt(self, owner: str, path: str, start: int, end: int) -> memoryview:
        await self._turns.begin(owner)
        began_s = anyio.current_time()
        try:
            # A request that hangs leaves time for another one.
            with anyio.fail_after(self._deadline_s / 2):
                data = await self.objects.read(path, start, end)
        except TimeoutError:
            self._failed()
            raise TierAway(f"{self.objects.name}/{path}: no answer within {self._deadline_s / 2:g} s") from None
        except TierAway:
            self._failed()
            raise
        except ObjectMissing:
            self.failures = 0
            raise
        else:
            self.failures = 0
            return data
        finally:
            self.waits.note(anyio.current_time() - began_s, 1)
            self._turns.end(owner)

    def _failed(self) -> None:
        self.failures += 1
        self.all_failures += 1


_Key = tuple[Gets, str, int]
_TAIL: Final = -1
"""In a key, the footer or the shelf instead of a block."""


class Blocks:
    """The footers and blocks of one process.

    :param budget_bytes: the most bytes in memory that no reader waits for.
    :param disk: where blocks and footers are beside the memory.
    """

    def __init__(self, budget_bytes: int, disk: Disk | None = None) -> None:
        self.disk = disk
        self.size_bytes = 0
        self.hits = self.misses = 0
        """Footers, shelves and blocks that were in memory or already requested, or not."""
        self.budget_bytes = budget_bytes
        self._kept: OrderedDict[_Key, tuple[Any, int]] = OrderedDict()
        self._requested: dict[_Key, asyncio.Future[Any]] = {}
        """The result is what arrived, an error, or None if the request was given up."""

    async def footer(self, stored: Stored) -> Footer:
        """The footer of a segment.

        :raises ObjectMissing, TierAway:
        :raises DamagedSegment: it was changed, or is another segment's.
        """
        found: Footer = await self._tail(stored, lambda data: _footer_of(data, stored.member))
        return found

    async def shelf(self, stored: Stored) -> Manifest:
        """The segments of a shelf.

        :raises ObjectMissing, TierAway, DamagedManifest:
        """
        found: Manifest = await self._tail(stored, lambda data: read_shelf(data, stored.member))
        return found

    async def batches(self, stored: Stored, offset: int, most_bytes: int) -> memoryview:
        """The batches of a segment from an offset on: up to ``most_bytes``, and always the first one whole.

        Fewer if a later block fails. Empty if the segment has no batch from the offset on.

        :raises ObjectMissing, TierAway, DamagedSegment: the first batch cannot be read.
        """
        found = await self.find(stored, offset, most_bytes)
        selected = found.footer.selected(found.data, found.start, offset, most_bytes)
        if found.error is not None and not selected:
            raise found.error
        return selected

    async def find(self, stored: Stored, offset: int, most_bytes: int) -> Found:
        """The bytes in which `Footer.select` finds these batches.

        :raises ObjectMissing, TierAway, DamagedSegment: the footer cannot be read.
        """
        footer = await self.footer(stored)
        start, end = footer.span(offset, most_bytes)
        return Found(footer, start, *await self._range(stored, footer, start, end))

    def held(self, stored: Stored, offset: int, most_bytes: int) -> Found | None:
        """As `find`; None if not all of it is in memory."""
        footer: Footer | None = self._look_up((stored.gets, stored.path, _TAIL))
        if footer is None:
            return None
        start, end = footer.span(offset, most_bytes)
        numbers = _numbers(start, end)
        found = {number: self._look_up((stored.gets, stored.path, number)) for number in numbers}
        if None in found.values():
            return None
        self.hits += len(numbers)
        return Found(footer, start, *_joined(found, numbers, start, end))

    async def fetch(self, stored: Stored, start: int, end: int) -> None:
        """Bring a range of batches into memory; blocks that fail are left out.

        :raises ObjectMissing, TierAway, DamagedSegment: the footer cannot be read.
        """
        footer = await self.footer(stored)
        missing = [
            number for number in _numbers(start, end) if self._look_up((stored.gets, stored.path, number)) is None
        ]
        await self._find(stored, footer, missing, {})

    def held_shelf(self, stored: Stored) -> Manifest | None:
        """As `shelf`; None if it is not in memory."""
        found: Manifest | None = self._look_up((stored.gets, stored.path, _TAIL))
        return found

    async def _range(
        self, stored: Stored, footer: Footer, start: int, end: int
    ) -> tuple[bytes | memoryview, KorvetError | None]:
        """The bytes of a range before the first block that fails, and its error."""
        numbers = _numbers(start, end)
        found: dict[int, Any] = {}
        while missing := [number for number in numbers if number not in found]:
            await self._find(stored, footer, missing, found)
        return _joined(found, numbers, start, end)

    async def _find(self, stored: Stored, footer: Footer, missing: Sequence[int], found: dict[int, Any]) -> None:
        """Find blocks in memory, wait for requested ones, and request the others. Given up ones stay missing."""
        awaited: dict[int, asyncio.Future[Any]] = {}
        own: list[int] = []
        for number in missing:
            key = stored.gets, stored.path, number
            if (kept := self._look_up(key)) is not None:
                found[number] = kept
            elif (requested := self._requested.get(key)) is not None:
                awaited[number] = requested
            else:
                own.append(number)
                self._requested[key] = asyncio.get_running_loop().create_future()
        self.hits += len(missing) - len(own)
        try:
            if own and self.disk is not None:
                await self._read_disk(self.disk, stored, footer, own, found)
            left = [number for number in own if number not in found]
            self.misses += len(left)
            if left:
                await self._request(stored, footer, left, found)
        finally:
            for number in own:
                self._requested.pop((stored.gets, stored.path, number)).set_result(found.get(number))
        for number, requested in awaited.items():
            await asyncio.wait([requested])
            if (result := requested.result()) is not None:
                found[number] = result

    async def _read_disk(
        self, disk: Disk, stored: Stored, footer: Footer, own: Sequence[int], found: dict[int, Any]
    ) -> None:
        """Find blocks on the disk."""
        names = {_name(stored, number): number for number in own}
        for name, block in (await disk.read(list(names))).items():
            number = names[name]
            try:
                check_block(footer, number, block)
            except DamagedSegment:
                disk.drop(name)
            else:
                found[number] = block
                self._keep((stored.gets, stored.path, number), block, len(block))

    async def _request(self, stored: Stored, footer: Footer, own: Sequence[int], found: dict[int, Any]) -> None:
        """Request blocks, in ranges of neighbours and a few at a time, so that no range waits for its turn for long."""
        runs = _runs(own)

        async def some() -> None:
            for run in runs:
                found.update(await self._get_run(stored, footer, run))

        async with anyio.create_task_group() as tasks:
            for _ in range(min(len(own), stored.gets.most_of_one)):
                tasks.start_soon(some)

    async def _get_run(self, stored: Stored, footer: Footer, run: range) -> dict[int, Any]:
        """Some neighbours, each as bytes or an error."""
        blocks: dict[int, Any] = {}

        def check(data: memoryview) -> None:
            damage: DamagedSegment | None = None
            for at, number in enumerate(run):
                if isinstance(blocks.get(number), bytes):
                    continue
                # A copy: a part of a larger buffer would keep that in memory.
                block = bytes(data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES])
                try:
                    check_block(footer, number, block)
                    blocks[number] = block
                except DamagedSegment as error:
                    blocks[number] = damage = DamagedSegment(f"{stored.gets.objects.name}/{stored.path}: {error}")
            if damage is not None:
                raise damage

        start, end = run.start * BLOCK_BYTES, min(footer.size_bytes, run.stop * BLOCK_BYTES)
        try:
            await stored.gets.get(_owner(stored.path), stored.path, start, end, check)
        except DamagedSegment:
            pass
        except KorvetError as error:
            blocks.update((number, error) for number in run if not isinstance(blocks.get(number), bytes))
        for number, block in blocks.items():
            if isinstance(block, bytes):
                self._keep((stored.gets, stored.path, number), block, len(block))
                self._keep_on_disk(stored, number, block)
        return blocks

    async def _tail(self, stored: Stored, read: Callable[[memoryview], Any]) -> Any:
        key = stored.gets, stored.path, _TAIL
        while True:
            if (kept := self._look_up(key)) is not None:
                self.hits += 1
                return kept
            if (requested := self._requested.get(key)) is None:
                return await self._get_tail(stored, read, key)
            self.hits += 1
            await asyncio.wait([requested])
            result = requested.result()
            if isinstance(result, KorvetError):
                raise again(result)
            if result is not None:
                return result

    async def _get_tail(self, stored: Stored, read: Callable[[memoryview], Any], key: _Key) -> Any:
        member, outcome = stored.member, None
        self._requested[key] = asyncio.get_running_loop().create_future()
        start, end = member.object_bytes - member.footer_bytes, member.object_bytes
        try:
            outcome = await self._disk_tail(stored, read)
            if outcome is None:
                self.misses += 1
                data, outcome = await stored.gets.get(
                    _owner(stored.path), stored.path, start, end, lambda data: (own := _own(data), read(own))
                )
                self._keep_on_disk(stored, _TAIL, bytes(data))
            self._keep(key, outcome, member.footer_bytes * (_SHELF_GROWTH if member.kind == "shelf" else 1))
            return outcome
        except Damaged as error:
            outcome = type(error)(f"{stored.gets.objects.name}/{stored.path}: {error}")
            raise outcome from None
        except KorvetError as error:
            outcome = error
            raise
        finally:
            self._requested.pop(key).set_result(outcome)

    async def _disk_tail(self, stored: Stored, read: Callable[[memoryview], Any]) -> Any:
        """What a footer or shelf on the disk says; None if there is none."""
        name = _name(stored, _TAIL)
        data = None if self.disk is None else (await self.disk.read([name])).get(name)
        if self.disk is None or data is None:
            return None
        try:
            return read(memoryview(data))
        except Damaged:
            self.disk.drop(name)
            return None

    def _look_up(self, key: _Key) -> Any:
        kept = self._kept.get(key)
        if kept is None:
            return None
        self._kept.move_to_end(key)
        return kept[0]

    def _keep(self, key: _Key, value: Any, size_bytes: int) -> None:
        size_bytes += ENTRY_BYTES
        self._kept[key] = value, size_bytes
        self.size_bytes += size_bytes
        while self.size_bytes > self.budget_bytes:
            _, (_, freed_bytes) = self._kept.popitem(last=False)
            self.size_bytes -= freed_bytes

    def _keep_on_disk(self, stored: Stored, number: int, data: bytes) -> None:
        if self.disk is not None:
            self.disk.add(_name(stored, number), data)


def _numbers(start: int, end: int) -> range:
    """The blocks around a range of bytes."""
    return range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))


def _joined(
    found: Mapping[int, Any], numbers: range, start: int, end: int
) -> tuple[bytes | memoryview, KorvetError | None]:
    """The bytes of a range before the first block that failed, and its error."""
    parts: list[memoryview] = []
    error = None
    for number in numbers:
        if isinstance(found[number], KorvetError):
            error = again(found[number])
            break
        at = number * BLOCK_BYTES
        parts.append(memoryview(found[number])[max(0, start - at) : end - at])
    return parts[0] if len(parts) == 1 else b"".join(parts), error


def again(error: KorvetError) -> KorvetError:
    """An equal error for another reader. An exception that is raised twice collects the frames of both."""
    return type(error)(*error.args)


def _name(stored: Stored, number: int) -> str:
    """The name of a block or footer on the disk."""
    return f"{stored.gets.objects.name} {stored.path} {number}"


def _own(data: memoryview) -> memoryview:
    return memoryview(bytes(data))


def _footer_of(data: memoryview, member: Member) -> Footer:
    if len(data) != member.footer_bytes:
        raise DamagedSegment("the footer is cut off")
    footer = read_footer(data, crc=member.crc)
    if (footer.first_offset, footer.next_offset, footer.size_bytes) != member[1:4]:
        raise DamagedSegment("the footer does not fit the manifest")
    return footer


def _owner(path: str) -> str:
    """The partition of a path, for turns."""
    return path.rpartition("/")[0]


def _runs(numbers: Sequence[int]) -> Iterator[range]:
    """Neighbours in ranges of at most `MOST_GET_BYTES`."""
    begin = 0
    for at in range(1, len(numbers) + 1):
        is_next = at < len(numbers) and numbers[at] == numbers[at - 1] + 1
        if not is_next or (at - begin) * BLOCK_BYTES == MOST_GET_BYTES:
            yield range(numbers[begin], numbers[at - 1] + 1)
            begin = at
