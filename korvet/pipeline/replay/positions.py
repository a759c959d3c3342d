"""Positions of a replay: offsets in the source, committed by its transactions in a group of its own.

They are committed for the partitions of the target, which exists as long as they matter. The metadata beside an offset
identifies the replay.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from korvet.pipeline.broker import TIMEOUT_S, close_consumer, explained
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.replay.config import GROUP_PREFIX as GROUP_PREFIX
from korvet.pipeline.replay.config import Note as Note

_PAUSE_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The next offset to read of a partition, and the note beside it."""

    offset: int
    note: Note


class Positions:
    """A connection to the group of a replay, a context manager. Not picklable.

    :param stable: wait for open transactions to end; a killed replay's transactions end by their timeout.
    """

    def __init__(self, settings: Mapping[str, str], name: str, topic: str, *, stable: bool = False) -> None:
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}
        isolation = "read_committed" if stable else "read_uncommitted"
        own = {"group.id": GROUP_PREFIX + name, "isolation.level": isolation, "enable.auto.commit": "false"}
        self._group, self._topic, self._address = own["group.id"], topic, settings["bootstrap.servers"]
        self._consumer = Consumer({**settings, **own, **quiet})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        close_consumer(self._consumer)

    @property
    def group(self) -> object:
        """The group, for send_offsets_to_transaction."""
        return self._consumer.consumer_group_metadata()

    def read(self, partitions: Iterable[int], topic_id: str, timeout_s: float = TIMEOUT_S) -> dict[int, Progress]:
        """The positions of these partitions. An open transaction may change them until init_transactions.

        :raises BrokerUnreachable: if no broker answered in time.
        :raises PipelineError: if the group is not a replay's.
        """
        wanted = [TopicPartition(self._topic, partition) for partition in partitions]
        if not wanted:
            return {}
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found = self._consumer.committed(wanted, max(deadline - time.monotonic(), _PAUSE_S))
                break
            except KafkaException as error:
                # The error for a missing coordinator, as while Redis is away, comes back at once.
                failed = explained(f"positions of group {self._group}", error.args[0], self._address)
                if not isinstance(failed, BrokerUnreachable) or time.monotonic() > deadline - _PAUSE_S:
                    raise failed from None
            time.sleep(_PAUSE_S)
        for partition in found:
            if partition.error is not None:
                raise explained(f"positions of group {self._group}", partition.error, self._address)
        all_progress = {each.partition: self._progress(each) for each in found if each.offset >= 0}
        return {number: progress for number, progress in all_progress.items() if progress.note.topic_id == topic_id}

    def _progress(self, found: TopicPartition) -> Progress:
        note = Note.of(found.metadata or "")
        if note is None:
            raise PipelineError(
                f"group {self._group} is not a replay's: its offset of {found.topic}-{found.partition} has no note of "
                "a replay; choose another name"
            )
        return Progress(offset=found.offset, note=note)
