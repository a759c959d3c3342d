"""A reader of a topic as a member of a group of the consumer protocol (KIP-848), which commits the shown records.

A member sends heartbeats at the interval that the broker names, and the answers assign partitions. Before it gives up a
partition, it commits and stops reading. Without heartbeats, as when a pager holds the output, its membership ends and
it joins anew. Source: AbstractHeartbeatRequestManager, AbstractMembershipManager
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import RETRY_PAUSE_S, RETRY_WITHIN_S, Client, may_pass
from korvet.cli.kafka.consume import WAIT_S, Cursor, Item, Reader
from korvet.cli.kafka.errors import BrokerError, check
from korvet.cli.kafka.framing import Request, request
from korvet.cli.kafka.offsets import EARLIEST, LATEST, TopicPartition, committed_offsets, log_offsets, try_to_commit
from korvet.cli.kafka.records import Record
from korvet.cli.kafka.topics import TIMEOUT_MS, describe_topics
from korvet.errors import KorvetError

_HEARTBEAT: Final = "consumer_group_heartbeat"
_COMMIT_S: Final = 1.0
_JOINS: Final = 0
_LEAVES: Final = -1
_LOST_PLACE: Final = {ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id}
_Owned = tuple[TopicPartition, ...]


class GroupReader:
    """A group member that reads one topic, for one thread; `close` leaves the group."""

    is_done: Final = False

    def __init__(self, client: Client, group: str, topic: str, *, from_end: bool, committed: bool) -> None:
        self._client, self._group, self._topic = client, group, topic
        self._is_committed = committed
        self._reset = LATEST if from_end else EARLIEST
        self._topic_id = describe_topics(client, [topic])[0].id
        self._member = str(uuid.uuid4())
        self._epoch = _JOINS
        self._is_in_doubt = False
        self._owned: _Owned = ()
        self._cursors: list[Cursor] = []
        self._reader: Reader | None = None
        self._handled: dict[TopicPartition, int] = {}
        self._shown: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._beat_at = self._commit_at = self._served_at = time.monotonic()

    def read(self) -> Iterator[tuple[TopicPartition, Item]]:
        """The items of one round from this member's partitions; it commits the shown records before.

        :raises BrokerError: if no broker serves the group for a while, or the group refuses the member.
        """
        if time.monotonic() >= self._commit_at:
            self._commit()
        try:
            if time.monotonic() >= self._beat_at:
                self._beat()
            self._served_at = time.monotonic()
        except BrokerError as error:
            if not may_pass(error) or time.monotonic() > self._served_at + RETRY_WITHIN_S:
                raise
        if self._reader is None:
            time.sleep(RETRY_PAUSE_S)
            return
        yield from self._reader.read(WAIT_S)
        for cursor in self._cursors:
            self._handled[cursor.partition] = cursor.position

    def handled(self, partition: TopicPartition, item: Item) -> None:
        """Note an item, which belongs to the next piece that is shown."""
        self._handled[partition] = (item.offset if isinstance(item, Record) else item.last_offset) + 1

    def shown(self) -> None:
        """Note that all handled items were shown, so that they may be committed."""
        self._shown.update(self._handled)

    def close(self) -> None:
        """Commit the shown records, and leave; if the broker is unavailable, the membership ends with the session."""
        # The broker may have served a join without an answer.
        if self._epoch == _JOINS and not self._is_in_doubt:
            return
        with suppress(BrokerError):
            self._commit()
        with suppress(BrokerError):
            self._ask(self._request(_LEAVES, None))

    # ------------------------------------------------------------------ heartbeats

    def _beat(self) -> None:
        """Send a heartbeat, and follow its answer.

        After a failed heartbeat the member sends all its fields again, as at first, and gets its whole assignment: the
        lost answer may have carried it. Source: AbstractMembershipManager.onHeartbeatFailure
        """
        self._beat_at = time.monotonic() + RETRY_PAUSE_S
        is_whole = self._is_in_doubt or self._epoch == _JOINS
        self._is_in_doubt = True
        try:
            self._take(self._ask(self._request(self._epoch, self._owned if is_whole else None, is_whole=is_whole)))
        except BrokerError as error:
            if error.code not in _LOST_PLACE:
                raise
            self._forget()
        else:
            self._is_in_doubt = False

    def _take(self, answer: Any) -> None:
        self._epoch = int(answer.member_epoch)
        self._beat_at = time.monotonic() + answer.heartbeat_interval.total_seconds()
        if answer.assignment is None:
            return
        assigned = tuple(
            TopicPartition(self._topic, int(partition))
            for topic in answer.assignment.topic_partitions
            if topic.topic_id == self._topic_id
            for partition in topic.partitions
        )
        if set(assigned) != set(self._owned):
            self._own(assigned)
            # This names the partitions that it has now: the ones it gave up are free for others.
            self._take(self._ask(self._request(self._epoch, self._owned)))

    def _own(self, assigned: _Owned) -> None:
        """Commit and drop revoked partitions, and begin new ones at the group's offsets."""
        self._commit()
        kept = {cursor.partition: cursor for cursor in self._cursors if cursor.partition in assigned}
        new = [partition for partition in assigned if partition not in kept]
        positions = committed_offsets(self._client, self._group) if new else {}
        defaults = log_offsets(self._client, new, self._reset) if new else {}
        for partition in new:
            position = positions.get(partition, defaults.get(partition, 0))
            kept[partition] = Cursor(partition=partition, position=position, stop=None)
            self._handled[partition] = self._shown[partition] = self._committed[partition] = position
        self._owned, self._cursors = assigned, list(kept.values())
        self._reader = Reader(self._client, self._cursors, committed=self._is_committed) if kept else None

    def _forget(self) -> None:
        """Give up the membership: the group continues without this member, which joins again."""
        self._epoch, self._owned, self._cursors, self._reader = _JOINS, (), [], None
        self._handled.clear()
        self._shown.clear()
        self._beat_at = time.monotonic()

    def _request(self, epoch: int, owned: _Owned | None, *, is_whole: bool = False) -> Request:
        topics = [{"topic_id": self._topic_id, "partitions": [one.partition for one in owned]}] if owned else []
        whole = {"rebalance_timeout": TIMEOUT_MS, "subscribed_topic_names": (self._topic,)} if is_whole else {}
        return request(
            _HEARTBEAT,
            0,
            group_id=self._group,
            member_id=self._member,
            member_epoch=epoch,
            topic_partitions=None if owned is None else topics,
            **whole,
        )

    def _ask(self, request: Request) -> Any:
        answer = self._client.ask_coordinator(self._group, request)
        check(answer.error_code, f"group {self._group!r}", answer.error_message)
        return answer

    # ------------------------------------------------------------------ commits

    def _commit(self) -> None:
        """Commit the records shown since the last commit; the next commit repeats an offset that did not arrive."""
        self._commit_at = time.monotonic() + _COMMIT_S
        changed = {
            partition: offset
            for partition, offset in self._shown.items()
            if partition in self._owned and self._committed.get(partition) != offset
        }
        if not changed:
            return
        try:
            codes = try_to_commit(self._client, self._group, changed, member=self._member, epoch=self._epoch)
        except BrokerError as error:
            if not may_pass(error):
                raise
            return
        for partition, code in codes.items():
            if code is ErrorCode.none:
                self._committed[partition] = changed[partition]
            elif code not in _LOST_PLACE | {ErrorCode.stale_member_epoch}:
                check(code, f"offset of group {self._group!r} in {partition}")


def require_protocol(client: Client) -> None:
    """Refuse brokers that do not know the protocol.

    :raises KorvetError:
    """
    if not client.serves(_HEARTBEAT, 0):
        raise KorvetError("the broker does not serve the consumer protocol of groups, which Kafka has since 4.0")
