"""Each task's rows once, if a repeated batch has the same rows in the same partitions: a fence, and a note.

The note is in the group of the query's partition (`Task.group`), and part of the task's transaction. A repeated task
fences its former self, finds the note of its batch, and writes nothing. It needs no hash of its rows and no note of
another task. ``exactlyOnce=partition`` is the user's word that a partition has the same rows again: Spark gives a
writer neither the sources nor the plan. A repeated task counts its rows, and fails if their number differs.

The transaction puts the note also into the query's group (`Task.query_group`). There a task sees before it writes
whether the batch was begun with hashes, and a task with hashes whether it was begun without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from korvet.pipeline.broker import Broker
from korvet.pipeline.sink.columns import Record
from korvet.pipeline.sink.once import Attempt, Note, Rows, Task, transactional


def write_fenced(settings: Mapping[str, str], task: Task, batches: Iterator[Iterator[Record]]) -> int:
    """Write a task's rows in one transaction, or nothing if the task's partition has written in this batch.

    :returns: the number of the task's rows.
    :raises PipelineError:
    """
    with Broker(settings) as broker, transactional(settings, task.group) as delivery:
        return _Fenced(settings, task, delivery, broker).write(batches)


class _Fenced(Attempt):
    def write(self, batches: Iterator[Iterator[Record]]) -> int:
        self._call(self._delivery.producer.init_transactions)
        # A stable read could wait for the transaction of a dead task whose successor has no core while this one runs.
        self._refuse_other_way(self._notes_of(self._task.query_group, stable=False), with_hashes=False)
        note = self._note(self._task.group)
        if note is not None and self._is_of_this_batch(note):
            return self._compare(note, batches)
        rows = Rows()
        self._send(batches, rows)
        if rows.topic is not None:
            task = self._task
            noted = Note(
                topic=rows.topic, batch=task.batch, run=task.run, task=task.partition, rows=rows.count, checksum="",
                begun=task.run,
            )  # fmt: skip
            for group in (task.group, task.query_group):
                self._stage(self._delivery, group, noted)
            self._call(self._delivery.producer.commit_transaction)
        return rows.count

    def _compare(self, written: Note, batches: Iterator[Iterator[Record]]) -> int:
        self._refuse_other_way([written], with_hashes=False)
        rows = Rows()
        for batch in batches:
            for _ in rows.through(batch):
                pass
        if rows.count != written.rows:
            raise self._others(written, rows)
        return rows.count
