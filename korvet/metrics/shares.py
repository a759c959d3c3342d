"""Fair shares of a bound among the sources that fill it. Without I/O.

A source is a path, such as a namespace, a user and an address. When the room is used up, the largest namespace gives
way, in it the largest user, and so on. It keeps its room if the new source would then have as much, at the level where
the two differ. So each source gets what it needs, up to an equal part; more users, addresses or keys do not raise it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

Path = tuple[str, ...]
"""The names of a source, one for each level."""
Key = tuple[str, str]
_MOST_STALE = 4
"""The entries of a heap for each of its parts, beyond which it is made anew."""


class _Share:
    """A source's total, with the sources below it. Keys are in their order of arrival."""

    __slots__ = ("_heap", "cost", "keys", "parts")

    def __init__(self) -> None:
        self.cost = 0
        self.parts: dict[str, _Share] = {}
        self.keys: dict[Key, int] = {}
        self._heap: list[tuple[int, str]] = []
        """Costs below zero, with the names of parts; some are of former costs."""

    def changed(self, name: str) -> None:
        """Note a part's new cost; one of no cost goes, for all costs are above 0."""
        cost = self.parts[name].cost
        if cost:
            heappush(self._heap, (-cost, name))
        else:
            del self.parts[name]
        if len(self._heap) > _MOST_STALE * (len(self.parts) + 1):
            self._heap = [(-part.cost, name) for name, part in self.parts.items()]
            heapify(self._heap)

    def largest(self) -> str | None:
        """The name of the part with the highest cost; None without any."""
        while self._heap:
            cost, name = self._heap[0]
            if name in self.parts and self.parts[name].cost == -cost:
                return name
            heappop(self._heap)
        return None


class Shares:
    """The totals of all sources: keys, each with a cost. All paths have the same length."""

    def __init__(self) -> None:
        self._all = _Share()

    @property
    def cost(self) -> int:
        """The cost of all keys."""
        return self._all.cost

    def add(self, path: Path, key: Key, cost: int) -> None:
        """Give a source a key, which nobody has."""
        share = self._all
        for name in path:
            share = share.parts.setdefault(name, _Share())
        share.keys[key] = cost
        self._charge(path, cost)

    def remove(self, path: Path, key: Key) -> None:
        """Take a source's key away."""
        share = self._all
        for name in path:
            share = share.parts[name]
        self._charge(path, -share.keys.pop(key))

    def _charge(self, path: Path, cost: int) -> None:
        above = self._all
        above.cost += cost
        for name in path:
            share = above.parts[name]
            share.cost += cost
            above.changed(name)
            above = share

    def first_to_go(self, path: Path, cost: int) -> Key | None:
        """The key that gives way to one of this source and this cost; None if none does."""
        share, differs = self._all, False
        for name in path:
            largest = share.largest()
            if largest is None:
                return None
            if not differs and largest != name:
                mine = share.parts.get(name)
                if cost + (0 if mine is None else mine.cost) >= share.parts[largest].cost:
                    return None
                differs = True
            share = share.parts[largest]
        return next(iter(share.keys)) if differs else None
