"""One partition against its model, with steps in any order: appends of several producers, duplicates, gaps, epochs,
transactions, markers, trims, compaction, failovers, pauses, and reads of both kinds."""

from __future__ import annotations

from collections.abc import Callable

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from korvet.store.background.compaction.due import Compaction
from tests.lua.log import RESEND, Appended
from tests.lua.partition import LEASE_MS, Loop, OnServer, committed_of, horizon_of, records_of
from tests.lua.partition_model import SEQUENCES, Kind, Model, Outcome, Sent, last_values
from tests.lua.transaction import NONE

START_S = 1_700_000_000
DAY_MS = 86_400_000
OUT_OF_RANGE = 1
PRODUCERS = st.integers(1, 3)
KEYS = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([1, 1, 1, 0])), min_size=1, max_size=3)
SKEWS_MS = st.sampled_from([0, 0, 0, -5000, 5000])
ORDINALS = st.sampled_from(["", "", "open", "open", "open", "new", "late"])
EXAMPLES, STEPS = 40, 30


class PartitionMachine(RuleBasedStateMachine):
    """The same steps on the server and on the model."""

    server: redis.Redis
    loop: Loop
    set_clock: Callable[[float], None]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(START_S * 1000)
        self.real = OnServer(self.server, self.loop)
        type(self).set_clock(START_S)
        self.runs = 1
        self.written = 0
        self.ordinal = 100
        self.leased_until_ms = 0

    def teardown(self) -> None:
        self.real.delete()
        assert self.real.key_names() == set()

    # ------------------------------------------------------------------ append

    def _pairs(self, keys: list[tuple[bytes, int]]) -> tuple[tuple[bytes, bytes | None], ...]:
        self.written += 1
        return tuple((key, b"%08d" % self.written if has_value else None) for key, has_value in keys)

    def _sent(self, keys: list[tuple[bytes, int]], skew_ms: int, **of: int | bool | None) -> Sent:
        return Sent(records=self._pairs(keys), timestamp=self.model.now_ms + skew_ms, **of)  # type: ignore[arg-type]

    def _append(self, sent: Sent, *, placed: bool) -> None:
        known = set(self.model.producers)
        expected = self.model.append(sent, self.runs)
        self._answered(expected, self.real.append(sent, placed=placed))
        self._forgotten(may_forget=bool(set(self.model.producers) - known))

    def _answered(self, expected: Outcome, appended: Appended) -> None:
        assert appended == (*expected, self.model.start, self.model.epoch)

    @rule(keys=KEYS, placed=st.booleans(), skew_ms=SKEWS_MS)
    def append(self, keys: list[tuple[bytes, int]], placed: bool, skew_ms: int) -> None:
        self._append(self._sent(keys, skew_ms), placed=placed)

    @rule(keys=KEYS)
    def append_whose_temporary_key_is_gone(self, keys: list[tuple[bytes, int]]) -> None:
        self._answered(Outcome(RESEND), self.real.append(self._sent(keys, 0), placed=True, is_there=False))

    @rule(
        producer_id=PRODUCERS, keys=KEYS, ahead=st.sampled_from([0] * 8 + [1, 9]), placed=st.booleans(),
        skew_ms=SKEWS_MS, is_next=st.sampled_from([False, False, False, True]), ordinal=ORDINALS,
        is_transactional=st.booleans(), joins=st.booleans(),
    )  # fmt: skip
    def produce(
        self, producer_id: int, keys: list[tuple[bytes, int]], ahead: int, placed: bool, skew_ms: int, is_next: bool,
        ordinal: str, is_transactional: bool, joins: bool,
    ) -> None:  # fmt: skip
        """A producer's next batch, or one after a gap."""
        known = self.model.producers.get(producer_id)
        first = ((known.next_sequence if known else 0 if joins else SEQUENCES - 2) + ahead) % SEQUENCES
        sent = self._sent(
            keys, skew_ms, producer_id=producer_id, epoch=known.epoch if known else 0, first=first, is_next=is_next,
            is_transactional=is_transactional, ordinal=self._ordinal(producer_id, ordinal), joins=joins,
        )  # fmt: skip
        self._append(sent, placed=placed)

    @rule(producer_id=PRODUCERS, keys=KEYS, ordinal=ORDINALS, is_transactional=st.booleans(), is_next=st.booleans())
    def produce_behind_a_lost_batch(
        self, producer_id: int, keys: list[tuple[bytes, int]], ordinal: str, is_transactional: bool, is_next: bool
    ) -> None:
        """A server takes over that lacks the producer's last batch."""
        self.another_server_takes_over()
        self.produce(producer_id, keys, 1, False, 0, is_next, ordinal, is_transactional, False)

    @rule(
        producer_id=PRODUCERS, back=st.integers(1, 6), more=st.sampled_from([0, 0, 1]), placed=st.booleans(),
        ordinal=ORDINALS, is_transactional=st.booleans(), is_next=st.booleans(),
    )  # fmt: skip
    def produce_again(
        self, producer_id: int, back: int, more: int, placed: bool, ordinal: str, is_transactional: bool, is_next: bool
    ) -> None:
        """A batch that was sent before, or one that overlaps it."""
        known = self.model.producers.get(producer_id)
        if known is None or not known.batches:
            return
        first, last, _ = known.batches[max(0, len(known.batches) - back)]
        keys = [(b"a", 1)] * ((last - first) % SEQUENCES + 1 + more)
        sent = self._sent(
            keys, 0, producer_id=producer_id, epoch=known.epoch, first=first, is_next=is_next,
            is_transactional=is_transactional, ordinal=self._ordinal(producer_id, ordinal),
        )  # fmt: skip
        self._append(sent, placed=placed)

    @rule(
        producer_id=PRODUCERS, keys=KEYS, step=st.sampled_from([-1, 1, 1]), first=st.sampled_from([0, 0, 3]),
        ordinal=ORDINALS, is_transactional=st.booleans(),
    )  # fmt: skip
    def produce_in_another_epoch(
        self, producer_id: int, keys: list[tuple[bytes, int]], step: int, first: int, ordinal: str,
        is_transactional: bool,
    ) -> None:  # fmt: skip
        known = self.model.producers.get(producer_id)
        if known is None or known.epoch + step < 0:
            return
        sent = self._sent(
            keys, 0, producer_id=producer_id, epoch=known.epoch + step, first=first,
            is_transactional=is_transactional, ordinal=self._ordinal(producer_id, ordinal),
        )  # fmt: skip
        self._append(sent, placed=False)

    # ------------------------------------------------------------------ transactions

    def _ordinal(self, producer_id: int, kind: str) -> int | None:
        """None if no front-end asked for it; else the ordinal of the open, a new, or a former transaction."""
        if not kind:
            return None
        current = self.model.open.get(producer_id)
        if kind == "open" and current:
            return current.ordinal
        if kind == "late":
            return current.ordinal - 1 if current else self.model.closed.get(producer_id, 1)
        self.ordinal += 2
        return self.ordinal

    @rule(
        producer_id=PRODUCERS, kind=st.sampled_from(["commit", "abort"]), skew_ms=SKEWS_MS,
        step=st.sampled_from([0, 0, 1, 1, -1]), ordinal=st.sampled_from(["open"] * 6 + ["new", "late"]),
    )  # fmt: skip
    def mark(self, producer_id: int, kind: Kind, skew_ms: int, step: int, ordinal: str) -> None:
        known = self.model.producers.get(producer_id)
        epoch = max(0, (known.epoch if known else 0) + step)
        timestamp, number = self.model.now_ms + skew_ms, self._ordinal(producer_id, ordinal)
        assert number is not None
        before = set(self.model.producers)
        expected = self.model.mark(producer_id, epoch, number, kind, timestamp, self.runs)
        self._answered(expected, self.real.mark(producer_id, epoch, number, kind, timestamp))
        self._forgotten(may_forget=bool(set(self.model.producers) - before))

    @rule(producer_id=PRODUCERS, keys=KEYS, kind=st.sampled_from(["commit", "abort"]), count=st.integers(1, 3))
    def whole_transaction(self, producer_id: int, keys: list[tuple[bytes, int]], kind: Kind, count: int) -> None:
        """A whole transaction: its batches, and its marker."""
        for _ in range(count):
            self.produce(producer_id, keys, 0, False, 0, False, "open", True, True)
        self.mark(producer_id, kind, 0, 1, "open")

    def _forgotten(self, *, may_forget: bool) -> None:
        """An append of a new producer may forget producers that were silent for a day."""
        gone = set(self.model.producers) - set(self.real.producers())
        assert may_forget or not gone
        for producer_id in gone:
            assert self.model.may_be_forgotten(producer_id, DAY_MS)
            del self.model.producers[producer_id]
        known = self.real.known_transactions()
        for producer_id in set(self.model.closed) - set(known):
            assert producer_id not in self.model.open and producer_id not in self.model.producers
            del self.model.closed[producer_id]

    @rule(seconds=st.sampled_from([0, 50_000, 90_000]))
    def silent_producers_are_looked_for(self, seconds: int) -> None:
        """The sweep looks for silent producers, and looks again after a pause."""
        for pause_s in (0, seconds):
            self.time_passes(pause_s)
            self.real.forget_producers(DAY_MS)
            self._forgotten(may_forget=True)

    # ------------------------------------------------------------------ servers, time, trims

    @rule()
    def another_server_takes_over(self) -> None:
        """Another server takes over; the next append or reader notices."""
        self.runs += 1
        self.real.begin_run(self.runs)

    @rule(seconds=st.sampled_from([1, 10, 31, 3600, 50_000, 90_000]))
    def time_passes(self, seconds: int) -> None:
        self.model.now_ms += seconds * 1000
        type(self).set_clock(self.model.now_ms / 1000)

    @rule(batch=st.integers(0, 12), by=st.sampled_from([0, 0, 0, 1, -1]))
    def trim(self, batch: int, by: int) -> None:
        """Trim to a batch's first offset or to the end, or one offset beside it."""
        bases = [one.base for one in self.model.batches] or [self.model.start]
        offset = ([self.model.end, *reversed(bases)][batch] if batch <= len(bases) else bases[0]) + by
        if offset >= 0:
            code, start = self.model.trim(offset)
            assert self.real.trim(offset) == [code, start if code == NONE else self.model.start]

    # ------------------------------------------------------------------ compaction

    @precondition(lambda self: self.model.batches)
    @rule(min_lag_ms=st.sampled_from([0, 0, 0, 20_000]), retention_ms=st.sampled_from([0, 5000, 3_600_000]))
    def compact(self, min_lag_ms: int, retention_ms: int) -> None:
        compaction = Compaction(
            min_lag_ms=min_lag_ms, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=retention_ms
        )
        self._reader_comes()
        before, end = last_values(self.model.committed(0)), self.model.end
        is_free = self.model.now_ms >= self.leased_until_ms
        expected = is_free and self.model.compact(min_lag_ms, retention_ms)
        assert self.real.compact(compaction, self.model.now_ms) == expected
        if expected:
            self.leased_until_ms = 0
        assert (self.model.end, last_values(self.model.committed(0))) == (end, before)

    @precondition(lambda self: self.model.batches)
    @rule(swaps=st.booleans())
    def compaction_is_broken_off(self, swaps: bool) -> None:
        self.written += 1
        if self.real.break_off(f"token-{self.written}", self.model.cleaned, swaps=swaps):
            self.leased_until_ms = self.model.now_ms + LEASE_MS

    # ------------------------------------------------------------------ reads

    def _reader_comes(self) -> None:
        """A reader begins the epoch of a server that took over."""
        self.model.take_over(self.runs)
        assert self.real.take_over() == self.model.epoch

    @rule(back=st.integers(-1, 30))
    def fetch(self, back: int) -> None:
        self._reader_comes()
        offset = self.model.end - back
        for is_committed in (False, True):
            found = self.real.read(offset, is_committed=is_committed)
            if not self.model.start <= offset <= self.model.end:
                assert found.code == OUT_OF_RANGE
                continue
            model = self.model
            told = (found.code, found.log_start, found.high_watermark, found.last_stable)
            assert told == (NONE, model.start, model.end, model.stable)
            if is_committed:
                assert committed_of(found, offset) == model.committed(offset)
            else:
                assert records_of(found, offset) == model.records(offset)

    @rule(back_ms=st.integers(-6000, 100_000))
    def look_up_a_time(self, back_ms: int) -> None:
        self._reader_comes()
        timestamp = self.model.now_ms - back_ms
        assert self.real.first_at(timestamp) == self.model.first_at(timestamp)

    # ------------------------------------------------------------------ invariants

    @invariant()
    def offsets_and_transactions_are_the_models(self) -> None:
        meta, model = self.real.meta(), self.model
        assert [int(meta[name]) for name in ("start", "end", "epoch")] == [model.start, model.end, model.epoch]
        first_open = meta.get("first_open")
        assert (None if first_open is None else int(first_open)) == model.first_open
        assert model.start <= model.stable <= model.end
        assert meta["epochs"] == ",".join(f"{epoch}:{start}" for epoch, start in model.epochs)
        opened = {int(member): first for member, first in self.real.members(self.real.keys.open)}
        assert opened == {producer_id: one.first for producer_id, one in model.open.items()}
        aborted = [(*map(int, member.split()), last) for member, last in self.real.members(self.real.keys.aborted)]
        assert aborted == [(one.first, one.last, one.producer_id, one.stable, one.last) for one in model.aborted]
        known = self.real.known_transactions()
        assert {of: closed for of, (closed, _) in known.items() if closed >= 0} == model.closed
        assert {of: ordinal for of, (_, ordinal) in known.items() if ordinal >= 0} == {
            producer_id: one.ordinal for producer_id, one in model.open.items()
        }

    @invariant()
    def producers_are_the_models(self) -> None:
        states = {}
        for producer_id, producer in self.model.producers.items():
            newest = "|".join(",".join(map(str, of)) for of in reversed(producer.batches))
            mark = "*" if producer_id in self.model.open else ""
            states[producer_id] = (f"{producer.epoch} {producer.leader_epoch}{mark}", newest)
        real = {of: tuple(state.split("|", 1)) for of, state in self.real.producers().items()}
        # A marker of a newer epoch is kept as a batch without sequences, until five others came.
        real = {of: (head, "|".join(p for p in rest.split("|") if p[:3] != "-1,")) for of, (head, rest) in real.items()}
        assert real == states

    @invariant()
    def index_fits_the_batches(self) -> None:
        entries, meta = self.real.index(), self.real.meta()
        found = [(one.next_offset - one.records, one.next_offset, one.leader_epoch) for one in entries]
        assert found == [(one.base, one.past, one.leader_epoch) for one in self.model.batches]
        for entry, batch in zip(entries, self.model.batches, strict=True):
            assert (entry.size, entry.max_timestamp) == (len(entry.data), batch.max_timestamp)
            assert entry.crc == int.from_bytes(entry.data[17:21], "big")
            assert horizon_of(entry.data) == batch.horizon_ms
        running = [
            (0, 0, -1),
            *((one.running_bytes, one.running_batches, one.running_max_timestamp) for one in entries),
        ]
        for entry, before in zip(entries[1:], running[1:], strict=False):
            assert (entry.running_bytes - entry.size, entry.running_batches - 1) == before[:2]
            assert entry.running_max_timestamp >= max(before[2], entry.max_timestamp)
        if entries:
            newest, bytes_, count = map(int, meta["totals"].split())
            assert (bytes_, count, newest) == running[-1]

    @invariant()
    def nothing_is_left_over(self) -> None:
        """All placed batches belong to the log, or to a compaction that is under way."""
        names = self.real.key_names()
        placed = {f"log:{entry.place}" for entry in self.real.index() if entry.place}
        assert names >= placed
        if self.leased_until_ms == 0:
            assert names == {"log", "meta", "producers", "open", "aborted", "transactions"} | placed


def test_partition_behaves_as_its_model(server: redis.Redis, loop: Loop, set_clock: Callable[[float], None]) -> None:
    class OnBoth(PartitionMachine):
        pass

    OnBoth.server, OnBoth.loop, OnBoth.set_clock = server, loop, staticmethod(set_clock)
    run_state_machine_as_test(
        OnBoth,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
