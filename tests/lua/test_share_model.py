"""A share partition against a plain table of its offsets, with steps in any order: appends, transactions, acquisitions
and acknowledgements of several members, releases, time, outages, deleted and compacted records, a local start, another
topic of the name, and a server that comes back without its last writes.

No offset is locked twice. A delivery count is at most the limit. The start never goes back of itself. In the end every
offset is finished.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.lua.machines import bound, run_machine
from tests.lua.share import (
    GROUP_ID_NOT_FOUND,
    INVALID_RECORD_STATE,
    INVALID_REQUEST,
    LOCK_MS,
    NONE,
    REJECT,
    RELEASE,
    RENEW,
    UNDELIVERED,
    Acquired,
    Share,
)

ACQUIRERS = st.sampled_from([("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")])
PARTS = st.floats(0, 1)
KINDS = st.integers(0, UNDELIVERED) | st.integers(1000, 20_000)
"""Above UNDELIVERED the ms until a record may be acquired again."""


class Lock(NamedTuple):
    """An acquired offset's lock, of times in ms."""

    member: str
    nonce: str
    ends: int


class Open(NamedTuple):
    """An open transaction; its producer has the same number."""

    ordinal: int
    first: int


@dataclass
class Table:
    """What the share partition has to be. ``counts`` are of the offsets in flight, ``locks`` of the acquired ones."""

    batches: list[tuple[int, int]] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    held_from: int = 0
    start: int = 0
    next: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    locks: dict[int, Lock] = field(default_factory=dict)
    delays: dict[int, int] = field(default_factory=dict)
    """When delayed offsets are available, in ms."""
    archiving: set[int] = field(default_factory=set)
    """Dead letters."""

    @property
    def available(self) -> list[int]:
        return sorted(self.counts.keys() - self.locks.keys() - self.delays.keys() - self.archiving)

    def clear(self) -> None:
        for offset in list(self.counts):
            self.finish(offset)

    def fail(self, offset: int) -> None:
        del self.locks[offset]
        self.archiving.add(offset)

    def state(self, offset: int) -> str:
        if offset in self.locks:
            return "acquired"
        return "delayed" if offset in self.delays else "archiving" if offset in self.archiving else "available"

    def finish(self, offset: int) -> None:
        self.counts.pop(offset)
        self.locks.pop(offset, None)
        self.delays.pop(offset, None)
        self.archiving.discard(offset)

    def move_start(self) -> None:
        self.start = min(self.counts, default=self.next)

    def follow_log_start(self) -> None:
        if self.log_start > self.start:
            for offset in [offset for offset in self.counts if offset < self.log_start]:
                self.finish(offset)
            self.next = max(self.next, self.log_start)
            self.move_start()

    def new_offsets(self, wanted: int, readable: int, *, whole_batches: bool) -> range:
        """The new offsets that an acquisition takes; moves next over a gap before them."""
        if wanted <= 0 or self.next >= readable:
            return range(0)
        until = self.next + wanted
        if self.next >= self.held_from:
            first, _ = next((batch for batch in self.batches if batch[1] > self.next), (readable, readable))
            if first > self.next:
                self.next = min(first, readable)
            until = min(self.next + wanted, readable)
            last = next((batch for batch in self.batches if batch[0] < until <= batch[1]), None)
            if whole_batches and last is not None and until > self.next:
                until = last[1]
        return range(self.next, max(min(until, readable), self.next))


class ShareMachine(RuleBasedStateMachine):
    server: redis.Redis
    set_clock: Callable[[float], None]

    def __init__(self) -> None:
        super().__init__()
        self.server.flushall()
        self.real = Share(self.server, self.set_clock)
        self.real.limit, self.real.window, self.real.backoff = 4, 30, (2000, 5000)
        self.real.dead_letters = 1
        assert self.real.create() == 0
        assert self.real.begin() == [NONE, -1]
        self.table = Table()
        self.gone: list[tuple[int, int]] = []
        self.open: Open | None = None
        self.ordinal = 1_700_000_000_000_000
        self.lowest = 0
        self.number = 1
        assert self.real.acquire().start == 0
        self.saved = self._state()

    def _state(self) -> tuple[dict[str, bytes], Table, Open | None]:
        return self.real.saved(), copy.deepcopy(self.table), self.open

    @property
    def now(self) -> int:
        return round(self.real.now * 1000)

    @property
    def stable(self) -> int:
        return self.table.end if self.open is None else self.open.first

    # ------------------------------------------------------------------ the log

    @initialize(sizes=st.lists(st.integers(1, 8), min_size=4, max_size=12))
    def begin(self, sizes: list[int]) -> None:
        self.append(sizes)

    @rule(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4))
    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            base = self.real.put(records=size)
            self.table.batches.append((base, base + size))
            self.table.end = base + size

    @rule(records=st.integers(1, 4))
    def open_or_end_transaction(self, records: int) -> None:
        if self.open is not None:
            assert self.real.mark((self.open.ordinal, 0), self.open.ordinal).base_offset == self.table.end
            self.open, records = None, 1
        else:
            self.ordinal += 1
            assert self.real.write(records, (self.ordinal, 0, 0), self.ordinal)[:2] == (NONE, self.table.end)
            self.open = Open(self.ordinal, self.table.end)
        self.table.batches.append((self.table.end, self.table.end + records))
        self.table.end += records

    @rule(step=st.sampled_from(["delete", "compact", "tier", "move", "save", "go back", "make anew"]), part=PARTS)
    def change(self, step: str, part: float) -> None:
        """What comes seldom."""
        if step == "delete":
            self.delete_records(part)
        elif step == "compact" and len(self.table.batches) > 1:
            self.compact(part)
        elif step == "tier":
            self.tier(part)
        elif step == "move":
            self.move(part)
        elif step == "save":
            self.saved = self._state()
        elif step == "go back" and self.saved[1].end > 5:
            self.lose_the_last_writes()
        elif step == "make anew" and self.table.end > 60:
            self.make_the_topic_anew()

    def delete_records(self, part: float) -> None:
        offset = self.table.log_start + round(part * (self.table.end - self.table.log_start) / 4)
        assert self.real.trim(offset)[0] == NONE
        self.table.log_start = offset
        self.table.held_from = max(self.table.held_from, offset)
        self.table.batches = [batch for batch in self.table.batches if batch[1] > offset]

    def compact(self, part: float) -> None:
        """Remove a batch, though not the last one."""
        _, next_offset = self.table.batches.pop(round(part * (len(self.table.batches) - 2)))
        assert self.server.xdel(self.real.log, f"{next_offset}-0") == 1

    def tier(self, part: float) -> None:
        """Have the log begin later in Redis than in the segments. No segment is made: only the local start counts."""
        held = [batch for batch in self.table.batches if batch[1] <= self.stable]
        if held:
            _, offset = held[round(part * (len(held) - 1))]
            self.table.held_from = max(self.table.held_from, offset)
            self.table.batches = [batch for batch in self.table.batches if batch[1] > offset]
            self.server.xtrim(self.real.log, minid=f"{offset + 1}-0", approximate=False)
            self.server.hset(self.real.meta, "local_start", self.table.held_from)

    # ------------------------------------------------------------------ time

    @rule(seconds=st.integers(1, 40))
    def pass_time(self, seconds: int) -> None:
        self.real.pass_time(seconds)
        if self.real.outages:
            self.real.outages = f"{self.now} {self.real.outages.split(' ')[1]}"

    @rule(seconds=st.integers(3, 60))
    def lose_redis(self, seconds: int) -> None:
        if self.real.outages:
            return
        gone = self.now
        self.real.pass_time(seconds)
        self.real.outages = f"{self.now} {gone}-{self.now}"
        self.gone.append((gone, self.now))

    def _ends(self, lock: Lock) -> int:
        ends = lock.ends
        for gone, back in self.gone:
            if ends > gone and ends - LOCK_MS < back:
                ends = back + LOCK_MS
        return ends

    def _is_over(self, lock: Lock) -> bool:
        return self._ends(lock) <= self.now

    # ------------------------------------------------------------------ members

    def _due(self) -> int:
        """What an acquisition does before all else. Returns how many locks ended."""
        table = self.table
        if table.next > table.end:
            table.clear()
            table.start = table.next = min(table.start, table.end)
        table.follow_log_start()
        over = [offset for offset, lock in table.locks.items() if self._is_over(lock)]
        for offset in over:
            self._give_back(offset)
        for offset, ends in [*table.delays.items()]:
            if ends <= self.now:
                del table.delays[offset]
        table.move_start()
        return len(over)

    def _give_back(self, offset: int) -> None:
        if self.table.counts[offset] >= self.real.limit:
            self.table.fail(offset)
        else:
            del self.table.locks[offset]
            self.table.delays[offset] = self.now + min(2000 * 2 ** (self.table.counts[offset] - 1), 5000)

    @rule(
        who=ACQUIRERS, most=st.integers(1, 20), mode=st.sampled_from(["batches", "records"]), committed=st.booleans(),
        times=st.booleans(),
    )  # fmt: skip
    def acquire(self, who: tuple[str, str], most: int, mode: str, committed: bool, times: bool) -> None:
        self.real.mode, self.real.isolation = mode, "committed" if committed else "uncommitted"
        self.real.times = int(times)
        expired = self._due()
        available = self.table.available
        found = self.real.acquire(most, *who)
        assert (found.code, found.expired) == (NONE, expired)
        taken = self._check_ranges(found)
        again = [offset for offset in taken if offset in self.table.counts]
        assert again == available[: len(again)]
        suspect = [offset for offset in again if self.table.counts[offset] >= 2]
        assert not suspect or suspect == again
        new = range(0)
        if not suspect and (not available or len(again) == len(available)):
            room = self.real.window - (len(self.table.counts) if times else self.table.next - self.table.start)
            wanted = min(most - len(again), room)
            readable = self.stable if committed else self.table.end
            new = self.table.new_offsets(wanted, readable, whole_batches=mode == "batches")
        assert taken[len(again) :] == list(new)
        if mode == "records":
            assert len(taken) <= most
        if available:
            assert again
        for offset in taken:
            self.table.counts[offset] = self.table.counts.get(offset, 0) + 1
            self.table.locks[offset] = Lock(*who, self.now + LOCK_MS)
        self.table.next = max(self.table.next, new.stop)
        self.table.move_start()

    def _check_ranges(self, found: Acquired) -> list[int]:
        """The acquired offsets; each was available, or is new, and has the next count."""
        offsets = []
        for first, last, count in found.ranges:
            for offset in range(first, last + 1):
                assert offset not in self.table.locks
                assert count == self.table.counts.get(offset, 0) + 1 <= self.real.limit
                offsets.append(offset)
        assert offsets == sorted(set(offsets))
        return offsets

    @rule(who=ACQUIRERS, parts=st.lists(st.tuples(PARTS, st.integers(1, 6), KINDS), min_size=1, max_size=4))
    def acknowledge_any(self, who: tuple[str, str], parts: list[tuple[float, int, int]]) -> None:
        self._acknowledge(who, [(round(part * (self.table.next + 3)), length, kind) for part, length, kind in parts])

    @rule(
        of=ACQUIRERS, by=ACQUIRERS, parts=st.lists(st.tuples(PARTS, st.integers(1, 6), KINDS), min_size=1, max_size=4)
    )
    def acknowledge_held(self, of: tuple[str, str], by: tuple[str, str], parts: list[tuple[float, int, int]]) -> None:
        """Acknowledge what a connection holds: by itself, or by another one of its member."""
        if all(lock[:2] != of for lock in self.table.locks.values()):
            self.acquire(of, 8, "batches", committed=False, times=False)
        held = sorted(offset for offset, lock in self.table.locks.items() if lock[:2] == of)
        if held:
            firsts = [(held[round(part * (len(held) - 1))], length, kind) for part, length, kind in parts]
            self._acknowledge(by if by[0] == of[0] else of, firsts, held)

    def _acknowledge(
        self, who: tuple[str, str], parts: list[tuple[int, int, int]], only: Sequence[int] | None = None
    ) -> None:
        runs: list[tuple[int, int, int]] = []
        for first, length, kind in sorted(parts):
            last = first
            while last - first + 1 < length and (only is None or last + 1 in only):
                last += 1
            if not runs or first > runs[-1][1]:
                runs.append((first, last, kind if kind <= UNDELIVERED else self.now + kind))
        expected = self._outcome(who, runs)
        assert self.real.acknowledge(*runs, member=who[0], nonce=who[1])[0] == expected
        if expected == NONE:
            self._settle(who, runs)

    def _outcome(self, who: tuple[str, str], runs: Sequence[tuple[int, int, int]]) -> int:
        table = self.table
        start = max(table.start, table.log_start)
        for first, last, _ in runs:
            if last < start:
                continue
            if not table.counts:
                return INVALID_RECORD_STATE
            if last >= table.next:
                return INVALID_REQUEST
            for offset in range(max(first, start), last + 1):
                lock = table.locks.get(offset)
                if lock is None or lock[:2] != who or self._is_over(lock):
                    return INVALID_RECORD_STATE
        return NONE

    def _settle(self, who: tuple[str, str], runs: Sequence[tuple[int, int, int]]) -> None:
        table = self.table
        start = max(table.start, table.log_start)
        for first, last, kind in runs:
            for offset in range(max(first, start), last + 1):
                if kind == RELEASE:
                    self._give_back(offset)
                elif kind >= UNDELIVERED:
                    table.counts[offset] -= 1
                    del table.locks[offset]
                    if kind > UNDELIVERED:
                        table.delays[offset] = kind
                elif kind == REJECT:
                    table.fail(offset)
                elif kind == RENEW:
                    table.locks[offset] = Lock(*who, self.now + LOCK_MS)
                else:
                    table.finish(offset)
        table.move_start()

    @rule(who=ACQUIRERS, which=st.sampled_from(["own", "others", "any"]))
    def release(self, who: tuple[str, str], which: str) -> None:
        of_member = [offset for offset, lock in self.table.locks.items() if lock.member == who[0]]
        own = [offset for offset in of_member if self.table.locks[offset].nonce == who[1]]
        others = [offset for offset in of_member if offset not in own]
        released = {"own": own, "others": others, "any": of_member}[which]
        assert self.real.release(*who, which) == len(released)
        for offset in released:
            self._give_back(offset)
        self.table.move_start()

    @rule(most=st.integers(1, 20), part=PARTS)
    def copy_dead_letters(self, most: int, part: float) -> None:
        """One owner copies the lowest ones, and has some of them finished."""
        leased = self.real.lease(most=most)
        spans = [(first, last) for first, last, *_ in leased]
        offsets = [offset for first, last in spans for offset in range(first, last + 1)]
        assert offsets == sorted(self.table.archiving)[:most]
        done = spans[: round(part * len(spans))]
        assert self.real.finish_copied(*done) == sum(last - first + 1 for first, last in done) if done else True
        for first, last in done:
            for offset in range(first, last + 1):
                self.table.finish(offset)
        self.table.move_start()

    # ------------------------------------------------------------------ the whole

    def move(self, part: float) -> None:
        start = round(part * self.table.end)
        assert self.real.begin("cgp_1", start, "move") == [NONE, start]
        self.table.clear()
        self.table.start = self.table.next = self.lowest = start

    def lose_the_last_writes(self) -> None:
        keys, table, self.open = self.saved
        self.real.come_back(keys)
        self.table = copy.deepcopy(table)
        self.lowest = self.table.start

    def make_the_topic_anew(self) -> None:
        while self.real.delete()[1]:
            pass
        assert self.real.acquire().code != NONE
        self.number += 1
        self.real.topic_id = f"{self.number:032x}"
        assert self.real.create() == 0
        assert self.real.acquire().code == GROUP_ID_NOT_FOUND
        assert self.real.begin()[0] == NONE
        assert self.real.acquire().start == 0
        self.table, self.open, self.lowest = Table(), None, 0
        self.saved = self._state()

    @invariant()
    def each_offset_is_as_in_the_table(self) -> None:
        described = self.real.describe()
        found = {
            offset: (state, count)
            for state, first, last, count in described.ranges
            for offset in range(first, last + 1)
        }
        table = self.table
        assert found == {offset: (table.state(offset), count) for offset, count in table.counts.items()}
        assert (described.start, described.next) == (table.start, table.next)
        assert described.start >= self.lowest
        self.lowest = described.start
        if table.log_start <= table.start:
            assert described.lag == table.end - table.next + len(table.counts)

    def teardown(self) -> None:
        """Everything that is left is acquired and accepted, by one member after the other's locks are over."""
        self.real.outages = ""
        self.real.pass_time(200)
        self.real.mode, self.real.isolation = "batches", "uncommitted"
        for _ in range(500):
            found = self.real.acquire(50)
            assert found.code == NONE
            if not found.ranges and found.wait_ms < 0:
                break
            self.real.pass_time(5)
            if dead := self.real.lease():
                assert self.real.finish_copied(*((first, last) for first, last, *_ in dead))
            runs = [(first, last, 1) for first, last, _ in found.ranges]
            assert self.real.acknowledge(*runs)[0] == NONE
        described = self.real.describe()
        assert (described.start, described.lag, described.ranges) == (self.table.end, 0, [])


def test_share_partition_is_as_a_table_of_its_offsets(server: redis.Redis, set_clock: Callable[[float], None]) -> None:
    run_machine(bound(ShareMachine, server, set_clock), examples=200, steps=60)
