"""Transactions with steps in any order, also late and repeated ones: a reader sees exactly the decided transactions.

Two transactional ids, of both versions, write to one partition and commit offsets of one group. The test keeps every
step that a front-end may have begun, and repeats it later: appends and commits with their ordinals, markers, ends and
completions of decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.lua.log import TOPIC_ID
from tests.lua.transaction import NONE, VERIFY, Decision, Transactional, TransactionLog
from tests.lua.transaction_group import TransactionGroup
from tests.support.ported import kafka

APPS = st.integers(0, 1)
OUTCOMES = st.sampled_from(["commit", "abort"])
ANY = st.integers(0, 1000)


@dataclass
class Writer:
    """A producer's state in its client."""

    app: Transactional
    version: int
    producer: tuple[int, int] = (-1, -1)
    sequence: int = 0

    def goes_on(self, producer: tuple[int, int]) -> None:
        if producer != self.producer:
            self.producer, self.sequence = producer, 0


@dataclass
class Late:
    """A call that a delayed front-end may still send."""

    batches: list[tuple[tuple[int, int], int, int]] = field(default_factory=list)
    """Producer, sequence and ordinal."""
    commits: list[tuple[tuple[int, int], int]] = field(default_factory=list)
    decisions: list[tuple[Transactional, Decision]] = field(default_factory=list)


class Transactions(RuleBasedStateMachine):
    """Steps on the server, and the decisions."""

    server: redis.Redis
    set_clock: Callable[[float], None]

    def __init__(self) -> None:
        super().__init__()
        self.server.flushall()
        self.log = TransactionLog(self.server)
        self.log.create()
        self.group = TransactionGroup(self.server, type(self).set_clock)
        apps = [Transactional(self.server, type(self).set_clock, name) for name in ("one", "other")]
        apps[1]._ids = 2000
        self.writers = [Writer(app, version) for version, app in enumerate(apps, 1)]
        self.outcomes: dict[int, str] = {}
        self.held: dict[int, int] = {}
        """For each ordinal, the offset that was committed last."""
        self.late = Late()
        self.offset = 0
        self.marked: set[int] = set()
        self.expected = 0
        """The offset of the last commit among the transactions that ended in the group."""
        self.now = apps[0].now
        for writer in self.writers:
            writer.goes_on(writer.app.init().producer)

    def _decided(self, app: Transactional, decision: Decision) -> None:
        assert self.outcomes.setdefault(decision.ordinal, decision.outcome) == decision.outcome
        if (app, decision) not in self.late.decisions:
            self.late.decisions.append((app, decision))

    @rule(index=APPS, is_same=st.booleans())
    def begin(self, index: int, is_same: bool) -> None:
        """A new producer begins, or the same one after an error."""
        writer = self.writers[index]
        told = writer.app.init(writer.producer if is_same else (-1, -1))
        if told.decision:
            self._decided(writer.app, told.decision)
        if told.code == NONE:
            writer.goes_on(told.producer)

    @rule(index=APPS)
    def write(self, index: int) -> None:
        writer = self.writers[index]
        batch = (*writer.producer, writer.sequence)
        appended = self.log.write(1, batch, inline=b"%d %d" % (writer.producer[0], self._ordinal(writer)))
        if appended.code == VERIFY:
            added = writer.app.add(writer.producer, {"t:0": TOPIC_ID})
            if added.code != NONE:
                return
            self.late.batches.append((writer.producer, writer.sequence, added.ordinal))
            appended = self.log.write(1, batch, added.ordinal, inline=b"%d %d" % (writer.producer[0], added.ordinal))
            assert appended.code == NONE
        if appended.code == NONE:
            writer.sequence += 1

    @rule(index=APPS)
    def verify(self, index: int) -> None:
        """A front-end verifies a batch and then stands still, so the batch waits there."""
        writer = self.writers[index]
        added = writer.app.add(writer.producer, {"t:0": TOPIC_ID})
        if added.code == NONE:
            self.late.batches.append((writer.producer, writer.sequence, added.ordinal))

    @rule(index=APPS, outcome=OUTCOMES)
    def whole(self, index: int, outcome: str) -> None:
        """A usual transaction: writes, an offset, and its end."""
        self.write(index)
        self.commit_offset(index)
        self.end(index, outcome)
        self.finish(0, is_last=True)

    def _ordinal(self, writer: Writer) -> int:
        return int(writer.app.describe().get("ordinal", -1))

    @rule(index=APPS)
    def commit_offset(self, index: int) -> None:
        writer = self.writers[index]
        added = writer.app.add(writer.producer, groups=["g"])
        if added.code == NONE:
            self.late.commits.append((writer.producer, added.ordinal))
            self.offset += 1
            assert self.group.hold({"in:0": self.offset}, added.ordinal, producer=writer.producer) == NONE
            self.held[added.ordinal] = self.offset

    @rule(index=APPS, outcome=OUTCOMES)
    def end(self, index: int, outcome: str) -> None:
        writer = self.writers[index]
        told = writer.app.end(writer.producer, outcome, writer.version)
        if told.decision:
            self._decided(writer.app, told.decision)
        if told.code == NONE:
            writer.goes_on(told.producer)

    @rule(which=ANY, is_last=st.booleans())
    def finish(self, which: int, is_last: bool) -> None:
        """All steps of an earlier or present decision."""
        if self.late.decisions:
            app, decision = self.late.decisions[-1 if is_last else which % len(self.late.decisions)]
            self._mark(decision)
            self._end(decision)
            app.complete(decision.ordinal)

    @rule(which=ANY, step=st.sampled_from(["_mark", "_end"]))
    def step(self, which: int, step: str) -> None:
        """A single step of a decision; the completion does not come before the others."""
        if self.late.decisions:
            getattr(self, step)(self.late.decisions[which % len(self.late.decisions)][1])

    def _mark(self, decision: Decision) -> None:
        for _ in decision.partitions:
            self.marked.add(decision.ordinal)
            producer = (decision.producer_id, decision.marker_epoch)
            assert self.log.mark(producer, decision.ordinal, decision.outcome).code in (NONE, 47)

    def _end(self, decision: Decision) -> None:
        for _ in decision.groups:
            assert self.group.end(decision.outcome, decision.ordinal, decision.producer_id) == NONE
            if decision.outcome == "commit":
                self.expected = max(self.expected, self.held.get(decision.ordinal, 0))

    @rule(which=ANY)
    def late_batch(self, which: int) -> None:
        """A batch that was verified before its transaction ended in the partition, sent again or for the first time."""
        if self.late.batches:
            producer, sequence, ordinal = self.late.batches[which % len(self.late.batches)]
            if ordinal not in self.marked:
                return
            before = self.log.meta_fields()["end"]
            self.log.write(1, (*producer, sequence), ordinal, inline=b"%d %d" % (producer[0], ordinal))
            assert self.log.meta_fields()["end"] == before

    @rule(which=ANY)
    def late_commit(self, which: int) -> None:
        if self.late.commits:
            producer, ordinal = self.late.commits[which % len(self.late.commits)]
            self.offset += 1
            if self.group.hold({"in:0": self.offset}, ordinal, producer=producer) == NONE:
                self.held[ordinal] = self.offset

    @rule(seconds=st.sampled_from([1, 30, 61]))
    def time_passes(self, seconds: int) -> None:
        """The sweep aborts transactions past their timeout, and gets unfinished decisions."""
        self.now += seconds
        for writer in self.writers:
            writer.app.now = self.group.now = self.now
        type(self).set_clock(self.now)
        for writer in self.writers:
            if writer.app.name in writer.app.due():
                decision = writer.app.expire()
                if decision:
                    self._decided(writer.app, decision)

    @invariant()
    def reader_sees_what_was_decided(self) -> None:
        stable = self.log.first_open()
        aborted = self.log.aborted_transactions()
        for entry in self.log.entries():
            assert entry.batch is not None
            if entry.batch == b"marker" or (stable is not None and entry.base_offset >= stable):
                continue
            producer_id, ordinal = map(int, entry.batch.split())
            is_aborted = any(first <= entry.base_offset <= last and of == producer_id for first, last, of, _ in aborted)
            assert self.outcomes[ordinal] == ("abort" if is_aborted else "commit")
        assert stable is None or stable == min(self.log.open_transactions().values())

    @invariant()
    def offset_is_the_last_that_was_committed(self) -> None:
        assert int(self.group.committed().get("in:0", "0")) == self.expected


@kafka("TransactionCoordinatorConcurrencyTest.testConcurrentRandomSequences")
def test_reader_sees_the_decided_transactions_in_any_order_of_steps(
    server: redis.Redis, set_clock: Callable[[float], None]
) -> None:
    class OnServer(Transactions):
        pass

    OnServer.server = server
    OnServer.set_clock = staticmethod(set_clock)
    checks: Any = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        OnServer,
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, database=None, suppress_health_check=checks
        ),
    )
