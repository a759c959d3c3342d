"""A partition's copies into the topic: each once, whatever breaks between two requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.errors import BrokerError, UnfitSettings
from korvet.cli.kafka.offsets import TopicPartition
from korvet.cli.kafka.transactional import TRANSACTION_MS, Place, TransactionalProducer
from korvet.cli.replay.copies import Copy
from korvet.cli.replay.segments import PATIENCE_S
from korvet.errors import KorvetError
from korvet.pipeline.replay.config import GROUP_PREFIX, Note

_PAUSE_S: Final = 0.5
_FENCED: Final = {ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch}
# The broker would refuse another try, too.
_REFUSED: Final = {
    ErrorCode.invalid_timestamp: "see message.timestamp.before.max.ms and .after.max.ms of the topic",
    ErrorCode.invalid_record: "see the topic's schema, and whether it is compacted",
    ErrorCode.message_too_large: "raise max.message.bytes of the topic",
    ErrorCode.record_list_too_large: "raise max.message.bytes of the topic",
    ErrorCode.unknown_topic_or_partition: "it was deleted",
    ErrorCode.topic_authorization_failed: "the user may not write to it",
    ErrorCode.group_authorization_failed: "the user may not commit offsets of the replay's group",
    ErrorCode.transactional_id_authorization_failed: "the user may not use the replay's transactional ids",
    ErrorCode.invalid_transaction_timeout: f"raise transaction.max.timeout.ms of the brokers to {TRANSACTION_MS}",
}


class Sender:
    """The copies of one partition, for one thread at a time.

    :param note: of the position, without its records.
    :ivar position: the next offset in the source; the transactions up to it are committed.
    """

    def __init__(self, name: str, partition: TopicPartition, note: Note, first: int) -> None:
        group = f"{GROUP_PREFIX}{name}"
        self._producer = TransactionalProducer(f"{group}-{partition.partition}", group, partition)
        self._name, self._partition, self._note = name, partition, note
        self._has_begun = False
        self.position = first
        self.records = 0
        """All that were sent so far, also by former runs."""

    def begin(self, client: Client) -> None:
        """Take the partition over, and find out where to go on.

        :raises BrokerError:
        :raises KorvetError: the place is another replay's.
        """
        place = self._producer.begin(client)
        self._has_begun = True
        note = None if place is None else Note.of(place.metadata)
        if place is None or (note is not None and note.topic_id != self._note.topic_id):
            # Records in a topic that was deleted do not count.
            return
        if note is None or note.job != self._note.job:
            raise KorvetError(
                f"replay {self._name} was begun with another source, range or topic; give the same ones, or choose "
                "another name"
            )
        if place.offset < self.position and self.records:
            raise KorvetError(
                f"{self._partition} was replayed up to {self.position}, and its group says {place.offset}: somebody "
                "moved the group, or the broker lost it; look at the topic's records before you go on"
            )
        self.position, self.records = max(self.position, place.offset), note.records

    def send(self, client: Client, copies: Sequence[Copy], stop: threading.Event) -> None:
        """Commit those copies that are not in the topic yet in one transaction; try again if that may help.

        :raises KorvetError:
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if not self._has_begun:
                    self.begin(client)
                if left := [one for one in copies if one.next_offset > self.position]:
                    records = self.records + sum(one.records for one in left)
                    place = Place(left[-1].next_offset, replace(self._note, records=records).to_json())
                    self._producer.write(client, {self._partition: [one.data for one in left]}, place)
                    self.position, self.records = place.offset, records
                return
            except BrokerError as error:
                self._judge(client, error)
                if stop.wait(_PAUSE_S) or time.monotonic() > deadline:
                    raise BrokerError(
                        f"records of {self._partition} from {self.position} on cannot be written: {error}; when that "
                        "is over, start the replay again, and it goes on there"
                    ) from None
                # Whether the transaction is committed is unknown. A new epoch ends it and shows that.
                self._has_begun = False

    def _judge(self, client: Client, error: BrokerError) -> None:
        """Raise if another try does not help."""
        if error.code in _FENCED:
            raise KorvetError(
                f"replay {self._name} was started a second time, which goes on with {self._partition}, or a "
                f"transaction took longer than {TRANSACTION_MS // 1000} s; this one ends"
            ) from None
        if error.code in _REFUSED:
            self._producer.abort(client)
            raise KorvetError(
                f"records of {self._partition} from {self.position} on cannot be written: {error}; "
                f"{_REFUSED[error.code]}"
            ) from None
        if isinstance(error, UnfitSettings):
            raise error
