"""The readers of a batch query and of a streaming query, which Spark's Python workers call.

Source: Spark's KafkaBatch and KafkaMicroBatchStream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.batch import shared
from korvet.pipeline.source.cluster import Cluster
from korvet.pipeline.source.fetch import FetchOptions, fetch
from korvet.pipeline.source.offsets import (
    LATEST,
    AtOffsets,
    Everywhere,
    Offsets,
    OffsetsJson,
    from_json,
    partition_names,
    to_json,
)
from korvet.pipeline.source.options import ReadOptions
from korvet.pipeline.source.ranges import REMEDY, OffsetRange, by_segments, split, with_segments
from korvet.pipeline.source.rows import RowBuilder

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_log: Final = logging.getLogger(__name__)


class KorvetReader(DataSourceReader):
    """Reads the records that are there when Spark plans the query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[OffsetRange]:
        """
        :raises PipelineError: if `Cluster` raises it, or a range would end before it begins.
        """
        options = self._options
        cluster = Cluster(options)
        try:
            first, last = cluster.resolve(options.starting), cluster.resolve(options.ending)
            self._check(first, last)
            ranges = [OffsetRange(*partition, first[partition], end) for partition, end in sorted(last.items())]
            sealed = cluster.sealed(ranges)
        finally:
            cluster.close()
        ranges = [part for each in ranges for part in by_segments(each, sealed.get((each.topic, each.partition)))]
        return split(ranges, options.min_partitions, options.max_records_per_partition)

    def _check(self, first: Offsets, last: Offsets) -> None:
        if first.keys() != last.keys():
            changed = partition_names(first.keys() ^ last.keys())
            raise PipelineError(f"{changed}: created or deleted meanwhile; start the query again")
        if isinstance(self._options.ending, AtOffsets):
            _check_order(first, last)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_range(partition, self._options, skip_unreadable=not self._options.fail_on_data_loss)


class KorvetStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream: the driver's reader plans batches, and copies of it in the executors read their ranges."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster = Cluster(options)
        self._initial: Offsets | None = None
        self._begins = False
        self._latest: Offsets = {}
        self._target: Offsets | None = None
        self._until_target = False
        self._last_batch = -float("inf")

    def initialOffset(self) -> OffsetsJson:
        """The start of a query without a checkpoint. Spark calls this twice in its first batch, and again for a
        repeated one.

        A query of later records begins with an empty batch: the checkpoint keeps its end, but no beginning.
        """
        if self._initial is None:
            self._initial = self._cluster.resolve(self._options.starting)
            self._begins = self._options.starting == Everywhere(offset=LATEST)
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The options' limit. If there are two, `latestOffset` keeps the least, since Spark cannot join limits."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._until_target = True

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:
        """The end of the next batch; the start if the batch has to wait."""
        known = from_json(start)
        self._latest = self._ends(known)
        if self._begins:
            self._begins = False
            if known == self._initial:
                return start
        if isinstance(limit, ReadAllAvailable):
            return to_json(self._latest)
        if self._is_too_early(known):
            return to_json(known)
        if isinstance(limit, ReadMaxRows):
            new = self._cluster.earliest(self._latest.keys() - known.keys())
            return to_json(shared(limit.max_rows, new | known, self._latest))
        return to_json(self._latest)

    def reportLatestOffset(self) -> OffsetsJson | None:
        """The log ends when the last batch was planned."""
        return to_json(self._latest) or None

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> list[OffsetRange]:
        """
        :raises PipelineError: if partitions or offsets are gone and ``failOnDataLoss`` is true.
        """
        first, last = from_json(start), from_json(end)
        if self._begins:
            return []  # Spark repeats the empty batch, and the log may be longer now.
        added = last.keys() - first.keys()
        found = self._cluster.earliest(added & self._cluster.partitions()) if added else {}
        self._check_loss(first, last, found)
        ranges = [
            OffsetRange(*partition, begin, offset)
            for partition, offset in sorted(last.items())
            if (begin := first.get(partition, found.get(partition))) is not None
        ]
        # A repeated batch has the same ranges, whatever was sealed meanwhile: a sink relies on it.
        ranges = split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        sealed = self._cluster.sealed(ranges)
        return [with_segments(each, sealed.get((each.topic, each.partition))) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_range(partition, self._options, skip_unreadable=not self._options.fail_on_data_loss)

    def stop(self) -> None:
        self._cluster.close()

    def _ends(self, known: Offsets) -> Offsets:
        """The log's ends; with Trigger.AvailableNow, the ends at its beginning."""
        if not self._until_target:
            return self._cluster.latest(known)
        if self._target is None:
            self._target = self._cluster.latest(known)
        return self._target

    def _is_too_early(self, known: Offsets) -> bool:
        """True if a batch has to wait: too few new records, and the last batch was not too long ago."""
        least, now = self._options.min_offsets_per_trigger, time.monotonic()
        # With Trigger.AvailableNow a waiting batch would never come.
        if least is None or self._until_target:
            return False
        new = sum(offset - known.get(partition, 0) for partition, offset in self._latest.items())
        if new < least and now - self._last_batch < self._options.max_trigger_delay_s:
            return True
        self._last_batch = now
        return False

    def _check_loss(self, first: Offsets, last: Offsets, added: Offsets) -> None:
        gone = (first.keys() - last.keys()) | (last.keys() - first.keys() - added.keys())
        if gone:
            self._lose(f"{partition_names(gone)}: they are gone")
        for partition, offset in sorted(added.items()):
            if offset:
                self._lose(f"{partition_names([partition])} is new, and begins at {offset} instead of 0")
        for partition in sorted(first.keys() & last.keys()):
            if last[partition] < first[partition]:
                self._lose(
                    f"The end of {partition_names([partition])} went back from {first[partition]} to {last[partition]}"
                )

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise PipelineError(f"{what}: records may have been missed; to go on {REMEDY}")
        _log.warning("%s: records may have been missed", what)


def read_range(partition: InputPartition, options: ReadOptions, *, skip_unreadable: bool) -> Iterator[Any]:
    """The records of an `OffsetRange` as Arrow batches."""
    # Spark makes up a partition if a batch query has none.
    if not isinstance(partition, OffsetRange):
        return
    rows = RowBuilder(partition.topic, partition.partition, include_headers=options.include_headers)
    how = FetchOptions(
        client=options.client,
        read_committed=options.read_committed,
        fail_on_data_loss=options.fail_on_data_loss,
        poll_timeout_s=options.poll_timeout_s,
        skip_unreadable=skip_unreadable,
    )
    start = partition.start
    if partition.sealed is not None and options.tier_url is not None:
        from korvet.pipeline.source.tier import read_sealed

        start = yield from read_sealed(
            partition,
            options.tier_url,
            rows.of,
            read_committed=options.read_committed,
            headers=options.include_headers,
        )
    if start == partition.end:
        return
    for messages in fetch(replace(partition, start=start), how):
        yield rows.build(messages)


def _check_order(first: Offsets, last: Offsets) -> None:
    wrong = [partition for partition in first if first[partition] > last[partition]]
    if wrong:
        raise PipelineError(f"The starting offset is greater than the ending offset of {partition_names(wrong)}")
