"""Each task's rows once: one transaction for a task, in which it also notes that its batch is in.

The note is an offset committed by the transaction: of the group `korvet-sink-QUERY-PARTITION`, whose name is the
transactional id, too. The offset is the batch's id + 1 and its metadata tells which rows there were. A task first ends
what its former self left open, or was: two of them fence each other. Then it reads the note, and writes nothing
where its batch is in.

Spark repeats a batch that did not end, and each task must have the same rows again. If it has not, since the number of
partitions or their order changed in between, what is in cannot be told from what is not. So a task whose rows are in
compares them with those it has now, and one that finds a batch begun by another run (the note of the group
`korvet-sink-QUERY`) writes only after every task that had written has come again.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
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
    """That a batch is in: of a task with all its rows, of the query with some task's.

    :param topic: of whose first partition it is an offset.
    """

    topic: str
    batch: int
    run: str
    rows: int
    checksum: int


class _Rows:
    """Counts rows as they pass, and sums them up in any order."""

    def __init__(self) -> None:
        self.count = 0
        self.checksum = 0

    def through(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            self.count += 1
            # The format of that version says the same of equal records always.
            self.checksum += zlib.crc32(marshal.dumps(record, 2))
            yield record


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
        rows = _Rows()
        for batch in batches:
            deque(rows.through(batch), maxlen=0)
        if (rows.count, rows.checksum) != (written.rows, written.checksum):
            raise PipelineError(
                f"{self._what()} was written with {written.rows} other rows than the {rows.count} that it has now: the "
                "query was started again with other partitions, or its rows are others each time; start it with as "
                f"many partitions as before, or {_ELSEWHERE}"
            )
        if written.run != self._task.run:
            self._delivery.producer.begin_transaction()
            self._commit({self._task.group: replace(written, run=self._task.run)})
        return rows.count

    def _transaction(self, first: Record, rest: Iterator[Record], batches: Iterator[Iterator[Record]]) -> int:
        run = self._task.run
        begun = self._note(self._task.query_group)
        if begun is not None and begun.batch == self._task.batch and begun.run != run:
            self._wait_for_the_others()
            run = begun.run
        self._delivery.producer.begin_transaction()
        rows = _Rows()
        self._delivery.send(rows.through([first]))
        for batch in chain([rest], batches):
            self._delivery.send(rows.through(batch))
        self._delivery.finish()
        note = Note(topic=first[0], batch=self._task.batch, run=self._task.run, rows=rows.count, checksum=rows.checksum)
        # The query's is still of the run that began the batch: the tasks to come have to wait, too.
        self._commit({self._task.group: note, self._task.query_group: replace(note, run=run)})
        return rows.count

    def _commit(self, notes: Mapping[str, Note]) -> None:
        producer = self._delivery.producer
        for group, note in notes.items():
            metadata = json.dumps({"run": note.run, "rows": note.rows, "checksum": note.checksum})
            # Any topic does that is there for certain; a note that is written again must take the place of the first.
            place = KafkaPartition(note.topic, 0, note.batch + 1, metadata)
            member = Consumer({"group.id": group, "log_level": 0}).consumer_group_metadata()
            self._call(partial(producer.send_offsets_to_transaction, [place], member))
        self._call(producer.commit_transaction)

    def _note(self, group: str, *, stable: bool = False) -> Note | None:
        """What a group says of the query's batches.

        :raises PipelineError: when it knows of a later batch than the task's, or somebody else set its offsets.
        """
        places = self._broker.committed(group, stable=stable)
        if not places:
            return None
        (topic, _), position = max(places.items(), key=lambda place: place[1].offset)
        try:
            note = Note(topic=topic, batch=position.offset - 1, **json.loads(position.metadata))
        except (ValueError, TypeError):
            raise PipelineError(
                f"{self._what()}: the offsets of group {group} are not the sink's, so somebody has set them; what is "
                "written cannot be told any more: begin with a new checkpointLocation"
            ) from None
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
