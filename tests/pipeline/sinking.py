"""Tasks of a sink's queries that write numbers, and the numbers in their topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from korvet.pipeline.sink.columns import Record
from korvet.pipeline.sink.once import Task
from tests.pipeline.written import read_topic

Step = Sequence[int] | Callable[[], object]
"""Numbers of a batch of rows, or what happens between two batches."""


def task(query: str, *, batch: int = 0, partition: int = 0, run: str = "first") -> Task:
    return Task(query=query, batch=batch, partition=partition, run=run)


def batches(topic: str, steps: Iterable[Step]) -> Iterator[Iterator[Record]]:
    for step in steps:
        if callable(step):
            step()
        else:
            yield iter([(topic, str(number), None, -1, 0, None) for number in step])


def numbers(bootstrap: str, topic: str) -> list[int]:
    return sorted(int(one.value or b"") for one in read_topic(bootstrap, topic))
