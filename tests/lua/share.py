"""A share partition, driven by the tests: the library's functions, called with a front-end's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis

from tests.lua.tier import Tiered

NONE, GONE, RETRY, LATE = 0, -3, -5, -6
INVALID_REQUEST, GROUP_ID_NOT_FOUND, INVALID_RECORD_STATE = 42, 69, 121
GAP, ACCEPT, RELEASE, REJECT, RENEW, UNDELIVERED = range(6)
LOCK_MS = 30_000
START_S = 1_700_000_000


class Acquired(NamedTuple):
    """The reply of korvet_share_acquire; ranges are (first, last, deliveries)."""

    code: int
    start: int
    next: int
    ranges: list[tuple[int, int, int]]
    wait_ms: int
    expired: int


class Described(NamedTuple):
    """The reply of korvet_share_describe; ranges are (state, first, last, deliveries), by their offsets."""

    code: int
    id: str
    start: int
    next: int
    lag: int
    ranges: list[tuple[str, int, int, int]]


class Share(Tiered):
    """The share partition of the group ``group`` on a partition with a log. Time stands still until `pass_time`."""

    def __init__(
        self, server: redis.Redis, set_clock: Callable[[float], None], group: str = "g", name: str = "{default:t:0}"
    ) -> None:
        super().__init__(server, name)
        self.group = group
        self.shares = f"korvet:{name}:shares"
        self._ranges = f"korvet:{name}:share:"
        self.now = float(START_S)
        self.outages = ""
        self.lock_ms, self.limit, self.window = LOCK_MS, 5, 2000
        self.mode, self.isolation, self.reset = "batches", "uncommitted", "earliest"
        self.backoff = (0, 0)
        self.dead_letters = self.times = 0
        self.archiving = 0
        """The number of ranges of dead letters, by the last reply."""
        self.acknowledged = 0
        """The code of the acknowledgements of the last acquisition."""
        self._set_clock = set_clock
        set_clock(self.now)

    @property
    def share_keys(self) -> tuple[str, ...]:
        return (self.log, self.meta, self.shares, self._ranges + self.group)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._set_clock(self.now)

    def begin(self, group_id: str = "cgp_1", start: int = -1, mode: str = "begin") -> list[int]:
        """Code, start."""
        args = (self.topic_id, self.group, group_id, start, mode)
        reply: list[int] = self.call("korvet_share_set", *args, keys=self.share_keys)
        return reply

    def acquire(
        self, most: int = 500, member: str = "m", nonce: str = "n", *acknowledgements: tuple[int, int, int],
        max_bytes: int = -1,
    ) -> Acquired:  # fmt: skip
        args: tuple[str | int, ...] = (
            self.outages, self.topic_id, self.group, member, nonce, most, max_bytes, self.mode, self.isolation,
            self.lock_ms, self.limit, self.window, *self.backoff, self.dead_letters, self.reset, self.times,
            *(number for one in acknowledgements for number in one),
        )  # fmt: skip
        code, start, next_offset, flat, wait_ms, expired, self.archiving, _, self.acknowledged = self.call(
            "korvet_share_acquire", *args, keys=self.share_keys
        )
        ranges = [(flat[at], flat[at + 1], flat[at + 2]) for at in range(0, len(flat), 3)]
        return Acquired(code, start, next_offset, ranges, wait_ms, expired)

    def take(self, most: int = 500, member: str = "m", nonce: str = "n") -> list[tuple[int, int, int]]:
        """The ranges of an acquisition."""
        acquired = self.acquire(most, member, nonce)
        assert acquired.code == NONE
        return acquired.ranges

    def acknowledge(
        self,
        *acknowledgements: tuple[int, int, int],
        member: str = "m",
        nonce: str = "n",
        part: str = "all",
    ) -> list[int]:
        """Code, start, further."""
        flat = [number for one in acknowledgements for number in one]
        words: list[str | int] = [self.outages, self.topic_id, self.group, member, nonce, self.lock_ms, self.limit]
        code, start, further, self.archiving = self.call(
            "korvet_share_acknowledge", *words, *self.backoff, self.dead_letters, part, *flat, keys=self.share_keys
        )
        return [code, start, further]

    def settle(self, kind: int, *offsets: int | tuple[int, int], member: str = "m", nonce: str = "n") -> int:
        """Acknowledge offsets or spans of them with one type. Returns the code."""
        spans = [one if isinstance(one, tuple) else (one, one) for one in offsets]
        return self.acknowledge(*((first, last, kind) for first, last in spans), member=member, nonce=nonce)[0]

    def release(self, member: str = "m", nonce: str = "n", which: str = "own") -> int:
        """The number of released records, by as many calls as needed."""
        released = further = 0
        while further >= 0:
            args: list[str | int] = [self.outages, self.topic_id, self.group, member, nonce, self.limit]
            code, count, further, self.archiving = self.call(
                "korvet_share_release", *args, *self.backoff, self.dead_letters, which, further, keys=self.share_keys
            )
            assert code == NONE
            released += count
        return released

    def lease(self, owner: str = "o", most: int = 100, lease_ms: int = 30_000) -> list[tuple[int, int, int, str]]:
        """Dead letters: first, last, deliveries, cause."""
        args = (self.topic_id, self.group, owner, lease_ms, most)
        code, flat = self.call("korvet_share_dead_letters", *args, keys=self.share_keys)
        assert code == NONE
        return [(*flat[at : at + 3], flat[at + 3].decode()) for at in range(0, len(flat), 4)]

    def finish_copied(self, *spans: tuple[int, int], owner: str = "o") -> int:
        """The number of finished records."""
        flat = [offset for span in spans for offset in span]
        code, finished = self.call("korvet_share_copied", self.topic_id, self.group, owner, *flat, keys=self.share_keys)
        assert code == NONE
        return int(finished)

    def remove(self, group_id: str = "") -> int:
        """Delete the share partition; 1 if there was one."""
        code, deleted = self.call("korvet_share_delete", self.topic_id, self.group, group_id, keys=self.share_keys)
        assert code == NONE
        return int(deleted)

    def describe(self) -> Described:
        """The share partition, by as many calls as needed."""
        ranges: list[tuple[str, int, int, int]] = []
        cursor = 0
        while True:
            reply: Any = self.server.fcall_ro(
                "korvet_share_describe", 4, *self.share_keys, self.topic_id, self.group, str(cursor)
            )
            code, group_id, start, next_offset, lag, _, texts, cursor = reply
            for text in texts:
                state, first, last, count = text.decode().split(" ")[:4]
                ranges.append((state, int(first), int(last), int(count)))
            if cursor < 0:
                break
        ranges.sort(key=lambda one: one[1])
        return Described(code, group_id.decode(), start, next_offset, lag, ranges)

    def states(self) -> list[tuple[str, int, int, int]]:
        """The ranges in flight, as `Described` has them."""
        return self.describe().ranges

    def offsets(self, ranges: Sequence[tuple[int, int, int]]) -> list[int]:
        return [offset for first, last, _ in ranges for offset in range(first, last + 1)]
