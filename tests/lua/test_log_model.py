"""One partition against a model of it in Python: any order of appends, duplicates, gaps, restarts, trims and reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.lua.log import RESEND, Appended, Log

SEQUENCES = 2**31
PRODUCERS = st.integers(1, 2)


@dataclass
class Producer:
    """What Kafka remembers of a producer: the epoch and (first, last, base offset) of five batches."""

    epoch: int
    leader_epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def next_sequence(self) -> int:
        return (self.batches[-1][1] + 1) % SEQUENCES


@dataclass
class Model:
    """What a partition must look like from outside."""

    start: int = 0
    end: int = 0
    epoch: int = 0
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Base offset, offset past it, bytes."""
    producers: dict[int, Producer] = field(default_factory=dict)

    def judge(self, producer_id: int, epoch: int, first: int, last: int, leader_epoch: int) -> tuple[int, int]:
        """Code, and the base offset of a duplicate or -1."""
        known = self.producers.get(producer_id)
        if known is None:
            return 0, -1
        if epoch != known.epoch:
            return (47, -1) if epoch < known.epoch else (0 if first == 0 else 45, -1)
        for batch_first, batch_last, base in known.batches:
            if (batch_first, batch_last) == (first, last):
                return 0, base
        gap = (first - known.next_sequence) % SEQUENCES
        if gap == 0:
            return 0, -1
        return (0 if gap < SEQUENCES // 2 and known.leader_epoch != leader_epoch else 45), -1

    def append(self, records: int, data: bytes) -> int:
        base, self.end = self.end, self.end + records
        self.batches.append((base, self.end, data))
        return base

    def remember(self, producer_id: int, epoch: int, first: int, last: int, base: int) -> None:
        known = self.producers.get(producer_id)
        if known is None or known.epoch != epoch:
            known = self.producers[producer_id] = Producer(epoch, self.epoch)
        known.leader_epoch = self.epoch
        known.batches = [*known.batches, (first, last, base)][-5:]

    def trim(self, offset: int) -> None:
        self.start = max(self.start, offset)
        self.batches = [batch for batch in self.batches if batch[1] > self.start]


class Partition(RuleBasedStateMachine):
    """The same steps on the server and on the model."""

    server: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.server.flushall()
        self.log = Log(self.server)
        self.log.create()
        self.model = Model()
        self.servers = 1
        self.bytes = 0

    def _data(self) -> bytes:
        self.bytes += 1
        return b"batch %d" % self.bytes

    def _is_new_history(self) -> bool:
        return self.log.meta_fields()["run_id"] != self.log.run_id

    @rule(records=st.integers(1, 5), placed=st.booleans())
    def append(self, records: int, placed: bool) -> None:
        data, is_new = self._data(), self._is_new_history()
        appended = (self.log.place if placed else self.log.append)(records, batch=data)
        self._began(is_new, appended)
        assert appended == (0, self.model.append(records, data), self.model.start, self.model.epoch)

    @rule(records=st.integers(1, 5))
    def append_whose_temporary_key_is_gone(self, records: int) -> None:
        assert self.log.place(records, is_sent=False) == (RESEND, -1, self.model.start, self.model.epoch)

    @rule(
        producer_id=PRODUCERS,
        records=st.integers(1, 3),
        ahead=st.sampled_from([0, 0, 0, 0, 1, 9]),
        placed=st.booleans(),
    )
    def produce(self, producer_id: int, records: int, ahead: int, placed: bool) -> None:
        """The next batch of a producer, or one with a gap before it."""
        known = self.model.producers.get(producer_id)
        first = (known.next_sequence if known else SEQUENCES - 4) + ahead
        self._produce(producer_id, known.epoch if known else 0, first % SEQUENCES, records, placed)

    @rule(producer_id=PRODUCERS, back=st.integers(1, 6), more=st.sampled_from([0, 0, 1]), placed=st.booleans())
    def produce_again(self, producer_id: int, back: int, more: int, placed: bool) -> None:
        """A batch that was sent before, or something that overlaps it."""
        known = self.model.producers.get(producer_id)
        if known is not None:
            first, last, _ = known.batches[max(0, len(known.batches) - back)]
            self._produce(producer_id, known.epoch, first, (last - first) % SEQUENCES + 1 + more, placed)

    @rule(producer_id=PRODUCERS, step=st.sampled_from([-1, 1]), first=st.sampled_from([0, 0, 3]))
    def produce_in_another_epoch(self, producer_id: int, step: int, first: int) -> None:
        known = self.model.producers.get(producer_id)
        if known is not None and known.epoch + step >= 0:
            self._produce(producer_id, known.epoch + step, first, 2, placed=False)

    def _produce(self, producer_id: int, epoch: int, first: int, records: int, placed: bool) -> None:
        last, data, is_new = (first + records - 1) % SEQUENCES, self._data(), self._is_new_history()
        # Of the epoch that this append would begin nothing matters here but that it is another one.
        code, base = self.model.judge(producer_id, epoch, first, last, -1 if is_new else self.model.epoch)
        is_appended = code == 0 and base < 0
        producer = (producer_id, epoch, first)
        appended = (self.log.place if placed else self.log.append)(records, batch=data, producer=producer)
        if is_appended:
            self._began(is_new, appended)
            base = self.model.append(records, data)
            self.model.remember(producer_id, epoch, first, last, base)
        assert appended == (code, base, self.model.start, self.model.epoch)

    def _began(self, is_new: bool, appended: Appended) -> None:
        if is_new:
            assert appended.leader_epoch > self.model.epoch
            self.model.epoch = appended.leader_epoch

    @rule()
    def another_server_takes_over(self) -> None:
        self.servers += 1
        self.log.run_id = f"{self.servers:040d}"

    @rule(beyond=st.integers(-10, 3))
    def trim(self, beyond: int) -> None:
        offset = self.model.end + beyond
        if offset > self.model.end:
            assert self.log.trim(offset) == [1, self.model.start, 0]
        elif offset >= 0:
            self.model.trim(offset)
            assert self.log.trim(offset) == [0, self.model.start, 0]

    @rule(offset=st.integers(0, 60))
    def fetch(self, offset: int) -> None:
        read = [
            self._batch_of(entry.next_offset, entry.batch) for entry in self.log.entries() if entry.next_offset > offset
        ]
        assert read == [data for _, past, data in self.model.batches if past > offset]

    def _batch_of(self, next_offset: int, inline: bytes | None) -> bytes | None:
        placed: Any = self.server.get(f"{self.log.log}:{next_offset}")
        return inline if inline is not None else placed

    @invariant()
    def log_looks_like_the_model(self) -> None:
        meta, entries = self.log.meta_fields(), self.log.entries()
        assert (int(meta["start"]), int(meta["end"]), int(meta["epoch"])) == (
            self.model.start,
            self.model.end,
            self.model.epoch,
        )
        assert [(entry.base_offset, entry.next_offset) for entry in entries] == [
            (base, past) for base, past, _ in self.model.batches
        ]
        placed = {f"{self.log.log}:{entry.next_offset}".encode() for entry in entries if entry.batch is None}
        assert set(self.server.keys()) == {key.encode() for key in self.log.keys} | placed
        starts = [int(pair.partition(":")[2]) for pair in meta["epochs"].split(",")]
        assert starts == sorted(set(starts))


def test_partition_behaves_as_its_model(server: redis.Redis) -> None:
    bound = type("BoundPartition", (Partition,), {"server": server})
    run_state_machine_as_test(
        bound,
        settings=settings(
            max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
