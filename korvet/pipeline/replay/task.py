"""A task of Spark: it takes a partition's rows in order, and sends them at its share of the rate."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Final

import pyarrow as pa

from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.replay.chunk import chunks
from korvet.pipeline.replay.positions import GROUP_PREFIX
from korvet.pipeline.replay.sending import PATIENCE_S, Fenced, Sender, TakenOver, Target
from korvet.pipeline.replay.stopping import must_stop, request_stop

MOST_RECORDS: Final = 50_000
"""Of a transaction."""
_RECORDS_OF_SLOW: Final = 10_000
"""Of a transaction over a slow connection, also if it takes longer than a second."""
LOOK_EVERY_S: Final = 1.0
OUTCOME: Final = "partition int, end string, failure string"
_OUTCOME: Final = pa.schema([("partition", pa.int32()), ("end", pa.string()), ("failure", pa.string())])


class End(StrEnum):
    """Where a task ended: after its last row, before a large row that it did not get, or at a stop."""

    COMPLETE = "complete"
    LARGE = "large"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan for all tasks of a run, picklable.

    :param starts: the next offset of each begun partition.
    :param ends: the offset just past each partition's last row; only needed for a rate.
    :param rate: records/s of all tasks; None for no limit.
    :param at_once: the number of tasks that Spark runs at a time.
    """

    target: Target
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    rate: float | None
    at_once: int


def run(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the rows of one partition. Yields one row of the columns `OUTCOME`.

    A failure is a value: other tasks end after their open transactions, and the driver raises it.
    """
    rows = iter(batches)
    first = next(rows, None)
    if first is None or not first.num_rows:
        return
    partition = first.column("partition")[0].as_py()
    end, failure = End.STOPPED, None
    with Broker(plan.target.settings) as broker:
        try:
            end = _send(plan, partition, Rows(chain([first], rows)), broker)
        except TakenOver as error:
            failure = str(error)
        except PipelineError as error:
            failure = str(error)
            request_stop(broker, plan.target)
    outcome = {"partition": partition, "end": end, "failure": failure}
    yield pa.RecordBatch.from_pylist([outcome], schema=_OUTCOME)


class Rows:
    """The rows of a partition, each batch once, by growing offsets, up to a row that is too large to come.

    Only the partition and offset of that row came; `is_cut` recognizes it.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._end = 0
        self.is_cut = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while not self.is_cut and (batch := next(self._batches, None)) is not None:
            if batch.column("ms").null_count:
                self.is_cut = True
                batch = batch.slice(0, batch.column("ms").is_null().index(True).as_py())
            if batch.num_rows:
                self._end = batch.column("offset")[-1].as_py() + 1
                yield batch

    def end(self) -> int:
        """The offset just past the last row. Skips the rows that were not taken."""
        for _ in self:
            pass
        return self._end


def _send(plan: Plan, partition: int, rows: Rows, broker: Broker) -> End:
    pace = Pace(plan, broker)
    with Sender(plan.target, partition, plan.starts.get(partition, 0)) as sender:
        if pace.is_over():
            return End.STOPPED
        sender.init_transactions()
        try:
            for chunk in chunks(rows, pace.most):
                if pace.is_over():
                    return End.STOPPED
                began = time.monotonic()
                pace.sent(sender.send(chunk), time.monotonic() - began)
        except Fenced:
            follow(sender, plan, partition, rows.end())
    return End.LARGE if rows.is_cut else End.COMPLETE


def follow(sender: Sender, plan: Plan, partition: int, end: int) -> None:
    """Wait until the producer that took the partition over, such as another attempt of the same task, is at its end.

    :raises TakenOver: if it is another run's.
    :raises PipelineError: if it does not go on.
    """
    moved = time.monotonic()
    while sender.position < end:
        position = sender.position
        sender.follow()
        if sender.position > position:
            moved = time.monotonic()
        elif time.monotonic() - moved > PATIENCE_S:
            raise PipelineError(
                f"replay {plan.target.name}: {plan.target.topic}-{partition} was taken over by another process, which "
                f"does not go on from {position}; start the replay again"
            )
        time.sleep(LOOK_EVERY_S)


class Pace:
    """The pace of a task: when its next transaction may begin, and how many records it may have.

    The unfinished partitions share the rate, as many of them as Spark works on at once. The committed positions show
    which are unfinished, so tasks need not know of each other.
    """

    def __init__(self, plan: Plan, broker: Broker) -> None:
        self._plan, self._broker = plan, broker
        self._looked, self._due = -math.inf, time.monotonic()
        self._working = max(1, min(len(plan.ends), plan.at_once))
        self._fits = _RECORDS_OF_SLOW
        self._is_over = False

    def most(self) -> int:
        """The most records of the next transaction: a second's, by the last one's speed and by the rate.

        Speed alone allows `_RECORDS_OF_SLOW` to `MOST_RECORDS`.
        """
        return min(self._fits, max(1, int(self._share()))) if self._plan.rate else self._fits

    def sent(self, records: int, seconds: float) -> None:
        """Note a transaction's records and time. One without records changes nothing."""
        if not records:
            return
        self._fits = min(MOST_RECORDS, max(_RECORDS_OF_SLOW, int(records / max(seconds, 1e-3))))
        if self._plan.rate:
            self._due = max(self._due, time.monotonic() - 1) + records / self._share()

    def is_over(self) -> bool:
        """Wait until the next transaction may begin. Returns True if the replay has to stop."""
        while True:
            self._look()
            wait_s = self._due - time.monotonic()
            if self._is_over or wait_s <= 0:
                return self._is_over
            time.sleep(min(wait_s, LOOK_EVERY_S))

    def _share(self) -> float:
        assert self._plan.rate is not None
        return self._plan.rate / self._working

    def _look(self) -> None:
        if time.monotonic() < self._looked + LOOK_EVERY_S:
            return
        try:
            self._is_over = must_stop(self._broker, self._plan.target)
            if self._plan.rate:
                target, ends = self._plan.target, self._plan.ends
                positions = self._broker.committed(GROUP_PREFIX + target.name)
                offsets = {
                    number: position.offset for (topic, number), position in positions.items() if topic == target.topic
                }
                done = sum(offsets.get(number, 0) >= end for number, end in ends.items())
                self._working = max(1, min(len(ends) - done, self._plan.at_once))
        except PipelineError:
            # If no broker answers, the transactions report it soon enough.
            pass
        self._looked = time.monotonic()
