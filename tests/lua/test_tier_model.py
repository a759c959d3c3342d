"""Segments against a plain list of batches, with steps in any order: appends, uploads that are added at once, late or
twice, trims of both kinds, shelves, forgotten segments, failovers, and a server that comes back without last writes.

Objects never go back. Each offset from the log start to the end is in a segment or in Redis, and has the batch of the
present history there, wherever it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lua.log import GONE
from tests.lua.machines import bound, run_machine
from tests.lua.tier import SIZE, Tiered, Upload

Batches = tuple[tuple[int, int, str], ...]
"""First offset, offset after it, index."""
PARTS = st.floats(0, 1)


class State(NamedTuple):
    """What the server and the list say at one time."""

    keys: dict[str, bytes]
    batches: Batches
    start: int


class TierMachine(RuleBasedStateMachine):
    server: redis.Redis
    set_clock: Callable[[float], None]

    def __init__(self) -> None:
        super().__init__()
        self.server.flushall()
        self.set_clock(1_800_000_000)
        self.real = Tiered(self.server)
        assert self.real.create() == 0
        self.batches: Batches = ()
        self.start = 0
        self.epoch = 0
        self.objects: dict[str, Batches] = {}
        self.pending: list[Upload] = []
        self.seen: list[Upload] = []
        self.saved = self._state()

    def _state(self) -> State:
        return State(self.real.saved(), self.batches, self.start)

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def _offset(self, part: float) -> int:
        return self.start + round(part * (self.end - self.start))

    # ------------------------------------------------------------------ the log

    @rule(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6), timestamp=st.integers(1000, 1005))
    def append(self, sizes: list[int], timestamp: int) -> None:
        """Contents repeat, so that a lost history may look like the one that took its place."""
        for size in sizes:
            base = self.real.put(f"content {size}", records=size, timestamp=timestamp)
            assert base == self.end
            self.batches += ((base, base + size, self.real.index_at(base + size)),)

    @rule(part=PARTS)
    def delete_records(self, part: float) -> None:
        offset = self._offset(part)
        assert self.real.trim(offset) == [0, offset, 0]
        self.start = offset

    @rule()
    def fail_over(self) -> None:
        self.real.run_id = f"{int(self.real.run_id) + 1:040d}"
        _, self.epoch = self.real.take_over()

    @rule()
    def save(self) -> None:
        self.saved = self._state()

    # Steps that begin anew come seldom, so that others find something to do.
    @precondition(lambda self: len(self.saved.batches) > 2)
    @rule()
    def lose_the_last_writes(self) -> None:
        self.real.come_back(self.saved.keys)
        self.batches, self.start = self.saved.batches, self.saved.start
        _, self.epoch = self.real.take_over()

    @rule()
    def lose_the_meta_hash(self) -> None:
        """The log start of a partition without segments goes back to its first batch, as ever."""
        if self.real.listed().tier_end >= 0:
            self.real.server.delete(self.real.meta)
            assert self.real.create() == 0
            _, self.epoch = self.real.take_over()

    # ------------------------------------------------------------------ the tier

    def _upload(self, batches: int) -> Upload | None:
        listed = self.real.listed()
        first = listed.tier_end if listed.tier_end >= listed.local_start else listed.local_start
        held = [batch for batch in self.batches if batch[1] > first][:batches]
        if not held:
            return None
        one = self.real.upload(min(first, held[0][0]), held[-1][1])
        self.objects[one.name] = tuple(held)
        self.seen.append(one)
        return one

    @initialize(sizes=st.lists(st.integers(1, 4), min_size=6, max_size=12), batches=st.integers(1, 6))
    def begin(self, sizes: list[int], batches: int) -> None:
        for at, size in enumerate(sizes):
            self.append([size], 1000 + at % 4)
        self.seal(batches)

    @rule(batches=st.integers(1, 6))
    def seal(self, batches: int) -> None:
        if (one := self._upload(batches)) is not None:
            assert self.real.add(one)[:3] == [0, b"added", one.next]

    @rule(batches=st.integers(1, 6))
    def upload(self, batches: int) -> None:
        """A tierer that adds later, or dies."""
        if (one := self._upload(batches)) is not None:
            self.pending.append(one)

    @precondition(lambda self: self.pending)
    @rule(number=st.integers(0, 100))
    def add_late(self, number: int) -> None:
        one = self.pending.pop(number % len(self.pending))
        code, status, first, _ = self.real.add(one)
        assert code == 0
        if status == b"added":
            held = tuple(batch for batch in self.batches if one.first < batch[1] <= one.next)
            # A server that came back may list a segment whose records and object were deleted.
            assert self.objects.get(one.name) == held or one.next <= self.start
            assert self.real.add(one)[:2] == [0, b"added"]
        else:
            assert status in (b"conflict", b"open", b"changed")
            assert first == self.real.add(one)[2]

    @precondition(lambda self: self.seen)
    @rule(number=st.integers(0, 100))
    def add_again(self, number: int) -> None:
        """A repeat of an add that was answered, or lost with a history."""
        one, before = self.seen[number % len(self.seen)], self.real.saved()
        if self.real.add(one)[1] == b"added" and one.text not in {text for _, text in self.real.listed().segments}:
            raise AssertionError("added, and not there")
        if self.real.saved() != before:
            assert self.real.listed().segments[-1] == (one.next, one.text)

    @rule(part=PARTS)
    def trim_locally(self, part: float) -> None:
        listed = self.real.listed()
        offset = round(part * max(0, listed.tier_end))
        code, local_start, more = self.real.drop(offset, self.epoch)
        if listed.tier_end < 0:
            assert code != 0
        else:
            assert [code, local_start, more] == [0, max(listed.local_start, offset), 0]

    @rule(oldest=st.integers(999, 1006), batches=st.integers(-1, 20))
    def look_for_what_limits_keep(self, oldest: int, batches: int) -> None:
        """Whole segments with records that Redis no longer holds, oldest first."""
        listed, expected, keep = self.real.listed(), self.start, batches * SIZE if batches >= 0 else -1
        if listed.tier_end < 0:
            return
        total = int(self.real.meta_fields()["totals"].split()[1])
        for next_offset, text in listed.segments:
            held = self.objects[text.decode().split()[-1]] if next_offset > self.start else ()
            if held and expected < listed.local_start:
                is_old = all(int(index.split()[2]) < oldest for _, _, index in held)
                is_beyond = keep >= 0 and total - int(held[-1][2].split()[4]) >= keep
                if not is_old and not is_beyond:
                    break
                expected = next_offset
        assert self.real.kept(oldest, keep) == [0, self.real.listed().epoch, expected]

    @rule(number=st.integers(2, 4), kind=st.sampled_from(["shelf", "segment"]))
    def shelve(self, number: int, kind: str) -> None:
        live = self.real.listed(self.start).segments
        segments = [text for _, text in live if text.startswith(b"segment")][:number]
        if len(segments) == number:
            self.real.named += 1
            name = f"{kind}-{self.real.named}"
            assert self.real.shelve(segments, name, kind)[:2] == [0, b"shelved"]
            names = [text.decode().split()[-1] for text in segments]
            self.objects[name] = tuple(batch for one in names for batch in self.objects[one])

    @rule()
    def delete_objects(self) -> None:
        """The log start is on the disks before."""
        self.saved = self._state()
        below = [text for past, text in self.real.listed().segments if past <= self.start]
        if below:
            for text in below:
                # A server that came back may list it once more.
                self.objects.pop(text.decode().split()[-1], None)
            assert self.real.forget(below) == [0, len(below)]

    @precondition(lambda self: len(self.seen) > 5)
    @rule()
    def recreate(self) -> None:
        late = [self.real.upload(*self.batches[0][:2])] if self.batches else []
        former = self.real.topic_id
        while self.real.delete() == [0, 1]:
            pass
        assert self.real.key_names() == set()
        self.real.topic_id = f"{int(former, 16) + 1:032x}"
        assert self.real.create() == 0
        for one in late:
            now, self.real.topic_id = self.real.topic_id, former
            assert self.real.add(one)[0] == GONE
            self.real.topic_id = now
        self.batches, self.start, self.epoch, self.pending, self.seen = (), 0, 0, [], []
        self.saved = self._state()

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def every_offset_has_its_batch(self) -> None:
        listed = self.real.listed()
        assert (listed.code, listed.start, listed.more) == (0, self.start, 0)
        meta = self.real.meta_fields()
        # Front-ends without segments must not read a log that Redis holds only the end of.
        assert (meta.get("cleaned") == "tier") == ("local_start" in meta)
        past: int | None = None
        tiered: dict[int, tuple[int, int, str]] = {}
        for next_offset, text in listed.segments:
            first, name = int(text.split()[1]), text.decode().split()[-1]
            if next_offset > self.start:
                assert first == past if past is not None else first <= self.start or first == listed.local_start
                past = next_offset
                tiered |= {batch[0]: batch for batch in self.objects[name]}
        assert past is None or past == listed.tier_end
        assert listed.local_start <= max(listed.start, listed.tier_end)
        held = {entry.base_offset: entry for entry in self.real.entries()}
        for base, next_offset, index in self.batches:
            if next_offset > self.start:
                if next_offset > listed.local_start:
                    assert held[base].next_offset == next_offset
                    assert self.real.index_at(next_offset) == index
                if next_offset <= listed.tier_end:
                    assert tiered[base] == (base, next_offset, index)
                assert base in held or base in tiered


def test_tier_agrees_with_a_list_of_batches(server: redis.Redis, set_clock: Callable[[float], None]) -> None:
    run_machine(bound(TierMachine, server, set_clock), examples=60, steps=40)
