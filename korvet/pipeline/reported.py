"""A report to the broker of the lake's contents: positions of a group.

Every Kafka client can see them. A topic with ``korvet.retention=archived`` keeps all records that are not below them.
A position is the next offset, with the leader epoch of the archived history. Its metadata names the lake: a topic
belongs to the first one that reports, so that no archive into another lake has records removed which the first lacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.plan.proofs import Proven

log = structlog.get_logger()

ARCHIVE_GROUP: Final = "korvet.archive"
"""The group that holds the archived ends of topics as its offsets."""


_LAKE: Final = "lake "
"""The prefix of the metadata, before the id of the lake's raw table. Reports of korvet up to 0.7 have none."""


def report(broker: Broker, proven: Proven, lake: str, partitions: Iterable[int], *, take_over: bool) -> bool:
    """Commit a topic's proof at the broker; returns whether the topic belongs to this lake, or to none.

    If two archives begin in one instant, or an archive takes over the topic of a running one, the later one has the
    topic, because each report checks first.

    :param lake: the id of the raw table.
    :param partitions: the topic's.
    :param take_over: report also if the topic belongs to another lake.
    :raises PipelineError: if the broker refuses; the caller may try again.
    """
    committed = broker.committed(ARCHIVE_GROUP, partitions=[(proven.topic, number) for number in partitions])
    texts = (position.metadata for position in committed.values())
    found = {text.removeprefix(_LAKE) for text in texts if text.startswith(_LAKE)}
    if found and lake not in found and not take_over:
        log.warning(
            "the archive commits no offsets: those of an archive into another lake count for the topic's retention; "
            "--take-over has this lake's count instead",
            topic=proven.topic,
            lake=lake,
            other_lake=sorted(found),
        )
        return False
    positions = {
        (proven.topic, number): Position(
            offset=offset, leader_epoch=proven.leader_epochs.get(number), metadata=f"{_LAKE}{lake}"
        )
        for number, offset in proven.offsets.items()
    }
    broker.commit(ARCHIVE_GROUP, positions)
    return True
