"""The driver's word to its tasks to stop: a group beside the positions' names the run that has to end.

A task reads it now and then, as it reads positions. Spark itself can only kill a running task, which would leave a
transaction open.
"""

from __future__ import annotations

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.replay.positions import GROUP_PREFIX
from korvet.pipeline.replay.sending import Target


def must_stop(broker: Broker, target: Target) -> bool:
    """True if this run of the replay has to end. A request to another run is ignored.

    :raises PipelineError:
    """
    return any(position.metadata == target.note.run for position in broker.committed(_group(target)).values())


def request_stop(broker: Broker, target: Target) -> bool:
    """Request all tasks of the run to end after their transactions. Returns true if the broker took the request."""
    try:
        broker.commit(
            _group(target), {(target.topic, 0): Position(offset=0, leader_epoch=None, metadata=target.note.run)}
        )
    except PipelineError:
        return False
    return True


def _group(target: Target) -> str:
    # No replay's name has a colon, so no other replay keeps positions in this group.
    return f"{GROUP_PREFIX}{target.name}:stop"
