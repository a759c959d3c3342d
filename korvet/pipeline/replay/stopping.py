"""How the driver tells its tasks to stop: a group beside that of the positions has the run committed that is to end.

A task asks for it now and then, as it asks for positions; Spark has no way to tell a running task anything but to kill
it, which would leave a transaction open.
"""

from __future__ import annotations

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.replay.positions import GROUP_PREFIX
from korvet.pipeline.replay.sending import Target


def is_told_to_stop(broker: Broker, target: Target) -> bool:
    """Whether this run of the replay is to end; what others were told is no matter.

    :raises PipelineError:
    """
    return any(place.metadata == target.note.run for place in broker.committed(_group(target)).values())


def tell_to_stop(broker: Broker, target: Target) -> bool:
    """Tell all tasks of the run to end after their transactions; whether the broker took it."""
    try:
        broker.commit(
            _group(target), {(target.topic, 0): Position(offset=0, leader_epoch=None, metadata=target.note.run)}
        )
    except PipelineError:
        return False
    return True


def _group(target: Target) -> str:
    # No replay's name has a colon, so that this is no other's group of positions.
    return f"{GROUP_PREFIX}{target.name}:stop"
