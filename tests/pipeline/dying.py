"""Work of Spark's tasks that kills its own process (-9). Each new process imports this module, so it has little."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pyarrow as pa

from korvet.pipeline.replay import task

_commit: Final = task.Writer.commit
_run: Final = task.run


def die(directory: str, deaths: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, in a process that dies at its first row; so many times in all."""
    for each in batches:
        for number in range(deaths):
            die_once(Path(directory) / f"death-{number}")
        yield each


def die_once(marker: Path) -> None:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def dying_run(
    directory: str, deaths: int, least: int, plan: task.Plan, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A replay's task that dies before it commits, so many times at each place from ``least`` on."""

    def commit(writer: task.Writer) -> None:
        for number in range(deaths if writer.position >= least else 0):
            die_once(Path(directory) / f"death-{writer.position}-{number}")
        _commit(writer)

    with patch.object(task.Writer, "commit", commit):
        yield from _run(plan, batches)
