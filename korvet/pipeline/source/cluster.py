"""The driver's questions to the brokers for a query: its partitions and their offsets.

Source: Spark's KafkaOffsetReaderAdmin and ConsumerStrategy.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from korvet.pipeline.broker import Broker, Partition, Position
from korvet.pipeline.errors import BrokerUnreachable, PipelineError, UnknownTopic
from korvet.pipeline.source.offsets import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTime,
    AtTimes,
    Everywhere,
    OffsetLimit,
    Offsets,
    partition_names,
)
from korvet.pipeline.source.options import Assigned, Matching, ReadOptions, Subscribed
from korvet.pipeline.source.ranges import OffsetRange, Sealed

if TYPE_CHECKING:
    from korvet.pipeline.source.tier import Tier

_FRESH_S: Final = 600.0
"""The age of a snapshot of the tier at which a stream looks for a newer one. It needs none while it keeps up."""
_log: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


class Cluster:
    """The broker connection of one query. The first request opens it, and pickling leaves it out.

    If no broker has answered yet, a missing broker is an error at once. Later it has as long to come back as a task
    waits for records.

    :raises BrokerUnreachable, UnknownTopic, PipelineError: from every method.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._broker: Broker | None = None
        self._was_there = False
        self._tier = tier_of(options.tier_url, options.tier_namespace)

    def __getstate__(self) -> tuple[ReadOptions]:
        return (self._options,)

    def __setstate__(self, state: tuple[ReadOptions]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def close(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def partitions(self) -> frozenset[Partition]:
        """The partitions that the query reads, of existing topics."""
        return self._query(self._partitions)

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """Log start offsets."""
        return self._query(lambda broker: _offsets(broker.earliest(partitions)))

    def latest(self, known: Offsets) -> Offsets:
        """Log ends of all the query's partitions, by its isolation level.

        :param known: offsets seen before. An end below one may come from a leader that lags, so `latest` reads it
        again. It returns the end if it stays.
        """
        for attempt in range(1, self._options.offset_attempts + 1):
            found = self._query(self._latest)
            lagging = [partition for partition, end in found.items() if known.get(partition, end) > end]
            if not lagging or attempt == self._options.offset_attempts:
                break
            _log.warning("The log ends before what was read of %s; asking again", partition_names(lagging))
            time.sleep(self._options.offset_retry_s)
        return found

    def resolve(self, limit: OffsetLimit) -> Offsets:
        """An offset for each partition of the query.

        :raises PipelineError: if the limit names other partitions, or no record is that late.
        """
        return self._query(lambda broker: self._resolve(broker, limit))

    def sealed(self, ranges: Iterable[OffsetRange]) -> dict[Partition, Sealed]:
        """What segments hold of the ranges' partitions.

        :raises TierUnreachable:
        """
        tier = self._tier
        if tier is None:
            return {}
        try:
            return self._query(lambda broker: tier.sealed(broker, self._options.client, ranges))
        except UnknownTopic:
            return {}  # A topic that was deleted meanwhile is the tasks' matter.

    def _query(self, question: Callable[[Broker], _T]) -> _T:
        deadline = time.monotonic() + (self._options.poll_timeout_s if self._was_there else 0)
        # Somebody may delete a topic between the question for its name and the later ones.
        attempts = self._options.offset_attempts if isinstance(self._options.choice, Matching) else 1
        while True:
            try:
                if self._broker is None:
                    self._broker = Broker(self._options.client)
                answer = question(self._broker)
            except UnknownTopic:
                attempts -= 1
                if not attempts:
                    raise
            except BrokerUnreachable as error:
                if time.monotonic() >= deadline:
                    raise
                _log.warning("%s; trying again", error)
                time.sleep(self._options.offset_retry_s)
            else:
                self._was_there = True
                return answer

    def _partitions(self, broker: Broker) -> frozenset[Partition]:
        match self._options.choice:
            case Subscribed(topics=names):
                wanted = list(names)
            case Matching(pattern=pattern):
                wanted = [name for name in broker.topic_names() if pattern.search(name)]
            case Assigned(partitions=assigned):
                wanted = sorted({topic for topic, _ in assigned})
        found = {(topic.name, number) for topic in broker.topics(wanted).values() for number in topic.partitions}
        if isinstance(self._options.choice, Assigned):
            found &= self._options.choice.partitions
        return frozenset(found)

    def _latest(self, broker: Broker) -> Offsets:
        return self._ends(broker, self._partitions(broker))

    def _ends(self, broker: Broker, partitions: Iterable[Partition]) -> Offsets:
        return _offsets(broker.latest(partitions, committed_only=self._options.read_committed))

    def _resolve(self, broker: Broker, limit: OffsetLimit) -> Offsets:
        partitions = self._partitions(broker)
        match limit:
            case Everywhere(offset=offset):
                offsets = dict.fromkeys(partitions, offset)
            case AtOffsets(offsets=offsets):
                _check_complete(partitions, offsets, "Use -1 for latest, -2 for earliest.")
            case AtTime(timestamp_ms=timestamp_ms, else_latest=else_latest):
                offsets = self._at_times(broker, dict.fromkeys(partitions, timestamp_ms), else_latest)
            case AtTimes(timestamps_ms=times, else_latest=else_latest):
                _check_complete(partitions, times, "Each partition needs a time in milliseconds.")
                offsets = self._at_times(broker, times, else_latest)
        first = broker.earliest([partition for partition, offset in offsets.items() if offset == EARLIEST])
        last = self._ends(broker, [partition for partition, offset in offsets.items() if offset == LATEST])
        return offsets | _offsets(first) | last

    def _at_times(self, broker: Broker, times: Offsets, else_latest: bool) -> Offsets:
        offsets = _offsets(broker.at_times(times, committed_only=self._options.read_committed))
        late = [partition for partition, offset in offsets.items() if offset < 0]
        if late and not else_latest:
            partition = min(late)
            raise PipelineError(
                f"{partition_names([partition])} has no record of timestamp {times[partition]} or later; choose an "
                "earlier one, or set startingOffsetsByTimestampStrategy to latest"
            )
        return offsets | dict.fromkeys(late, LATEST)


def tier_of(url: str | None, namespace: str) -> Tier | None:
    """The tier at a directory or URL, if one is named. Other queries do not wait for its library."""
    if url is None:
        return None
    from korvet.pipeline.source.tier import Tier

    return Tier(url, namespace, _FRESH_S)


def _offsets(positions: dict[Partition, Position]) -> Offsets:
    return {partition: position.offset for partition, position in positions.items()}


def _check_complete(partitions: frozenset[Partition], given: Offsets, hint: str) -> None:
    if partitions != given.keys():
        raise PipelineError(
            f"Offsets or timestamps by partition must name all partitions that are read. {hint} "
            f"Given: {partition_names(given) or 'none'}; to be read: {partition_names(partitions) or 'none'}"
        )
