"""Rows of a partition once by a fence and a note alone: repeated tasks, dead ones, and rows that differ."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.sink.delivery import Fenced
from korvet.pipeline.sink.fence import write_fenced
from korvet.pipeline.sink.once import Task, write_once
from tests.pipeline.sinking import Step, batches, numbers, task
from tests.pipeline.written import create_topic
from tests.support.broker import KorvetServer


def write(broker: KorvetServer, task: Task, *steps: Step) -> int:
    """Write numbers to the topic of the query's name; a callable step runs between batches."""
    return write_fenced({"bootstrap.servers": broker.bootstrap}, task, batches(task.query, steps))


def write_with_hashes(broker: KorvetServer, task: Task, rows: Sequence[int]) -> int:
    settings = {"bootstrap.servers": broker.bootstrap}
    return write_once(settings, task, batches(task.query, [rows]), confirm_within_s=60)


def test_repeated_partition_writes_nothing_in_its_batch(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "fence-again")
    for run in ("first", "first", "second"):
        assert write(broker, task(topic, run=run), range(5), range(5, 10)) == 10
        assert write(broker, task(topic, partition=1, run=run), range(10, 15)) == 5
        assert write(broker, task(topic, partition=2, run=run), []) == 0
    assert write(broker, task(topic, batch=1), range(15, 20)) == 5
    assert numbers(broker.bootstrap, topic) == [*range(20)]


def test_task_of_a_dead_driver_writes_nothing_beside_the_next_run(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "fence-dead")

    def next_run() -> None:
        assert write(broker, task(topic, run="second"), range(10)) == 10

    with pytest.raises(Fenced):
        write(broker, task(topic), range(5), next_run, range(5, 10))
    assert numbers(broker.bootstrap, topic) == [*range(10)]
    # It may also begin after the next run has written the next batch.
    write(broker, task(topic, batch=1, run="second"), range(10, 12))
    with pytest.raises(PipelineError, match="batch 1 of the query is written already"):
        write(broker, task(topic), range(10))
    assert numbers(broker.bootstrap, topic) == [*range(12)]


def test_partition_that_has_fewer_rows_than_it_wrote_is_refused(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "fence-other")
    write(broker, task(topic), range(10))
    with pytest.raises(PipelineError, match="was written with 10 other rows than the 9"):
        write(broker, task(topic, run="second"), range(9))
    assert numbers(broker.bootstrap, topic) == [*range(10)]


@pytest.mark.parametrize("repeated", [0, 1])
def test_batch_that_was_begun_with_hashes_is_not_ended_without(broker: KorvetServer, repeated: int) -> None:
    topic = create_topic(broker.bootstrap, f"fence-after-hashes-{repeated}")
    write_with_hashes(broker, task(topic), range(10))
    # Also a partition that has written nothing yet.
    with pytest.raises(PipelineError, match="the batch was begun with exactlyOnce=true, so this writes nothing"):
        write(broker, task(topic, partition=repeated, run="second"), range(10, 20))
    assert write_with_hashes(broker, task(topic, run="third"), range(10)) == 10
    assert write(broker, task(topic, batch=1, run="fourth"), range(10, 12)) == 2
    assert numbers(broker.bootstrap, topic) == [*range(12)]


@pytest.mark.parametrize("repeated", [0, 1])
def test_batch_that_was_begun_without_hashes_is_not_ended_with_them(broker: KorvetServer, repeated: int) -> None:
    topic = create_topic(broker.bootstrap, f"fence-before-hashes-{repeated}")
    write(broker, task(topic), range(10))
    with pytest.raises(PipelineError, match="the batch was begun with exactlyOnce=partition, so this writes nothing"):
        write_with_hashes(broker, task(topic, partition=repeated, run="second"), range(10, 20))
    assert write(broker, task(topic, run="third"), range(10)) == 10
    assert write_with_hashes(broker, task(topic, batch=1, run="fourth"), range(10, 12)) == 2
    assert numbers(broker.bootstrap, topic) == [*range(12)]
