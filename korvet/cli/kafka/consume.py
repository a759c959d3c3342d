"""A reader of a topic's partitions over the wire, without a group: from offsets on, to offsets or for ever.

It filters transactions as every consumer does. The broker names aborted ones in the order of their first offsets, and a
control batch ends each of them. Source: CompletedFetch.nextFetchedRecord, KIP-98
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import RETRY_PAUSE_S, RETRY_WITHIN_S, Client, may_pass
from korvet.cli.kafka.errors import BrokerError, check
from korvet.cli.kafka.framing import Request, request
from korvet.cli.kafka.offsets import (
    TopicPartition,
    by_partition,
    by_topic,
    leaders_of,
    log_limits,
)
from korvet.cli.kafka.records import Record, Stored, Undecodable, read_batches, read_records
from korvet.wire.markers import is_commit

MAX_BYTES: Final = 4 << 20
"""The most bytes of an answer; a partition may fill its share of them. A larger batch comes alone and whole."""
_LARGEST_SHARE: Final = 4
"""The least number of shares of an answer."""
WAIT_S: Final = 0.5
_EMPTY_ROUNDS: Final = 3
"""After so many answers before the end, with no record of any partition, a partition counts as read: compaction may
leave a gap there. An answer that lacks only this partition's records was full, or its batch exceeds a share."""
_PASSING: Final = {
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.kafka_storage_error,
}
"""Codes on which a reader retries, in addition to those on which every client does."""


class Gone(NamedTuple):
    """Records that were removed before they could be read, from an offset to another one."""

    offset: int
    last_offset: int


class Uncommitted(NamedTuple):
    """Records from this offset to the end, which an open transaction holds back."""

    offset: int
    last_offset: int


BROKER_FINDS_CORRUPT: Final = "the broker finds it corrupt, and its log says more"
Item = Record | Undecodable | Gone | Uncommitted


@dataclass(slots=True, kw_only=True)
class Cursor:
    """A reader's offset in a partition; ``stop`` is the first offset that is not read, None for ever."""

    partition: TopicPartition
    position: int
    stop: int | None
    empty_rounds: int = 0
    is_done: bool = False

    def __post_init__(self) -> None:
        self.is_done = self.stop is not None and self.position >= self.stop


class Reader:
    """A reader of partitions, in turns. It looks for an unavailable leader for 15 seconds.

    :param max_bytes: of an answer; a partition's first batch comes whole in any case.
    """

    def __init__(
        self, client: Client, cursors: Sequence[Cursor], *, committed: bool, max_bytes: int = MAX_BYTES
    ) -> None:
        self._client, self._max_bytes = client, max_bytes
        self._cursors = list(cursors)
        self._isolation = int(committed)
        self._leaders: Mapping[TopicPartition, int] = {}
        self._served_at = time.monotonic()

    @property
    def is_done(self) -> bool:
        """True if every partition is read up to its stop."""
        return all(cursor.is_done for cursor in self._cursors)

    def read(self, wait_s: float = WAIT_S) -> Iterator[tuple[TopicPartition, Item]]:
        """The items of one request to each leader, which waits for at most ``wait_s``.

        :raises BrokerError: if no broker serves a partition for a while.
        """
        self._cursors.append(self._cursors.pop(0))
        cursors = [cursor for cursor in self._cursors if not cursor.is_done]
        try:
            yield from self._read(cursors, wait_s)
        except BrokerError as error:
            passes = error.code in _PASSING or may_pass(error)
            if not passes or time.monotonic() > self._served_at + RETRY_WITHIN_S:
                raise
            self._leaders = {}
            time.sleep(RETRY_PAUSE_S)
        else:
            self._served_at = time.monotonic()

    def handled(self, partition: TopicPartition, item: Item) -> None:
        """Do nothing: only a member of a group notes the items for its next commit."""

    def shown(self) -> None:
        """Do nothing: only a member of a group commits."""

    def _read(self, cursors: Sequence[Cursor], wait_s: float) -> Iterator[tuple[TopicPartition, Item]]:
        if not self._leaders:
            self._leaders = leaders_of(self._client, [cursor.partition for cursor in cursors])
            for cursor in cursors:
                if cursor.partition not in self._leaders:
                    check(ErrorCode.unknown_topic_or_partition, f"partition {cursor.partition}")
        by_leader: dict[int, list[Cursor]] = {}
        for cursor in cursors:
            by_leader.setdefault(self._leaders[cursor.partition], []).append(cursor)
        for leader, led in by_leader.items():
            answer = self._client.ask(self._request(led, wait_s / len(by_leader)), leader)
            check(answer.error_code, "fetch")
            found = {cursor.partition: cursor for cursor in led}
            answered = list(by_partition(answer.responses))
            is_empty = not any(data.records for _, data in answered)
            for partition, data in answered:
                for item in self._items(found[partition], data, is_empty=is_empty):
                    yield partition, item

    def _request(self, cursors: Sequence[Cursor], wait_s: float) -> Request:
        share = max(1, self._max_bytes // max(_LARGEST_SHARE, len(cursors)))
        positions = {cursor.partition: cursor.position for cursor in cursors}
        return request(
            "fetch",
            12,
            max_wait=round(wait_s * 1000),
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=self._isolation,
            topics=by_topic(positions, lambda one: {"fetch_offset": positions[one], "partition_max_bytes": share}),
        )

    def _items(self, cursor: Cursor, data: Any, *, is_empty: bool) -> Iterator[Item]:
        if data.error_code is ErrorCode.offset_out_of_range:
            yield from self._moved(cursor)
            return
        if data.error_code is ErrorCode.corrupt_message:
            cursor.is_done = True
            yield Undecodable(cursor.position, cursor.position, BROKER_FINDS_CORRUPT)
            return
        check(data.error_code, f"partition {cursor.partition} at offset {cursor.position}")
        before = cursor.position
        yield from _records(cursor, data, is_committed=bool(self._isolation))
        if cursor.position != before:
            cursor.empty_rounds = 0
        elif is_empty:
            cursor.empty_rounds += 1
        if cursor.stop is None or cursor.is_done:
            return
        stable = int(data.last_stable_offset) if self._isolation else -1
        if 0 <= stable <= cursor.position < min(cursor.stop, int(data.high_watermark)):
            cursor.is_done = True
            yield Uncommitted(cursor.position, min(cursor.stop, int(data.high_watermark)) - 1)
        elif cursor.position >= cursor.stop or cursor.empty_rounds >= _EMPTY_ROUNDS:
            cursor.is_done = True

    def _moved(self, cursor: Cursor) -> Iterator[Item]:
        """Move a partition's cursor if the log now begins after its position, or ends before it."""
        starts, ends = log_limits(self._client, [cursor.partition])
        if not starts:
            raise BrokerError(f"partition {cursor.partition} no longer exists", ErrorCode.unknown_topic_or_partition)
        start, end = starts[cursor.partition], ends[cursor.partition]
        if cursor.position < start:
            yield Gone(cursor.position, start - 1)
        cursor.position = min(max(cursor.position, start), end)
        cursor.is_done = cursor.stop is not None and cursor.position >= min(cursor.stop, end)


def _records(cursor: Cursor, data: Any, *, is_committed: bool) -> Iterator[Item]:
    """The records of an answer from the cursor's position to its stop; moves the cursor past them."""
    aborted = sorted((int(item.first_offset), int(item.producer_id)) for item in data.aborted_transactions or ())
    open_aborted: set[int] = set()
    for found in read_batches(data.records or b""):
        if isinstance(found, Undecodable):
            if found.last_offset >= cursor.position:
                yield found._replace(offset=max(found.offset, cursor.position))
            cursor.position = max(cursor.position + 1, found.last_offset + 1)
            continue
        while is_committed and aborted and aborted[0][0] <= found.last_offset:
            open_aborted.add(aborted.pop(0)[1])
        if found.is_control:
            _end_transaction(found, open_aborted)
        elif not (found.batch.is_transactional and found.batch.producer_id in open_aborted):
            yield from _wanted(cursor, found)
        cursor.position = max(cursor.position, found.last_offset + 1)
        if cursor.stop is not None and cursor.position >= cursor.stop:
            cursor.is_done = True
            return


def _end_transaction(marker: Stored, open_aborted: set[int]) -> None:
    for record in read_records(marker):
        if isinstance(record, Record) and not is_commit(record.key):
            open_aborted.discard(int(marker.batch.producer_id))


def _wanted(cursor: Cursor, stored: Stored) -> Iterator[Item]:
    for item in read_records(stored):
        last = item.offset if isinstance(item, Record) else item.last_offset
        if last >= cursor.position and (cursor.stop is None or item.offset < cursor.stop):
            yield item
