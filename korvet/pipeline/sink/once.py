"""Each task's rows once: one transaction for a task, in which it also notes that its batch is in.

The note is an offset committed by the transaction: of the group `korvet-sink-QUERY-PARTITION`, whose name is the
transactional id, too. The offset is the batch's id + 1 and its metadata how many rows there were. A task first ends
what its former self left open, or was: two of them fence each other. Then it reads the note, and writes nothing
where its batch is in.

Spark repeats a batch, when the one before it did not end, and expects each task to have the same rows again. If it has
not, since the number of partitions changed in between, what is in cannot be told from what is not. So a task that finds
a batch begun by another run (the note of the group `korvet-sink-QUERY`) writes only after every task that had written
has come again, with as many rows as then.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from korvet.pipeline.broker import TIMEOUT_S, Broker
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.sink.columns import Record
from korvet.pipeline.sink.delivery import Delivery, refusal

GROUP_PREFIX: Final = "korvet-sink-"
_DEFAULTS: Final = {
    # As long as brokers allow by their own defaults: a task's rows may take that long to come.
    "transaction.timeout.ms": "900000"
}
_ABORT_S: Final = 5.0
_POLL_S: Final = 0.2
_ELSEWHERE: Final = (
    "set exactlyOnce=false for one run, which writes all of the batch (rows may be there twice), or begin with a new "
    "checkpointLocation"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of one batch of a query.

    :param run: tells the driver's attempts at a batch from each other.
    """

    query: str
    batch: int
    partition: int
    run: str

    @property
    def query_group(self) -> str:
        return f"{GROUP_PREFIX}{self.query}"

    @property
    def group(self) -> str:
        return f"{self.query_group}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """That a batch is in: of a task with all its rows, of the query with some task's."""

    batch: int
    run: str
    rows: int


def write_once(
    settings: Mapping[str, str], task: Task, batches: Iterator[Iterator[Record]], *, confirm_within_s: float
) -> int:
    """Write a task's rows in one transaction, or nothing where they are in.

    :param confirm_within_s: how long to wait for the other tasks of a batch that another run began.
    :returns: how many rows the task had.
    :raises PipelineError:
    """
    delivery = Delivery({**_DEFAULTS, **settings, "transactional.id": task.group})
    try:
        with Broker(settings) as broker:
            return _Attempt(task, delivery, broker, confirm_within_s).write(batches)
    except BaseException:
        # Where that fails, the next task of the partition does it, or the broker after transaction.timeout.ms.
        with contextlib.suppress(KafkaException):
            delivery.producer.abort_transaction(_ABORT_S)
        raise
    finally:
        delivery.close()


class _Attempt:
    def __init__(self, task: Task, delivery: Delivery, broker: Broker, confirm_within_s: float) -> None:
        self._task = task
        self._delivery = delivery
        self._broker = broker
        self._confirm_within_s = confirm_within_s

    def write(self, batches: Iterator[Iterator[Record]]) -> int:
        self._call(self._delivery.producer.init_transactions)
        written = self._note(self._task.group, stable=True)
        if written is not None and written.batch == self._task.batch:
            return self._confirm(written, batches)
        for batch in batches:
            first = next(batch, None)
            if first is not None:
                return self._transaction(first, batch, batches)
        return 0

    def _confirm(self, written: Note, batches: Iterator[Iterator[Record]]) -> int:
        """The task's rows are in; say that they came again."""
        topic, rows = "", 0
        for batch in batches:
            for record in batch:
                topic = record[0]
                rows += 1
        if rows != written.rows:
            raise PipelineError(
                f"{self._what()} had {written.rows} rows when it was written, and {rows} now: the query was started "
                f"again with other partitions; start it with as many as before, or {_ELSEWHERE}"
            )
        if written.run != self._task.run:
            self._delivery.producer.begin_transaction()
            self._commit({self._task.group: Note(batch=written.batch, run=self._task.run, rows=rows)}, topic)
        return rows

    def _transaction(self, first: Record, rest: Iterator[Record], batches: Iterator[Iterator[Record]]) -> int:
        run = self._task.run
        begun = self._note(self._task.query_group)
        if begun is not None and begun.batch == self._task.batch and begun.run != run:
            self._wait_for_the_others()
            run = begun.run
        self._delivery.producer.begin_transaction()
        rows = self._delivery.send([first]) + self._delivery.send(rest)
        rows += sum(map(self._delivery.send, batches))
        self._delivery.finish()
        notes = {
            self._task.group: Note(batch=self._task.batch, run=self._task.run, rows=rows),
            # Still of the run that began the batch: the tasks to come have to wait, too.
            self._task.query_group: Note(batch=self._task.batch, run=run, rows=rows),
        }
        self._commit(notes, first[0])
        return rows

    def _commit(self, notes: Mapping[str, Note], topic: str) -> None:
        producer = self._delivery.producer
        for group, note in notes.items():
            metadata = json.dumps({"run": note.run, "rows": note.rows})
            # Any place does that is there for certain; every task of the query's group takes its own topic's.
            place = KafkaPartition(topic, 0, note.batch + 1, metadata)
            member = Consumer({"group.id": group, "log_level": 0}).consumer_group_metadata()
            self._call(partial(producer.send_offsets_to_transaction, [place], member))
        self._call(producer.commit_transaction)

    def _note(self, group: str, *, stable: bool = False) -> Note | None:
        """What a group says of the query's batches.

        :raises PipelineError: when it knows of a later batch than the task's.
        """
        places = self._broker.committed(group, stable=stable)
        if not places:
            return None
        position = max(places.values(), key=lambda place: place.offset)
        told = json.loads(position.metadata)
        note = Note(batch=position.offset - 1, run=told["run"], rows=told["rows"])
        if note.batch > self._task.batch:
            raise PipelineError(
                f"{self._what()}: batch {note.batch} of the query is written already, so its checkpoint is an older "
                "copy; begin with a new checkpointLocation, and startingOffsets behind what is written"
            )
        return note

    def _wait_for_the_others(self) -> None:
        deadline = time.monotonic() + self._confirm_within_s
        missing = self._unconfirmed(self._broker.group_ids(f"{self._task.query_group}-"))
        while missing:
            if time.monotonic() > deadline:
                partitions = ", ".join(group.rpartition("-")[2] for group in missing)
                raise PipelineError(
                    f"{self._what()} was begun by another run, whose partitions {partitions} are written and did not "
                    f"come again within {self._confirm_within_s:g} s: start the query with as many partitions and "
                    f"cores as before, or {_ELSEWHERE}"
                )
            time.sleep(_POLL_S)
            missing = self._unconfirmed(missing)

    def _unconfirmed(self, groups: list[str]) -> list[str]:
        notes = {group: self._note(group) for group in groups}
        return [
            group
            for group, note in notes.items()
            if note is not None and note.batch == self._task.batch and note.run != self._task.run
        ]

    def _what(self) -> str:
        return f"partition {self._task.partition} of batch {self._task.batch} of query {self._task.query}"

    def _call(self, call: Callable[[float], object]) -> None:
        """A step of a transaction, again while the client says that it may be tried again.

        :raises PipelineError:
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                call(TIMEOUT_S)
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if not error.retriable() or time.monotonic() > deadline:
                    raise refusal(self._what(), error, self._delivery.address) from None
