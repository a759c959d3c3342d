"""The supplies of share partitions at one front-end, and the news of them.

A supply hears of appends by the log's channel, and by the partition's channel of shares of what became available again.
It sets a timer for what becomes available of itself. It listens from its first request until nobody has used it for a
while, so that a request finds it empty without a call.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from korvet.redis.wakeup import Wakeups
from korvet.store.log.state.partition import Partition
from korvet.store.shares.shares import Shares
from korvet.store.shares.supply import Supply

_LINGER_S: Final = 30.0
_MOST_IDLE: Final = 10_000

Name = tuple[str, str]
"""The key of a log, and a group."""


class SharedSupply(Supply):
    """A supply with its news. ``users`` are the requests that use it."""

    __slots__ = ("_group", "_listening", "_shares", "_timer", "_wakeups", "left_at", "name", "partition", "users")

    def __init__(self, wakeups: Wakeups, partition: Partition, shares_channel: str, group_id: str) -> None:
        super().__init__()
        self.partition = partition
        self.name: Name = partition.keys.log, group_id
        self.users = 0
        self.left_at = 0.0
        self._wakeups = wakeups
        self._shares = shares_channel
        self._group = group_id.encode()
        self._timer: asyncio.TimerHandle | None = None
        self._listening = wakeups.follow((partition.channel, shares_channel), self._heard)

    def _heard(self, channel: str) -> None:
        # Without a message the subscription was confirmed or lost.
        if channel != self._shares or self._wakeups.latest(channel) in (None, self._group):
            self.tell()

    def learn(self, wait_ms: int | None) -> None:
        """Have news after a time, of what an acquisition answered: locks end then; None for never."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        doubted_s = self._wakeups.doubted_s
        if wait_ms is not None or doubted_s is not None:
            waits = [one for one in (None if wait_ms is None else wait_ms / 1000, doubted_s) if one is not None]
            self._timer = self._wakeups.loop.call_later(min(waits), self._due)

    def _due(self) -> None:
        self._timer = None
        self.tell()

    def close(self) -> None:
        """Listen no more."""
        self._listening.__exit__()
        if self._timer is not None:
            self._timer.cancel()


class Supplies:
    """The supplies of a namespace, by partition and group."""

    def __init__(self, wakeups: Wakeups, shares: Shares) -> None:
        self._wakeups = wakeups
        self._shares = shares
        self._supplies: dict[Name, SharedSupply] = {}
        self._idle: OrderedDict[Name, SharedSupply] = OrderedDict()
        """Those without a user, the one first that was left first."""

    @contextmanager
    def used(self, partitions: Iterable[Partition], group_id: str) -> Iterator[list[SharedSupply]]:
        """The supplies of partitions, for the time of the block. It may append those of more to the list, by `use`."""
        supplies: list[SharedSupply] = []
        try:
            supplies.extend(self.use(partition, group_id) for partition in partitions)
            yield supplies
        finally:
            now = self._wakeups.loop.time()
            for supply in supplies:
                supply.users -= 1
                if not supply.users and self._supplies.get(supply.name) is supply:
                    supply.left_at = now
                    self._idle[supply.name] = supply
            self._sweep(now)

    def use(self, partition: Partition, group_id: str) -> SharedSupply:
        """The supply of a partition, which `used` takes back."""
        name = partition.keys.log, group_id
        supply = self._supplies.get(name)
        if supply is None or supply.partition is not partition:
            if supply is not None:
                supply.close()
            channel = self._shares.channel(partition)
            supply = self._supplies[name] = SharedSupply(self._wakeups, partition, channel, group_id)
        supply.users += 1
        self._idle.pop(name, None)
        return supply

    def _sweep(self, now: float) -> None:
        """Drop supplies without a user."""
        while self._idle:
            name, supply = next(iter(self._idle.items()))
            if len(self._idle) <= _MOST_IDLE and now - supply.left_at <= _LINGER_S:
                return
            del self._idle[name], self._supplies[name]
            supply.close()

    def close(self) -> None:
        """Listen no more, at the end of the namespace's front-end."""
        for supply in self._supplies.values():
            supply.close()
        self._supplies.clear()
        self._idle.clear()

    def __len__(self) -> int:
        return len(self._supplies)
