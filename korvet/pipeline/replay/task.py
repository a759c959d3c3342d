"""A task of Spark: it takes a partition's rows in order, and writes them in transactions that also commit its place.

A task never repeats a transaction whose outcome it does not know: it ends, and its next attempt goes on after the place
that is committed.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaException, TopicPartition

from korvet.pipeline.broker import TIMEOUT_S, Broker
from korvet.pipeline.errors import BrokerUnreachable, Passing, PipelineError
from korvet.pipeline.replay.config import GROUP_PREFIX, Note
from korvet.pipeline.sink.columns import Headers, Record
from korvet.pipeline.sink.delivery import Delivery, Fenced, refusal
from korvet.pipeline.sink.once import transactional

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of a transaction, about."""
OUTCOME: Final = "failure string, passes boolean"
_OUTCOME: Final = pa.schema([("failure", pa.string()), ("passes", pa.bool_())])
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan for all tasks of a run, picklable.

    :param settings: librdkafka's, of all clients.
    :param note: the note beside positions, without the count of records.
    """

    settings: Mapping[str, str]
    name: str
    topic: str
    note: Note

    @property
    def group(self) -> str:
        return f"{GROUP_PREFIX}{self.name}"

    def places(self, broker: Broker, *, stable: bool = False) -> dict[int, tuple[int, Note]]:
        """The next offset of each begun partition, and its note.

        :param stable: wait for transactions that are about to change them.
        :raises PipelineError: also if the group is not this replay's, or a later run goes on.
        """
        found = {}
        for (topic, number), position in broker.committed(self.group, stable=stable).items():
            note = Note.of(position.metadata)
            if note is None:
                raise PipelineError(
                    f"group {self.group} is not a replay's: its offset of {topic}-{number} has no note of a replay; "
                    "choose another name"
                )
            if note.topic_id != self.note.topic_id:
                # Records in a topic that was deleted do not count.
                continue
            if note.job != self.note.job:
                raise PipelineError(
                    f"replay {self.name} was begun with another table, range or topic; give the same ones, or choose "
                    "another name"
                )
            if note.run > self.note.run:
                raise PipelineError(f"replay {self.name} was started a second time, which goes on; this one ends")
            found[number] = position.offset, note
        return found


def run(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one partition. Yields a row of the columns `OUTCOME` if that failed.

    A failure is a value: Spark would repeat a task that raises it.
    """
    rows = filter(len, batches)
    first = next(rows, None)
    if first is None:
        return
    partition = first.column("partition")[0].as_py()
    try:
        with Broker(plan.settings) as broker:
            # A partition that a later run has is left alone, but a producer fences all former ones.
            plan.places(broker)
            with transactional(plan.settings, f"{plan.group}-{partition}") as delivery:
                Writer(plan, partition, delivery, broker).write([first], rows)
    except PipelineError as error:
        outcome = {"failure": str(error), "passes": isinstance(error, Passing | Fenced)}
        yield pa.RecordBatch.from_pylist([outcome], schema=_OUTCOME)


class Writer:
    """The producer of a partition. ``position`` is the next offset to write, once the open transaction is committed."""

    def __init__(self, plan: Plan, partition: int, delivery: Delivery, broker: Broker) -> None:
        self._plan, self._partition, self.delivery = plan, partition, delivery
        self._call(delivery.producer.init_transactions)
        self.position, self._note = plan.places(broker, stable=True).get(partition, (0, plan.note))
        self._note = replace(plan.note, records=self._note.records)

    def write(self, *batches: Iterable[pa.RecordBatch]) -> None:
        """Write the rows that are not in the topic yet.

        :raises PipelineError:
        """
        size_bytes = 0
        for batch in (each for some in batches for each in some):
            rows = batch.filter(pc.greater_equal(batch.column("offset"), self.position))
            if not rows.num_rows:
                continue
            if not size_bytes:
                self.delivery.producer.begin_transaction()
            self.delivery.send(self._records(rows))
            size_bytes += max(1, rows.nbytes)
            self.position = rows.column("offset")[-1].as_py() + 1
            self._note = replace(self._note, records=self._note.records + rows.num_rows)
            if size_bytes >= MOST_BYTES:
                self.commit()
                size_bytes = 0
        if size_bytes:
            self.commit()

    def commit(self) -> None:
        """Commit the transaction with the place."""
        producer, group = self.delivery.producer, self._plan.group
        self.delivery.finish()
        place = TopicPartition(self._plan.topic, self._partition, self.position, self._note.to_json())
        member = Consumer({"group.id": group, "log_level": 0}).consumer_group_metadata()
        self._call(lambda timeout_s: producer.send_offsets_to_transaction([place], member, timeout_s))
        self._call(producer.commit_transaction)

    def _call(self, call: Callable[[float], object]) -> None:
        """Do a step of a transaction, again while the client's error is retriable.

        :raises PipelineError:
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                call(TIMEOUT_S)
                return
            except KafkaException as failed:
                error = failed.args[0]
                if error.retriable() and time.monotonic() < deadline:
                    continue
                what = f"records of {self._plan.topic}-{self._partition}"
                if error.txn_requires_abort():
                    raise BrokerUnreachable(f"{what}: {error.str()}") from None
                raise refusal(what, error, self.delivery.address) from None

    def _records(self, rows: pa.RecordBatch) -> Iterator[Record]:
        headers = (None if text is None else headers_of(text) for text in rows.column("headers").to_pylist())
        values, keys, times = (rows.column(name).to_pylist() for name in ("value", "key", "ms"))
        return zip(repeat(self._plan.topic), values, keys, repeat(self._partition), times, headers, strict=False)


def headers_of(text: str) -> Headers | None:
    """A record's headers, from Spark's JSON: ``[{"key": "name", "value": "base64, or missing if null"}]``.

    :raises PipelineError: if a header or its key is null, which no archive writes.
    """
    try:
        pairs = [(each["key"], each.get("value")) for each in json.loads(text)]
    except (KeyError, TypeError):
        raise PipelineError(
            f"a header without a key in the table: {text[:_SHOWN]}; headers have keys, so choose a range without it"
        ) from None
    return [(key, None if value is None else b64decode(value)) for key, value in pairs] or None
