"""What a replay's tasks do under fire, and what they do in the control. Runs in Spark's executors."""

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
    """As the task.

    :param marker: it hangs when it has committed the last transaction of its partition, and says so in this file.
    :param forgets: its transactions do not hold the position, so that a restart repeats them.
    """

    def commit(sender: Sender, producer: Producer, position: list[TopicPartition]) -> None:
        if forgets:
            producer.commit_transaction()
        else:
            _commit(sender, producer, position)
        [place] = position
        if marker is not None and place.offset >= plan.ends[place.partition]:
            Path(marker).write_text(str(place.partition))
            time.sleep(_HELD_S)

    # A worker of Spark's may be used again, so this is always set.
    Sender.commit = commit  # type: ignore[assignment, method-assign]
    return _run(plan, batches)
