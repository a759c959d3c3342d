"""Records that Redis keeps for an archive that does not come, asked of the broker."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from korvet.pipeline.broker import Broker, Partition
from korvet.pipeline.errors import UnknownTopic
from korvet.pipeline.report.figures import Unarchived
from korvet.pipeline.reported import ARCHIVE_GROUP

LATE: Final = timedelta(minutes=10)
"""An archive that has not got to records of that age seems to have stopped."""


def unarchived(broker: Broker, topics: Iterable[str]) -> list[Unarchived]:
    """The topics with ``korvet.retention=archived`` that have records older than `LATE` and not archived, by name.

    :param topics: none means all.
    :raises BrokerUnreachable, PipelineError:
    """
    waiting = [(topic, _late_offsets(broker, topic)) for topic in topics or broker.topic_names()]
    return [Unarchived(topic=topic, offsets=offsets) for topic, offsets in waiting if offsets]


def _late_offsets(broker: Broker, topic: str) -> int:
    with suppress(UnknownTopic):
        if broker.topic_settings(topic).get("korvet.retention") == "archived":
            return _behind(broker, [(topic, number) for number in broker.topics([topic])[topic].partitions])
    return 0


def _behind(broker: Broker, partitions: list[Partition]) -> int:
    """Offsets from the archived one to the first record that is not late. Open transactions do not count."""
    late_ms = round((datetime.now(UTC) - LATE).timestamp() * 1000)
    recent = broker.at_times(dict.fromkeys(partitions, late_ms), committed_only=True)
    ends, starts = broker.latest(partitions, committed_only=True), broker.earliest(partitions)
    archived = broker.committed(ARCHIVE_GROUP)
    behind = 0
    for each in partitions:
        begin = max(starts[each].offset, archived[each].offset if each in archived else 0)
        end = recent[each].offset if recent[each].offset >= 0 else ends[each].offset
        behind += max(0, end - begin)
    return behind
