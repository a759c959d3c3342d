"""Where a replay is: offsets in the source, committed by its transactions in a group of its own.

They are committed for the partitions of the target, which exists as long as they matter; the offset is one in the
source. The metadata beside it says what the replay is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from korvet.pipeline.broker import TIMEOUT_S, explained
from korvet.pipeline.errors import BrokerUnreachable, PipelineError

GROUP_PREFIX: Final = "korvet-replay-"
_PAUSE_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The metadata of a position.

    :param job: the digest of table, range and target.
    :param version: of the table.
    :param topic_id: of the target: what was written into a topic that is no more counts no more.
    :param run: which start of the replay wrote this; that of a later one is greater.
    :param records: written so far by all runs, in this partition.
    """

    job: str
    version: int
    topic_id: str
    run: str
    records: int

    def to_json(self) -> str:
        return json.dumps({"korvet.replay": asdict(self)}, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The next offset to be read of a partition, and what is noted beside it."""

    offset: int
    note: Note


class Positions:
    """A connection to the group of a replay, a context manager. Not picklable.

    :param stable: positions that a transaction is about to change are waited for; a killed replay's until its timeout.
    """

    def __init__(self, settings: Mapping[str, str], name: str, topic: str, *, stable: bool = False) -> None:
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}
        isolation = "read_committed" if stable else "read_uncommitted"
        own = {"group.id": GROUP_PREFIX + name, "isolation.level": isolation, "enable.auto.commit": "false"}
        self._group, self._topic, self._address = own["group.id"], topic, settings["bootstrap.servers"]
        self._consumer = Consumer({**settings, **own, **quiet})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    @property
    def group(self) -> object:
        """As send_offsets_to_transaction takes it."""
        return self._consumer.consumer_group_metadata()

    def read(self, partitions: Iterable[int], topic_id: str, timeout_s: float = TIMEOUT_S) -> dict[int, Place]:
        """What was committed for those partitions. A transaction that is open may change it until init_transactions.

        :raises BrokerUnreachable: where no broker answered in time.
        :raises PipelineError: where the group is not a replay's.
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
                # That there is no coordinator now, as while Redis is away, comes back at once.
                failed = explained(f"positions of group {self._group}", error.args[0], self._address)
                if not isinstance(failed, BrokerUnreachable) or time.monotonic() > deadline - _PAUSE_S:
                    raise failed from None
            time.sleep(_PAUSE_S)
        for place in found:
            if place.error is not None:
                raise explained(f"positions of group {self._group}", place.error, self._address)
        places = {place.partition: self._place(place) for place in found if place.offset >= 0}
        return {partition: place for partition, place in places.items() if place.note.topic_id == topic_id}

    def _place(self, found: TopicPartition) -> Place:
        try:
            note = Note(**json.loads(found.metadata or "")["korvet.replay"])
        except (ValueError, KeyError, TypeError):
            raise PipelineError(
                f"group {self._group} is not a replay's: what it committed for {found.topic}-{found.partition} says "
                "nothing of one; choose another name"
            ) from None
        return Place(offset=found.offset, note=note)
