"""The writers that Spark calls. The driver makes and pickles one for each batch, and each task runs it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.sink.columns import Columns, columns
from korvet.pipeline.sink.delivery import Delivery
from korvet.pipeline.sink.fence import write_fenced
from korvet.pipeline.sink.once import Task, write_once

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_CONFIRM_WITHIN_S: Final = "300"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's message to the driver."""

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan for all tasks of a batch.

    :param run: a name for this attempt at the batch.
    """

    settings: dict[str, str]
    columns: Columns
    exactly_once: bool | Literal["partition"]
    confirm_within_s: float
    run: str

    def write(self, batches: Iterator[pa.RecordBatch], query: str, batch: int) -> Written:
        """Write a task's rows.

        :raises PipelineError: if not all of them arrived.
        """
        records = (self.columns.records(one) for one in batches)
        if self.exactly_once:
            task = Task(query=query, batch=batch, partition=_context().partitionId(), run=self.run)
            if self.exactly_once == "partition":
                return Written(write_fenced(self.settings, task, records))
            return Written(write_once(self.settings, task, records, confirm_within_s=self.confirm_within_s))
        delivery = Delivery(self.settings)
        try:
            delivery.reach()
            rows = sum(map(delivery.send, records))
            delivery.finish()
        finally:
            delivery.close()
        return Written(rows)


class BatchWriter(DataSourceArrowWriter):
    """The writer of ``df.write``. It is not atomic over tasks: rows of one task stay if another fails."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._plan.write(iterator, query=self._plan.run, batch=0)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query, batch = (_context().getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if query is None or batch is None:
            raise PipelineError(
                "Spark does not name the query and its batch; set exactlyOnce=false to write at least once"
            )
        return self._plan.write(iterator, query=query, batch=int(batch))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of ``df.write``. Its tasks write at least once; with ``exactlyOnce`` each writes one transaction.

    :raises PipelineError: if an option or a column is not valid.
    """
    if overwrite:
        raise PipelineError("a topic cannot be overwritten; use mode append, and delete the topic before if need be")
    return BatchWriter(_plan(options, schema, exactly_once=False))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of ``df.writeStream``. It writes exactly once, unless ``exactlyOnce`` is false.

    In complete mode it appends each batch's rows, like Spark's Kafka sink.

    :raises PipelineError: if an option or a column is not valid.
    """
    return StreamWriter(_plan(options, schema, exactly_once=True))


def _plan(options: Mapping[str, str], schema: StructType, *, exactly_once: bool) -> Plan:
    given = {name.lower(): value for name, value in options.items()}
    settings = client_settings(options)
    if "transactional.id" in settings:
        raise PipelineError("kafka.transactional.id cannot be set: each task has one of its own (option exactlyOnce)")
    return Plan(
        settings=settings,
        columns=columns(schema, given.get("topic")),
        exactly_once=_exactly_once(given.get("exactlyonce"), exactly_once),
        confirm_within_s=_seconds("confirmTimeout", given.get("confirmtimeout", _CONFIRM_WITHIN_S)),
        run=uuid.uuid4().hex,
    )


def _exactly_once(text: str | None, default: bool) -> bool | Literal["partition"]:
    match text and text.lower():
        case None:
            return default
        case "true":
            return True
        case "false":
            return False
        case "partition":
            return "partition"
    raise PipelineError(f"option exactlyOnce: expected true, partition or false, got {text!r}")


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise PipelineError(f"option {name}: expected seconds, got {text!r}") from None


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark runs writers in tasks"
    return context
