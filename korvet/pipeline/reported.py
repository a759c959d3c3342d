"""A report to the broker of the lake's contents: positions of a group.

Every Kafka client can see them. A topic with ``korvet.retention=archived`` keeps all records that are not below them.
A position is the next offset, with the leader epoch of the archived history.
"""

from __future__ import annotations

from typing import Final

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.lake import Proven

ARCHIVE_GROUP: Final = "korvet.archive"
"""The group whose positions say how far topics are archived."""


def report(broker: Broker, proven: Proven) -> None:
    """Commit a topic's proof at the broker.

    :raises PipelineError: if the broker refuses; the caller may try again.
    """
    positions = {
        (proven.topic, number): Position(offset=offset, leader_epoch=proven.leader_epochs.get(number))
        for number, offset in proven.offsets.items()
    }
    broker.commit(ARCHIVE_GROUP, positions)
