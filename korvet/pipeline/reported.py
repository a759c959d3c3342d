"""What is in the lake, told to the broker: as offsets that a group has committed.

So every Kafka client sees it, and a topic with ``korvet.retention=archived`` keeps what is not below them. They are
next offsets, with the leader epoch of the history that was archived.
"""

from __future__ import annotations

from typing import Final

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.lake import Proven

ARCHIVE_GROUP: Final = "korvet.archive"
"""The group whose committed offsets say what is archived."""


def report(broker: Broker, proven: Proven) -> None:
    """Tell the broker what is proven of a topic.

    :raises PipelineError: where the broker does not take it; to be repeated then.
    """
    positions = {
        (proven.topic, number): Position(offset=offset, leader_epoch=proven.leader_epochs.get(number))
        for number, offset in proven.offsets.items()
    }
    broker.commit(ARCHIVE_GROUP, positions)
