"""Each task's rows once: one transaction for a task, which also notes that its rows are in.

The transaction commits the note as an offset of the group `korvet-sink-QUERY-PARTITION`. The group's name is also the
transactional id. The offset is the batch's id + 1, and its metadata has the number and the checksum of the rows. A task
first fences its former self, and aborts the transaction that it left open. Then the task reads the note, and writes
nothing if its rows are in.

Spark repeats a batch that did not end. The tasks must then have the same rows again, but maybe in another order:
Spark's Kafka source may number its partitions otherwise after a restart. The group `korvet-sink-QUERY` names the run
that began the batch. If another run did, a task writes on trial and looks for a note of just its rows. If it finds one,
it takes the note for this run and aborts. Else it commits once all notes of the batch are taken. If a note stays
untaken, the tasks have other rows than before, and the sink does not know which rows are in. A task of the run that
began the batch ends if it finds that another run goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import marshal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from korvet.pipeline.broker import TIMEOUT_S, Broker
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.sink.columns import Record
from korvet.pipeline.sink.delivery import Delivery, Fenced, refusal

GROUP_PREFIX: Final = "korvet-sink-"
_DEFAULTS: Final = {
    # The most that brokers allow by default: a task's rows may take that long to come.
    "transaction.timeout.ms": "900000"
}
# A dead task that holds a note hinders all others until then.
_BRIEFLY: Final = {"transaction.timeout.ms": "10000", "message.timeout.ms": "10000"}
_ABORT_S: Final = 5.0
_POLL_S: Final = 0.2
_ELSEWHERE: Final = (
    "set exactlyOnce=false for one run, which writes all of the batch (rows may be there twice), or begin with a new "
    "checkpointLocation"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of one batch of a query.

    :param run: identifies the driver's attempt at a batch.
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
    """A note that a batch is in: a task's note counts its rows, the query's note the rows of the last task that noted.

    :param topic: the note is an offset in this topic's first partition.
    :param run: the last run in which a task had these rows.
    :param task: that task's partition.
    :param checksum: of the rows; empty if the task wrote without hashes (`korvet.pipeline.sink.fence`).
    :param begun: the run that was first to write in the batch.
    """

    topic: str
    batch: int
    run: str
    task: int
    rows: int
    checksum: str
    begun: str


class Rows:
    """Counts rows as they pass."""

    def __init__(self) -> None:
        self.topic: str | None = None
        self.count = 0

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            self.topic = self.topic or record[0]
            self.count += 1
            yield record


class _HashedRows(Rows):
    """Adds up the rows' hashes, too: order does not matter, and equal rows do not cancel out."""

    def __init__(self) -> None:
        super().__init__()
        self._sum = 0

    @property
    def checksum(self) -> str:
        return f"{self._sum % 2**128:032x}"

    def are(self, note: Note) -> bool:
        return (self.count, self.checksum) == (note.rows, note.checksum)

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in super().through(records):
            # Version 2 of the format always gives equal records equal bytes.
            digest = hashlib.blake2b(marshal.dumps(record, 2), digest_size=16).digest()
            self._sum += int.from_bytes(digest, "big")
            yield record


def write_once(
    settings: Mapping[str, str], task: Task, batches: Iterator[Iterator[Record]], *, confirm_within_s: float
) -> int:
    """Write a task's rows in one transaction, or nothing if they are in.

    :param confirm_within_s: the time to wait for the other tasks of a batch that another run began.
    :returns: the number of the task's rows.
    :raises PipelineError:
    """
    with Broker(settings) as broker, transactional(settings, task.group) as delivery:
        return _Trial(settings, task, delivery, broker, confirm_within_s).write(batches)


@contextlib.contextmanager
def transactional(settings: Mapping[str, str], name: str) -> Iterator[Delivery]:
    delivery = Delivery({**_DEFAULTS, **settings, "transactional.id": name})
    try:
        yield delivery
    except BaseException:
        # If the abort fails, the next producer of that name aborts, or the broker after transaction.timeout.ms.
        with contextlib.suppress(KafkaException):
            delivery.producer.abort_transaction(_ABORT_S)
        raise
    finally:
        delivery.close()


class Attempt:
    """A task's transaction, and the notes of its query."""

    def __init__(self, settings: Mapping[str, str], task: Task, delivery: Delivery, broker: Broker) -> None:
        self._settings = settings
        self._task = task
        self._delivery = delivery
        self._broker = broker

    def _send(self, batches: Iterator[Iterator[Record]], rows: Rows) -> None:
        """Send all rows in a transaction, which stays open; without rows there is no transaction.

        :param rows: counts them.
        """
        for batch in batches:
            first = next(batch, None)
            if first is None:
                continue
            if not rows.count:
                self._delivery.producer.begin_transaction()
            self._delivery.send(rows.through(chain([first], batch)))
        if rows.count:
            self._delivery.finish()

    def _stage(self, delivery: Delivery, group: str, note: Note) -> None:
        """Add the note to the open transaction."""
        fields = {name: value for name, value in asdict(note).items() if name not in ("topic", "batch")}
        # Any existing topic will do, but a note written again must replace the first.
        partition = KafkaPartition(note.topic, 0, note.batch + 1, json.dumps(fields))
        member = Consumer({"group.id": group, "log_level": 0}).consumer_group_metadata()
        self._call(partial(delivery.producer.send_offsets_to_transaction, [partition], member))

    def _note(self, group: str) -> Note | None:
        """A task's latest note in a group."""
        return max(self._notes_of(group), key=lambda note: note.batch, default=None)

    def _notes_of(self, group: str, *, stable: bool = True) -> list[Note]:
        """A group's notes of the query's batches: the latest for each topic.

        :param stable: wait for transactions that are about to change them.
        :raises PipelineError: if a note is of a later batch than the task's, or is not the sink's.
        """
        positions = self._broker.committed(group, stable=stable)
        try:
            notes = [
                Note(topic=topic, batch=position.offset - 1, **json.loads(position.metadata))
                for (topic, _), position in positions.items()
            ]
        except (ValueError, TypeError):
            raise PipelineError(
                f"{self._what()}: the offsets of group {group} are not the sink's, so another client has set them, "
                "and the sink does not know which rows are written: begin with a new checkpointLocation"
            ) from None
        for note in notes:
            if note.batch > self._task.batch:
                raise PipelineError(
                    f"{self._what()}: batch {note.batch} of the query is written already, so its checkpoint is an "
                    "older copy; begin with a new checkpointLocation, and startingOffsets after what is written"
                )
        return notes

    def _is_of_this_batch(self, note: Note | None) -> bool:
        return note is not None and note.batch == self._task.batch

    def _refuse_other_way(self, notes: Iterable[Note], *, with_hashes: bool) -> None:
        """Raise PipelineError if a task has written rows of this batch with the other setting of ``exactlyOnce``."""
        if any(bool(note.checksum) != with_hashes for note in notes if self._is_of_this_batch(note)):
            began = "partition" if with_hashes else "true"
            raise PipelineError(
                f"{self._what()}: the batch was begun with exactlyOnce={began}, so this writes nothing; start the "
                f"query with that, and change it only after the query was stopped in order, or {_ELSEWHERE}"
            )

    def _others(self, written: Note, rows: Rows) -> PipelineError:
        return PipelineError(
            f"{self._what()} was written with {written.rows} other rows than the {rows.count} that it has now: the "
            f"query gives other rows each time; make it give the same ones, or {_ELSEWHERE}"
        )

    def _what(self) -> str:
        return f"partition {self._task.partition} of batch {self._task.batch} of query {self._task.query}"

    def _call(self, call: Callable[[float], object]) -> None:
        """Do a step of a transaction, again while the client's error is retriable.

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


class _Trial(Attempt):
    """An attempt that finds its rows also if another task wrote them."""

    def __init__(
        self, settings: Mapping[str, str], task: Task, delivery: Delivery, broker: Broker, confirm_within_s: float
    ) -> None:
        super().__init__(settings, task, delivery, broker)
        self._confirm_within_s = confirm_within_s

    def write(self, batches: Iterator[Iterator[Record]]) -> int:
        self._call(self._delivery.producer.init_transactions)
        own = self._note(self._task.group)
        if own is not None and self._is_mine(own):
            return self._compare(own, batches)
        self._refuse_other_way([own] if own is not None else [], with_hashes=True)
        rows = _HashedRows()
        self._send(batches, rows)
        if rows.count or self._is_of_this_batch(own):
            self._settle(rows, own)
        return rows.count

    def _settle(self, rows: _HashedRows, own: Note | None) -> None:
        """Abort if the rows are in, else commit."""
        # This comes as late as possible, because a task of a dead driver may still run, too.
        begun = self._begun(own)
        if begun != self._task.run and self._are_in(rows, own):
            self._call(self._delivery.producer.abort_transaction)
        elif rows.topic is not None:
            note = Note(
                topic=rows.topic, batch=self._task.batch, run=self._task.run, task=self._task.partition,
                rows=rows.count, checksum=rows.checksum, begun=begun,
            )  # fmt: skip
            self._stage(self._delivery, self._free_group(own), note)
            if begun == self._task.run:
                # A later run that looks from now on waits for this note; this task sees one that looked before.
                self._begun(None)
            self._stage(self._delivery, self._task.query_group, note)
            self._call(self._delivery.producer.commit_transaction)

    def _compare(self, written: Note, batches: Iterator[Iterator[Record]]) -> int:
        """Compare the rows of a task of this run that is in already, and comes again."""
        rows = _HashedRows()
        for batch in batches:
            deque(rows.through(batch), maxlen=0)
        if not rows.are(written):
            raise self._others(written, rows)
        return rows.count

    def _begun(self, own: Note | None) -> str:
        """The run that began the batch.

        :raises PipelineError: if this run began it, and another one continues it.
        """
        # A task's own note suffices. The query's may wait for a task that has no core while this one runs.
        notes = [own] if own is not None and self._is_of_this_batch(own) else self._notes_of(self._task.query_group)
        self._refuse_other_way(notes, with_hashes=True)
        for note in filter(self._is_of_this_batch, notes):
            if note.begun != self._task.run:
                return note.begun
            if note.run != self._task.run:
                raise PipelineError(f"{self._what()}: another run of the query goes on with it; this one ends")
        return self._task.run

    def _are_in(self, rows: _HashedRows, own: Note | None) -> bool:
        """Take a note of the rows that no other task of this run has. Returns True if it was there.

        :raises PipelineError: if there is none, but a note of other rows that did not come again.
        """
        if self._has(self._notes(stable=False), rows):
            return True
        if own is not None and self._is_of_another_run(own) and rows.are(own) and self._take(self._task.group):
            return True
        deadline = time.monotonic() + self._confirm_within_s
        seen: dict[str, Note] | None = None
        while True:
            notes = self._notes()
            others = {group: note for group, note in notes.items() if self._is_of_another_run(note)}
            if self._has(notes, rows) or any(self._take(group) for group, note in others.items() if rows.are(note)):
                return True
            # The task looks twice: a task of a dead driver may have committed before the last note was taken.
            if not others and notes == seen:
                return False
            if others:
                self._wait_for(others.values(), deadline)
            seen = notes

    def _has(self, notes: Mapping[str, Note], rows: _HashedRows) -> bool:
        """True if this very task took one of the notes."""
        mine = next(filter(self._is_mine, notes.values()), None)
        if mine is not None and not rows.are(mine):
            raise self._others(mine, rows)
        return mine is not None

    def _take(self, group: str) -> bool:
        """Take a note, so that no other task of this run can. Returns True on success."""
        try:
            with transactional({**self._settings, **_BRIEFLY}, f"{group}-taken") as delivery:
                self._call(delivery.producer.init_transactions)
                note = self._note(group)
                if note is None or not self._is_of_another_run(note):
                    return False
                delivery.producer.begin_transaction()
                taken = replace(note, run=self._task.run, task=self._task.partition)
                for each in (group, self._task.query_group):
                    self._stage(delivery, each, taken)
                self._call(delivery.producer.commit_transaction)
                return True
        except Fenced:
            # Another task with the same rows is about to take it, or fenced this one.
            note = self._note(group)
            return note is not None and self._is_mine(note)

    def _free_group(self, own: Note | None) -> str:
        """A group that holds no note of other rows of the batch."""
        return f"{self._task.group}-{self._task.run}" if self._is_of_this_batch(own) else self._task.group

    def _notes(self, *, stable: bool = True) -> dict[str, Note]:
        """The tasks' notes of the batch, by group."""
        groups = self._broker.group_ids(f"{self._task.query_group}-")
        return {
            group: note
            for group in groups
            for note in filter(self._is_of_this_batch, self._notes_of(group, stable=stable))
        }

    def _wait_for(self, others: Iterable[Note], deadline: float) -> None:
        if time.monotonic() > deadline:
            tasks = ", ".join(str(task) for task in sorted(note.task for note in others))
            raise PipelineError(
                f"{self._what()} was begun by another run, and the rows that its partitions {tasks} have written did "
                f"not come again within {self._confirm_within_s:g} s: start the query with as many partitions as "
                f"before and at least as many cores, or {_ELSEWHERE}"
            )
        time.sleep(_POLL_S)

    def _is_of_another_run(self, note: Note) -> bool:
        return self._is_of_this_batch(note) and note.run != self._task.run

    def _is_mine(self, note: Note) -> bool:
        mine = (self._task.batch, self._task.run, self._task.partition)
        return (note.batch, note.run, note.task) == mine
