"""A replay's tasks under fire, and in the control. They run in Spark's executors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from confluent_kafka import Producer, TopicPartition

from korvet.pipeline.replay import task
from korvet.pipeline.replay.sending import Sender

_HELD_S: Final = 300.0
_run: Final = task.run
_commit: Final = Sender.commit


def run(
    marker: str | None, forgets: bool, plan: task.Plan, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the task, with faults.

    :param marker: the task makes this file after its partition's last commit, and hangs, unless another one did.
    :param forgets: leave the position out of transactions, so that a restart repeats them.
    """

    is_read = False

    def noted() -> Iterator[pa.RecordBatch]:
        nonlocal is_read
        yield from batches
        is_read = True

    def commit(sender: Sender, producer: Producer, position: list[TopicPartition]) -> None:
        if forgets:
            producer.commit_transaction()
        else:
            _commit(sender, producer, position)
        [committed] = position
        # The last transaction begins when no rows are left.
        if marker is not None and is_read and not Path(marker).exists():
            Path(marker).write_text(str(committed.partition))
            time.sleep(_HELD_S)

    # Spark may use a worker again, so every task sets this.
    Sender.commit = commit  # type: ignore[assignment, method-assign]
    return _run(plan, noted())
