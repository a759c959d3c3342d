"""Numbered objects of which the newest counts, found by their names alone.

A listing may be stale, and numbers without gaps need none. `Series.add` puts number after number, each only if it is
absent. It removes old ones by their names, but for the powers of two, the last few, and the *marks* of these. The marks
of a number are itself with its lowest bits cleared one after the other: those of 22 are 22, 20 and 16. So
`Series.newest` finds the highest power of two, and then adds each lower bit with which a number exists. That takes at
most 2 log2(n) reads of a byte. Numbers added meanwhile do not lead it astray, because the marks of the last few stay.

What is trusted: a read by name shows each object that was put before it, as S3, GCS and Azure promise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from korvet.tier.objects import ObjectExists, ObjectMissing, Objects, TierAway
from korvet.tier.snapshot import MOST_BYTES, DamagedSnapshot

KEPT: Final = 8
"""The last ones that stay, for readers that look for the newest one meanwhile."""
_TRIES: Final = 4

T = TypeVar("T")


class Series(Generic[T]):
    """The snapshots in a folder.

    :param decoded: makes one of an object's bytes, as `Snapshot.decoded`.
    """

    def __init__(self, objects: Objects, folder: str, decoded: Callable[[memoryview], T]) -> None:
        self._objects = objects
        self._folder = folder
        self._decoded = decoded

    async def newest(self, at_least: int = 0) -> tuple[int, T] | None:
        """The newest number and what it holds; None if there is none.

        :param at_least: a number that was there, which saves reads.
        :raises TierAway, DamagedSnapshot:
        """
        for _ in range(_TRIES):
            if not (number := await self._newest_number(at_least)):
                return None
            path, at_least = self.path(number), 0
            with suppress(ObjectMissing):
                data = await self._objects.read(path, 0, MOST_BYTES)
                try:
                    return number, self._decoded(data)
                except DamagedSnapshot as error:
                    repair = "put it back from a copy of the bucket, or delete it, so that the one before it counts"
                    raise DamagedSnapshot(f"{self._objects.name}/{path}: {error}; {repair}") from None
        raise TierAway(f"{self._objects.name}/{self._folder} changes faster than it is read")

    async def exists(self) -> bool:
        """True if there is one. The first one stays.

        :raises TierAway:
        """
        return await self._has(1)

    async def add(self, after: int, parts: Sequence[bytes]) -> int | None:
        """Put the number after the newest one, durably, and return it; None if another one is newer: look again.

        :raises TierAway: it may have been put nevertheless. May be repeated.
        """
        number = after + 1
        try:
            await self._objects.put(self.path(number), parts)
        except ObjectExists:
            return None
        if await self._newest_number(number) != number:
            return None
        for one in superseded(number):
            with suppress(TierAway):
                # One that stays for that costs its room, and misleads nobody.
                await self._objects.delete(self.path(one))
        return number

    def path(self, number: int) -> str:
        """The path of an object."""
        return f"{self._folder}/{number:020d}.snapshot"

    async def _newest_number(self, at_least: int) -> int:
        if not at_least and not await self._has(1):
            return 0
        number = bit = 1 << max(0, at_least.bit_length() - 1)
        while await self._has(2 * bit):
            number = bit = 2 * bit
        while bit > 1:
            bit //= 2
            if number + bit <= at_least or await self._has(number + bit):
                number += bit
        return number

    async def _has(self, number: int) -> bool:
        try:
            await self._objects.read(self.path(number), 0, 1)
        except ObjectMissing:
            return False
        return True


def superseded(number: int) -> set[int]:
    """The numbers that nobody needs any more once this one is there."""
    former = number - KEPT
    kept = set().union(*(_marks(one) for one in range(max(1, former + 1), number + 1)))
    return {one for one in _marks(max(0, former)) - kept if one & (one - 1)}


def _marks(number: int) -> set[int]:
    found = set()
    while number:
        found.add(number)
        number &= number - 1
    return found
