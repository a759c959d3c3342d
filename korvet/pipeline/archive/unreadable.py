"""Batches of a topic that no client can decode: they become dead letters, and the archive goes on after them.

An executor fails at such a batch. The driver then reads the rest of that partition's range alone, to find every
unreadable batch. This reads the range once, however many such batches there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from korvet.pipeline.plan.losses import UnreadableRange
from korvet.pipeline.source.fetch import FetchOptions, fetch
from korvet.pipeline.source.ranges import OffsetRange
from korvet.pipeline.source.unreadable import place_in
from korvet.pipeline.typed import DEAD_LETTER

_MOST: Final = 1000
"""The unreadable ranges of one batch; after so many the batch ends."""
_POLL_TIMEOUT_S: Final = 30.0


def found_by(
    error: str, topic: str, ends: Mapping[int, int], settings: Mapping[str, str], *, read_committed: bool
) -> tuple[list[UnreadableRange], dict[int, int]]:
    """The unreadable ranges of a batch, from the place that an executor's error names; with the batch's new ends.

    :param ends: the batch's, by partition.
    :returns: no ranges for any other error.
    :raises PipelineError: if the broker does not answer, or records are gone.
    """
    place = place_in(error)
    if place is None or place[0] not in ends:
        return [], dict(ends)
    partition, start = place
    options = FetchOptions(
        client={"group.id": "korvet.archive.unreadable", **settings},
        read_committed=read_committed,
        fail_on_data_loss=True,
        poll_timeout_s=_POLL_TIMEOUT_S,
        skip_unreadable=True,
        most_unreadable=_MOST,
    )
    found: list[UnreadableRange] = []
    for _ in fetch(OffsetRange(topic, partition, start, ends[partition]), options, found):
        pass
    return found, {**ends, partition: found[-1].end} if len(found) == _MOST else dict(ends)


def letters(spark: SparkSession, topic: str, unreadable: Iterable[UnreadableRange]) -> DataFrame:
    """A dead letter for each range, at its first offset, with neither key, value nor time."""
    rows = [
        {
            "topic": topic,
            "partition": each.partition,
            "offset": each.start,
            "reason": f"offsets {each.start} up to {each.end} cannot be read: {each.reason}",
        }
        for each in unreadable
    ]
    return spark.createDataFrame([tuple(row.get(name) for name in DEAD_LETTER.names) for row in rows], DEAD_LETTER)
