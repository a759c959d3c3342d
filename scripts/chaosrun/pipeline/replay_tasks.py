"""A replay's tasks under fire, and in the control. They run in Spark's executors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from korvet.pipeline.replay import task

_HELD_S: Final = 300.0
_run: Final = task.run
_commit: Final = task.Writer.commit


def run(
    marker: str | None, forgets: bool, plan: task.Plan, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the task, with faults.

    :param marker: the task makes this file after a commit, and hangs, unless another one did.
    :param forgets: leave the position out of transactions, so that a restart repeats them.
    """

    def commit(writer: task.Writer) -> None:
        if forgets:
            writer.delivery.finish()
            writer.delivery.producer.commit_transaction()
        else:
            _commit(writer)
        if marker is not None and not Path(marker).exists():
            Path(marker).write_text(str(writer.position))
            time.sleep(_HELD_S)

    # Spark may use a worker again, so every task sets this.
    task.Writer.commit = commit  # type: ignore[assignment, method-assign]
    return _run(plan, batches)
